"""The agent of agent.c for machines without a C compiler, and slower: `agent.py [PIPE [LINES]]`."""

import os
import sys
import time

PIPE = os.open(sys.argv[1], os.O_WRONLY) if len(sys.argv) > 1 else -1


def stamp() -> None:
    """Tell the pipe that a line is held."""
    os.write(PIPE, b"%d\n" % time.monotonic_ns())


def obey(line: bytes) -> None:
    """Do what the line asks for, mostly nothing."""
    word, _, rest = line.partition(b" ")
    if word in (b"stamp", b"gate"):
        stamp()
    if word == b"gate":
        os.close(os.open(rest, os.O_RDONLY))
    if word == b"sleep":
        time.sleep(int(rest.split()[0]) / 1000)


def main() -> None:
    """Say OK at the start and for every line."""
    stamps = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    os.write(1, b"OK\n")
    while data := os.read(0, 65_536):
        for line in data.splitlines():
            if stamps > 0:
                stamps -= 1
                stamp()
            if line[:1] in b"sg":
                obey(line)
            os.write(1, b"OK\n")


main()
