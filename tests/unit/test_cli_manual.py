"""drover(1) tells of every command and every option, and of no other."""

import re
import subprocess
from pathlib import Path

import pytest

from scheduler.cli.command_table import BY_FILTER, COMMANDS
from scheduler.cli.parser import command_parser
from tests.needs import need

MANUAL = Path(__file__).resolve().parents[2] / "man/drover.1"
EVERYWHERE = {"-h", "--help", "-c", "-d"}
ANSWER = {"--json", "--wait", "--for"}  # told once, for all commands that the scheduler carries out
CARRIED_OUT = {"admin.send_commands", "admin.list_or_change", "bulk.send_to_chosen"}
CHOSEN_AT = "retry"  # the options that choose jobs are told of there, for all commands that take them but flush
IN_DROVER_8 = "run"
TOLD_HERE = [name for name in COMMANDS if name != IN_DROVER_8]


def sections() -> dict[str, str]:
    """Return the text about each command."""
    commands = MANUAL.read_text().partition(".Sh COMMANDS\n")[2].partition("\n.Sh ")[0]
    return {text.splitlines()[0]: text for text in commands.split(".Ss ")[1:]}


def test_the_manual_has_no_warning() -> None:
    need("mandoc")
    argv = ["mandoc", "-Tlint", "-Wwarning", str(MANUAL)]
    lint = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


def test_the_manual_documents_every_command() -> None:
    assert list(sections()) == list(COMMANDS)


@pytest.mark.parametrize("command", TOLD_HERE)
def test_the_manual_documents_every_option(command: str) -> None:
    told = set(told_of(command))
    options = {option for action in command_parser(command)._actions for option in action.option_strings}
    told_once = ANSWER if COMMANDS[command].function in CARRIED_OUT else set()
    if command in BY_FILTER and command != CHOSEN_AT:
        told_once = told_once | set(told_of(CHOSEN_AT))
    assert told == options - EVERYWHERE - told_once


def told_of(command: str) -> list[str]:
    """Return the options that the text about a command names."""
    return [f"-{option}" for option in re.findall(r"^\.It Fl (\S+)", sections()[command], re.MULTILINE)]


def test_the_manual_documents_common_options_once() -> None:
    answers = MANUAL.read_text().partition(".Sh ANSWERS\n")[2].partition("\n.Sh ")[0]
    assert {f"-{option}" for option in re.findall(r"^\.It Fl (\S+)", answers, re.MULTILINE)} == ANSWER
