"""The parts that the bundled file agents share: open the item's file, examine it, save or report what was found.

An item is a record with a column `path`, or one bare line that is the path. It decides what becomes of a file
that cannot be read (FAIL, and on to the next) and knows nothing of what is looked for in it.
"""

from __future__ import annotations

import argparse
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

import drover_agent

if TYPE_CHECKING:
    from collections.abc import Callable


def run(program: str, examine: Callable[[BinaryIO], dict[str, object]]) -> None:
    """Work items until stdin closes; `examine` gets the open file, whose name is its path."""
    statement = _arguments(program).save

    def work(item: drover_agent.Item) -> None:
        try:
            with open_regular(_path(item)) as file:
                found = examine(file)
            _report(item, statement, found)
        except (
            OSError,
            ValueError,
        ) as error:  # a file that cannot be read; or no path, a NUL, columns too long for a line
            item.fail(_reason(error), final=isinstance(error, ValueError))

    drover_agent.work(work)


def open_regular(path: str) -> BinaryIO:
    """Return the file, open for reading. Raises OSError, also for anything but a regular file too."""
    return open(path, "rb", buffering=0, opener=_opener)


def _arguments(program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description="a Drover agent; see drover-agent(7)")
    parser.add_argument("--save", metavar="STATEMENT", help="save through this statement in place of RESULT")
    return parser.parse_args()


def _report(item: drover_agent.Item, statement: str | None, found: dict[str, object]) -> None:
    if statement is None:
        return drover_agent.result(found)
    given = {column: value for column, value in item.columns.items() if column != "path"}
    try:
        drover_agent.db(statement, **{**given, **found})
    except drover_agent.StatementError as error:
        item.fail(f"not saved: {error}")
    return None


def _path(item: drover_agent.Item) -> str:
    if not item.columns:
        return item.line
    if "path" not in item:
        raise ValueError("the item has no column path, or it is NULL")
    return item["path"]


def _opener(path: str, flags: int) -> int:
    """O_NONBLOCK, or opening a FIFO would wait for its writer for ever; regular files ignore it."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "not a regular file", path)
    return fd


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
