"""After the queue connection was lost: the old server process ends, and rows and memory are brought to agree.

Nothing is claimed before. A row of ours that is not in memory, whose claim was cut off, is given back. A row in memory
that is not ours in the database is let go: a server that took over from another may not have heard of the claim, and
whoever has the row now works on it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from scheduler.drivers.postgres import Link
from scheduler.drivers.postgres_answers import Answer, Failure, Rows
from scheduler.drivers.refusals import Refusals
from scheduler.drivers.sql import Query
from scheduler.drivers.waiting import Loop
from scheduler.model.events import Event, Strayed, Woken
from scheduler.policy.core import Core

AGAIN_S: Final = 1.0  # until a statement that was refused is tried again


class Rejoin:
    """Works on the queue connection of one daemon, each time it is up again."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        queries: Mapping[str, Query],
        core: Core,
        group: str,
        tell: Callable[[Event], None],
        refusals: Refusals,
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
                self._tell(Strayed(tuple(row for row in rows if row[0] in strayed)))
            self._give_back(owner, done)

        self._ask("not_ours", values, compared, lambda: self._let_go(owner, done))

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
                self._refusals.taken(name)
                then(answer)
            elif not answer.lost:
                self._refusals.refused(name, answer)
                self._loop.at(self._loop.now + AGAIN_S, again)

        self._link.ask(self._queries[name], values, answered)
