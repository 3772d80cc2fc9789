"""Never reads, and says OK again and again, one at a time, as if it did everything it is told."""

import os
import time

while True:
    os.write(1, b"OK\n")
    time.sleep(0.002)  # so that no two of them are read at once
