"""The requests to the queue, and the rows that they and their answers hold: claims, ends, saves, log and output.

`ClaimRequest` is made by policy/claims.py, `Claim` from a row by `read_claim`, the job in hand by policy/intake.py,
`SaveRow` by policy/completion.py and, for a row that the database refuses, by policy/outbox.py.

The queue connection has one request at a time. Of requests about rows of ours `pks` are these rows, and `part` is the
same about some of them, without claims.
"""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

Cells = tuple[bytes | None, ...]
Letters = tuple[str, str]  # of priorities: from this one to before that one
ClaimKey = tuple[str, str, str, bool, Letters | None]  # what tells requests apart

T = TypeVar("T")


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
CLAIM_COLUMNS: Final = 7  # of the rows of query `end_and_claim`: what a claim is read from
SUSPECT_AFTER: Final = 3  # rescues: the daemon may have died of what the row holds, which is read of it alone


class ClaimRequest(NamedTuple):
    """Claim up to `most` rows of this type from this queue; host "" means rows for any host."""

    type: str
    queue: str
    host: str
    urgent: bool  # urgent rows only
    most: int
    after: ClaimPosition = START
    guarded: bool = False  # only some submitters may queue this type: the rules of its rows name the submitter
    letters: Letters | None = None  # of these priorities only; with them, not `urgent` means none that is urgent
    detailed: bool = False  # the rules of its rows name the submitter all the same: a rate limit asks for them

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
    """The settings of a row that is more than one line to one agent. Lengths in seconds."""

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
    is_marked: bool = False  # its row says that it is claimed; else only a record in drover.in_hand does


class End(NamedTuple):
    """A one-parameter job that ended well and has nothing more to say."""

    pk: int
    attempt: int
    age: int  # microseconds since the claim
    micros: int  # of agent time
    host: str
    pid: int
    code: int | None  # exit status of a command


@dataclass(frozen=True, slots=True)
class SaveRow:
    """A change of a row: its end, its way back to the queue, or its progress. Parameter of query `save`."""

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


class MarkRow(NamedTuple):
    """A job in hand whose row is to say `claimed` or `running`, and where."""

    pk: int
    attempt: int
    state: str  # claimed or running
    age: int  # microseconds since the claim
    host: str | None = None  # and the process that works on it; none of a query, which many agents work on
    pid: int | None = None
    spool: str | None = None  # of a detached job that is about to begin there


class Adoption(NamedTuple):
    """A detached job that runs, under a keeper or not any more, and is ours from now on."""

    claim: Claim
    host: str
    spool: str
    turn: int
    wanted: str  # by a command: kill, or cancel and a text
    age: float  # seconds since it began


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
    """Return the claim in a row of query `end_and_claim`: the cells are the first that it selects, in their order."""
    pk, attempt, number, args, rank, more, marked = cells
    rules = PLAIN if more is None else _read_rules(more)
    rank = rank or b""
    if len(rank) > LONGEST_RANK:
        rank = rank[:-ROUND_LENGTH]
    request = wanted[int(number or 0) - 1]
    return Claim(int(pk or 0), int(attempt or 0), args or b"", rank, request, rules, marked == b"t")


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


@dataclass(frozen=True, slots=True)
class EndAndClaim:
    """End the plain successes and claim; `unread`: what the rows hold is read later, so that no claim fails of it."""

    ends: Sequence[End]
    wanted: Sequence[ClaimRequest]
    unread: bool = False

    @property
    def pks(self) -> list[int]:
        return [end.pk for end in self.ends]

    def part(self, pks: Container[int]) -> "EndAndClaim":
        return EndAndClaim([end for end in self.ends if end.pk in pks], ())


@dataclass(frozen=True, slots=True)
class Save:
    """Save other ends and progress, with the items that failed."""

    rows: Sequence[SaveRow]
    failures: Sequence[ItemFailure] = ()

    @property
    def pks(self) -> list[int]:
        return [row.pk for row in self.rows]

    def part(self, pks: Container[int]) -> "Save":
        return Save([row for row in self.rows if row.pk in pks], [each for each in self.failures if each.pk in pks])


