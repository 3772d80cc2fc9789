"""The agent of agent.c for machines without a C compiler, and slower: `agent.py [PIPE LINES]`."""

import os
import sys
import time


def main() -> None:
    """Say OK at the start and for every line; tell the pipe when the first lines came."""
    pipe = os.open(sys.argv[1], os.O_WRONLY) if len(sys.argv) > 2 else -1
    stamps = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    os.write(1, b"OK\n")
    while data := os.read(0, 65_536):
        for _ in range(data.count(b"\n")):
            if stamps > 0:
                stamps -= 1
                os.write(pipe, b"%d\n" % time.monotonic_ns())
            os.write(1, b"OK\n")


main()
