"""Claims about the tables of states: total, reachable, and cell by cell what the stories told here say."""

from collections.abc import Iterable
from enum import Enum
from itertools import pairwise

import pytest

from scheduler.drivers.query_cursors import CURSOR
from scheduler.errors import BugError
from scheduler.model import states as s
from scheduler.model.config import AgentType, Scheduler
from scheduler.model.states import NEVER
from scheduler.policy.slots import timeouts_of

MACHINES = (s.WANTED, s.QUERY, CURSOR, s.LEASE, s.UPGRADE)
SLOT_STORIES = """
FREE CHOSEN PREP CREATED SPAWNED OK READY FED RUNNING NEXT RUNNING OK READY LATE FREEING GONE FREE
FREE CHOSEN PREP CREATED SPAWNED LAUNCHED RUNNING GONE FREE
FREE CHOSEN PREP NOT_CREATED FREE THROTTLED FAIL LATE FREE THROTTLED FAIL THAWED FREE
FREE CHOSEN PREP KILLED FREEING CREATED FREEING LATE FREEING GONE FREE
FREE CHOSEN PREP LATE FREEING NOT_CREATED FREE
FREE CHOSEN PREP CREATED SPAWNED GONE FREE
FREE CHOSEN PREP CREATED SPAWNED KILLED FREEING GONE FREE
FREE CHOSEN PREP CREATED SPAWNED LATE FREEING GONE FREE
FREE CHOSEN PREP CREATED SPAWNED OK READY GONE FREE
FREE CHOSEN PREP CREATED SPAWNED OK READY KILLED FREEING GONE FREE
FREE CHOSEN PREP CREATED SPAWNED LAUNCHED RUNNING KILLED FREEING GONE FREE
FREE CHOSEN PREP CREATED SPAWNED LAUNCHED RUNNING LATE FREEING GONE FREE
"""
SLOT_IGNORES = """
FAIL KILLED
FREE KILLED LATE THAWED
FREEING OK SAID KILLED THAWED
PREP THAWED
SPAWNED SAID THAWED
READY SAID THAWED
RUNNING SAID THAWED
"""


def told(stories: str) -> set[tuple[str, str, str]]:
    """Return the cells that stories go through: a state, an event, a state and so on, a story a line."""
    cells = set()
    for line in stories.split("\n"):
        words = line.split()
        cells |= set(zip(words[::2], words[1::2], words[2::2], strict=False))
    return cells


def ignored(lines: str) -> set[tuple[str, str]]:
    """Return the (state, event) of lines that each name a state and the events that it ignores."""
    return {(state, event) for state, *events in map(str.split, lines.split("\n")[1:-1]) for event in events}


def cells_of(table: s.Rows) -> set[tuple[str, str, str]]:
    """Return (state, event, cell) of all cells of a table that are not impossible."""
    return {(a, e, cell) for a, row in table.items() for e, cell in row.items() if cell != s.IMPOSSIBLE}


# ---- the form of a table


class Light(Enum):
    RED = "red"
    GREEN = "green"


class Turn(Enum):
    GO = "go"
    BREAK = "break"


RED = {"GO": "GREEN", s.OTHERWISE: s.IGNORE}
GREEN = {"GO": "RED"}


def test_cells_that_no_row_names_are_impossible_unless_the_row_says_otherwise() -> None:
    light = s.Machine("light", Light, Turn, {"RED": RED, "GREEN": GREEN})
    assert (light.after(Light.RED, Turn.GO), light.after(Light.RED, Turn.BREAK)) == (Light.GREEN, None)
    assert light.cells["GREEN"]["BREAK"] == s.IMPOSSIBLE


def test_impossible_event_is_a_bug_that_names_machine_state_and_event() -> None:
    light = s.Machine("light", Light, Turn, {"RED": RED, "GREEN": GREEN})
    with pytest.raises(BugError, match="BREAK of light in GREEN"):
        light.after(Light.GREEN, Turn.BREAK)


@pytest.mark.parametrize(
    ("green", "why"),
    [
        (GREEN | {"STOP": "RED"}, "one that is not of"),
        (GREEN | {"GO BREAK": "RED"}, "names an event twice"),
        (GREEN | {"BREAK": "BLUE"}, "leads to {'BLUE'}"),
        (GREEN | {s.OTHERWISE: "BLUE"}, "leads to {'BLUE'}"),
    ],
)
def test_row_with_a_mistake_is_refused(green: dict[str, str], why: str) -> None:
    with pytest.raises(BugError, match=why):
        s.Machine("light", Light, Turn, {"RED": RED, "GREEN": green})


