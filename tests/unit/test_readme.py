"""README and CONTRIBUTING show commands and files that exist; README is short."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from scheduler.cli.command_table import COMMANDS
from scheduler.cli.parser import parse

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BOTH = README + (ROOT / "CONTRIBUTING.md").read_text()
SHELL_BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL_LINES = [line for block in SHELL_BLOCKS for line in block.splitlines()]
IN_TEXT = re.findall(r"`drover ([a-z]+)[^`]*`", BOTH)
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


def drover_commands() -> Iterator[list[str]]:
    """Yield the words after `drover` on each line of a shell block that runs it, as the shell passes them."""
    for line in SHELL_LINES:
        if "drover" not in line or line.startswith("psql"):
            continue
        words = shlex.split(line, comments=True)
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if words[:1] == ["drover"]:
            yield list(takewhile(lambda word: not re.match(r"\d?[<>&|]", word), words[1:]))


@pytest.mark.parametrize("words", list(drover_commands()), ids=" ".join)
def test_every_command_shown_can_be_parsed(words: list[str]) -> None:
    assert parse(words).command == words[0]


def test_the_tour_shows_the_commands_of_a_newcomer() -> None:
    shown = {words[0] for words in drover_commands()}
    assert shown >= {"run", "submit", "wait", "status", "why", "init"}


def test_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.encode()) <= 8192


@pytest.mark.parametrize("command", sorted(set(IN_TEXT)))
def test_every_command_in_the_text_exists(command: str) -> None:
    assert command in COMMANDS


@pytest.mark.parametrize(
    "target", sorted({"make demo", "make test"} | set(re.findall(r"(?:`|^)(make [a-z]+)", BOTH, re.MULTILINE)))
)
def test_every_make_target_in_the_text_exists(target: str) -> None:
    assert re.search(rf"^{target.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)?\w+\.py)`", BOTH))))
def test_every_module_in_the_text_exists(path: str) -> None:
    assert list((ROOT / "scheduler").glob(f"**/{path}"))


def test_the_two_commands_come_first() -> None:
    assert [line.split("#")[0].strip() for line in SHELL_LINES[:2]] == ["make demo", "make test"]


@pytest.mark.parametrize("path", re.findall(r"`((?:agents|etc|man|schema)/[\w./-]+)`", BOTH))
def test_every_file_in_the_text_exists(path: str) -> None:
    assert (ROOT / path).exists()
