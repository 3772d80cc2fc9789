"""`leaves_a_child.py [setsid]`: dies at once; its child keeps its pipes and babbles on, in its group or out of it."""

import contextlib
import os
import sys
import time

print("OK", flush=True)
sys.stdin.readline()
if os.fork():
    os._exit(3)
if "setsid" in sys.argv:
    os.setsid()
while True:
    with contextlib.suppress(OSError):
        os.write(1, b"Heartbeat\n")
    time.sleep(0.01)