def test_table_without_a_row_for_each_state_is_refused() -> None:
    with pytest.raises(BugError, match="not those of"):
        s.Machine("light", Light, Turn, {"RED": RED})


# ---- slots


def test_states_have_their_public_numbers_f60() -> None:
    assert {name: number for number, name in enumerate(s.STATE_NAMES)} == {
        "ST_FAIL": 0, "ST_FREE": 1, "ST_FREEING": 2, "ST_PREP": 3, "ST_SPAWNED": 4, "ST_READY": 5, "ST_RUNNING": 6,
        "ST_DONE": 7, "ST_END": 8,
    }  # fmt: skip


def test_transitions_of_slots_match_the_specification_f61_f62_f63_f64_f66_f67() -> None:
    moves = {(f"ST_{a}", event, f"ST_{b}") for a, event, b in told(SLOT_STORIES)}
    ignores = {(f"ST_{state}", event, s.IGNORE) for state, event in ignored(SLOT_IGNORES)}
    assert cells_of(s.SLOT_CELLS) == moves | ignores | {("ST_READY", "OK", s.VIOLATION)}


def test_table_by_numbers_equals_table_by_names() -> None:
    names = [*s.STATE_NAMES, s.IMPOSSIBLE, s.VIOLATION, s.IGNORE]  # the last three: -3, -2, -1
    assert [[names[cell] for cell in row] for row in s.SLOT_TABLE] == [list(r.values()) for r in s.SLOT_CELLS.values()]


def test_st_end_is_only_a_marker_f69() -> None:
    assert len(s.SLOT_TABLE) == s.ST_END
    assert all(cell < s.ST_DONE for row in s.SLOT_TABLE for cell in row)


def test_no_slot_enters_or_leaves_st_done_f68() -> None:
    assert set(s.SLOT_TABLE[s.ST_DONE]) == {s.IS_IMPOSSIBLE}
    assert s.ST_DONE not in s.SLOT_STATES


def test_every_state_of_a_slot_but_free_has_a_deadline() -> None:
    timeouts = timeouts_of(AgentType("a", kind="line", heartbeat=60.0), Scheduler())
    assert [state for state in s.SLOT_STATES if timeouts[state] == NEVER] == [s.ST_FREE]


# ---- what is wanted of a process


def test_transitions_of_wanted_match_the_specification() -> None:
    stories = "KEEP DISMISS FINISH DISMISS FINISH KILL DIE ENDED KEEP KILL DIE\nFINISH ENDED KEEP ENDED KEEP"
    ignores = {(state, event, s.IGNORE) for state, event in ignored("\nDIE DISMISS KILL\n")}
    assert cells_of(s.WANTED.cells) == told(stories) | ignores


def test_a_process_to_be_killed_is_never_kept() -> None:
    assert {s.WANTED.after(s.Wanted.DIE, wish) for wish in (s.Wish.DISMISS, s.Wish.KILL)} == {None}


# ---- jobs

JOB_STORIES = """
held queued claimed running done
queued running
queued done
held skipped
held cancelled
held ignored
queued held
queued blocked held
queued cancelled
queued skipped
queued failed queued
claimed queued
claimed done
claimed failed
claimed blocked cancelled
claimed cancelled
running queued
running failed
running blocked failed
running cancelled
blocked queued
"""


def moves_of(rows: dict[str, frozenset[str]]) -> set[tuple[str, str]]:
    """Return the legal moves of a table of jobs."""
    return {(before, after) for before, row in rows.items() for after in row}


def steps(stories: str) -> set[tuple[str, str]]:
    """Return the moves that the lines of a text go through."""
    return {step for line in stories.split("\n") for step in pairwise(line.split())}


def test_transitions_of_jobs_match_the_specification() -> None:
    assert moves_of(s.JOB_MOVES) == steps(JOB_STORIES)


def test_command_is_carried_out_while_it_is_queued() -> None:
    assert moves_of(s.JOB_MOVES) - moves_of(s.COMMAND_MOVES) == {("queued", "running")}
    assert s.DONE in s.COMMAND_MOVES[s.QUEUED]


