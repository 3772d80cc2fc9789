"""drover(8) tells what the tables and the options say: states of agents, options, signals."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scheduler.cli.parser import command_parser
from scheduler.drivers.os_calls import LEAVE, SIGNALS
from scheduler.model.states import IGNORE, IMPOSSIBLE, SLOT_CELLS, STATE_NAMES, VIOLATION
from tests.needs import need

MANUAL = Path(__file__).resolve().parents[2] / "man/drover.8"
TEXT = MANUAL.read_text()
IN_DROVER_1 = {"--for", "--json", "--wait"}  # of jobs that are run by hand


def table_cells() -> Iterator[tuple[str, str, str]]:
    """Yield every cell of the table of slots that an agent can notice: (state, event, next state or violation)."""
    for state, row in SLOT_CELLS.items():
        for event, cell in row.items():
            if cell not in (IGNORE, IMPOSSIBLE):
                yield state, event, "violation" if cell == VIOLATION else cell


def test_the_manual_has_no_warning() -> None:
    need("mandoc")
    argv = ["mandoc", "-Tlint", "-Wwarning", str(MANUAL)]
    lint = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


def test_slot_transitions_in_the_manual_match_the_table_f60() -> None:
    told = re.findall(r"^\.It Li (ST_\w+) Ta ([A-Z_]+) Ta (?:Li )?(ST_\w+|violation) Ta", TEXT, re.MULTILINE)
    assert told == [cell for cell in table_cells() if cell in told]
    assert set(told) == set(table_cells())


def test_state_numbers_in_the_manual_match_the_code_f60() -> None:
    told = re.findall(r"^\.It (\d) Ta Li (ST_\w+) Ta", TEXT, re.MULTILINE)
    shown = {STATE_NAMES[int(number)] for number, _ in told}
    assert [name for _, name in told] == [STATE_NAMES[int(number)] for number, _ in told]
    assert shown == set(STATE_NAMES) - {"ST_DONE", "ST_END"}


def test_the_manual_documents_every_option_of_run() -> None:
    told = re.findall(r"^\.It Fl (\S+)", TEXT, re.MULTILINE)
    options = {option for action in command_parser("run")._actions for option in action.option_strings}
    assert {f"-{option}" for option in told} == options - {"-h", "--help"} - IN_DROVER_1


def test_the_manual_documents_every_signal_f55() -> None:
    headings = re.findall(r"^\.It Dv (.*)$", TEXT.partition(".Sh SIGNALS\n")[2].partition(".Sh ")[0], re.MULTILINE)
    named = [signal.Signals(number).name for number in SIGNALS if number != LEAVE]
    assert sorted(" ".join(headings).replace(",", " ").split()) == sorted([*named, "SIGRTMIN", "Ns", "+1"])
