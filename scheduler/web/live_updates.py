"""Server-sent events: one session listens to the database, and each browser that shows a page is told of changes.

A message says only that something changed, and of which job if a page is about one. A browser then asks for its page
again, by the rights of the person who has signed in there.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import sql

CHANNELS: Final = (
    "drover_event", "drover_queue", "drover_output", "drover_change", "drover_command", "drover_recovery",
)  # fmt: skip
OF_JOBS: Final = ("drover_event", "drover_output")  # whose payload has the numbers of jobs
EVERY: Final = frozenset({0})  # in place of numbers: this may concern any job
NUMBER: Final = re.compile(r'(?:"jq_pk" ?: ?|[\[ ,])(\d{1,19})')
MOST_BROWSERS: Final = 500
MOST_OF_VISITOR: Final = 100  # of one role, or of one address that has not signed in
MOST_OF_STRANGERS: Final = 250  # of all who have not signed in: who is on this machine may give any address
OF_ROLE: Final = "role "  # before the name of a role, in the name of a visitor
ALIVE_S: Final = 20.0  # a proxy may cut what is silent for longer
PAUSE_S: Final = 0.1  # between two messages to one browser
POLL_S: Final = 2.0  # of a replica, which announces nothing
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0)


class Listener:
    """One browser: wakes when something is announced of its job, or anything if it has none."""

    def __init__(self, job: int | None) -> None:
        self.job = job
        self.changed = asyncio.Event()

    def tell(self, jobs: frozenset[int]) -> None:
        if self.job is None or jobs is EVERY or self.job in jobs:
            self.changed.set()


class Changes:
    """The session that listens, and the browsers that wait."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._listeners: set[Listener] = set()
        self._places: Counter[str] = Counter()  # by visitor
        self._is_over = False

    def has_place(self, visitor: str) -> bool:
        """Return whether one more browser of this visitor may wait: `role NAME`, or an address."""
        if not visitor.startswith(OF_ROLE) and self._strangers() >= MOST_OF_STRANGERS:
            return False
        return self._places.total() < MOST_BROWSERS and self._places[visitor] < MOST_OF_VISITOR

    def _strangers(self) -> int:
        return sum(number for visitor, number in self._places.items() if not visitor.startswith(OF_ROLE))

    @contextmanager
    def place(self, visitor: str) -> Iterator[None]:
        """Take a place for as long as the block lasts."""
        self._places[visitor] += 1
        try:
            yield
        finally:
            self._places[visitor] -= 1
            self._places += Counter()  # leaves out those with none

    async def listen(self) -> None:
        """Listen for ever; after a lost connection all pages are to be drawn anew."""
        tries = 0
        while True:
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    tries = 0
                    await self._pass_on(connection)
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    async def messages(self, job: int | None, may_go_on: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield the server-sent events of one browser, until it disconnects, or its person is signed out."""
        listener = Listener(job)
        self._listeners.add(listener)
        try:
            yield "retry: 2000\nevent: begin\ndata:\n\n"
            while not self._is_over:
                try:
                    await asyncio.wait_for(listener.changed.wait(), ALIVE_S)
                except TimeoutError:
                    yield ": alive\n\n"
                    if may_go_on():
                        continue
                if not may_go_on():
                    return
                listener.changed.clear()
                yield "event: change\ndata:\n\n"
                await asyncio.sleep(PAUSE_S)
        finally:
            self._listeners.discard(listener)

    def tell(self, jobs: frozenset[int] = EVERY) -> None:
        for listener in self._listeners:
            listener.tell(jobs)

    def end(self) -> None:
        """End all streams, since the server waits for them."""
        self._is_over = True
        self.tell()

    async def _pass_on(self, connection: psycopg.AsyncConnection) -> None:
        cursor = await connection.execute("select pg_is_in_recovery(), set_config('idle_session_timeout', '0', false)")
        ((is_replica, _),) = await cursor.fetchall()
        self.tell()
        while is_replica:
            await asyncio.sleep(POLL_S)
            await connection.execute("select 1")
            self.tell()
        for channel in CHANNELS:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self.tell()  # of what was announced before we listened
        async for notify in connection.notifies():
            self.tell(jobs_in(notify.channel, notify.payload))


def jobs_in(channel: str, payload: str) -> frozenset[int]:
    """Return the numbers of the jobs that a notification is about. Any role may send one: a payload may be anything."""
    return frozenset(map(int, NUMBER.findall(payload))) if channel in OF_JOBS else frozenset()
