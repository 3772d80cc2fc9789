"""The state machines of Drover, each a total table keyed by name: the slot, the job, the query, the lease and others.

Tests compare the manual pages, their diagrams and the SQL with these tables.

A table has a row for each state. A row names events and the cell of each (events of one cell share a key); `otherwise`
is the cell of all events that no row names, and OTHERWISE is it of one row. A cell is the next state, or one of

    IGNORE      nothing to do
    VIOLATION   the fault of an agent: kill it and count it
    IMPOSSIBLE  our bug: it fails tests; in production it costs the agent of the slot, or is raised as a BugError

No state lasts for ever: beside its name stands what ends it at the latest. Each machine has one writer, named above its
table, which moves the state and sets the deadline in one step. Tables are checked on import, since a hole in one is a
bug everywhere. This module knows no slots, jobs, connections or clocks.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar

from scheduler.errors import BugError

NEVER: Final = float("inf")  # the deadline of what waits without one: an instant later than all others
NO_LIMIT: Final = float("inf")  # the number of what may be as many as there are
OTHERWISE, IGNORE, VIOLATION, IMPOSSIBLE = "OTHERWISE", "IGNORE", "VIOLATION", "IMPOSSIBLE"

Rows = Mapping[str, Mapping[str, str]]
State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def filled(states: Iterable[str], events: Iterable[str], rows: Rows) -> Rows:
    """Return every cell of a table: state -> event -> next state, IGNORE, VIOLATION or IMPOSSIBLE.

    **errors**: BugError for a state without its row, an event that does not exist or is named twice, and a cell that is
    no state.
    """
    states, events, table = list(states), list(events), {}
    if list(rows) != states:
        raise BugError(f"the rows {list(rows)} are not those of {states}")
    for state, row in rows.items():
        named = [(event, cell) for key, cell in row.items() if key != OTHERWISE for event in key.split()]
        cells = dict.fromkeys(events, row.get(OTHERWISE, IMPOSSIBLE)) | dict(named)
        if list(cells) != events or len(dict(named)) < len(named):
            raise BugError(f"row {state} names an event twice, or one that is not of {events}")
        if wrong := set(cells.values()) - {*states, IGNORE, VIOLATION, IMPOSSIBLE}:
            raise BugError(f"row {state} leads to {wrong}, which is no state")
        table[state] = cells
    return table


class Machine(Generic[State, Event]):
    """A table whose states and events are enumerations; the value of a state says what ends it at the latest."""

    def __init__(self, name: str, states: type[State], events: type[Event], rows: Rows) -> None:
        self.name, self.states = name, states
        self.cells = filled([state.name for state in states], events.__members__, rows)

    def after(self, state: State, event: Event) -> State | None:
        """Return the state after an event, which may be the same; None when the event is ignored.

        **errors**: BugError if it is impossible.
        """
        cell = self.cells[state.name][event.name]
        if cell == IMPOSSIBLE:
            raise BugError(f"impossible: {event.name} of {self.name} in {state.name}: please report this")
        return None if cell == IGNORE else self.states[cell]


# ---- agent slots, moved by policy/slots.py
#
# A slot is FREE until it is chosen. PREP says that a process is being made, so that a death reported meanwhile cannot
# free the slot. SPAWNED waits for the first OK and is given no data. READY and RUNNING alternate; a slot that gets its
# next line with its OK stays RUNNING (NEXT). FREEING was told to die and holds no pipes; only its death frees it, and
# being late there means SIGKILL, again and again; if the kernel refuses that, the process is reported as GONE and left.
# FAIL is a slot whose agent died too often; time alone frees it.

SLOT_UNTIL: Final = {
    "ST_FAIL": "respawn_interval",
    "ST_FREE": "it is chosen: a slot without a process waits for nothing",
    "ST_FREEING": "kill_grace, then SIGKILL and the same again",
    "ST_PREP": "start_limit",
    "ST_SPAWNED": "start_limit",
    "ST_READY": "max_idle",
    "ST_RUNNING": "heartbeat and item_timeout of its type, and write_limit while it does not read",
    "ST_DONE": "no slot is ever in it: it is of rows of queries",
    "ST_END": "it is no state: it ends the list",
}
STATE_NAMES: Final = tuple(SLOT_UNTIL)
# The numbers are public (drover.scheduler_status).
ST_FAIL, ST_FREE, ST_FREEING, ST_PREP, ST_SPAWNED, ST_READY, ST_RUNNING, ST_DONE, ST_END = range(9)
SLOT_STATES: Final = (ST_FAIL, ST_FREE, ST_FREEING, ST_PREP, ST_SPAWNED, ST_READY, ST_RUNNING)

EVENT_NAMES: Final = (
    "CHOSEN",  # the slot was picked for work
    "CREATED",  # its process exists
    "NOT_CREATED",  # its process could not be made
    "LAUNCHED",  # an exec agent has its item from the start
    "OK",  # the agent said OK and no line is waiting
    "NEXT",  # the agent said OK and gets the next line at once
    "FED",  # a line was sent to an idle agent
    "SAID",  # the agent said anything else
    "KILLED",  # we want its process dead
    "LATE",  # its deadline has come
    "GONE",  # the process is dead and its output is read, or may not be killed and is left
    "THROTTLED",  # its processes died too often
    "THAWED",  # the throttle is lifted before its time
)
CHOSEN, CREATED, NOT_CREATED, LAUNCHED, OK, NEXT, FED, SAID, KILLED, LATE, GONE, THROTTLED, THAWED = range(13)

_SLOT_ROWS: Final = {
    "ST_FAIL": {"LATE THAWED": "ST_FREE", "KILLED": IGNORE},
    "ST_FREE": {"CHOSEN": "ST_PREP", "THROTTLED": "ST_FAIL", "KILLED LATE THAWED": IGNORE},
    "ST_FREEING": {"CREATED LATE": "ST_FREEING", "NOT_CREATED GONE": "ST_FREE", "OK SAID KILLED THAWED": IGNORE},
    "ST_PREP": {"CREATED": "ST_SPAWNED", "NOT_CREATED": "ST_FREE", "KILLED LATE": "ST_FREEING", "THAWED": IGNORE},
    "ST_SPAWNED": {
        "OK": "ST_READY", "LAUNCHED": "ST_RUNNING", "KILLED LATE": "ST_FREEING", "GONE": "ST_FREE",
        "SAID THAWED": IGNORE,
    },
    "ST_READY": {  # an OK here answers nothing
        "OK": VIOLATION, "FED": "ST_RUNNING", "KILLED LATE": "ST_FREEING", "GONE": "ST_FREE", "SAID THAWED": IGNORE,
    },
    "ST_RUNNING": {
        "OK": "ST_READY", "NEXT": "ST_RUNNING", "KILLED LATE": "ST_FREEING", "GONE": "ST_FREE", "SAID THAWED": IGNORE,
    },
    "ST_DONE": {},
}  # fmt: skip
SLOT_CELLS: Final = filled(STATE_NAMES[:ST_END], EVENT_NAMES, _SLOT_ROWS)

# The same as numbers, for the hot path: SLOT_TABLE[state][event] is a state, or negative.
TO_IGNORE, IS_VIOLATION, IS_IMPOSSIBLE = -1, -2, -3
_NUMBERS: Final = {
    **{name: number for number, name in enumerate(STATE_NAMES)},
    IGNORE: TO_IGNORE,
    VIOLATION: IS_VIOLATION,
    IMPOSSIBLE: IS_IMPOSSIBLE,
}
SLOT_TABLE: Final = tuple(tuple(_NUMBERS[cell] for cell in row.values()) for row in SLOT_CELLS.values())

# ---- what is wanted of the process of a slot, moved by policy/slots.py
#
# A process that is to finish is given nothing more, and ends after the item that it works on. The slot of a process
# that is to die is ST_FREEING.


class Wanted(Enum):
    """The wanted state of a process; its deadline stands beside it."""

    KEEP = "the limits of the states of its slot"
    FINISH = "the end of its item, within the limits of ST_RUNNING"
    DIE = "kill_grace, then SIGKILL and the same again"


class Wish(Enum):
    """The events that change the wanted state."""

    DISMISS = "it is to do no more than what it has in hand"
    KILL = "it is to die"
    ENDED = "it is dead, or was never made"


_WANTED_ROWS: Final = {
    "KEEP": {"DISMISS": "FINISH", "KILL": "DIE", "ENDED": "KEEP"},
    "FINISH": {"DISMISS": "FINISH", "KILL": "DIE", "ENDED": "KEEP"},
    "DIE": {"DISMISS KILL": IGNORE, "ENDED": "KEEP"},
}
WANTED: Final = Machine("what is wanted of a process", Wanted, Wish, _WANTED_ROWS)
KEEP, FINISH, DIE = Wanted

# ---- jobs, moved by the SQL: trigger jobqueue_moved refuses what is not here
#
# A job has states and no events: each statement names the states that it moves from. Claimed and running jobs are in
# hand of the daemon that their rows name. A job claimed by a record in drover.in_hand alone is queued until its daemon
# marks it (RUNNING) or ends it (DONE) with the next attempt. A command is carried out while it is queued.

HELD, QUEUED, CLAIMED, RUNNING, BLOCKED = "held", "queued", "claimed", "running", "blocked"
DONE, FAILED, CANCELLED, IGNORED, SKIPPED = "done", "failed", "cancelled", "ignored", "skipped"

JOB_MOVES: Final = {
    HELD: frozenset((QUEUED, SKIPPED, CANCELLED, IGNORED)),
    QUEUED: frozenset((CLAIMED, RUNNING, DONE, HELD, BLOCKED, CANCELLED, SKIPPED, FAILED)),
    CLAIMED: frozenset((RUNNING, QUEUED, DONE, FAILED, BLOCKED, CANCELLED)),
    RUNNING: frozenset((DONE, QUEUED, FAILED, BLOCKED, CANCELLED)),
    BLOCKED: frozenset((QUEUED, HELD, FAILED, CANCELLED)),
    DONE: frozenset(),
    FAILED: frozenset((QUEUED,)),
    CANCELLED: frozenset(),
    IGNORED: frozenset(),
    SKIPPED: frozenset(),
}
COMMAND_MOVES: Final = JOB_MOVES | {QUEUED: JOB_MOVES[QUEUED] - {RUNNING}}  # of type command
JOB_UNTIL: Final = {
    HELD: "an operator or its owner releases or cancels it: it waits for people",
    QUEUED: "jq_not_after; without one it waits as drover.why says",
    CLAIMED: "the end of its work, jq_timeout, or the end of its owner's lease",
    RUNNING: "the end of its work, jq_timeout, or the end of its owner's lease",
    BLOCKED: "its condition is cleared, or it is cancelled",
}
JOB_STATES: Final = tuple(JOB_MOVES)
TERMINAL: Final = frozenset((DONE, FAILED, CANCELLED, IGNORED, SKIPPED))
INSERTABLE: Final = frozenset((HELD, QUEUED))
IN_HAND: Final = frozenset((CLAIMED, RUNNING))

BIT_SUCCESS, BIT_FAILURE, BIT_NONFATAL = 1, 2, 4  # jq_end_bits


def states_before(after: str) -> frozenset[str]:
    """Return the states from which a job may move to this one."""
    return frozenset(before for before, moves in JOB_MOVES.items() if after in moves)


def check_move(before: str, after: str) -> None:
    """Refuse to write an illegal move of a job. Errors: BugError."""
    if after not in JOB_MOVES[before] and after != before:
        raise BugError(f"a job may not move from {before} to {after}: please report this")


# ---- the query of a multi-SQL-query in hand, moved by policy/query_progress.py
#
# "Rows are on their way" and "no more rows" are two facts, FETCHING and EXHAUSTED: with one, a job ends before its last
# rows have come. A query is over when it is EXHAUSTED and none of its items waits for an agent. When its job is to end
# early no more rows are asked for, and an answer that is on its way is not looked at.


class QueryState(Enum):
    """How far a query has got, and until when."""

    WAITING = "a connection and an agent are free: drover.why says what it waits for, as of a row in the queue"
    OPENING = "expansion_limit"
    OPEN = "half of the rows that came are taken, each item within the limits of ST_RUNNING"
    FETCHING = "the limit of a fetch, 60 s"
    KEEPING = "the same"
    EXHAUSTED = "the end of its last items, within the limits of ST_RUNNING"


class QueryEvent(Enum):
    """The events of a query."""

    ASKED = "a connection is to run it"
    OPENED = "it ran, and has rows"
    OPENED_EMPTY = "it ran, and has no row"
    FETCH = "rows were asked for"
    FETCHED = "they have come, and there are more"
    FETCHED_LAST = "they have come, and there are no more"
    KEEP = "rows are to be fetched into a file"
    KEPT = "they are in it"
    CLOSED = "its connection went to another query: it is run again, for the rows that were not fetched"
    DROPPED = "its job ends early"


_QUERY_ROWS: Final = {
    "WAITING": {"ASKED": "OPENING", "DROPPED": IGNORE},
    "OPENING": {"OPENED": "OPEN", "OPENED_EMPTY": "EXHAUSTED", "DROPPED": IGNORE},
    "OPEN": {"FETCH": "FETCHING", "KEEP": "KEEPING", "CLOSED": "WAITING", "DROPPED": "EXHAUSTED"},
    "FETCHING": {"FETCHED": "OPEN", "FETCHED_LAST": "EXHAUSTED", "DROPPED": IGNORE},
    "KEEPING": {"KEPT": "OPEN", "DROPPED": IGNORE},
    "EXHAUSTED": {"DROPPED": IGNORE},
}
QUERY: Final = Machine("a query", QueryState, QueryEvent, _QUERY_ROWS)

# ---- the lease of a group, as one daemon sees it; moved by policy/group_lease.py
#
# The row of the group decides who serves, by the clock of the database. A daemon registers, stands by and looks at the
# owner now and then. It takes the group if the owner is missing, dead, or late while this daemon was connected for one
# whole lease; then it gives back the rows of former owners, and only then it serves. SERVING and STEPPING_DOWN outlast
# the connection, for the lease does; every other state begins anew with it. A daemon that is past its lease by its own
# clock starts no work, whatever stands here.


class LeaseState(Enum):
    """The states of a daemon's lease on its group."""

    UNREGISTERED = "registered: tried at once, and after a refusal again in 1 s, 2 s ... 30 s"
    STANDBY = "the next look at the owner, in lease_renewal at most"
    TAKING = "the answer, or statement_limit, and again 1 s after a refusal"
    RESCUING = "the same"
    SERVING = "the next renewal, in lease_renewal, and again 1 s after a refusal"
    STEPPING_DOWN = "the answer that the group has no owner, and again 1 s after a refusal"
    LEAVING = "the end of the process, which waits 2 s for the database at most"


