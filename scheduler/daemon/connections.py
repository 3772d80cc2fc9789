"""The connections of a daemon to the database: which of them fail, and what is done when the queue connection is back.

While a connection fails it is tried again every few seconds, and a line for each try would bury all others: it is
logged when that begins, when the reason changes and when it is over (ConnectionLog). `drover status` shows it as long
as it lasts. Statements that are refused are the matter of drivers/statements.py.

After the queue connection was lost its old server process is ended, and rows and memory are compared (Reconcile).
Nothing is claimed before. A row of ours that is not in memory, whose claim was cut off, is given back. A row in memory
that is not ours in the database is let go: a server that took over from another may not have heard of the claim, and
whoever has the row now works on it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import Answer, Failure, Query, Rows
from scheduler.drivers.statements import RefusedStatements
from scheduler.model.events import Event, RowsLost, Woken
from scheduler.policy.core import Core

SAID: Final = 8  # reasons of one trouble that are not logged again: two that alternate are no news
AGAIN_S: Final = 1.0  # until a statement that was refused is tried again


@dataclass(slots=True)
class _Trouble:
    since: float
    reason: str
    said: deque[str] = field(default_factory=lambda: deque(maxlen=SAID))


class ConnectionLog:
    """The connections of one daemon that fail, by name."""

    def __init__(self, say: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._found: dict[str, _Trouble] = {}

    def failed(self, what: str, reason: str, effect: str = "") -> None:
        """Note that it failed, and log it, with its effect, unless that was logged before."""
        trouble = self._found.setdefault(what, _Trouble(self._clock(), reason))
        trouble.reason = reason
        if reason not in trouble.said:
            trouble.said.append(reason)
            self._say("warning", f"{what}: {reason}{effect}")

    def over(self, what: str) -> bool:
        """Log that it is up again, and for how long it was not; False if it has not failed."""
        trouble = self._found.pop(what, None)
        if trouble is not None:
            self._say("info", f"{what}: up again after {self._clock() - trouble.since:.0f} s")
        return trouble is not None

    def shown(self) -> list[dict[str, Any]]:
        """Return what fails now: what, why, and for how many seconds."""
        now = self._clock()
        return [
            {"what": what, "reason": trouble.reason, "seconds": round(now - trouble.since, 1)}
            for what, trouble in self._found.items()
        ]


class Reconcile:
    """Works on the queue connection of one daemon, each time it is up again."""

    def __init__(
        self,
        loop: Loop,
        link: Connection,
        queries: Mapping[str, Query],
        core: Core,
        group: str,
        tell: Callable[[Event], None],
        refusals: RefusedStatements,
    ) -> None:
        self._loop, self._link, self._queries, self._core = loop, link, queries, core
        self._group, self._tell, self._refusals = group, tell, refusals

    def begin(self, owner: str, done: Callable[[], None]) -> None:
        """The connection is up again; `done` is called when rows and memory agree, unless it is lost before."""
        old = self._link.old_backend
        if old is None:
            return self._let_go(owner, done)
        return self._link.ask(self._queries["end_backend"], old._asdict(), lambda _: self._let_go(owner, done))

    def _let_go(self, owner: str, done: Callable[[], None]) -> None:
        rows = self._core.in_hand()
        values = {"owner": owner, "pks": [pk for pk, _ in rows], "attempts": [attempt for _, attempt in rows]}

        def compared(answer: Rows) -> None:
            strayed = {int(pk or 0) for (pk,) in answer.rows}
            if strayed:
                self._tell(RowsLost(tuple(row for row in rows if row[0] in strayed)))
            self._give_back(owner, done)

        self._ask("find_lost", values, compared, lambda: self._let_go(owner, done))

    def _give_back(self, owner: str, done: Callable[[], None]) -> None:
        values = {"group": self._group, "owner": owner, "live": self._core.live_rows(), "age": 0.0}

        def compared(_: Rows) -> None:
            done()
            self._tell(Woken())

        self._ask("rescue", values, compared, lambda: self._give_back(owner, done))

    def _ask(
        self, name: str, values: Mapping[str, object], then: Callable[[Rows], None], again: Callable[[], None]
    ) -> None:
        def answered(answer: Answer) -> None:
            if not isinstance(answer, Failure):
                self._refusals.accepted(name)
                then(answer)
            elif not answer.lost:
                self._refusals.refused(name, answer)
                self._loop.at(self._loop.now + AGAIN_S, again)

        self._link.ask(self._queries[name], values, answered)
