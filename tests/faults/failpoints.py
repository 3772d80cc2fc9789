"""Failpoints: this process fails where a test says, just before or just after a statement or a write to a pipe.

    FAULTS_POINTS=end_and_claim:before=kill@3,write:after=stop,save:after=error

A point is a statement by its name in queries.sql, or `type.name` of an agent's; one without a name is called by its
connection and its first word (`queue.set`, `expansion.declare`). `spawn` starts a process, `write` gives a line to an
agent, `write_rest` what its pipe had no room for. `before`: nothing has been sent. `after`: the server has carried it
out, or the pipe has taken it, and nobody here knows yet. `kill` and `stop` send this process SIGKILL and SIGSTOP;
`error` simulates a failure outside: the connection is lost, the process cannot be started, the agent's pipe is broken.
Each happens once, at the n-th time (`@n`, else the first).

The launcher reads the variable and replaces functions of the drivers before the daemon starts. The product has no hook
for it.
"""

import errno
import logging
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from scheduler.drivers.libpq import Session, Statement
from scheduler.drivers.pipes import CLOSED, Pipes
from scheduler.drivers.processes import LocalProcess, Processes
from scheduler.drivers.sql import Rows, load
from scheduler.drivers.system import Ends, NoPidfdError, close_all
from scheduler.model.events import Spawn
from scheduler.package_data import schema_dir

VARIABLE: Final = "FAULTS_POINTS"
GRAMMAR: Final = re.compile(r"([\w.]+):(before|after)=(error|kill|stop)(?:@([1-9][0-9]*))?")
WRITES: Final = frozenset(("spawn", "write", "write_rest"))
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LOGGED: Final = "failpoint"

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
    """Replace the functions of the drivers that reach a point. Errors: ValueError."""
    points = Points(parse(text))
    _replace_session(points.reach)
    _replace_processes(points.reach)


def parse(text: str) -> list[Point]:
    """Read the points. Errors: ValueError, a line for each mistake."""
    words = [word.strip() for word in text.split(",")]
    found = [(word, GRAMMAR.fullmatch(word)) for word in words]
    known = WRITES | load((schema_dir() / "queries.sql").read_text()).keys()
    wrong = [f"{VARIABLE}: want name:before|after=error|kill|stop[@n] (got {word!r})" for word, m in found if m is None]
    wrong += [f"{VARIABLE}: no statement {m[1]!r}" for _, m in found if m and m[1] not in known and "." not in m[1]]
    if wrong:
        raise ValueError("\n".join(wrong))
    return [Point(m[1], m[2], m[3], int(m[4] or 1)) for _, m in found if m]


def _count_down(point: Point) -> bool:
    point.left -= 1
    return point.left == 0


def _replace(owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


# ---- statements


def _replace_session(reach: Callable[[str, str], bool]) -> None:
    """Both places are where libpq's own errors are caught, and taken for the loss of the connection."""

    def before(write: Callable[..., None]) -> Callable[..., None]:
        def _write(session: Session, statement: Statement) -> None:
            is_sent = not statement.is_named or statement.query in session.prepared  # else it is to be prepared first
            if is_sent and reach(_name(session, statement), "before"):
                raise psycopg.OperationalError(f"{LOGGED}: not sent")
            write(session, statement)

        return _write

    def after(finish: Callable[..., None]) -> Callable[..., None]:
        def _finish(session: Session, statement: Statement) -> None:
            is_done = isinstance(session.answer, Rows) and session.preparing is None
            if is_done and reach(_name(session, statement), "after"):
                raise psycopg.OperationalError(f"{LOGGED}: not heard")
            finish(session, statement)

        return _finish

    _replace(Session, "_write", before)
    _replace(Session, "_finish", after)


def _name(session: Session, statement: Statement) -> str:
    return statement.query.name or f"{session.name.split()[0]}.{statement.query.sql.split()[0].lower()}"


# ---- processes and pipes


def _replace_processes(reach: Callable[[str, str], bool]) -> None:
    def starting(start: Callable[..., tuple[LocalProcess, Ends]]) -> Callable[..., tuple[LocalProcess, Ends]]:
        def _start(processes: Processes, spawn: Spawn) -> tuple[LocalProcess, Ends]:
            if reach("spawn", "before"):
                raise OSError(errno.EAGAIN, LOGGED)
            process, ends = start(processes, spawn)
            if reach("spawn", "after"):  # leave nothing of it, as `start` does when it fails half-way
                process.kill()
                os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
                process.reap()
                close_all(ends)
                raise NoPidfdError(errno.EMFILE, LOGGED)
            return process, ends

        return _start

    _replace(Processes, "_start", starting)
    _replace(Pipes, "write", _writing("write", reach, lambda pipes: not pipes.unsent))
    _replace(Pipes, "_write_rest", _writing("write_rest", reach, lambda pipes: True))


def _writing(
    name: str, reach: Callable[[str, str], bool], is_write: Callable[[Pipes], bool]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def writing(write: Callable[..., None]) -> Callable[..., None]:
        def _write(pipes: Pipes, *data: bytes) -> None:
            is_so = pipes.stdin != CLOSED and is_write(pipes)
            if is_so and reach(name, "before"):
                return pipes._broken()
            write(pipes, *data)
            return pipes._broken() if is_so and reach(name, "after") else None

        return _write

    return writing
