"""The binaries that an embedded server was started from, as recorded by its guardian in the server's directory.

A server goes on with the files that it has opened when a package is upgraded or removed below it, but loads others at
need: sessions that begin later may fail. Touches the file `program` beside the cluster; refuses to start anything.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from scheduler.database.postgres_binaries import Binaries, Files, are_same, loaded_files

NAME: Final = "program"
DELETED: Final = " (deleted)"  # proc(5)
REPLACED: Final = "its files were replaced or removed while it runs, and new sessions may fail"
BY_ITSELF: Final = "it is started again from the new ones by itself, within a minute"
BY_HAND: Final = "it was started by an older drover: end the daemon and all commands that use it, then start them again"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The binaries of a server as it began, and why those that are there now cannot take over, if that was tried."""

    place: str
    version: str
    files: Files
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server that runs: its pid, its binaries as it began, and what is wrong with them now, if anything is."""

    pid: int
    binaries: Binaries
    trouble: str


def begin_record(directory: Path, binaries: Binaries, files: Files) -> ServerRecord:
    """Note from what a server is started."""
    return _written(directory, ServerRecord(str(binaries.place), binaries.version, files))


def note_problem(directory: Path, record: ServerRecord, problem: str) -> ServerRecord:
    """Note why the binaries that are there now cannot take over."""
    return _written(directory, replace(record, problem=problem))


def remove_record(directory: Path) -> None:
    """Forget a server that has ended."""
    with suppress(OSError):
        (directory / NAME).unlink()


def _written(directory: Path, record: ServerRecord) -> ServerRecord:
    """Write a record, all or nothing; a full disk must not end the server, and others compare its program then."""
    unfinished = directory / f"{NAME}.new"
    with suppress(OSError):
        unfinished.write_text(json.dumps(asdict(record)))
        unfinished.rename(directory / NAME)
    return record


def state_of(directory: Path, pid: int) -> ServerState:
    """Return what is known of the server of a directory, which runs as `pid`."""
    try:
        record = ServerRecord(**json.loads((directory / NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return _state_by_program(pid)
    binaries = Binaries(Path(record.place), record.version)
    trouble = ""
    if not are_same(record.files, loaded_files(binaries.place)):
        trouble = f"{binaries}: {REPLACED}; {record.problem or BY_ITSELF}"
    return ServerState(pid, binaries, trouble)


def _state_by_program(pid: int) -> ServerState:
    """Return the state of a server without a record: what it runs is no more under the name that it was started by."""
    try:
        program = Path(os.readlink(f"/proc/{pid}/exe").removesuffix(DELETED))
        running = os.stat(f"/proc/{pid}/exe")
    except OSError:  # it has just ended, or is another account's
        return ServerState(pid, Binaries(Path()), "")
    binaries = Binaries(program.parent)
    try:
        is_same = os.path.samestat(running, program.stat())
    except OSError:
        is_same = False
    return ServerState(pid, binaries, "" if is_same else f"{binaries}: {REPLACED}; {BY_HAND}")
