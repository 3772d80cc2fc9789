"""Watch the files that a server runs from, and find binaries to go on with once they were replaced.

A package manager replaces files one by one, so they are let settle; then the new binaries are tried: they make a
cluster that is thrown away, for which they must load the libraries and files that a server needs. Until they can, the
server that runs is better than none.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

from scheduler.database.postgres_binaries import Binaries, all_binaries, are_same, examine, loaded_files
from scheduler.database.server_record import begin_record, note_problem

LOOK_S: Final = 3.0  # between two looks; files that are the same at both have settled
RETRY_S: Final = 30.0  # between two tries of binaries that could not take over
TRIAL_LIMIT_S: Final = 40.0  # less than what the last user waits for the end of a server
TRIAL: Final = "trial"
SAID_LENGTH: Final = 300  # of what initdb says
INITDB: Final = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions")


class FileWatch:
    """Compares the files of one server with those that are there now; `prefix` is how its programs are executed."""

    def __init__(self, directory: Path, binaries: Binaries, prefix: Sequence[str], lock: int) -> None:
        """Begin before the server is started: what is replaced from now on is seen."""
        self._directory, self._binaries, self._prefix, self._lock = directory, binaries, prefix, lock
        self._began = self._seen = loaded_files(binaries.place)
        self._tries_again_at = 0.0
        self._record = begin_record(directory, binaries, self._began)

    def look(self) -> Binaries | None:
        """Return binaries that can take over, if the server's own were replaced or removed, and have settled."""
        before, self._seen = self._seen, loaded_files(self._binaries.place)
        if are_same(self._began, self._seen):
            self._note("")
            return None
        if self._seen != before:
            self._tries_again_at = 0.0
            _log(f"{self._binaries}: files were replaced or removed while the server runs")
            return None
        if monotonic() < self._tries_again_at:
            return None
        return self._successor()

    def _successor(self) -> Binaries | None:
        """Return the first binaries that pass the trial: those of the same directory, else others of that major."""
        problems = []
        for binaries in self._candidates():
            problem = binaries.problem or self._trial(binaries.place)
            if not problem:
                _log(f"the server is stopped and started again: {binaries} in place of {self._binaries}")
                return binaries
            problems.append(f"{binaries.place} cannot take over: {problem}")
        self._note("; ".join(problems))
        self._tries_again_at = monotonic() + RETRY_S
        return None

    def _candidates(self) -> Iterator[Binaries]:
        return candidates(self._binaries.place, self._binaries.major)

    def _trial(self, place: Path) -> str:
        """Return why these binaries cannot make a cluster, nothing if they can."""
        trial = self._directory / TRIAL
        shutil.rmtree(trial, ignore_errors=True)
        argv = [*self._prefix, str(place / "initdb"), *INITDB, "-N", "-D", str(trial)]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=TRIAL_LIMIT_S, pass_fds=(self._lock,), check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        if not done.returncode:
            return ""
        return " ".join(done.stderr.split())[:SAID_LENGTH] or f"initdb: exit status {done.returncode}"

    def _note(self, problem: str) -> None:
        if problem != self._record.problem:
            self._record = note_problem(self._directory, self._record, problem)
            _log(problem or f"{self._binaries}: the files are as they were")


def candidates(place: Path, major: int) -> Iterator[Binaries]:
    """Yield the binaries of a directory, then all others of that major version; the first may have a problem."""
    own = examine(place)
    if own.problem or own.major == major:
        yield own
    else:
        yield Binaries(place, problem=f"it is PostgreSQL {own.version} now, and the database is of {major}")
    yield from (each for each in all_binaries() if each.place != place and each.major == major)


def usable(place: Path, major: int) -> Binaries:
    """Return the first binaries that run, to start a server anew; those of the directory if none does."""
    found = list(candidates(place, major))
    return next((each for each in found if not each.problem), found[0])


def _log(text: str) -> None:
    """Write a line into the log of the server, as the guardian's output is."""
    with suppress(OSError):  # a full disk must not end the server
        sys.stdout.write(f"{datetime.now(UTC):%F %T} UTC drover: {text}\n")
        sys.stdout.flush()
