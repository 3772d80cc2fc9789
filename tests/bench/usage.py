"""Count what work costs: CPU time from /proc and the clocks of processes, WAL from the server.

The processes of the server are looked at again and again, so that the role of one that ends is known.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import psycopg

from tests.bench.rates import Cost, Look, Process, Role, cost_of, spent

EACH_S: Final = 0.2  # between two looks at the server
TRIES: Final = 10  # to find the same processes before and after a look
TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PROC: Final = Path("/proc")
WAL: Final = b"select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
OWN: Final = re.compile(
    r"postgres: (\S+: )?(checkpointer|background writer|walwriter|autovacuum|logical replication|archiver|walsender"
    r"|walreceiver|startup|stats collector)"
)

RoleOf = Callable[[int, str], Role]


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that work: `root` and its descendants; who of them drives, and who is an agent."""

    root: int
    role_of: RoleOf


def this_process() -> Workers:
    """Return the bench itself as the driver, with its children as agents."""
    own = os.getpid()
    return Workers(own, lambda pid, _: "driver" if pid == own else "agents")


def one_program(pid: int) -> Workers:
    """Return a process and all that it starts, as the driver."""
    return Workers(pid, lambda _pid, _title: "driver")


class Meter:
    """Counts from `begin` to `cost`, again and again."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._backend = connection.info.backend_pid
        self._postmaster = _parent(self._backend)
        self._thread: Thread | None = None

    def begin(self, workers: Workers, apart: Set[int] = frozenset()) -> None:
        """Count from now on, without the backends `apart`, which are the bench's own."""
        self.end()
        self._role_of = _server_roles(self._postmaster, {self._backend, *apart})
        self._workers, self._over = workers, Event()
        self._wal = self._wal_bytes()
        self._server = [look(self._postmaster, self._role_of)]
        self._first = look(workers.root, workers.role_of)
        self._thread = Thread(target=self._keep_looking, args=(self._over,), daemon=True)
        self._thread.start()

    def cost(self, jobs: int) -> Cost:
        """Return what each of so many jobs has cost since `begin`."""
        last = look(self._workers.root, self._workers.role_of)
        self.end()
        self._server.append(look(self._postmaster, self._role_of))
        wal = self._wal_bytes() - self._wal
        return cost_of(spent([self._first, last], "agents"), spent(self._server, "backends"), wal, jobs)

    def end(self) -> None:
        """Stop looking."""
        if self._thread:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _keep_looking(self, over: Event) -> None:
        while not over.wait(EACH_S):
            self._server.append(look(self._postmaster, self._role_of))

    def _wal_bytes(self) -> int:
        row = self._connection.execute(WAL).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def metered(conninfo: str) -> Iterator[Meter]:
    """Yield a meter on that server."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        meter = Meter(connection)
        try:
            yield meter
        finally:
            meter.end()


def look(root: int, role_of: RoleOf) -> Look:
    """Return a process and its descendants; none of them ended meanwhile, or its time would be lost or doubled."""
    found: Look = {}
    for _ in range(TRIES):
        pids = _tree(root)
        with suppress(OSError):
            found = {pid: _process(pid, role_of) for pid in pids}
            if _tree(root) == pids:
                break
    return found


def _process(pid: int, role_of: RoleOf) -> Process:
    title = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    fields = _stat(pid)
    return Process(role_of(pid, title), _clock_ns(pid), (int(fields[13]) + int(fields[14])) * TICK_NS)


def _clock_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process, those that ended too; see clock_getcpuclockid(3)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def _tree(root: int) -> list[int]:
    """Return the pids of a process and of its descendants."""
    return [root, *(pid for child in _children(root) for pid in _tree(child))]


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it is gone."""
    with suppress(OSError):
        texts = [path.read_text() for path in (PROC / str(pid) / "task").glob("*/children")]
        return [int(word) for text in texts for word in text.split()]
    return []


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, which is number 3 in proc(5)."""
    return (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()


def _server_roles(postmaster: int, apart: Set[int]) -> RoleOf:
    def role(pid: int, title: str) -> Role:
        if pid in apart:
            return "bench"
        return "server" if pid == postmaster or OWN.match(title) else "backends"

    return role
