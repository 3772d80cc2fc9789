"""Jobs typed on standard input: `type | args` lines become rows, and each end is printed (`drover run -I`).

A leading `!` makes a job urgent. End of input drains the daemon once every job has ended. It only inserts rows, as any
front-end does.
"""

import os
import select
import sys
from collections.abc import Collection

from scheduler.drivers.postgres import Link
from scheduler.drivers.postgres_answers import Answer, Failure
from scheduler.drivers.sql import Query
from scheduler.loop import Loop
from scheduler.model.config import Config
from scheduler.model.events import Told

READ_BYTES = 65_536


def served(config: Config) -> list[str]:
    """Give the types that jobs may be typed for."""
    return [name for name, agent in config.agents.items() if agent.enabled]


class Typed:
    """Standard input as a front-end."""

    def __init__(self, loop: Loop, link: Link, submit: Query, types: Collection[str]) -> None:
        self._loop = loop
        self._link = link
        self._submit = submit
        self._types = types  # that this daemon serves
        self._held = b""
        self._number = 0  # of the line
        self._open = 0  # jobs that have not ended
        self._unanswered = 0  # of these, jobs whose number is not known yet
        self._ours: set[int] = set()
        self._early: dict[int, Told] = {}  # ends that came before the answer to an insert
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
        return self._is_ended and not self._open

    def take(self, config: Config) -> None:
        """Take jobs for the types of another configuration."""
        self._types = served(config)

    def end(self) -> "Typed":
        """Stop asking: the daemon drains."""
        self._is_ended = False
        return self

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
        number = self._number
        values: dict[str, object] = {
            "type": kind.lstrip("!").strip(), "args": args.strip(), "urgent": kind.startswith("!"),
        }  # fmt: skip
        self._open += 1
        self._unanswered += 1
        self._link.ask(self._submit, values, lambda answer: self._submitted(number, answer))

    def _submitted(self, number: int, answer: Answer) -> None:
        if isinstance(answer, Failure):
            self._open -= 1
            self._unanswered -= 1
            self._complain(number, answer.message)
            return
        pk = answer.rows[0][0]
        assert pk is not None
        self._unanswered -= 1
        self._ours.add(int(pk))
        early, self._early = self._early, {} if not self._unanswered else self._early
        if int(pk) in early:
            self.told(early.pop(int(pk)))

    def told(self, told: Told) -> None:
        """A job has ended; one that is not known yet may be ours, if its insert was not answered yet."""
        if told.job not in self._ours:
            if self._unanswered:
                self._early[told.job] = told
            return
        self._ours.discard(told.job)
        self._open -= 1
        self.failed += told.state != "done"
        print(told.job, told.type, told.state, told.text, flush=True)  # noqa: T201

    def _complain(self, number: int, reason: str) -> None:
        self.failed += 1
        print(f"stdin:{number}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