class LeaseEvent(Enum):
    """The events of the lease: of the connection, answers of the database, requests of operators and of the core."""

    CONNECTED = "the connection is up"
    DISCONNECTED = "the connection is lost, and with it the answer to what was asked"
    REGISTERED = "the group knows us"
    OWNER_SEEN = "the row of the group was read"
    MAY_TAKE = "by what was read the group may be taken"
    TAKEN = "we are the owner"
    NOT_TAKEN = "another daemon was faster"
    RESCUED = "the rows of former owners are given back"
    RENEWED = "the lease is ours for one more time"
    LOST = "the group is not ours any more"
    REFUSED = "the database refused the statement"
    OWNER_CHANGED = "another daemon says that the row of the group is changed"
    RENEWAL_WANTED = "more of the lease is needed before it is due"
    STEP_DOWN = "another daemon is to have the group"
    LEAVE = "the daemon ends"


_LEASE_ROWS: Final = {
    "UNREGISTERED": {
        "CONNECTED DISCONNECTED REFUSED": "UNREGISTERED", "REGISTERED": "STANDBY", "LEAVE": "LEAVING",
        "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
    },
    "STANDBY": {
        "DISCONNECTED OWNER_SEEN OWNER_CHANGED REFUSED": "STANDBY", "MAY_TAKE": "TAKING", "CONNECTED": "UNREGISTERED",
        "LEAVE": "LEAVING", "RENEWAL_WANTED STEP_DOWN": IGNORE,
    },
    "TAKING": {
        "OWNER_CHANGED REFUSED": "TAKING", "TAKEN": "RESCUING", "NOT_TAKEN DISCONNECTED": "STANDBY",
        "CONNECTED": "UNREGISTERED", "LEAVE": "LEAVING", "MAY_TAKE RENEWAL_WANTED STEP_DOWN": IGNORE,
    },
    "RESCUING": {
        "DISCONNECTED REFUSED": "RESCUING", "RESCUED": "SERVING", "CONNECTED": "UNREGISTERED", "LEAVE": "LEAVING",
        "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
    },
    "SERVING": {
        "CONNECTED DISCONNECTED RENEWED RENEWAL_WANTED REFUSED": "SERVING", "STEP_DOWN": "STEPPING_DOWN",
        "LOST": "UNREGISTERED", "LEAVE": "LEAVING", "OWNER_CHANGED": IGNORE,
    },
    "STEPPING_DOWN": {
        "CONNECTED DISCONNECTED RENEWED REFUSED": "STEPPING_DOWN", "LOST": "UNREGISTERED", "LEAVE": "LEAVING",
        "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
    },
    "LEAVING": {OTHERWISE: IGNORE},
}  # fmt: skip
LEASE: Final = Machine("the lease", LeaseState, LeaseEvent, _LEASE_ROWS)

