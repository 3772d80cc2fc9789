"""What happened and what to do about it: the two vocabularies between the core and the drivers.

Events are facts, effects are imperatives for the drivers (a command is what an operator gives). What an agent prints is
no event: `Core.agent_output` is the hot path.
Slots are named by number and, where an answer may come late, by the serial of the process it belongs to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scheduler.model.config import Config
from scheduler.model.protocol import Row
from scheduler.model.queue_requests import Adoption, Claim, ClaimPosition, ClaimRequest, Settle


@dataclass(frozen=True, slots=True)
class Created:
    """The process of a slot exists."""

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotCreated:
    """The process of a slot could not be started: its fault, or that of its item, of the connection or of the machine.

    `is_machines_fault`: there was no descriptor, process or memory for one more, and nothing of it has begun.
    `is_busy`: its program is being written; nothing of it has begun.
    `code`: the exit status that a shell has for it.
    """

    slot: int
    reason: str
    is_items_fault: bool = False
    lost: bool = False
    is_machines_fault: bool = False
    is_busy: bool = False
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """The process of a slot is dead and its output is read. Exactly one of code and signal is given, or lost, or why.

    `why` alone says why it is not known how the process ended. With `left` the process still runs: the kernel refused
    to let us kill it. With a code, `why` says what kept the program from running.
    """

    slot: int
    code: int | None = None
    signal: str | None = None
    lost: bool = False
    why: str = ""  # it was lost, or its end is not known, or it is left
    left: bool = False
    keeper_said: str = ""  # of a detached job: "not begun", "interrupted", "could not keep"; "gone" if it said nothing


@dataclass(frozen=True, slots=True)
class Refused:
    """A signal to the process of a slot was refused: it is another user's by now."""

    slot: int
    why: str


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host that has to be reached can be."""

    host: str


@dataclass(frozen=True, slots=True)
class HostDown:
    """A host cannot be reached; the next attempt is in so many seconds."""

    host: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HostMoved:
    """The name of a host leads to another machine, or there otherwise; what runs goes on where it is."""

    host: str
    to: str


@dataclass(frozen=True, slots=True)
class Clogged:
    """The agent does not read: its pipe is full."""

    slot: int


@dataclass(frozen=True, slots=True)
class Unclogged:
    """All that was written to the agent is in its pipe."""

    slot: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """The program of an agent type is another one than the running agents are."""

    type: str


@dataclass(frozen=True, slots=True)
class ProgramFound:
    """The file of an agent type with canary agents has this program; of those in `copies` there are some to start.

    A program is named by the digest of its file. Told at first, and whenever it is another one.
    """

    type: str
    program: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """The cursor of a job is open; the columns in select order and how many rows there are."""

    job: int
    names: tuple[bytes, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of a job's cursor; `more` is false when these were the last."""

    job: int
    rows: Sequence[Row]
    more: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a job's cursor are in its file; `more` is false when all are, and its connection is free.

    `problem`: why the file takes no more rows; those that came last are in memory.
    """

    job: int
    rows: int
    size: int
    more: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NotExpanded:
    """The query of a job failed. `again`: through no fault of its own. `interrupted`: its connection broke under it.

    `retry_in`: it never began, for want of a connection, and may be tried again after so many seconds.
    """

    job: int
    reason: str
    again: bool = False
    interrupted: bool = False
    retry_in: float | None = None


ConnectionKind = Literal["queries", "statements"]  # of jobs; of agents, in DB: lines


@dataclass(frozen=True, slots=True)
class ConnectionsChanged:
    """An attempt to make a connection that work needs has failed, or (`reason` None) none fails any more.

    `seconds`: until the next attempt. `up`: how many connections of this kind there are meanwhile.
    """

    need: ConnectionKind
    login: str
    reason: str | None
    seconds: float = 0.0
    up: int = 0


@dataclass(frozen=True, slots=True)
class StatementAnswered:
    """The lines that answer a DB: line."""

    slot: int
    serial: int
    lines: bytes


@dataclass(frozen=True, slots=True)
class Woken:
    """There may be something to claim; a rescan says so although nothing told of it."""

    by_rescan: bool = False


@dataclass(frozen=True, slots=True)
class RowsLost:
    """Rows in memory, as (pk, attempt), that the database does not record as claimed by this daemon."""

    rows: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TablesRead:
    """The queues, hosts, agent types, placements and quotas as their tables have them now."""

    queues: Sequence[dict[str, Any]]
    hosts: Sequence[dict[str, Any]]
    types: Sequence[dict[str, Any]]
    placements: Sequence[dict[str, Any]]
    quotas: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class EndedAndClaimed:
    """The answer to EndAndClaim: what was claimed, which parents to settle, which ends had been lost to another owner.

    For each request that found something, `reached` is how far the claim got in the order and `found` how many rows it
    gave. The rows themselves are `claims`, or follow in an event Claimed: then the next request is sent before they are
    read, so that the database works meanwhile.
    """

    claims: Sequence[Claim] = ()
    parents: Sequence[int] = ()
    fenced: Sequence[int] = ()
    reached: Mapping[ClaimRequest, ClaimPosition] = field(default_factory=dict)
    found: Mapping[ClaimRequest, int] = field(default_factory=dict)
    size: int = 0  # bytes of their parameters, by a sample of them
    has_lapsed: bool = False  # the lease has run out by the clock of the database: to find nothing proves nothing


@dataclass(frozen=True, slots=True)
class Claimed:
    """The rows that the last EndedAndClaimed has counted."""

    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer to a Save or a Mark: the rows that were still ours, and which of them are parents to settle."""

    pks: frozenset[int]
    parents: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A RecordInHand, WriteLog or WriteOutput is done."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Some of what a Settle asks for is done: `released` children got nearer, and this is left.

    `locked` are parents with children that were passed over, for another session has them locked.
    """

    released: int = 0
    left: Settle | None = None
    locked: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LockedFound:
    """The answer to FindLocked: these rows are locked, the others were free."""

    pks: frozenset[int]


@dataclass(frozen=True, slots=True)
class ContentsRead:
    """The answer to ReadContents: parameter and further contents of the rows that are still ours, by pk."""

    contents: Mapping[int, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class NotSaved:
    """A request to the queue failed: of its data, of a lock, or because the connection was lost."""

    why: str  # "data" | "lock" | "again": also if nothing was lost, as when the disk is full
    reason: str


@dataclass(frozen=True, slots=True)
class Serve:
    """The group is ours: claim and assign work until this instant (monotonic), unless it is sent again."""

    until: float


@dataclass(frozen=True, slots=True)
class Adopted:
    """Detached jobs that run are ours now; all databases that have jobs on one host have different sites."""

    site: str
    spool: str  # of this machine, where its configuration names none
    jobs: Sequence[Adoption]


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The group is another daemon's: kill the children and forget the rows."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing, finish what is in hand, exit; the second one gives multi-SQL-queries back at once."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill the children, give their rows back, exit."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The configuration is another one; every effect before it was carried out by the old one."""

    config: Config


