"""Type the commands of a page into a shell, and compare what is printed with what the page says.

A block of a page is lines; a command stands after `$ `, with the lines of its here-document, and what it prints stands
below. `...` in that is any text, alone on a line any lines. A command below which nothing stands must print nothing and
succeed.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

PROMPT = "$ "
HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?$")


class Step(NamedTuple):
    """A command, and what it prints as the page says; empty if that is nothing."""

    command: str
    printed: str


def literal_blocks(source: str) -> list[str]:
    """Return the literal displays of a manual, as a reader sees them."""
    blocks = re.findall(r"^\.Bd -literal.*\n((?:.*\n)*?)\.Ed$", source, re.MULTILINE)
    return [block.replace(r"\&", "").replace(r"\e", "\\") for block in blocks]


def steps(block: str) -> list[Step]:
    """Return the commands of a block; none if it has no prompt."""
    found: list[Step] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith(PROMPT):
            found.append(Step(_whole(line.removeprefix(PROMPT), lines), ""))
        elif found:
            found[-1] = Step(found[-1].command, found[-1].printed + line + "\n")
    return found


def typed(block: str) -> list[str]:
    """Return the commands of a block that has nothing else, and no prompts."""
    lines = iter(block.splitlines())
    return [_whole(line, lines) for line in lines]


def _whole(command: str, lines: Iterator[str]) -> str:
    """Return a command with the lines that belong to it: after a backslash or a bar, or of its here-document."""
    while command.endswith(("\\", "|")):
        command += "\n" + next(lines)
    if end := HERE_DOCUMENT.search(command):
        for line in lines:
            command += "\n" + line
            if line == end[1]:
                break
    return command


def is_as_told(told: str, printed: str) -> bool:
    """Return whether a command printed what the page says."""
    lines = [
        ".*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n" for line in told.splitlines()
    ]
    return re.fullmatch("".join(lines), printed, re.DOTALL) is not None


class Shell:
    """A shell that is typed into; what runs in the background ends with it."""

    def __init__(self, folder: Path, place: Path, environment: Mapping[str, str]) -> None:
        """Begin in `place`; `folder` is for what commands print."""
        self._folder = folder
        self._errors = (folder / "err").open("w")
        self._shell = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=place,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._type("kill $(jobs -p) 2>/dev/null; wait")
        self._shell.communicate()
        self._errors.close()

    def run(self, command: str, is_merged: bool) -> tuple[int, str]:
        """Return the status of a command and what it printed, on standard error too if that is wanted."""
        out = self._folder / "out"
        errors = "2>&1" if is_merged else ""
        self._type(f"{{ {command}\n}} >{shlex.quote(str(out))} {errors}")
        self._type("echo $?")
        assert self._shell.stdout is not None
        status = self._shell.stdout.readline()
        assert status, f"the shell ended in {command!r}"
        return int(status), out.read_text()

    def _type(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(line + "\n")
        self._shell.stdin.flush()


def walk(page: Sequence[Step], shell: Shell) -> None:
    """Do all of it; the first difference is an AssertionError."""
    for step in page:
        status, printed = shell.run(step.command, is_merged=bool(step.printed))
        assert is_as_told(step.printed, printed), f"$ {step.command}\n{printed}\n--- the page says:\n{step.printed}"
        assert step.printed or status == 0, f"$ {step.command}\nexit status {status}"


def newcomer(home: Path) -> dict[str, str]:
    """Return the environment of somebody who has just logged in, who may be root."""
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))}
    return kept | {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "DROVER_ALLOW_ROOT": "1"}