# ---- the program of an agent type with canary agents, when its file was replaced; moved by policy/canary_verdict.py
#
# STEADY: all agents run one program, that in use. A new one in its file is on TRIAL: one slot runs it, all others the
# one in use. It takes over if it passes, and is HELD_BACK if it is worse. A program that is held back, or was promoted,
# is looked at again only if people say so; another one in the file goes on trial by itself.


class ProgramState(Enum):
    """What is known of the program in the file of a type, and until when."""

    STEADY = "the file is replaced: nothing is waited for"
    TRIAL = "canary items are tried; without work, or with an item that never ends, until people decide"
    HELD_BACK = "the file is replaced again, or people decide"


class ProgramEvent(Enum):
    """What happens to it."""

    REPLACED = "the file has a program that is neither in use nor on trial nor held back"
    RESTORED = "the file has the program in use again"
    PASSED = "so many items were tried, and it is not worse"
    WORSE = "it fails more items than the one in use, is slower, or does not start"
    PROMOTE = "people want it in all slots"
    ROLLBACK = "people want it in none"
    CANARY = "people want it tried, from the first item on"


_PROGRAM_ROWS: Final = {
    "STEADY": {"REPLACED": "TRIAL", "RESTORED PROMOTE ROLLBACK CANARY": IGNORE},
    "TRIAL": {
        "REPLACED CANARY": "TRIAL", "RESTORED PASSED PROMOTE": "STEADY", "WORSE ROLLBACK": "HELD_BACK",
    },
    "HELD_BACK": {"REPLACED CANARY": "TRIAL", "RESTORED PROMOTE": "STEADY", "ROLLBACK": IGNORE},
}  # fmt: skip
PROGRAM: Final = Machine("the program of a type", ProgramState, ProgramEvent, _PROGRAM_ROWS)

