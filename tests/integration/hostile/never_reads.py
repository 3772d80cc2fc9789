"""Says that it is ready and never reads anything."""

import time

print("OK", flush=True)
while True:
    time.sleep(60)
