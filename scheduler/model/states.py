"""States of agents and of jobs as total tables; the documentation of both is drawn from here.

An agent slot moves only through `AGENT_TABLE[state][event]`, a job only along `JOB_MOVES`. Every cell is filled: a
next state, IGNORE (nothing to do), VIOLATION (the agent's fault: kill it, count it) or IMPOSSIBLE (our bug). This
module knows no slots, no deadlines and no rows; policy/agents.py fires events, schema/ guards job moves.

Theory, told once. A slot is FREE until it is chosen. PREP says that a process is being made, so that a death heard
meanwhile cannot free the slot. SPAWNED waits for the first OK and takes no data. READY and RUNNING alternate; a slot
that gets its next line with its OK stays RUNNING (NEXT). FREEING is told to die and holds no pipes; only its death
frees it, and being late there means SIGKILL, again and again. FAIL is a slot whose agent died too often; time alone
frees it. What a slot *is* stands here; what is *wanted* of it (its doom) is another field.
"""

from typing import Final

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

EVENT_NAMES: Final = (
    "CHOSEN",  # a slot was picked for work
    "CREATED",  # its process exists
    "NOT_CREATED",  # its process could not be made
    "LAUNCHED",  # an exec agent has its item from the start
    "OK",  # the agent said OK and no line is waiting
    "NEXT",  # the agent said OK and gets the next line at once
    "FED",  # a line was handed to an idle agent
    "SAID",  # the agent said anything else
    "KILLED",  # we want it dead
    "LATE",  # its deadline has come
    "GONE",  # the process is dead and its output is read
    "THROTTLED",  # it died too often
    "THAWED",  # the throttle is lifted before its time
)
CHOSEN, CREATED, NOT_CREATED, LAUNCHED, OK, NEXT, FED, SAID, KILLED, LATE, GONE, THROTTLED, THAWED = range(13)

IGNORE, VIOLATION, IMPOSSIBLE = -1, -2, -3
_I, _V, _X = IGNORE, VIOLATION, IMPOSSIBLE

# One row a state, one cell an event, in the order of EVENT_NAMES.
_ROWS: Final[dict[int, tuple[int, ...]]] = {
    #             CHOSEN   CREATED     NOT_CREATED LAUNCHED   OK        NEXT       FED        SAID KILLED   LATE        GONE     THROTTLED THAWED
    ST_FAIL:     (_X,      _X,         _X,         _X,        _X,       _X,        _X,        _X,  _I,      ST_FREE,    _X,      _X,       ST_FREE),
    ST_FREE:     (ST_PREP, _X,         _X,         _X,        _X,       _X,        _X,        _X,  _I,      _I,         _X,      ST_FAIL,  _I),
    ST_FREEING:  (_X,      ST_FREEING, ST_FREE,    _X,        _I,       _X,        _X,        _I,  _I,      ST_FREEING, ST_FREE, _X,       _I),
    ST_PREP:     (_X,      ST_SPAWNED, ST_FREE,    _X,        _X,       _X,        _X,        _X,  ST_FREEING, ST_FREEING, _X,   _X,       _I),
    ST_SPAWNED:  (_X,      _X,         _X,         ST_RUNNING, ST_READY, _X,       _X,        _I,  ST_FREEING, ST_FREEING, ST_FREE, _X,   _I),
    ST_READY:    (_X,      _X,         _X,         _X,        _V,       _X,        ST_RUNNING, _I, ST_FREEING, ST_FREEING, ST_FREE, _X,   _I),
    ST_RUNNING:  (_X,      _X,         _X,         _X,        ST_READY, ST_RUNNING, _X,       _I,  ST_FREEING, ST_FREEING, ST_FREE, _X,   _I),
    ST_DONE:     (_X,) * 13,  # query rows only: no slot is ever in it
}  # fmt: skip
AGENT_TABLE: Final = tuple(_ROWS[state] for state in range(ST_END))

# ---- jobs

HELD, QUEUED, CLAIMED, RUNNING, BLOCKED = "held", "queued", "claimed", "running", "blocked"
DONE, FAILED, CANCELLED, IGNORED, SKIPPED = "done", "failed", "cancelled", "ignored", "skipped"
JOB_STATES: Final = (
    HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, DONE, FAILED, CANCELLED, IGNORED, SKIPPED,
)  # fmt: skip
TERMINAL: Final = frozenset((DONE, FAILED, CANCELLED, IGNORED, SKIPPED))
INSERTABLE: Final = frozenset((HELD, QUEUED))

JOB_MOVES: Final[dict[str, frozenset[str]]] = {
    HELD: frozenset((QUEUED, SKIPPED, CANCELLED, IGNORED)),
    QUEUED: frozenset((CLAIMED, HELD, BLOCKED, CANCELLED, SKIPPED, FAILED)),
    CLAIMED: frozenset((RUNNING, QUEUED, DONE, FAILED, BLOCKED, CANCELLED)),
    RUNNING: frozenset((DONE, QUEUED, FAILED, BLOCKED, CANCELLED)),
    BLOCKED: frozenset((QUEUED, HELD, FAILED, CANCELLED)),
    DONE: frozenset(),
    FAILED: frozenset((QUEUED,)),
    CANCELLED: frozenset(),
    IGNORED: frozenset(),
    SKIPPED: frozenset(),
}

BIT_SUCCESS, BIT_FAILURE, BIT_NONFATAL = 1, 2, 4  # jq_end_bits


def _check() -> None:
    """Every cell is filled and means something; run on import, since a hole here is a bug everywhere."""
    assert len(AGENT_TABLE) == ST_END
    assert {len(row) for row in AGENT_TABLE} == {len(EVENT_NAMES)}
    assert all(cell in SLOT_STATES or cell in (_I, _V, _X) for row in AGENT_TABLE for cell in row)
    assert tuple(JOB_MOVES) == JOB_STATES
    assert all(target in JOB_STATES for targets in JOB_MOVES.values() for target in targets)


_check()
