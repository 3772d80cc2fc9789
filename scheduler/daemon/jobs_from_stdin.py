"""Jobs from standard input: `type | args` lines become rows, and the end of each is printed (`drover run -I`).

A leading `!` makes a job urgent; attributes that its agent must have follow the type, as `license version=2`. End of
input drains the daemon once every job has ended. Rows are only inserted, as any front-end does.

A line gets its jq_pk before it is inserted, so that an insert whose answer was lost can be sent again: a row that is
there already is left as it is. One line is under way at a time, for the lease is renewed over the same connection.

The core reports the ends of jobs in hand. Rows that end where they wait, or elsewhere, or are removed, are looked up
every LOOK_UP_S while they are open.
"""

import os
import re
import select
import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from scheduler.daemon.log import escaped, log_line
from scheduler.drivers.loop import Loop, Steps, Task, Until
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statement_runner import AGAIN_S, answer_to, cause_of
from scheduler.drivers.statements import Failure, Query, Rows
from scheduler.model.config import Config
from scheduler.model.events_and_effects import JobEnded

READ_BYTES: Final = 65_536
ATTRIBUTES: Final = re.compile(" .*=")  # of a type that is `license version=2`
LOOK_UP_S: Final = 1.0  # between two statements for the ends of open rows
LOOK_UP_ROWS: Final = 1000  # in one statement


class _Line(NamedTuple):
    """A job to be queued; `number` counts lines from 1."""

    number: int
    type: str
    args: str
    urgent: bool


class _LineRefusedError(Exception):
    """The row of a line is refused for what it says, or for want of a right."""


class StdinJobs:
    """Standard input as a front-end; uses queries `next_job_number`, `insert_stdin_job` and `read_stdin_ends`."""

    def __init__(self, loop: Loop, connection: Connection, queries: Mapping[str, Query], config: Config) -> None:
        self._loop, self._connection, self._queries = loop, connection, queries
        self.reload(config)
        self._unread = b""  # the beginning of a line
        self._number = 0  # of the line
        self._lines: deque[_Line] = deque()  # that are not known to be queued; the first is under way
        self._first: int | None = None  # jq_pk of the first of them, once it has one
        self._open: dict[int, str] = {}  # types of rows that have not ended, by jq_pk; `_first` is among them
        self._is_looking_up = False
        self._is_ended = False
        self._is_file = False
        self.failed = 0
        try:
            loop.register(0, select.EPOLLIN, self._read)
        except PermissionError:  # a file cannot be waited for: it is always ready
            self._is_file = True
            loop.at(loop.now, self._read)

    def has_just_ended(self) -> bool:
        """Return True once: the input has ended, and every job of it too."""
        is_over = self._is_ended and not self._lines and not self._open
        self._is_ended = self._is_ended and not is_over
        return is_over

    def reload(self, config: Config) -> None:
        """Accept jobs for the types that this configuration enables."""
        self._types = [name for name, agent in config.agents.items() if agent.enabled]

    def close(self) -> None:
        """Print which lines are not queued, or perhaps: the daemon ends."""
        for line in self._lines:
            is_sent = self._first is not None and line is self._lines[0]
            self._complain(line.number, f"perhaps queued, as job {self._first}" if is_sent else "not queued")

    # ---- lines

    def _read(self, _mask: int = 0) -> None:
        data = os.read(0, READ_BYTES)
        if not data:
            self._loop.unregister(0)
            self._is_ended = True
            data = b"\n" if self._unread else b""
        elif self._is_file:
            self._loop.at(self._loop.now, self._read)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._number += 1
            self._accept(line.decode("utf-8", "replace"))

    def _accept(self, line: str) -> None:
        if not line.strip() or line.lstrip().startswith("#"):
            return
        head, bar, args = line.partition("|")
        head = head.strip()
        kind = head.lstrip("!").strip()
        if not bar or not kind:
            self._complain(self._number, "not of the form `type | args`")
            return
        if kind not in self._types and not ATTRIBUTES.search(kind):  # which type has them, the database knows
            self._complain(self._number, f"no agent type {kind!r} is configured and enabled")
            return
        self._lines.append(_Line(self._number, kind, args.strip(), head.startswith("!")))
        if len(self._lines) == 1:
            Task(self._loop, self._queue_lines()).start()

    def _complain(self, number: int, reason: str) -> None:
        self.failed += 1
        print(f"stdin:{number}: {reason}", file=sys.stderr, flush=True)  # noqa: T201

    # ---- rows

    def _queue_lines(self) -> Steps[None]:
        while self._lines:
            line = self._lines[0]
            try:
                yield from self._queue(line)
            except _LineRefusedError as error:
                self._complain(line.number, str(error))
                self._open.pop(self._first or 0, None)
            self._lines.popleft()
            self._first = None
            if self._open and not self._is_looking_up:
                Task(self._loop, self._look_up_ends()).start()

    def _queue(self, line: _Line) -> Steps[None]:
        """Insert a row; one that is there already, and may have ended, stays as it is."""
        number: Rows | None = None
        while number is None:
            number = yield from self._accepted("next_job_number", {})
        self._first = pk = int(number.rows[0][0] or 0)
        self._open[pk] = line.type
        values = {"pk": pk, "type": line.type, "args": line.args, "urgent": line.urgent}
        while pk in self._open and (yield from self._accepted("insert_stdin_job", values)) is None:
            pass

    def _accepted(self, name: str, values: Mapping[str, object]) -> Steps[Rows | None]:
        """Run a statement; return None if it is to be sent again. Errors: _LineRefusedError, it is the line's fault."""
        answer = yield from answer_to(self._connection, self._queries[name], values)
        if not isinstance(answer, Failure):
            return answer
        if cause_of(answer) == "data" or (answer.sqlstate or "").startswith("42"):  # a right is missing
            raise _LineRefusedError(answer.message)
        if not answer.lost:
            log_line("error", f"{name}: {answer.message}")
            yield Until(self._loop.now + AGAIN_S)
        return None

    # ---- ends

    def job_ended(self, end: JobEnded) -> None:
        """Print the end of a job in hand, which may come before its insert is answered."""
        self._end(end.job, end.state, end.text, is_good=end.state == "done")

    def _look_up_ends(self) -> Steps[None]:
        """Look up some of the open rows, and the next time those behind them."""
        self._is_looking_up = True
        while self._open:
            yield Until(self._loop.now + LOOK_UP_S)
            pks = list(islice((pk for pk in self._open if pk != self._first), LOOK_UP_ROWS))
            for pk in pks:
                self._open[pk] = self._open.pop(pk)
            answer = yield from answer_to(self._connection, self._queries["read_stdin_ends"], {"pks": pks})
            for ended, state, text, good in () if isinstance(answer, Failure) else answer.rows:
                self._end(int(ended or 0), _text(state), _text(text), is_good=good == b"t")
        self._is_looking_up = False

    def _end(self, pk: int, state: str, text: str, *, is_good: bool) -> None:
        """Print the end of a row, once, if it is of a line."""
        kind = self._open.pop(pk, None)
        if kind is not None:
            self.failed += not is_good
            print(pk, kind, state, escaped(text), flush=True)  # noqa: T201


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "replace")
