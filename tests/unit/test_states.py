"""Claims about the two tables of states: total, and cell by cell what SPEC 2 and SPEC 1 say."""

import pytest

from scheduler.model import states as s

ABSENT = s.IMPOSSIBLE

# SPEC 2's table, written out a second time: (from, event) -> to. Whatever is not here must change no state.
SPEC_MOVES = {
    (s.ST_FREE, "CHOSEN"): s.ST_PREP,
    (s.ST_FREE, "THROTTLED"): s.ST_FAIL,
    (s.ST_PREP, "CREATED"): s.ST_SPAWNED,
    (s.ST_PREP, "NOT_CREATED"): s.ST_FREE,
    (s.ST_PREP, "KILLED"): s.ST_FREEING,
    (s.ST_PREP, "LATE"): s.ST_FREEING,
    (s.ST_SPAWNED, "OK"): s.ST_READY,
    (s.ST_SPAWNED, "LAUNCHED"): s.ST_RUNNING,
    (s.ST_SPAWNED, "KILLED"): s.ST_FREEING,
    (s.ST_SPAWNED, "LATE"): s.ST_FREEING,
    (s.ST_SPAWNED, "GONE"): s.ST_FREE,
    (s.ST_READY, "FED"): s.ST_RUNNING,
    (s.ST_READY, "KILLED"): s.ST_FREEING,
    (s.ST_READY, "LATE"): s.ST_FREEING,
    (s.ST_READY, "GONE"): s.ST_FREE,
    (s.ST_RUNNING, "OK"): s.ST_READY,
    (s.ST_RUNNING, "NEXT"): s.ST_RUNNING,
    (s.ST_RUNNING, "KILLED"): s.ST_FREEING,
    (s.ST_RUNNING, "LATE"): s.ST_FREEING,
    (s.ST_RUNNING, "GONE"): s.ST_FREE,
    (s.ST_FREEING, "CREATED"): s.ST_FREEING,
    (s.ST_FREEING, "LATE"): s.ST_FREEING,
    (s.ST_FREEING, "GONE"): s.ST_FREE,
    (s.ST_FREEING, "NOT_CREATED"): s.ST_FREE,
    (s.ST_FAIL, "LATE"): s.ST_FREE,
    (s.ST_FAIL, "THAWED"): s.ST_FREE,
}
CELLS = [(state, event) for state in range(s.ST_END) for event in range(len(s.EVENT_NAMES))]


def test_states_have_their_public_numbers_f60() -> None:
    assert {name: number for number, name in enumerate(s.STATE_NAMES)} == {
        "ST_FAIL": 0, "ST_FREE": 1, "ST_FREEING": 2, "ST_PREP": 3, "ST_SPAWNED": 4, "ST_READY": 5, "ST_RUNNING": 6,
        "ST_DONE": 7, "ST_END": 8,
    }  # fmt: skip


def test_the_end_is_only_a_marker_f69() -> None:
    assert len(s.AGENT_TABLE) == s.ST_END
    assert all(cell < s.ST_DONE for row in s.AGENT_TABLE for cell in row)


def test_done_is_for_rows_of_queries_and_no_slot_enters_or_leaves_it_f68() -> None:
    assert set(s.AGENT_TABLE[s.ST_DONE]) == {s.IMPOSSIBLE}
    assert s.ST_DONE not in s.SLOT_STATES


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_every_cell_is_what_the_contract_says_f61_f62_f63_f64_f66_f67(state: int, event: int) -> None:
    cell = s.AGENT_TABLE[state][event]
    assert max(cell, -1) == SPEC_MOVES.get((state, s.EVENT_NAMES[event]), -1)


def test_an_unasked_ok_is_the_agents_fault_f88() -> None:
    violations = [(state, s.EVENT_NAMES[event]) for state, event in CELLS if s.AGENT_TABLE[state][event] == s.VIOLATION]
    assert violations == [(s.ST_READY, "OK")]


@pytest.mark.parametrize("state", [s.ST_PREP, s.ST_SPAWNED])
def test_an_agent_that_is_not_ready_is_never_fed_f65(state: int) -> None:
    assert s.AGENT_TABLE[state][s.FED] == s.AGENT_TABLE[state][s.NEXT] == s.IMPOSSIBLE


def test_a_death_heard_while_a_process_is_made_frees_nothing_f63() -> None:
    assert s.AGENT_TABLE[s.ST_PREP][s.GONE] == s.IMPOSSIBLE


JOB_TABLE = """
held      queued skipped cancelled ignored
queued    claimed held blocked cancelled skipped failed
claimed   running queued done failed blocked cancelled
running   done queued failed blocked cancelled
blocked   queued held failed cancelled
done
failed    queued
cancelled
ignored
skipped
"""


@pytest.mark.parametrize("line", JOB_TABLE.split("\n")[1:-1])
def test_jobs_move_as_the_contract_says(line: str) -> None:
    state, *targets = line.split()
    assert s.JOB_MOVES[state] == frozenset(targets)


def test_nothing_leaves_a_terminal_state_but_a_retry() -> None:
    assert {state: s.JOB_MOVES[state] for state in s.TERMINAL if s.JOB_MOVES[state]} == {"failed": {"queued"}}
