"""Jobs typed on standard input: `type | args` lines become rows, and each end is printed (`drover run -I`).

A leading `!` makes a job urgent. End of input drains the daemon once every job has ended. It only inserts rows, as any
front-end does.

A line gets its jq_pk before it is inserted, so that an insert whose answer was lost can be sent again: what is there
already is left as it is. One line is under way at a time, for the lease is renewed over the same connection.

The core tells of ends of what is in hand. Of rows that end where they wait, or elsewhere, or are removed, nobody tells:
those that are open are looked at again and again.
"""

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final, NamedTuple

from scheduler.daemon.log import escaped
from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import Answer, Failure, Query, Rows
from scheduler.drivers.statements import cause_of
from scheduler.model.config import Config
from scheduler.model.events import JobEnded

READ_BYTES: Final = 65_536
LOOK_S: Final = 1.0  # between two looks at open rows
LOOK_ROWS: Final = 1000  # in one look
AGAIN_S: Final = 1.0  # until a statement that was refused for no fault of its own is tried again


class _Line(NamedTuple):
    """A job to be queued; `number` counts lines from 1."""

    number: int
    type: str
    args: str
    urgent: bool


def served(config: Config) -> list[str]:
    """Give the types that jobs may be typed for."""
    return [name for name, agent in config.agents.items() if agent.enabled]


class StdinJobs:
    """Standard input as a front-end; uses queries `next_job_number`, `insert_stdin_job` and `read_stdin_ends`."""

    def __init__(
        self,
        loop: Loop,
        link: Connection,
        queries: Mapping[str, Query],
        types: Collection[str],
        say: Callable[[str, str], None],
    ) -> None:
        self._loop, self._link, self._queries, self._say = loop, link, queries, say
        self._types = types  # that this daemon serves
        self._held = b""
        self._number = 0  # of the line
        self._lines: deque[_Line] = deque()  # that are not known to be queued; the first is under way
        self._first: int | None = None  # jq_pk of the first of them, once it has one
        self._open: dict[int, str] = {}  # types of rows that have not ended, by jq_pk; `_first` is among them
        self._is_watching = False  # a look at them is under way, or to come
        self._is_ended = False
        self._is_file = False
        self.failed = 0
        try:
            loop.register(0, select.EPOLLIN, self._read)
        except PermissionError:  # a file cannot be waited for: it is always ready
            self._is_file = True
            loop.at(loop.now, self._read_file)

    @property
    def is_over(self) -> bool:
        """Say whether the input has ended and every job of it too."""
        return self._is_ended and not self._lines and not self._open

    def take(self, config: Config) -> None:
        """Take jobs for the types of another configuration."""
        self._types = served(config)

    def end(self) -> "StdinJobs":
        """Stop asking: the daemon drains."""
        self._is_ended = False
        return self

    def close(self) -> None:
        """The daemon ends: tell which lines are not queued, or perhaps."""
        for line in self._lines:
            is_sent = self._first is not None and line is self._lines[0]
            self._complain(line.number, f"perhaps queued, as job {self._first}" if is_sent else "not queued")

    # ---- lines

    def _read_file(self) -> None:
        while not self._is_ended:
            self._read(0)

    def _read(self, _mask: int) -> None:
        data = os.read(0, READ_BYTES)
        if not data:
            if not self._is_file:
                self._loop.unregister(0)
            self._is_ended = True
            data = b"\n" if self._held else b""
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            self._number += 1
            self._take(line.decode("utf-8", "replace"))

    def _take(self, line: str) -> None:
        if not line.strip() or line.lstrip().startswith("#"):
            return
        kind, bar, args = line.partition("|")
        kind = kind.strip()
        if not bar or not kind.lstrip("!").strip():
            self._complain(self._number, "not of the form `type | args`")
            return
        if kind.lstrip("!").strip() not in self._types:
            self._complain(self._number, f"no agent type {kind.lstrip('!').strip()!r} is configured and enabled")
            return
        self._lines.append(_Line(self._number, kind.lstrip("!").strip(), args.strip(), kind.startswith("!")))
        if len(self._lines) == 1:
            self._begin()

    def _complain(self, number: int, reason: str) -> None:
        self.failed += 1
        print(f"stdin:{number}: {reason}", file=sys.stderr, flush=True)  # noqa: T201

    # ---- rows

    def _begin(self) -> None:
        """Queue the first line, if there is one."""
        if self._lines:
            self._ask("next_job_number", {}, self._numbered, self._begin)

    def _numbered(self, answer: Rows) -> None:
        self._first = int(answer.rows[0][0] or 0)
        self._open[self._first] = self._lines[0].type
        self._insert()

    def _insert(self) -> None:
        """Insert the row; one that is there already, and may have ended, stays as it is."""
        line = self._lines[0]
        values = {"pk": self._first, "type": line.type, "args": line.args, "urgent": line.urgent}
        if self._first in self._open:
            self._ask("insert_stdin_job", values, lambda _: self._next(), self._insert)
        else:
            self._next()

    def _next(self) -> None:
        self._lines.popleft()
        self._first = None
        self._watch()
        self._begin()

    def _ask(
        self, name: str, values: Mapping[str, object], then: Callable[[Rows], None], again: Callable[[], None]
    ) -> None:
        """Ask about the first line, `again` if it was not its fault that there was no answer."""

        def answered(answer: Answer) -> None:
            if not isinstance(answer, Failure):
                then(answer)
            elif answer.lost:
                again()
            elif cause_of(answer) == "data" or (answer.sqlstate or "").startswith("42"):  # a right is missing
                self._complain(self._lines[0].number, answer.message)
                self._open.pop(self._first or 0, None)
                self._next()
            else:
                self._say("error", f"{name}: {answer.message}")
                self._loop.at(self._loop.now + AGAIN_S, again)

        self._link.ask(self._queries[name], values, answered)

    # ---- ends

    def told(self, told: JobEnded) -> None:
        """A job has ended in our hands, perhaps before its insert was answered."""
        self._end(told.job, told.state, told.text, is_good=told.state == "done")

    def _watch(self) -> None:
        if self._open and not self._is_watching:
            self._is_watching = True
            self._loop.at(self._loop.now + LOOK_S, self._look)

    def _look(self) -> None:
        """Look at some of the open rows; the next look begins behind them."""
        pks = list(islice((pk for pk in self._open if pk != self._first), LOOK_ROWS))
        for pk in pks:
            self._open[pk] = self._open.pop(pk)
        self._link.ask(self._queries["read_stdin_ends"], {"pks": pks}, self._looked)

    def _looked(self, answer: Answer) -> None:
        self._is_watching = False
        for pk, state, text, good in () if isinstance(answer, Failure) else answer.rows:
            self._end(int(pk or 0), _text(state), _text(text), is_good=good == b"t")
        self._watch()

    def _end(self, pk: int, state: str, text: str, *, is_good: bool) -> None:
        """Print the end of a row, once, if it is ours."""
        kind = self._open.pop(pk, None)
        if kind is not None:
            self.failed += not is_good
            print(pk, kind, state, escaped(text), flush=True)  # noqa: T201


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "replace")