@dataclass(frozen=True, slots=True)
class Mark:
    """Show in their rows that jobs are claimed or running."""

    rows: Sequence[MarkRow]

    @property
    def pks(self) -> list[int]:
        return [row.pk for row in self.rows]

    def part(self, pks: Container[int]) -> "Mark":
        return Mark([row for row in self.rows if row.pk in pks])


@dataclass(frozen=True, slots=True)
class ReadContents:
    """Read what rows in hand hold that were claimed without it."""

    rows: Sequence[tuple[int, int]]  # (pk, attempt)


@dataclass(frozen=True, slots=True)
class FindLocked:
    """Find out, without waiting, which rows that a request is about another session has locked."""

    request: "RowRequest"


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the dependencies on ended rows, of the first one those of children beyond a number."""

    parents: Sequence[int]
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class RecordInHand:
    """Replace the records of rows in hand, one for each claim, by a single one."""

    pks: Sequence[int]


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Append to drover.log."""

    rows: Sequence[LogRow]


@dataclass(frozen=True, slots=True)
class WriteOutput:
    """Append to drover.output, and tell those who follow one of these jobs."""

    rows: Sequence[OutputRow]
    followed: Sequence[int] = ()


RowRequest = EndAndClaim | Save | Mark  # about rows that are ours
Request = EndAndClaim | Save | Mark | ReadContents | FindLocked | Settle | RecordInHand | WriteLog | WriteOutput


def about_rows(request: Request) -> RowRequest | None:
    """Return a request that is about rows of ours, also if it asks which of them are locked."""
    if isinstance(request, FindLocked):
        return request.request
    return request if isinstance(request, RowRequest) else None


def careful(request: Request) -> Request:
    """Return the question which rows of a request are locked; any other request as it is."""
    return FindLocked(request) if isinstance(request, RowRequest) and request.pks else request


def joined(one: Request, other: Request) -> Request | None:
    """Return two requests as one, if they are of one kind."""
    match one, other:
        case EndAndClaim(ends), EndAndClaim(more):
            return EndAndClaim([*ends, *more], ())
        case Save(rows, failures), Save(others, more):
            return Save([*rows, *others], [*failures, *more])
        case Mark(rows), Mark(others):
            return Mark([*rows, *others])
        case WriteLog(rows), WriteLog(others):
            return WriteLog([*rows, *others])
        case Settle(parents, 0), Settle(others, 0):
            return Settle(list(dict.fromkeys([*parents, *others])))
        case _:
            return None


def halves_of(request: Request) -> list[Request]:
    """Return the request as two of half the size; none when it holds one row."""
    match request:
        case EndAndClaim() | Save() | Mark():
            return [request.part(frozenset(pks)) for pks in _halves(request.pks)]
        case ReadContents(rows):
            return [ReadContents(part) for part in _halves(rows)]
        case WriteLog(rows):
            return [WriteLog(part) for part in _halves(rows)]
        case WriteOutput(rows, followed):
            return [WriteOutput(part, followed) for part in _halves(rows)]
        case Settle(parents, beyond):
            return [Settle(part, 0 if n else beyond) for n, part in enumerate(_halves(parents))]
        case RecordInHand() | FindLocked():
            return []


def in_words(request: Request) -> str:
    """Return what a request of one row was to do, in words."""
    match request:
        case WriteLog(rows):
            return "to save a log line" + ("" if rows[0].job is None else f" of job {rows[0].job}")
        case WriteOutput(rows, _):
            return f"to save output of job {rows[0].job}"
        case ReadContents(rows):
            return f"to read job {rows[0][0]}"
        case Settle(parents, _):
            return f"to let go what waits for job {parents[0]}"
        case EndAndClaim() | Save() | Mark() if request.pks:
            return f"to save job {request.pks[0]}"
    return "a request"


def _halves(rows: Sequence[T]) -> list[Sequence[T]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]] if middle else []
