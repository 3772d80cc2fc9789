"""Failpoints: this process fails where a test says, just before or just after a statement or a write to a pipe.

    FAULTS_POINTS=end_and_claim:before=kill@3,write:after=stop,save:after=error

A point is a statement by its name in queries.sql, or `type.name` of an agent's; one without a name is called by its
connection and its first word (`queue.set`, `expansion.declare`). `spawn` starts a process, `write` gives a line to an
agent, `write_rest` what its pipe had no room for. `before`: nothing has been sent. `after`: the server has carried it
out, or the pipe has taken it, and nobody here knows yet. `kill` and `stop` send this process SIGKILL and SIGSTOP;
`error` simulates a failure outside: the connection is lost, the process cannot be started, the agent's pipe is broken.
Each happens once, at the n-th time (`@n`, else the first).

The launcher reads the variable and replaces what the drivers call: libpq's connection, `os.write`, and the functions
that make the pipes and the pidfd of a child. The product has no hook for it, and its own functions are not replaced,
which would do nothing where they are compiled.
"""

import errno
import logging
import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from scheduler.drivers import local_process
from scheduler.drivers.os_calls import Ends, NoPidfdError, pidfd_of, pipes
from scheduler.drivers.statements import load, texts
from scheduler.package_data import schema_dir

VARIABLE: Final = "FAULTS_POINTS"
GRAMMAR: Final = re.compile(r"([\w.]+):(before|after)=(error|kill|stop)(?:@([1-9][0-9]*))?")
WRITES: Final = frozenset(("spawn", "write", "write_rest"))
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LOGGED: Final = "failpoint"
GOOD: Final = frozenset((pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY))
Reach = Callable[[str, str], bool]

log = logging.getLogger("drover")


@dataclass(slots=True)
class Point:
    """Where, before or after, what to do, and how many times more it is passed before that; 0 is over."""

    name: str
    when: str
    action: str
    left: int = 1


class Points:
    """The points that are armed."""

    def __init__(self, points: list[Point]) -> None:
        self._points: dict[tuple[str, str], list[Point]] = {}
        for point in points:
            self._points.setdefault((point.name, point.when), []).append(point)

    def reach(self, name: str, when: str) -> bool:
        """Pass a point, and die or stop there; true if the caller is to fail."""
        due = [point for point in self._points.get((name, when), ()) if _count_down(point)]
        for point in due:
            log.warning("%s %s:%s: %s", LOGGED, name, when, point.action)
            if point.action in SIGNALS:
                os.kill(os.getpid(), SIGNALS[point.action])
        return any(point.action == "error" for point in due)


def arm(text: str) -> None:
    """Replace what the drivers call at a point. Errors: ValueError."""
    points = Points(parse(text))
    _replace_libpq(points.reach)
    _replace_pipes(points.reach)


def parse(text: str) -> list[Point]:
    """Read the points. Errors: ValueError, a line for each mistake."""
    words = [word.strip() for word in text.split(",")]
    found = [(word, GRAMMAR.fullmatch(word)) for word in words]
    known = WRITES | _statements()
    wrong = [f"{VARIABLE}: want name:before|after=error|kill|stop[@n] (got {word!r})" for word, m in found if m is None]
    wrong += [f"{VARIABLE}: no statement {m[1]!r}" for _, m in found if m and m[1] not in known and "." not in m[1]]
    if wrong:
        raise ValueError("\n".join(wrong))
    return [Point(m[1], m[2], m[3], int(m[4] or 1)) for _, m in found if m]


@cache
def _statements() -> frozenset[str]:
    return frozenset(texts((schema_dir() / "queries.sql").read_text()))


def _count_down(point: Point) -> bool:
    point.left -= 1
    return point.left == 0


# ---- statements