# ---- the link to a host over SSH, as the supervisor sees it; moved by drivers/ssh_supervisor.py
#
# One SSH process serves each host. It connects, and connects again after a back-off of its own, as long as it runs. It
# is killed when it leaves four pings unanswered, one every 5 s. When it dies its connections are closed, all agents
# there are lost, and another is started. It is closed when the host left the configuration and its last agent ended.


class LinkState(Enum):
    """The states of the link to a host."""

    WAITING = "its process is started: after 1 s, doubled up to 60 s while it dies within 60 s"
    CONNECTING = "the first report, or a fifth ping"
    UP = "all connections are lost, or a fifth ping is due"
    DOWN = "the next attempt, whose instant LinkDown says, or a fifth ping"
    DYING = "it is reaped: looked for every 0.5 s while a debugger holds it; killed again every 5 s until it ends"
    CLOSING = "it is reaped: it ends in 5 s at most, and is killed by a fifth ping"
    CLOSED = "nothing: no process runs and none is started"


class LinkEvent(Enum):
    """The events of the link: of its process, its reports, and requests of the supervisor."""

    STARTED = "its process runs"
    NOT_STARTED = "its process could not be started"
    CONNECTED = "its process reported LinkUp"
    DISCONNECTED = "its process reported LinkDown"
    PINGED = "its process was asked whether it runs"
    KILLED = "its process was killed: it hangs, or all agents of the host are given up"
    ENDED = "its process has ended, by its pidfd"
    REAPED = "how its process ended is known"
    CLOSE = "the host is not wanted any more"


