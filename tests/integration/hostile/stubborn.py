"""Ignores the end of its input and every signal that it may, and never ends an item."""

import signal
import sys
import time

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
print("OK", flush=True)
sys.stdin.readline()
while True:
    time.sleep(60)
