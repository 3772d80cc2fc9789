"""What the actions of commands get and return: the command row, ways to ask and to follow, how the command ends.

An action is steps (drivers/steps.py) that return an Outcome; one that asks nothing returns it at once. Each query of
theirs changes something only if it is still as it was read, and waits for no lock: with no rows the command is tried
again later. A refused statement or a lost connection ends an action; it begins anew when the command is read again.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler.drivers.steps import Steps
from scheduler.model.commands import JOB, VERBS, Command, CommandError
from scheduler.model.events import TablesRead
from scheduler.model.jobs import Cells
from scheduler.policy.core import Core

AGAIN_S: Final = 0.2  # until a job that is between two states, or a row that is locked, is tried again
PIECE: Final = 1000  # rows that one statement of a flush looks at, which takes tens of milliseconds
PAUSE_S: Final = 0.05  # between two of them
STAGES: Final = ("jobs", "groups", "log")  # as drover.flush has them
_WORDS: Final = {word.strip("[].").partition("|")[0].lower() for verb in VERBS.values() for word in verb.usage.split()}
_NO_WORDS: Final = dict.fromkeys(_WORDS - {"group"})  # in a query, `group` is always ours


class CommandRow(NamedTuple):
    """A command row, and the job that it names."""

    pk: int
    text: str
    job: int | None  # None: there is none
    state: str | None  # of that job
    is_ours: bool  # the job is in hand here
    is_command: bool
    took_effect: bool  # it was done, or begun, and its row did not end: so "done already" is done
    of_operator: bool  # these come before all others


@dataclass(frozen=True, slots=True)
class Done:
    """The command ends: with a text and an answer; one that failed has no answer unless one is given."""

    text: str
    result: object = True
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Later:
    """The command is tried again after so many seconds: what it names changes just now, or is locked."""

    seconds: float = AGAIN_S


@dataclass(frozen=True, slots=True)
class GoesOn:
    """The command has begun; another statement ends it."""


Outcome = Done | Later | GoesOn
Ask = Callable[..., Steps[list[Cells]]]  # a named query and its values; returns rows


@dataclass(frozen=True, slots=True)
class Context:
    """What actions work with."""

    core: Core
    now: Callable[[], float]  # monotonic seconds
    ask: Ask
    flushes: dict[int, "FlushPass"]  # how far commands have come that are done piece by piece, by jq_pk

    def settle(self, parents: Iterable[bytes | None]) -> None:
        """Have the children of these ended jobs settled."""
        if pks := [int(pk or 0) for pk in parents]:
            self.core.settle(pks)

    def follow_tables(self) -> Steps[None]:
        """Have the core go by what the tables of hosts, types and queues say now."""
        (row,) = yield from self.ask("read_shared_settings")
        self.core.handle(TablesRead(*(json.loads(cell or b"[]") for cell in row)), self.now())


Action = Callable[[Context, CommandRow, Command], Steps[Outcome] | Outcome]


class FlushPass:
    """One pass over all that ended more than so many days before a command came, or before now (None).

    It is a row of statements with pauses between them, in which the lease and other commands go on. A pass that was
    cut off begins again from the start, which only looks at what it has removed.
    """

    def __init__(self, days: int, *, failed_too: bool, command: int | None) -> None:
        self.days, self._failed_too, self._command = days, failed_too, command
        self._stage: str | None = STAGES[0]
        self._place = 0
        self.removed = dict.fromkeys(STAGES, 0)

    @property
    def is_over(self) -> bool:
        """Return whether all was looked at."""
        return self._stage is None

    def remove_piece(self, ask: Ask) -> Steps[bool]:
        """Remove a piece of it; return False if that is for another daemon."""
        values = {"days": self.days, "failed": self._failed_too, "most": PIECE, "stage": self._stage}
        rows = yield from ask("flush", command=self._command, place=self._place, **values)
        if not rows:
            return False
        count, stage, place = rows[0]
        self.removed[self._stage or ""] += int(count or 0)
        self._stage = None if stage is None else stage.decode()
        self._place = int(place or 0)
        return True

    def __str__(self) -> str:
        """Return what it removed, in words."""
        jobs, groups, lines = self.removed.values()
        return f"removed {jobs} jobs, {groups} job groups, {lines} log lines about no job"


def run_query(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Carry out a verb by the query that its entry names; see model.commands.Verb."""
    verb = VERBS[command.verb]
    job = job_of(row, command) if verb.about == JOB else None
    values = _NO_WORDS | dict(command.values) | {"command": row.pk, "job": job}
    rows = yield from context.ask(verb.carried_out_by, **values)
    if not rows:
        return Later()
    ok, text = rows[0]
    if ok == b"t":
        yield from context.follow_tables()
    return Done(text_of(text), ok=ok == b"t")


def job_of(row: CommandRow, command: Command) -> int:
    """Return the job that a command names. Errors: CommandError, there is none."""
    if row.job is None:
        raise CommandError(f"no job {command.values['job']}")
    if row.is_command:
        raise CommandError(f"job {row.job} is a command")
    return row.job


def text_of(cell: bytes | None) -> str:
    """Return a cell as text."""
    return (cell or b"").decode("utf-8", "backslashreplace")


def parents_of(ended: Iterable[Cells]) -> list[bytes | None]:
    """Return the jobs that others wait for, of rows with a number and whether some do."""
    return [pk for pk, is_parent in ended if is_parent == b"t"]