_LINK_ROWS: Final = {
    "WAITING": {"STARTED": "CONNECTING", "NOT_STARTED": "WAITING", "CLOSE": "CLOSED", "KILLED": IGNORE},
    "CONNECTING": {
        "CONNECTED": "UP", "DISCONNECTED": "DOWN", "PINGED": "CONNECTING", "KILLED ENDED": "DYING", "CLOSE": "CLOSING",
    },
    "UP": {"CONNECTED PINGED": "UP", "DISCONNECTED": "DOWN", "KILLED ENDED": "DYING", "CLOSE": "CLOSING"},
    "DOWN": {"CONNECTED": "UP", "DISCONNECTED PINGED": "DOWN", "KILLED ENDED": "DYING", "CLOSE": "CLOSING"},
    "DYING": {
        "REAPED": "WAITING", "PINGED KILLED ENDED": "DYING", "CLOSE": "CLOSING", "CONNECTED DISCONNECTED": IGNORE,
    },
    "CLOSING": {"REAPED": "CLOSED", "PINGED KILLED ENDED": "CLOSING", "CONNECTED DISCONNECTED CLOSE": IGNORE},
    "CLOSED": {"KILLED CLOSE": IGNORE},
}  # fmt: skip
HOST_LINK: Final = Machine("the link to a host", LinkState, LinkEvent, _LINK_ROWS)


