"""What is exchanged with the queue: claim requests, claims, ends, saves, and rows of log and output.

`ClaimRequest` is made by policy/claims.py, `Claim` from a row by `read_claim`, the job in hand by policy/intake.py,
`SaveRow` by policy/completion.py and, for a row that the database refuses, by model/queue_requests.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

Cells = tuple[bytes | None, ...]
Letters = tuple[str, str]  # of priorities: from this first character to before that one
ClaimKey = tuple[str, str, str, bool, Letters | None]  # what tells requests apart


class ClaimPosition(NamedTuple):
    """A place in the order of claims: whatever stands before it was claimed, but for late-comers."""

    rank: str
    queued: str  # a timestamp as Postgres writes it
    pk: int


START: Final = ClaimPosition("", "-infinity", 0)
LONGEST_RANK: Final = 17  # 0 or 1 and a priority; of a fair type there is more
ROUND_LENGTH: Final = 16  # of that: drover.rank_in_round
URGENT_BELOW: Final = "1"  # ranks of urgent rows begin with 0, all others with 1
ALL_BELOW: Final = "2"
SUSPECT_AFTER: Final = 3  # rescues: the daemon may have died of what the row holds, which is read of it alone


class ClaimRequest(NamedTuple):
    """Claim up to `most` rows of this type from this queue; host "" means rows for any host."""

    type: str
    queue: str
    host: str
    urgent: bool  # urgent rows only
    most: int
    after: ClaimPosition = START
    guarded: bool = False  # not everybody may queue this type: the rules of its rows name the submitter
    letters: Letters | None = None  # of these priorities only; with them, not `urgent` means none that is urgent

    @property
    def key(self) -> ClaimKey:
        """Return where it looks, however far that is claimed."""
        return self.type, self.queue, self.host, self.urgent, self.letters

    @property
    def start(self) -> ClaimPosition:
        """Return where its place begins."""
        return START if self.letters is None else START._replace(rank=self._bound(0))

    @property
    def below(self) -> str:
        """Return the rank before which its place ends."""
        if self.letters is None:
            return URGENT_BELOW if self.urgent else ALL_BELOW
        return self._bound(1)

    def _bound(self, which: int) -> str:
        assert self.letters is not None
        return ("0" if self.urgent else "1") + self.letters[which]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a row asks for beyond one line to one agent. Lengths in seconds."""

    msq: bool = False
    runonpfile: str | None = None
    key: str | None = None
    tolerate: int = 0
    repeat: bool = False
    timeout: float | None = None
    retries: int = 0
    failures: int = 0
    rescued: int = 0
    interruptions: int = 0
    max_interruptions: int = 3
    itemsfailed: int = 0
    itemsprocessed: int = 0
    elapsed: float = 0.0  # in hand before this attempt
    busy: float = 0.0  # of agents, likewise
    checkpoint: dict[str, Any] | None = None
    submitter: str = ""  # of guarded and of fair types, at least
    roles: Sequence[str] = ()  # that it is a member of, itself too; of guarded types
    variables: dict[str, str | None] | None = None  # each as text, for exec agents
    variables_json: str = ""  # all of them
    is_oversized: bool = False  # there is more of them than is read
    unread: bool = False  # parameter, variables and checkpoint are still to be read


PLAIN: Final = Rules()


class Claim(NamedTuple):
    """A row that is ours from now on."""

    pk: int
    attempt: int
    args: bytes
    rank: bytes  # urgency and letter: smaller goes first; of a fair type without the round
    request: ClaimRequest  # that it answers
    rules: Rules = PLAIN


class End(NamedTuple):
    """A one-parameter job that ended well and has nothing more to say."""

    pk: int
    attempt: int
    micros: int  # of agent time
    host: str
    pid: int
    code: int | None  # exit status of a command


@dataclass(frozen=True, slots=True)
class SaveRow:
    """What becomes of a row: its end, its way back to the queue, or its progress. Parameter of query `save`."""

    pk: int
    attempt: int
    state: str
    bits: int | None = None
    text: str | None = None
    outcome: str | None = None  # of the attempt; None while it goes on
    code: int | None = None
    signal: str | None = None
    result: Any = None
    processed: int | None = None
    failed: int | None = None
    total: int | None = None
    elapsed: float | None = None
    busy: float | None = None
    took: float | None = None  # of this attempt
    remaining: float | None = None  # seconds until all its items are over, at their rate
    failures: int | None = None
    interruptions: int | None = None
    retry_in: float | None = None
    jitter: bool = False
    checkpoint: dict[str, Any] | None = None
    back: bool = False  # to the end of the queue
    host: str | None = None
    agent: str | None = None
    pid: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that say something, for JSON."""
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in given if value is not None and value is not False}


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """A work item that failed for good; a row of drover.item_failure."""

    pk: int
    attempt: int
    key: str | None
    line: str
    host: str
    agent: str
    pid: int | None
    reason: str


class LogRow(NamedTuple):
    """A row of drover.log."""

    job: int | None
    type: str
    host: str | None
    agent: str | None
    pid: int | None
    message: str


class OutputRow(NamedTuple):
    """A piece of what an exec agent printed; a row of drover.output."""

    job: int
    attempt: int
    part: int  # 1, 2, 3 ... of this attempt, so that none is written twice
    stream: str  # "out" or "err"
    text: str


def read_claim(cells: Cells, wanted: Sequence[ClaimRequest]) -> Claim:
    """Return the claim in a row of query `end_and_claim` (jq_pk, attempt, number of the request, args, rank, more)."""
    pk, attempt, number, args, rank, more = cells
    rules = PLAIN if more is None else _read_rules(more)
    rank = rank or b""
    if len(rank) > LONGEST_RANK:
        rank = rank[:-ROUND_LENGTH]
    return Claim(int(pk or 0), int(attempt or 0), args or b"", rank, wanted[int(number or 0) - 1], rules)


def read_contents(rules: Rules, more: bytes) -> Rules:
    """Return the rules of a row that came without what it holds, with that (query `read_claimed`)."""
    given = _given(more)
    if rules.key is None:
        given |= given.pop("checkpoint", {})
    return replace(rules, unread=False, **given)


@lru_cache
def _plain_but_for(submitter: bytes) -> Rules:
    return Rules(submitter=json.loads(submitter.decode("utf-8", "surrogateescape")))


def _read_rules(more: bytes) -> Rules:
    """Return the rules of a row: an object, or the submitter alone.

    A slice without a key that was cut short begins anew, and so does its count; with a key the row may count items that
    were not ended, and its checkpoint does not.
    """
    if more.startswith(b'"'):
        return _plain_but_for(more)
    given = _given(more)
    if "key" not in given:
        given |= given.pop("checkpoint", {})
    elif "itemsprocessed" in given.get("checkpoint", {}):
        given["itemsprocessed"] = given["checkpoint"]["itemsprocessed"]
    return Rules(**given)


def _given(more: bytes) -> dict[str, Any]:
    told = json.loads(more.decode("utf-8", "surrogateescape"))  # no text where the database knows no encoding
    return {name: value for name, value in told.items() if value is not None}
