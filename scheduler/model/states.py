"""Every machine of Drover as a total table keyed by name; the manual pages and the SQL are held against these tables.

A machine has states and events. Its table has a row for each state: UNTIL says what ends the state at the latest, for
no state lasts for ever; then come events and the cell of each (events of one cell share a key), and OTHERWISE is the
cell of all events that the row does not name. A cell is the next state, or one of

    IGNORE      nothing to do
    VIOLATION   the fault of an agent: kill it and count it
    IMPOSSIBLE  our bug: it fails tests; in production it costs the agent of the slot, or is raised as a BugError

Each machine has one writer, named above its table, which moves the state and sets the deadline in one step. Tables are
checked on import, since a hole in one is a bug everywhere. This module knows no slots, jobs, connections or clocks.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar

from scheduler.errors import BugError

NEVER: Final = float("inf")  # the deadline of what waits without one: an instant later than all others
UNTIL, OTHERWISE = "UNTIL", "OTHERWISE"
IGNORE, VIOLATION, IMPOSSIBLE = "IGNORE", "VIOLATION", "IMPOSSIBLE"

Rows = Mapping[str, Mapping[str, str]]
State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def filled(states: Iterable[str], events: Iterable[str], rows: Rows) -> dict[str, dict[str, str]]:
    """Return every cell of a table: state -> event -> next state, IGNORE, VIOLATION or IMPOSSIBLE.

    **errors**: BugError for a state without its row, a row without UNTIL or OTHERWISE, an event that does not exist or
    is named twice, and a cell that is no state.
    """
    states, events = list(states), list(events)
    if list(rows) != states:
        raise BugError(f"the rows {list(rows)} are not those of {states}")
    return {state: _filled_row(state, states, events, dict(rows[state])) for state in states}


def _filled_row(state: str, states: list[str], events: list[str], row: dict[str, str]) -> dict[str, str]:
    if not {UNTIL, OTHERWISE} <= row.keys():
        raise BugError(f"row {state} does not say {UNTIL} and {OTHERWISE}")
    del row[UNTIL]
    others = row.pop(OTHERWISE)
    named = [(event, cell) for key, cell in row.items() for event in key.split()]
    cells = dict.fromkeys(events, others) | dict(named)
    if list(cells) != events or len(dict(named)) < len(named):
        raise BugError(f"row {state} names an event twice, or one that is not of {events}")
    if wrong := set(cells.values()) - {*states, IGNORE, VIOLATION, IMPOSSIBLE}:
        raise BugError(f"row {state} leads to {wrong}, which is no state")
    return cells


class Machine(Generic[State, Event]):
    """A table whose states and events are enumerations."""

    def __init__(self, name: str, states: type[State], events: type[Event], rows: Rows) -> None:
        self.name, self.states, self.rows = name, states, rows
        self.cells = filled(states.__members__, events.__members__, rows)

    def after(self, state: State, event: Event) -> State | None:
        """Return the state after an event, which may be the same; None when the event is ignored.

        **errors**: BugError if it is impossible.
        """
        cell = self.cells[state.name][event.name]
        if cell == IMPOSSIBLE:
            raise BugError(f"impossible: {event.name} of {self.name} in {state.name}: please report this")
        return None if cell == IGNORE else self.states[cell]


# ---- agent slots, moved by policy/agents.py
#
# A slot is FREE until it is chosen. PREP says that a process is being made, so that a death reported meanwhile cannot
# free the slot. SPAWNED waits for the first OK and is given no data. READY and RUNNING alternate; a slot that gets its
# next line with its OK stays RUNNING (NEXT). FREEING was told to die and holds no pipes; only its death frees it, and
# being late there means SIGKILL, again and again. FAIL is a slot whose agent died too often; time alone frees it. What
# a slot *is* stands here; what is *wanted* of its process is another field.

# Numeric values are public (drover.scheduler_status): SPEC 2, F60.
ST_FAIL, ST_FREE, ST_FREEING, ST_PREP, ST_SPAWNED, ST_READY, ST_RUNNING, ST_DONE, ST_END = range(9)
STATE_NAMES: Final = (
    "ST_FAIL",
    "ST_FREE",
    "ST_FREEING",
    "ST_PREP",
    "ST_SPAWNED",
    "ST_READY",
    "ST_RUNNING",
    "ST_DONE",
    "ST_END",
)
SLOT_STATES: Final = (ST_FAIL, ST_FREE, ST_FREEING, ST_PREP, ST_SPAWNED, ST_READY, ST_RUNNING)

SLOT_EVENTS: Final = {
    "CHOSEN": "the slot was picked for work",
    "CREATED": "its process exists",
    "NOT_CREATED": "its process could not be made",
    "LAUNCHED": "an exec agent has its item from the start",
    "OK": "the agent said OK and no line is waiting",
    "NEXT": "the agent said OK and gets the next line at once",
    "FED": "a line was sent to an idle agent",
    "SAID": "the agent said anything else",
    "KILLED": "we want its process dead",
    "LATE": "its deadline has come",
    "GONE": "the process is dead and its output is read",
    "THROTTLED": "its processes died too often",
    "THAWED": "the throttle is lifted before its time",
}
CHOSEN, CREATED, NOT_CREATED, LAUNCHED, OK, NEXT, FED, SAID, KILLED, LATE, GONE, THROTTLED, THAWED = range(13)
EVENT_NAMES: Final = tuple(SLOT_EVENTS)

SLOT_ROWS: Final[Rows] = {
    "ST_FAIL": {
        UNTIL: "respawn_interval",
        "LATE THAWED": "ST_FREE",
        "KILLED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_FREE": {
        UNTIL: "work is there: a slot without process waits for nothing",
        "CHOSEN": "ST_PREP",
        "THROTTLED": "ST_FAIL",
        "KILLED LATE THAWED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_FREEING": {
        UNTIL: "kill_grace, then SIGKILL and the same again",
        "CREATED LATE": "ST_FREEING",
        "NOT_CREATED GONE": "ST_FREE",
        "OK SAID KILLED THAWED": IGNORE,  # the last words of a process that was told to die
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_PREP": {
        UNTIL: "start_limit",
        "CREATED": "ST_SPAWNED",
        "NOT_CREATED": "ST_FREE",
        "KILLED LATE": "ST_FREEING",
        "THAWED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_SPAWNED": {
        UNTIL: "start_limit",
        "OK": "ST_READY",
        "LAUNCHED": "ST_RUNNING",
        "KILLED LATE": "ST_FREEING",
        "GONE": "ST_FREE",
        "SAID THAWED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_READY": {
        UNTIL: "max_idle",
        "OK": VIOLATION,  # it answers nothing
        "FED": "ST_RUNNING",
        "KILLED LATE": "ST_FREEING",
        "GONE": "ST_FREE",
        "SAID THAWED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_RUNNING": {
        UNTIL: "heartbeat and item_timeout of the type, whichever is less, and write_limit while it does not read",
        "OK": "ST_READY",
        "NEXT": "ST_RUNNING",
        "KILLED LATE": "ST_FREEING",
        "GONE": "ST_FREE",
        "SAID THAWED": IGNORE,
        OTHERWISE: IMPOSSIBLE,
    },
    "ST_DONE": {
        UNTIL: "no slot is ever in it: it is of the rows of queries only",
        OTHERWISE: IMPOSSIBLE,
    },
}
SLOT_CELLS: Final = filled(STATE_NAMES[:ST_END], EVENT_NAMES, SLOT_ROWS)

# The same as numbers, for the hot path: SLOT_TABLE[state][event] is a state, or negative.
TO_IGNORE, IS_VIOLATION, IS_IMPOSSIBLE = -1, -2, -3
_NUMBERS: Final = {name: number for number, name in enumerate(STATE_NAMES)} | {
    IGNORE: TO_IGNORE,
    VIOLATION: IS_VIOLATION,
    IMPOSSIBLE: IS_IMPOSSIBLE,
}
SLOT_TABLE: Final = tuple(tuple(_NUMBERS[cell] for cell in row.values()) for row in SLOT_CELLS.values())

# ---- jobs, moved by the SQL: trigger jobqueue_moved refuses what is not here
#
# A job has states and no events: each statement names the states that it moves from. A cell says what a move means; a
# move that has none is illegal. A job that is claimed or running is in hand of the daemon that its row names.

HELD, QUEUED, CLAIMED, RUNNING, BLOCKED = "held", "queued", "claimed", "running", "blocked"
DONE, FAILED, CANCELLED, IGNORED, SKIPPED = "done", "failed", "cancelled", "ignored", "skipped"
JOB_STATES: Final = (
    HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, DONE, FAILED, CANCELLED, IGNORED, SKIPPED,
)  # fmt: skip
TERMINAL: Final = frozenset((DONE, FAILED, CANCELLED, IGNORED, SKIPPED))
INSERTABLE: Final = frozenset((HELD, QUEUED))

JOB_MOVES: Final[Rows] = {
    HELD: {
        QUEUED: "released, or run by hand",
        SKIPPED: "put on ice, or a dependency was not met",
        CANCELLED: "cancelled",
        IGNORED: "may not be run by hand",
    },
    QUEUED: {
        CLAIMED: "claimed by the owner of its group",
        HELD: "held",
        BLOCKED: "waits for a condition",
        CANCELLED: "cancelled",
        SKIPPED: "put on ice, or a dependency was not met",
        FAILED: "not started in time; of a command: refused",
    },
    CLAIMED: {
        RUNNING: "an agent works on it, or soon",
        QUEUED: "given back, rescued, or to be tried again",
        DONE: "done",
        FAILED: "failed, or killed",
        BLOCKED: "waits for a condition",
        CANCELLED: "cancelled",
    },
    RUNNING: {
        DONE: "done",
        QUEUED: "given back, rescued, to be tried again, or a slice of it is done",
        FAILED: "failed, or killed",
        BLOCKED: "waits for a condition",
        CANCELLED: "cancelled",
    },
    BLOCKED: {
        QUEUED: "its condition is cleared",
        HELD: "held",
        FAILED: "its condition was not cleared in time",
        CANCELLED: "cancelled",
    },
    DONE: {},
    FAILED: {QUEUED: "to be tried again by command"},
    CANCELLED: {},
    IGNORED: {},
    SKIPPED: {},
}
COMMAND_MOVES: Final[Rows] = {**JOB_MOVES, QUEUED: {**JOB_MOVES[QUEUED], DONE: "carried out"}}  # of type command

# What ends the states of a job that is not over.
JOB_UNTIL: Final = {
    HELD: "somebody releases or cancels it: it waits for people, without a limit",
    QUEUED: "jq_not_after; without one it waits as drover.why says",
    CLAIMED: "the end of its work, jq_timeout, or the end of its owner's lease",
    RUNNING: "the end of its work, jq_timeout, or the end of its owner's lease",
    BLOCKED: "its condition is cleared, or somebody cancels it",
}

BIT_SUCCESS, BIT_FAILURE, BIT_NONFATAL = 1, 2, 4  # jq_end_bits


def check_move(before: str, after: str) -> None:
    """Refuse to write a move of a job that is illegal. Errors: BugError."""
    if after not in JOB_MOVES[before] and after != before:
        raise BugError(f"a job may not move from {before} to {after}: please report this")


# ---- the lease of a group, as one daemon sees it; moved by policy/lease.py
#
# The row of the group decides who serves, by the clock of the database. A daemon registers, stands by and looks at the
# owner now and then. It takes the group if the owner is missing, dead, or late while this daemon was connected for one
# whole lease; then it gives back the rows of former owners, and only then it serves. SERVING and STEPPING_DOWN outlast
# the connection, for the lease does; every other state begins anew with it. Whoever is past its lease by its own clock
# starts no work, whatever stands here.


class LeaseState(Enum):
    """What a daemon is to its group; the values are shown to people."""

    UNREGISTERED = "unregistered"
    STANDBY = "standing by"
    TAKING = "asking for the group"
    RESCUING = "taking over"
    SERVING = "serving"
    STEPPING_DOWN = "stepping down"
    LEAVING = "leaving"


class LeaseEvent(Enum):
    """What happens to the lease: answers of the database, the connection, and what people and other modules want."""

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
    OWNER_CHANGED = "another daemon has told that the row of the group is changed"
    RENEWAL_WANTED = "more of the lease is needed before it is due"
    STEP_DOWN = "another daemon is to have the group"
    LEAVE = "the daemon ends"


LEASE: Final = Machine(
    "the lease",
    LeaseState,
    LeaseEvent,
    {
        "UNREGISTERED": {
            UNTIL: "registered: asked at once, and refused again after 1 s, 2 s ... 30 s",
            "CONNECTED DISCONNECTED REFUSED": "UNREGISTERED",
            "REGISTERED": "STANDBY",
            "LEAVE": "LEAVING",
            "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "STANDBY": {
            UNTIL: "the next look at the owner, in lease_renewal at most",
            "CONNECTED": "UNREGISTERED",
            "DISCONNECTED OWNER_SEEN OWNER_CHANGED REFUSED": "STANDBY",
            "MAY_TAKE": "TAKING",
            "LEAVE": "LEAVING",
            "RENEWAL_WANTED STEP_DOWN": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "TAKING": {
            UNTIL: "the answer, or statement_limit; refused again after 1 s",
            "CONNECTED": "UNREGISTERED",
            "OWNER_CHANGED REFUSED": "TAKING",
            "TAKEN": "RESCUING",
            "NOT_TAKEN DISCONNECTED": "STANDBY",
            "LEAVE": "LEAVING",
            "MAY_TAKE RENEWAL_WANTED STEP_DOWN": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "RESCUING": {
            UNTIL: "the answer, or statement_limit; refused again after 1 s",
            "CONNECTED": "UNREGISTERED",
            "DISCONNECTED REFUSED": "RESCUING",
            "RESCUED": "SERVING",
            "LEAVE": "LEAVING",
            "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "SERVING": {
            UNTIL: "the next renewal, in lease_renewal; refused again after 1 s",
            "CONNECTED DISCONNECTED RENEWED RENEWAL_WANTED REFUSED": "SERVING",
            "LOST": "UNREGISTERED",
            "STEP_DOWN": "STEPPING_DOWN",
            "LEAVE": "LEAVING",
            "OWNER_CHANGED": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "STEPPING_DOWN": {
            UNTIL: "the answer that the group has no owner; refused again after 1 s",
            "CONNECTED DISCONNECTED RENEWED REFUSED": "STEPPING_DOWN",
            "LOST": "UNREGISTERED",
            "LEAVE": "LEAVING",
            "OWNER_CHANGED RENEWAL_WANTED STEP_DOWN": IGNORE,
            OTHERWISE: IMPOSSIBLE,
        },
        "LEAVING": {
            UNTIL: "the process ends: it waits 2 s for the database at most",
            OTHERWISE: IGNORE,
        },
    },
)


def _check() -> None:
    """Check what `filled` cannot see; run on import."""
    assert [globals()[name] for name in STATE_NAMES] == list(range(len(STATE_NAMES)))
    assert [globals()[name] for name in EVENT_NAMES] == list(range(len(EVENT_NAMES)))
    assert tuple(JOB_MOVES) == JOB_STATES
    assert {after for row in JOB_MOVES.values() for after in row} <= set(JOB_STATES)
    assert set(JOB_UNTIL) == set(JOB_STATES) - TERMINAL


_check()
