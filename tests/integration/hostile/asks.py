"""Asks the database something, again and again, and never reads an answer."""

import os
import sys

print("OK", flush=True)
sys.stdin.readline()
while True:
    os.write(1, b"DB: x\n" * 1000)