def test_nothing_leaves_a_terminal_state_but_a_retry() -> None:
    assert {state: s.JOB_MOVES[state] for state in s.TERMINAL if s.JOB_MOVES[state]} == {"failed": {"queued"}}


def test_every_state_of_a_job_can_be_reached() -> None:
    reached: Iterable[str] = s.INSERTABLE | {after for _, after in moves_of(s.JOB_MOVES)}
    assert set(reached) == set(s.JOB_STATES)


def test_plain_success_is_legal_for_each_state_in_hand() -> None:
    assert s.DONE in s.JOB_MOVES[s.CLAIMED] & s.JOB_MOVES[s.RUNNING]


def test_commands_change_jobs_in_the_states_from_which_the_table_lets_them() -> None:
    in_hand, waiting = {"claimed", "running"}, {"held", "queued", "blocked"}
    assert s.states_before(s.CANCELLED) == in_hand | waiting
    assert s.states_before(s.HELD) == {"queued", "blocked"}
    assert s.states_before(s.SKIPPED) == {"held", "queued"}


def test_illegal_move_of_a_job_is_not_written() -> None:
    with pytest.raises(BugError, match="from done to queued"):
        s.check_move(s.DONE, s.QUEUED)


# ---- the lease

LEASE_STORIES = """
UNREGISTERED CONNECTED UNREGISTERED REFUSED UNREGISTERED REGISTERED STANDBY OWNER_SEEN STANDBY MAY_TAKE TAKING
TAKING NOT_TAKEN STANDBY OWNER_CHANGED STANDBY REFUSED STANDBY
TAKING TAKEN RESCUING RESCUED SERVING RENEWED SERVING RENEWAL_WANTED SERVING STEP_DOWN STEPPING_DOWN LOST UNREGISTERED
TAKING REFUSED TAKING OWNER_CHANGED TAKING DISCONNECTED STANDBY CONNECTED UNREGISTERED DISCONNECTED UNREGISTERED
TAKING CONNECTED UNREGISTERED LEAVE LEAVING
RESCUING REFUSED RESCUING DISCONNECTED RESCUING CONNECTED UNREGISTERED
SERVING REFUSED SERVING DISCONNECTED SERVING CONNECTED SERVING LOST UNREGISTERED
STEPPING_DOWN REFUSED STEPPING_DOWN DISCONNECTED STEPPING_DOWN CONNECTED STEPPING_DOWN RENEWED STEPPING_DOWN
STANDBY DISCONNECTED STANDBY LEAVE LEAVING
TAKING LEAVE LEAVING
RESCUING LEAVE LEAVING
SERVING LEAVE LEAVING
STEPPING_DOWN LEAVE LEAVING
"""
LEASE_IGNORES = """
UNREGISTERED OWNER_CHANGED RENEWAL_WANTED STEP_DOWN
STANDBY RENEWAL_WANTED STEP_DOWN
TAKING MAY_TAKE RENEWAL_WANTED STEP_DOWN
RESCUING OWNER_CHANGED RENEWAL_WANTED STEP_DOWN
SERVING OWNER_CHANGED
STEPPING_DOWN OWNER_CHANGED RENEWAL_WANTED STEP_DOWN
"""


def test_transitions_of_the_lease_match_the_specification() -> None:
    leaving = {("LEAVING", event.name, s.IGNORE) for event in s.LeaseEvent}
    ignores = {(state, event, s.IGNORE) for state, event in ignored(LEASE_IGNORES)}
    assert cells_of(s.LEASE.cells) == told(LEASE_STORIES) | ignores | leaving


def test_daemon_that_leaves_takes_and_renews_nothing() -> None:
    assert {s.LEASE.after(s.LeaseState.LEAVING, event) for event in s.LeaseEvent} == {None}


def test_group_is_served_only_after_the_rows_of_former_owners_are_given_back() -> None:
    into_serving = {(a, event) for a, event, b in cells_of(s.LEASE.cells) if b == "SERVING" != a}
    assert into_serving == {("RESCUING", "RESCUED")}


# ---- the query of a job

QUERY_STORIES = """
WAITING ASKED OPENING OPENED OPEN FETCH FETCHING FETCHED OPEN FETCH FETCHING FETCHED_LAST EXHAUSTED
OPEN KEEP KEEPING KEPT OPEN
OPENING OPENED_EMPTY EXHAUSTED
OPEN CLOSED WAITING
OPEN DROPPED EXHAUSTED
"""
QUERY_IGNORES = """
WAITING DROPPED
OPENING DROPPED
FETCHING DROPPED
KEEPING DROPPED
EXHAUSTED DROPPED
"""


