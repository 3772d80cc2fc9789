"""`floods.py FD TEXT`: writes a gigabyte of this text, line after line, to its stdout (1) or stderr (2)."""

import os
import sys

fd, text = int(sys.argv[1]), os.fsencode(sys.argv[2]) + b"\n"
some = text * (65_536 // len(text))
print("OK", flush=True)
sys.stdin.readline()
for _ in range((1 << 30) // len(some)):
    os.write(fd, some)
