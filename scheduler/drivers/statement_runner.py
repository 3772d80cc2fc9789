"""Runs named statements as steps, with one policy for statements that fail.

| why                 | ask                                | insist                                           |
|---------------------|------------------------------------|--------------------------------------------------|
| the connection went | ConnectionLostError: the task ends | the same                                         |
| the server refuses  | reported; RefusedError             | reported; sent again every second until accepted |
| a lock is not given | logged each time; RefusedError     | as above                                         |

Whether a statement of a lost connection was carried out is not known, so nothing is sent again by itself: the owner of
the connection begins anew when it is up. `answer_to` is for routines that have a policy of their own.

A refused statement is no fault of a row: the server has no space, no memory, no right for us, or finds a bad form. It
holds up others. So it is logged at once, when the reason changes and when it is over, however often it is tried;
`RefusedStatements.text` is for the status of the daemon.

While the NOTIFY queue of the server is full, every commit with a notification fails. Then our statements send none (see
drover.notify in the schema), and jobs are saved without their events.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal

from scheduler.drivers.loop import Callback, ConnectionLostError, Loop, Steps, Until
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statements import Answer, Failure, Query, Rows, Sink
from scheduler.errors import WorldError

AGAIN_S: Final = 1.0  # until a refused statement is sent again
NOTIFY: Final = "NOTIFY"  # its name, whatever statement met it
NO_RIGHT: Final = "; drover check tells whether the login of the daemon is right"
LOCK_TIMEOUT: Final = "55P03"

LOCK: Final = frozenset((LOCK_TIMEOUT, "40P01", "40001"))
# The rows sent are at fault. Anything else is the world's: no job may fail for want of a grant, a column or disk.
DATA_CLASSES: Final = frozenset(("21", "22", "23", "44", "54", "P0"))
# Nor for the form of a statement of ours, as in class 42: that is our bug, or a setting of the site. We write arrays,
# JSON and numbers ourselves, so that one that cannot be read is no row's fault either.
FORM: Final = frozenset(("22P02", "22P03"))


class RefusedError(WorldError):
    """The server refuses a statement; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


def cause_of(failure: Failure) -> Literal["again", "lock", "data"]:
    """Return how to recover: send the request `again`, in parts for a `lock`, or to find the row of bad `data`."""
    state = failure.sqlstate or ""
    if failure.lost or state in FORM or failure.is_of_notify:
        return "again"
    if state in LOCK:
        return "lock"
    return "data" if state[:2] in DATA_CLASSES else "again"


def answer_to(
    connection: Connection, query: Query | str | bytes, values: Mapping[str, object] | None = None, *,
    limit_s: float | None = None, sink: Sink | None = None,
) -> Steps[Answer]:  # fmt: skip
    """Run a named query, or a text, and return its rows or why there are none; see Connection.ask and Connection.run.

    It cannot be taken back: a task that is stopped ignores the answer.
    """
    ask = partial(connection.ask, query, values or {}) if isinstance(query, Query) else partial(connection.run, query)
    answer: Answer = yield Callback(partial(ask, limit_s=limit_s, sink=sink))
    return answer


class Statements:
    """The named statements of one connection, as steps."""

    def __init__(
        self, loop: Loop, connection: Connection, queries: Mapping[str, Query], refused: "RefusedStatements", *,
        limit: float | None = None,
    ) -> None:  # fmt: skip
        self._loop, self._connection, self._queries, self._refused = loop, connection, queries, refused
        self.limit = limit  # seconds that each may run

    def ask(self, query: str, /, **values: object) -> Steps[Rows]:
        """Run a statement and return its rows. Errors: RefusedError, ConnectionLostError."""
        answer = yield from self._answer_to(query, values)
        if isinstance(answer, Failure):
            if answer.sqlstate == LOCK_TIMEOUT:
                self._refused.log("error", f"{query}: {answer.message}")
            else:
                self._refused.refused(query, answer)
            raise RefusedError(answer)
        return answer

    def insist(self, query: str, /, **values: object) -> Steps[Rows]:
        """Run a statement, every second anew while it is refused, and return its rows. Errors: ConnectionLostError."""
        while True:
            answer = yield from self._answer_to(query, values)
            if isinstance(answer, Rows):
                return answer
            self._refused.refused(query, answer)
            yield Until(self._loop.now + AGAIN_S)

    def _answer_to(self, name: str, values: Mapping[str, object]) -> Steps[Answer]:
        answer = yield from answer_to(self._connection, self._queries[name], values, limit_s=self.limit)
        if isinstance(answer, Rows):
            self._refused.accepted(name)
        elif answer.lost:
            raise ConnectionLostError
        return answer


class RefusedStatements:
    """The statements that the database refuses now, by name; `changed` is called with `text` when that changes."""

    __slots__ = ("_changed", "_connections", "_notify_is_full", "_texts", "log")

    def __init__(self, log: Callable[[str, str], None], changed: Callable[[str | None], None]) -> None:
        self.log, self._changed = log, changed
        self._texts: dict[str, str] = {}
        self._connections: tuple[Connection, ...] = ()
        self._notify_is_full: Callable[[], object] = lambda: None

    def attach(self, *connections: Connection, notify_is_full: Callable[[], object]) -> None:
        """Set the connections whose statements send no notifications while there is no room for them.

        `notify_is_full` is called when there is none.
        """
        self._connections, self._notify_is_full = connections, notify_is_full

    @property
    def text(self) -> str | None:
        """Return every statement with the server's words, or None if none is refused."""
        return "; ".join(f"{name}: {text}" for name, text in self._texts.items()) or None

    def refused(self, name: str, failure: Failure) -> None:
        if failure.is_of_notify:
            name = NOTIFY
            self._switch_notify("off")
        text = failure.sentence
        if self._texts.get(name) != text:
            self._texts[name] = text
            next_step = NO_RIGHT if failure.sqlstate == "42501" else ""
            self.log("warning", f"the database refuses {name}: {text}; tried again until accepted{next_step}")
            self._changed(self.text)
            if name == NOTIFY:
                self._notify_is_full()

    def accepted(self, name: str) -> None:
        if self._texts and self._texts.pop(name, None) is not None:
            if name == NOTIFY:
                self._switch_notify("on")
            self.log("info", f"the database takes {name} again")
            self._changed(self.text)

    def clear(self) -> None:
        """Forget all when a connection is lost: what is still refused on the next one is logged again."""
        if self._texts:
            self._texts.clear()
            self._changed(None)

    def _switch_notify(self, word: str) -> None:
        """Send notifications or none; behind a pooler nothing can be set, and statements wait until there is room."""
        for connection in self._connections:
            if connection.is_up and not connection.is_pooled:
                connection.run(f"set drover.notify = '{word}'", lambda _: None)
