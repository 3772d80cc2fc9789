"""The drawings of state machines in drover(8) show what the tables say, cell by cell."""

import re
from pathlib import Path

import pytest

from scheduler.model.states import SLOT_CELLS
from tests.state_diagrams import MARK, TABLES, drawing, moves, source, table_moves

PAGES = Path(__file__).resolve().parents[2] / "man"
MANUAL = (PAGES / "drover.8").read_text()


def drawn(name: str) -> list[str]:
    """Return the lines of a drawing, as a reader sees them."""
    block = MANUAL.partition(f'{MARK} {name}"\n.Bd -literal\n')[2].partition(".Ed\n")[0]
    return block.splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_each_cell_of_the_table_is_in_the_drawing_and_no_other_f60(name: str) -> None:
    shown = moves(drawn(name))
    assert len(shown) == len(set(shown)) or name == "job"
    assert sorted(shown) == sorted(table_moves(TABLES[name]))


@pytest.mark.parametrize("name", TABLES)
def test_drawing_in_the_manual_is_the_one_that_is_generated(name: str) -> None:
    assert source(name) in MANUAL, f"paste this into drover.8:\n{source(name)}"


def test_a_drawing_shows_where_an_event_leads() -> None:
    rows = {"A": {"GO": "B", "STAY": "A", "NO": "IGNORE"}, "B": {"BACK": "A", "BAD": "VIOLATION"}}
    assert drawing(rows) == ["A", "|   B", "|-->|   GO", "o   |   STAY", "|<--|   BACK", "|   x   BAD"]


def test_no_slot_is_drawn_in_a_state_without_cells() -> None:
    assert set(SLOT_CELLS) - set(TABLES["slot"]) == {"ST_DONE"}


def test_transitions_in_the_agent_manual_match_the_table_f60() -> None:
    told = re.findall(r"^\.It ([A-Z]+) Ta ([A-Z]+) Ta", (PAGES / "drover-agent.7").read_text(), re.MULTILINE)
    changes = {(move.before, move.after) for move in table_moves(TABLES["slot"]) if move.after in TABLES["slot"]}
    assert {(f"ST_{before}", f"ST_{after}") for before, after in told} == {(a, b) for a, b in changes if a != b}
