"""Writes a gigabyte without one newline."""

import os
import sys

print("OK", flush=True)
sys.stdin.readline()
for _ in range(1 << 14):
    os.write(1, b"x" * 65_536)