# ---- the replacement of the daemon's program, moved by daemon/upgrade.py
#
# The process executes another program while its agents work. Until that the old one can go on at any moment, and does
# so whenever something takes too long: nothing but time is lost. HOLDING begins nothing new, FREEZING does not even
# read what agents write. The exec itself is no state: it succeeds, or the old program goes on.


class UpgradeState(Enum):
    """How far the daemon is with the replacement of its program, and until when."""

    RESTING = "files of its program change, or a command: it waits for people"
    WAITING = "rows of queries without a key are worked until the rest can travel: 1 h"
    TRYING = "a child of the new program has read the state, or 30 s"
    HOLDING = "what is under way between daemon, agents and database has ended, or 10 s"
    FREEZING = "all is saved, or 5 s"


class UpgradeEvent(Enum):
    """What happens to the replacement."""

    ASKED = "the files were replaced, or an operator wants it"
    CAN_TRAVEL = "the rest of every query can travel, or be read again"
    READ = "the new program can read the state"
    REFUSED = "the new program cannot be started, or not read the state"
    QUIET = "nothing is under way any more"
    LATE = "the time of the state is over"
    FAILED = "the state cannot be written, or the program not be executed"
    DROPPED = "the daemon is to end, or the group is not its own"


_UPGRADE_ROWS: Final = {
    "RESTING": {"ASKED": "WAITING", "DROPPED": IGNORE},
    "WAITING": {"CAN_TRAVEL": "TRYING", "LATE DROPPED": "RESTING", "ASKED": IGNORE},
    "TRYING": {"READ": "HOLDING", "REFUSED FAILED LATE DROPPED": "RESTING", "ASKED": IGNORE},
    "HOLDING": {"QUIET": "FREEZING", "LATE DROPPED": "RESTING", "ASKED": IGNORE},
    "FREEZING": {"FAILED LATE DROPPED": "RESTING", "ASKED": IGNORE},
}
UPGRADE: Final = Machine("the replacement of the program", UpgradeState, UpgradeEvent, _UPGRADE_ROWS)


def _check() -> None:
    """Check what `filled` cannot see; run on import."""
    assert [globals()[name] for name in STATE_NAMES] == list(range(len(STATE_NAMES)))
    assert [globals()[name] for name in EVENT_NAMES] == list(range(len(EVENT_NAMES)))
    assert {after for moves in JOB_MOVES.values() for after in moves} <= set(JOB_STATES)
    assert set(JOB_UNTIL) == set(JOB_STATES) - TERMINAL


_check()
