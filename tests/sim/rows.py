"""Rows of the fake queue (database.py): those of drover.jobqueue, jobdepends, recovery and detached."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.model.queue_requests import PLAIN, SUSPECT_AFTER, Rules
from scheduler.model.states import CLAIMED, QUEUED, RUNNING
from scheduler.policy.conditions import Answer

STAFF: Final = ("anna", "bert")  # members of the role of that name

Place = tuple[str | None, int | None]  # host and pid of an agent
IN_HAND = (CLAIMED, RUNNING)
NOWHERE: Place = (None, None)


@dataclass(slots=True, eq=False)
class Edge:
    """A dependency of a child on a parent."""

    child: "Row"
    parent: "Row"
    mask: int
    skips: bool
    met: bool = False


@dataclass(slots=True, eq=False)
class Row:
    """A row of drover.jobqueue, and what the script knows of the work behind it."""

    pk: int
    type: str
    args: bytes = b""
    queue: str = "default"
    host: str = ""
    urgent: bool = False
    letter: str = "n"
    submitter: str = ""
    line: str | None = None  # of a fair type, while it may be claimed
    round: int = 0  # in that line
    queued: float = 0.0
    wait_until: float | None = None
    not_after: float | None = None
    expires: float | None = None  # the same until the first claim, and while it has not come of a held row
    msq: bool = False
    runonpfile: str | None = None
    key: str | None = None
    tolerate: int = 0
    repeat: bool = False
    retries: int = 0
    timeout: float | None = None
    max_interruptions: int = 3
    state: str = QUEUED
    owner: str | None = None
    taken_by: str | None = None  # claimed by a record alone: nothing else of the row says so
    is_dated: bool = False  # it was inserted with an instant to expire at
    attempt: int = 0
    place_of_work: Place = NOWHERE  # of a job of one parameter that is worked, or was when it ended
    rescued: int = 0
    interruptions: int = 0
    failures: int = 0
    processed: int = 0
    failed: int = 0
    checkpoint: dict[str, Any] | None = None
    start: float | None = None
    end: float | None = None
    bits: int = 0
    text: str | None = None
    unmet: int = 0
    edges: list[Edge] = field(default_factory=list)  # to children
    above: list[Edge] = field(default_factory=list)  # to parents
    item_failures: list[str | None] = field(default_factory=list)
    condition: str = ""  # that it is blocked on, or was
    wanted: str | None = None  # by a command: to be cancelled or failed, whatever happens
    # what the script knows
    items: int = 0  # of its query
    slice: int = 0  # items a slice shows at most; 0: all
    broken: bool = False  # its SQL
    poison: frozenset[int] = frozenset()  # items every agent dies of
    unstorable: bool = False  # the database refuses its result
    odd: str = ""  # what of its query no agent can be given (mishaps.py)
    variables: dict[str, str | None] | None = None
    unmarkable: bool = False  # the database refuses that it says running
    was_stolen: bool = False  # an update by hand put it back in the queue while it was in hand
    unreadable: bool = False  # the database cannot give what it holds: a claim that tries fails
    done: dict[int, int] = field(default_factory=dict)  # item -> how often an agent has done it
    disruptions: int = 0  # times work in hand was lost, killed or rescued
    was_lied_about: bool = False  # an agent said OK to work it never had
    ends: int = 0

    @property
    def place(self) -> tuple[str, str, str]:
        """Return where a claim looks for it."""
        return self.type, self.queue, self.host

    @property
    def is_claimable(self) -> bool:
        """Return whether it waits for nothing but its turn."""
        return self.state == QUEUED and self.unmet == 0 and self.wait_until is None and self.taken_by is None

    @property
    def is_claimed_by_record(self) -> bool:
        """Return whether a claim leaves the row as it is."""
        return not (self.msq or self.rescued or self.is_dated)

    @property
    def holder(self) -> str | None:
        """Who has it in hand."""
        return self.taken_by or self.owner

    @property
    def attempt_in_hand(self) -> int:
        """The attempt that its holder works on."""
        return self.attempt + (self.taken_by is not None)

    def leave_line(self) -> None:
        """Stand in no line, until it may be claimed again."""
        self.line, self.round = None, 0

    @property
    def rank(self) -> str:
        """Return what a claim sorts by first, but for the round: smaller goes first."""
        return f"{not self.urgent:d}{self.letter}"

    @property
    def claim_rank(self) -> str:
        """The same as the table has it."""
        return self.rank if self.line is None else f"{self.rank}.{self.round:015}"

    def is_suspect(self, unread: bool) -> bool:
        """Return whether a claim leaves out what it holds."""
        return unread or self.rescued >= SUSPECT_AFTER

    def rules(self, unread: bool) -> Rules:
        """Return what query `end_and_claim` gives as `more`."""
        if self.variables is not None:
            return self.details(unread)
        if not (self.msq or self.timeout is not None or self.retries or self.failures or self.rescued or unread):
            return PLAIN if self.line is None else Rules(submitter=self.submitter)
        return self.details(unread)

    def details(self, unread: bool = False) -> Rules:
        """Return all that the daemon needs beside its parameter."""
        return Rules(
            submitter=self.submitter,
            msq=self.msq, runonpfile=self.runonpfile, key=self.key, tolerate=self.tolerate, repeat=self.repeat,
            timeout=self.timeout, retries=self.retries, failures=self.failures, rescued=self.rescued,
            itemsfailed=self.failed, itemsprocessed=self.processed if self.msq else 0,
            interruptions=self.interruptions, max_interruptions=self.max_interruptions,
            variables=None if self.is_suspect(unread) else self.variables,
            variables_json="" if self.variables is None else json.dumps(self.variables),
            unread=self.is_suspect(unread), checkpoint=None if self.is_suspect(unread) else self.checkpoint,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Recovery:
    """A row of drover.recovery, with those of drover.blocked below it: the jobs, by the places that they had."""

    name: str
    since: float
    next: float
    tries: int = 0
    came: int = 0
    answer: Answer = Answer.NOT_ASKED  # of its tester, at the next check
    looked: float = 0.0  # when it was checked last, or a job came
    jobs: dict[int, tuple[str, float, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Kept:
    """A row of drover.detached: where a host keeps an attempt of a job."""

    host: str
    spool: str
    since: float
    turn: int = 0
