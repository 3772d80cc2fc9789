"""`drover` with what the suite needs to see and to break: `python -m tests.faults.launcher run ...`.

FAULTS_GAPS names a file into which the time between two waits of the loop is written as it happens, so that kill -9
loses none: how many gaps of less than 2^n microseconds for n from 0, then the longest, all in nanoseconds and as 64-bit
integers. Time in which the kernel had no processor for us is not the daemon's, and left out (schedstat). FAULTS_MUTANT
names a mutant, FAULTS_POINTS the failpoints (failpoints.py). FAULTS_SSH are other limits of SSH hosts, as a JSON object
of fields of SshSettings.
"""

import json
import mmap
import os
import select
import sys
import time
from dataclasses import MISSING, fields
from typing import Any

BUCKETS = 40
WORD = 8
EPOLL = select.epoll
WORTH_NS = 2_000_000  # a gap of so much is worth a look at what the kernel did


class Meter:
    """An epoll that knows how long nobody has waited for it."""

    def __init__(self) -> None:
        self._epoll = EPOLL()
        for name in ("register", "modify", "unregister", "close"):
            setattr(self, name, getattr(self._epoll, name))
        file = os.open(os.environ["FAULTS_GAPS"], os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, (BUCKETS + 1) * WORD)
        self._cells = memoryview(mmap.mmap(file, 0)).cast("Q")
        os.close(file)
        self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY)
        self._since = 0
        self._waited = 0

    def poll(self, timeout: float, maxevents: int = -1) -> Any:
        if self._since:
            gap = time.monotonic_ns() - self._since
            if gap > WORTH_NS:
                gap -= self._kernel_ns() - self._waited
            self._cells[max(gap, 1000).bit_length() - 10] += 1
            self._cells[BUCKETS] = max(self._cells[BUCKETS], gap)
        found = self._epoll.poll(timeout, maxevents)
        self._waited, self._since = self._kernel_ns(), time.monotonic_ns()
        return found

    def _kernel_ns(self) -> int:
        return int(os.pread(self._schedstat, 100, 0).split()[1])


def main() -> int:
    if mutant := os.environ.get("FAULTS_MUTANT"):
        from tests.faults.mutants import plant

        plant(mutant)
    if points := os.environ.get("FAULTS_POINTS"):
        from tests.faults.failpoints import arm

        arm(points)
    if limits := os.environ.get("FAULTS_SSH"):
        set_defaults(json.loads(limits))
    if "FAULTS_GAPS" in os.environ:
        select.epoll = Meter  # type: ignore[misc, assignment]
    from scheduler.cli.main import main as drover

    return drover(sys.argv[1:])


def set_defaults(changes: dict[str, Any]) -> None:
    """Let these be the limits of hosts, of which no configuration says anything."""
    from scheduler.drivers.ssh_protocol import SshSettings

    defaults = {each.name: each.default for each in fields(SshSettings) if each.default is not MISSING}
    SshSettings.__init__.__defaults__ = tuple((defaults | changes).values())


if __name__ == "__main__":
    sys.exit(main())
