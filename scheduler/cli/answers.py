"""Commands that are given to schedulers: inserted, followed until each has ended, and meanwhile what they wait for.

Each command has a latest start in its row (jq_not_after): a daemon that starts days later does not carry it out. At
that time this module withdraws the commands that no scheduler has taken; the database decides, under the lock of the
row, whether a command was taken or withdrawn. A command that was taken is ended by the scheduler that took it.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import inf, isinf
from time import monotonic
from typing import Any, Final, NamedTuple

from psycopg.types.json import Jsonb

from scheduler.cli.arguments import PATIENCE_S
from scheduler.cli.database_session import Session
from scheduler.cli.output import cell, failed, warn
from scheduler.cli.wait import POLL_S, Progress, job_ends
from scheduler.errors import ConfigError
from scheduler.model.verbs import HOST, JOB, TYPE, CommandError, about, parse

LOOK_EVERY_S: Final = 1.0  # at commands that take long
WITHDRAWN: Final = 4  # the exit status: nothing was done, and nothing will be
WITHDRAWN_TEXT: Final = "withdrawn"  # how the text of such a command begins
START_ONE: Final = "start one with drover run, unless one is just starting"
ABOUT: Final = {"about_jobs": about(JOB), "about_hosts": about(HOST), "about_types": about(TYPE)}


class Answer(NamedTuple):
    """How a command row ended: whether it was done, in words, and with what. A row of `answers`."""

    command: int
    words: str
    ok: bool
    text: str
    result: Any


class Sent(NamedTuple):
    """The answers to commands that came in time, how many were asked for, and what the other commands wait for."""

    answers: list[Answer]
    asked: int
    left: str  # empty if all have an answer

    def status(self, limit_s: float) -> int:
        """Return the exit status, and print why if answers are missing."""
        if self.left:
            missing = self.asked - len(self.answers)
            passed = f"after {limit_s:g} s, " if limit_s < inf else ""
            return failed(f"{passed}{missing} of {self.asked} commands have no answer; {self.left}")
        if any(answer.text.startswith(WITHDRAWN_TEXT) for answer in self.answers):
            return WITHDRAWN
        return int(not all(answer.ok for answer in self.answers))


def send(
    session: Session, commands: Sequence[str], limit_s: float, progress: Progress | None = None,
    patience_s: float = PATIENCE_S, chosen: Mapping[str, Any] | None = None,
) -> Sent:  # fmt: skip
    """Insert the commands, all or none; wait for their answers. Errors: ConfigError if one is none.

    `chosen` is the filter of one that is about all jobs that it finds. Those that no scheduler has taken after
    `patience_s` are withdrawn, and answered so.
    """
    try:
        for words in commands:
            words.encode()
            if chosen is None:
                parse(words)
    except UnicodeEncodeError:
        raise ConfigError("the words are not UTF-8; no command was sent") from None
    except CommandError as mistake:
        raise ConfigError(f"{mistake}; no command was sent") from None
    pks = insert(session, commands, patience_s, chosen)
    if progress is None:
        progress = Progress(len(pks), "answers")
        progress.is_shown = False
    follow = Follow(session, pks, progress, patience_s, is_bulk=chosen is not None)
    try:
        follow.say_at_once()
        follow.until(limit_s)
    except KeyboardInterrupt:
        progress.clear()
        if follow.is_bulk:
            warn(f"command {pks[0]} goes on in the scheduler until it ends; drover wait {pks[0]} waits for that")
        raise
    answers = [Answer(*row) for row in session.rows("answers", commands=pks)]
    return Sent(answers, len(pks), follow.left_in_words() if len(answers) < len(pks) else "")


def insert(
    session: Session, commands: Sequence[str], patience_s: float, chosen: Mapping[str, Any] | None = None
) -> list[int]:
    """Insert the commands and return their numbers."""
    within = None if isinf(patience_s) else patience_s
    values = {"commands": list(commands), "within": within, "filter": None if chosen is None else Jsonb(chosen)}
    return [pk for (pk,) in session.rows("insert_commands", **values)]


class Follow:
    """Commands that were inserted, and what they wait for."""

    def __init__(
        self, session: Session, commands: Sequence[int], progress: Progress, patience_s: float, *, is_bulk: bool
    ) -> None:
        self._session, self._left, self._patience_s, self.is_bulk = session, set(commands), patience_s, is_bulk
        self._progress, self._count = progress, len(commands)
        self._progress.note = self._note
        self._done = 0  # jobs of a command for many
        self._began = monotonic()

    def say_at_once(self) -> None:
        """Print it if no scheduler is there to take one of them."""
        if not (waiting := [each for each in waits(self._session, self._left) if each["scheduler"] is None]):
            return
        end = "" if isinf(self._patience_s) else f"; what none takes in {self._patience_s:g} s is withdrawn"
        if not self._session.value("is_any_scheduler_active"):
            warn(f"no scheduler is active: the commands wait until one is; {START_ONE}{end}")
        else:
            groups = ", ".join(sorted({each["in_group"] for each in waiting}))
            warn(f"no scheduler of group {groups} is active: the commands wait until one is; {START_ONE}{end}")

    def until(self, limit_s: float) -> None:
        """Wait until all have ended, or for so long; withdraw what no scheduler takes.

        Ends too if the scheduler that had taken a command is gone, and no other one has taken its group over.
        """
        piece_s, until = self._patience_s, self._began + limit_s
        while self._left:
            left_s = max(until - monotonic(), 0.0)
            poll_s = LOOK_EVERY_S if self.is_bulk else POLL_S
            before = self._count - len(self._left)
            tell = partial(self._tell_after, before)
            for end in job_ends(self._session, set(self._left), min(piece_s, left_s), tell, poll_s):
                self._left.discard(end.job)
            if not self._left or (left_s <= piece_s and not isinf(left_s)):
                return
            self._withdraw()
            if self._left and all(each["scheduler"] is None for each in waits(self._session, self._left)):
                return
            piece_s = max(self._patience_s, LOOK_EVERY_S)

    def _withdraw(self) -> None:
        why = next((sentence(each) for each in waits(self._session, self._left) if not each["taken_by"]), "")
        said = f"{WITHDRAWN_TEXT} after {self._patience_s:g} s: {why or 'no scheduler took it'}; nothing was done"
        self._left -= set(self._session.value("withdraw_commands", commands=list(self._left), said=said))

    def _tell_after(self, before: int, ended: int) -> None:
        """Draw how far it is: so many had ended before those that were waited for last."""
        ended += before
        if self.is_bulk and self._progress.is_shown:  # what has ended waits no more, and tells nothing
            self._done = max(self._done, sum(each["done"] for each in waits(self._session, self._left)))
            ended = self._done
        self._progress.show(ended)

    def _note(self) -> str:
        """Return what the first of them waits for."""
        found = waits(self._session, self._left)
        return "" if not found or found[0]["done"] else sentence(found[0])

    def left_in_words(self) -> str:
        """Return what those wait for that have not ended, and what becomes of them."""
        found = waits(self._session, self._left)
        end = "" if isinf(self._patience_s) else f" within {self._patience_s:g} s of it"
        rest = f"what a scheduler takes{end} is carried out; drover wait {min(self._left)} waits for it"
        return "; ".join([*(sentence(each) for each in found[:1]), rest])


def waits(session: Session, commands: Collection[int]) -> list[dict[str, Any]]:
    """Return what commands that have not ended wait for; see drover.command_waits."""
    return session.records("command_waits", commands=list(commands), **ABOUT)


def sentence(wait: Mapping[str, Any]) -> str:
    """Return what a command waits for, in words."""
    group = f"group {wait['in_group']}"
    if wait["taken_by"]:
        text = f"scheduler {wait['taken_by']} has it since {cell(wait['since'])}"
        text += "" if wait["scheduler"] else f"; no scheduler of {group} is active any more"
    elif wait["scheduler"]:
        text = f"scheduler {wait['scheduler']} of {group} has not taken it"
    else:
        text = f"no scheduler of {group} is active"
    if wait["locked_by"]:
        what = "its row" if wait["job"] is None else f"its row or that of job {wait['job']}"
        text += f"; {what} is locked by {wait['locked_by']}"
    if wait["refused"]:
        text += f"; the database refuses that scheduler {wait['refused']}"
    return text