def test_transitions_of_a_query_match_the_specification() -> None:
    ignores = {(state, event, s.IGNORE) for state, event in ignored(QUERY_IGNORES)}
    assert cells_of(s.QUERY.cells) == told(QUERY_STORIES) | ignores


def test_query_with_a_fetch_in_flight_is_not_exhausted() -> None:
    into_exhausted = {(a, event) for a, event, b in cells_of(s.QUERY.cells) if b == "EXHAUSTED"}
    assert ("FETCHING", "DROPPED") not in into_exhausted
    assert ("OPENING", "DROPPED") not in into_exhausted


@pytest.mark.parametrize(
    "machine", [s.WANTED, s.QUERY, CURSOR, s.LEASE, s.UPGRADE], ids=lambda machine: str(machine.name)
)
def test_every_state_of_a_machine_can_be_reached_from_its_first(machine: s.Machine[Enum, Enum]) -> None:
    reached = {next(iter(machine.cells))}
    for _ in machine.cells:
        reached |= {cell for state in reached for cell in machine.cells[state].values() if cell in machine.cells}
    assert reached == set(machine.cells)


@pytest.mark.parametrize(
    "machine", [s.WANTED, s.QUERY, CURSOR, s.LEASE, s.UPGRADE], ids=lambda machine: str(machine.name)
)
def test_every_state_of_a_machine_says_what_ends_it(machine: s.Machine[Enum, Enum]) -> None:
    assert all(state.value for state in machine.states)


# ---- the cursor of a query

CURSOR_STORIES = """
OPENING OPENED OPEN FETCHED OPEN FETCHED_LAST READ FETCHED_LAST READ LOST CLOSED
OPENING NOT_CONNECTED REFUSED
OPEN LOST CUT_OFF
OPEN NOT_CONNECTED CUT_OFF
READ NOT_CONNECTED CLOSED
OPEN KEPT KEPT FETCHED KEPT FETCHED_LAST KEPT
"""


def test_transitions_of_a_cursor_match_the_specification() -> None:
    assert cells_of(CURSOR.cells) == told(CURSOR_STORIES) | {("OPENING", "LOST", s.IGNORE)}


def test_cursor_whose_rows_are_all_fetched_loses_nothing_with_its_connection() -> None:
    into_closed = {a for a, _, b in cells_of(CURSOR.cells) if b == "CLOSED"}
    assert into_closed == {"READ"}


# ---- the link to a host

LINK_STORIES = """
WAITING STARTED CONNECTING PINGED CONNECTING CONNECTED UP PINGED UP CONNECTED UP DISCONNECTED DOWN PINGED DOWN
DOWN DISCONNECTED DOWN CONNECTED UP ENDED DYING REAPED WAITING NOT_STARTED WAITING CLOSE CLOSED
CONNECTING DISCONNECTED DOWN KILLED DYING PINGED DYING KILLED DYING ENDED DYING CLOSE CLOSING
CONNECTING KILLED DYING
CONNECTING ENDED DYING
CONNECTING CLOSE CLOSING PINGED CLOSING KILLED CLOSING ENDED CLOSING REAPED CLOSED
UP KILLED DYING
UP CLOSE CLOSING
DOWN ENDED DYING
DOWN CLOSE CLOSING
"""
LINK_IGNORES = """
WAITING KILLED
DYING CONNECTED DISCONNECTED
CLOSING CONNECTED DISCONNECTED CLOSE
CLOSED KILLED CLOSE
"""


def test_transitions_of_the_host_link_match_the_specification() -> None:
    ignores = {(state, event, s.IGNORE) for state, event in ignored(LINK_IGNORES)}
    assert cells_of(s.HOST_LINK.cells) == told(LINK_STORIES) | ignores


def test_process_of_a_closed_host_is_never_started_again() -> None:
    assert {s.HOST_LINK.cells["CLOSED"][event.name] for event in s.LinkEvent} == {s.IGNORE, s.IMPOSSIBLE}
    assert {a for a, event, b in cells_of(s.HOST_LINK.cells) if event == "STARTED"} == {"WAITING"}
