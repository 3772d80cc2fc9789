"""Ending what a test has left in a spool. A link may name any process there: it was written to be refused."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
LARGEST = 1 << 22


def end_kept(links: Iterable[Path]) -> None:
    """Kill the groups of keepers, waiters and commands that these links name, each only if it is what it was then."""
    for link in links:
        if link.name in ("state", "pid") and link.is_symlink():
            words = os.readlink(link).split()
            if link.name == "pid" or words[2:] == [BOOT.read_text().strip()]:
                for pid, began in zip(words[::2], words[1::2], strict=False):
                    _end(pid, began)


def _end(word: str, began: str) -> None:
    """Kill a process group: never that of a number that means several, nor our own."""
    if not (word.isascii() and word.isdigit() and 1 < int(word) <= LARGEST):
        return
    pid = int(word)
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if stat[2:4] == [word, word] and stat[19] == began and pid not in (os.getpid(), os.getpgrp()):
            os.killpg(pid, signal.SIGKILL)