class Connection:
    """A connection of libpq that can fail where its own errors occur, and are taken for its loss."""

    nonblocking = property(fset=lambda self, value: setattr(self._pg, "nonblocking", value))

    def __init__(self, pg: pq.abc.PGconn, name: str, names: dict[bytes, str], reach: Reach) -> None:
        self._pg, self._name, self._names, self._reach = pg, name, names, reach
        self._asked = ""  # the point of the statement under way; of one that is to be prepared, none
        self._is_done = False  # it is: what has come is no error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pg, name)

    def send_prepare(self, *words: Any) -> None:
        self._asked = ""
        self._pg.send_prepare(*words)

    def send_query_params(self, sql: bytes, params: Sequence[bytes | None] | None) -> None:
        self._ask(self._names.get(sql) or f"{self._name}.{sql.split()[0].decode().lower()}")
        self._pg.send_query_params(sql, params)

    def send_query_prepared(self, name: bytes, params: Sequence[bytes | None] | None) -> None:
        self._asked = ""
        point = name.rpartition(b"/")[0].decode()
        if point != "end_and_claim" or not _asks_for_nothing(params or ()):
            self._ask(point)
        self._pg.send_query_prepared(name, params)

    def get_result(self) -> pq.abc.PGresult | None:
        result = self._pg.get_result()
        if result is not None:
            self._is_done = result.status in GOOD
        elif self._asked and self._is_done and self._reach(self._asked, "after"):
            raise psycopg.OperationalError(f"{LOGGED}: not heard")
        return result

    def _ask(self, name: str) -> None:
        self._asked, self._is_done = name, False
        if self._reach(name, "before"):
            raise psycopg.OperationalError(f"{LOGGED}: not sent")


def _asks_for_nothing(params: Sequence[bytes | None]) -> bool:
    """Return whether all arrays of a statement are empty: claims and ends that are planned ahead are no points."""
    arrays = [param for param in params if param is not None and param.startswith(b"{")]
    return bool(arrays) and all(array == b"{}" for array in arrays)


def _replace_libpq(reach: Reach) -> None:
    connect = pq.PGconn.connect_start
    queries = load((schema_dir() / "queries.sql").read_text()).values()
    names = {query.sql.encode(): query.name for query in queries}  # behind a pooler none is prepared

    def start(conninfo: bytes) -> Connection:
        name = str(conninfo_to_dict(conninfo.decode())["fallback_application_name"])
        return Connection(connect(conninfo), name.split()[1], names, reach)

    pq.PGconn = SimpleNamespace(connect_start=start)  # type: ignore[misc, assignment]


# ---- processes and pipes


class Children:
    """What a child of ours is started with and what is written to its stdin, each of which can fail."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._write = reach, os.write
        self._coming = 0  # our end of the stdin of the child that is being started
        self._inputs: dict[int, int] = {}  # such ends, with the numbers of their pipes

    def pipes(self) -> tuple[Ends, Ends]:
        if self._reach("spawn", "before"):
            raise OSError(errno.EAGAIN, LOGGED)
        ours, theirs = pipes()
        self._coming = ours[0]
        return ours, theirs

    def pidfd_of(self, pid: int) -> int:
        if self._reach("spawn", "after"):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise NoPidfdError(errno.EMFILE, LOGGED)
        with suppress(OSError):  # a short input has been written by now, and its pipe closed
            self._inputs[self._coming] = os.fstat(self._coming).st_ino
        return pidfd_of(pid)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if fd not in self._inputs or os.fstat(fd).st_ino != self._inputs[fd]:
            return self._write(fd, data)
        name = "write_rest" if isinstance(data, memoryview) else "write"
        if self._reach(name, "before"):
            raise BrokenPipeError(errno.EPIPE, LOGGED)
        sent = self._write(fd, data)
        if self._reach(name, "after"):
            raise BrokenPipeError(errno.EPIPE, LOGGED)
        return sent


def _replace_pipes(reach: Reach) -> None:
    children = Children(reach)
    local_process.pipes, local_process.pidfd_of = children.pipes, children.pidfd_of  # type: ignore[attr-defined]
    os.write = children.write  # type: ignore[assignment]
