"""Stops itself with the item in hand: only SIGKILL reaches it."""

import os
import signal
import sys

print("OK", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGSTOP)