def no_connection(login: str, reason: str) -> str:
    """The reason why work that needs a connection under a login of its own waits."""
    return f"no connection as {login}: {reason}" if login else f"no connection: {reason}"


Event = (
    Created | NotCreated | Gone | Refused | HostUp | HostDown | HostMoved | Clogged | Unclogged | Replaced
    | ProgramFound | Opened | Fetched | Kept | NotExpanded | ConnectionsChanged | StatementAnswered
    | Woken | RowsLost | TablesRead | EndedAndClaimed | Claimed | Saved | Settled | Written | LockedFound | ContentsRead
    | NotSaved | Serve | Adopted | LeaseLost | Drain | Stop | Reloaded
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Keeper:
    """How the process of a slot comes by a detached job: it starts it under a keeper, or adopts one."""

    verb: Literal["start", "adopt"]
    site: str  # tells databases apart that have jobs on one host
    spool: str
    turn: int  # counts the daemons and connections that have had it
    limit: int  # bytes of each stream of its output
    grace: int  # seconds from SIGHUP to SIGKILL
    told: str = ""  # signal for the command, which is to end already; one sent to the process now would come too early


@dataclass(frozen=True, slots=True)
class Spawn:
    """Make the process of a slot; exec agents get their argv and stdin with it."""

    slot: int
    serial: int
    type: str
    host: str
    argv: tuple[bytes, ...] | None = None
    stdin: bytes | None = None
    job: int | None = None
    attempt: int | None = None
    environment: Mapping[bytes, bytes] | None = None  # what its job adds
    program: str = ""  # which one, of a type with canary agents; empty: what its command finds
    keeper: Keeper | None = None  # of a detached job


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the agent."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Kill:
    """Ask a process to die: close its pipes, hang-up to its group."""

    slot: int


@dataclass(frozen=True, slots=True)
class ForceKill:
    """Kill the process group at once."""

    slot: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Leave a detached job alone from now on: it goes on, and the process of the slot ends."""

    slot: int


@dataclass(frozen=True, slots=True)
class FindDetached:
    """Adopt detached jobs that are not in hand, in so many seconds, and release those that have ended."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the process group of an agent."""

    slot: int
    number: int


@dataclass(frozen=True, slots=True)
class Expand:
    """Run the query of a job and say what columns and how many rows it has."""

    job: int
    query: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch up to so many more rows of a job."""

    job: int
    count: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Fetch up to so many more rows of a job into its file, from which the next are fetched; report Kept."""

    job: int
    count: int


@dataclass(frozen=True, slots=True)
class CloseQuery:
    """Forget the cursor of a job, whatever it is doing."""

    job: int


@dataclass(frozen=True, slots=True)
class RunStatement:
    """Run the statement of a DB: line and answer as lines."""

    slot: int
    serial: int
    type: str
    text: bytes


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One line of the daemon's own log."""

    level: str  # debug | info | warning | error
    text: str


@dataclass(frozen=True, slots=True)
class Echo:
    """Text for the scheduler's stderr."""

    text: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job reached this state for good; for those who wait inside the daemon."""

    job: int
    type: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class FindNextDue:
    """Some row was given an instant to wait for: ask the database when the next one is due."""


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew the lease now."""


@dataclass(frozen=True, slots=True)
class ReleaseGroup:
    """All is saved and every child is dead: let another daemon have the group."""


@dataclass(frozen=True, slots=True)
class Exit:
    """All is saved and every child is dead."""


Effect = (
    Spawn | Send | Kill | ForceKill | LetGo | Signal | Expand | Fetch | Keep | CloseQuery | RunStatement | LogMessage
    | Echo | FindDetached | JobEnded | FindNextDue | RenewLease | ReleaseGroup | Exit
)  # fmt: skip
