"""The directories of `drover map`: its database, and one for each run that has not ended, with the scheduler's files.

A run has a number that no other run ever gets, since jobs of its queue may outlive its directory. A lock says whether a
run goes on; it ends with its holder, `kill -9` included. A directory without a holder is a run to be continued.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from scheduler.database.embedded_place import default_directory
from scheduler.errors import ConfigError, WorldError

PIECE: Final = "MAP_ENVIRONMENT_"  # as in drover-agent-map
PIECE_BYTES: Final = 100_000  # execve takes 128 KiB in one variable
NOT_FOR_DAEMON: Final = ("DROVER_", "PG", "LISTEN_", "NOTIFY_", "WATCHDOG_", PIECE)
KILL_GRACE_S: Final = 5  # from SIGHUP to SIGKILL
KEPT_DAYS: Final = 7  # for rows of runs that have ended
MOST_EXPANSIONS: Final = 40  # each may take a connection
HALTED_S: Final = 0.2  # after which a job that was halted may go on, if the run is continued
TAIL_BYTES: Final = 1000


@dataclass(slots=True)
class Facts:
    """The options and the state of a run, which are saved: `--resume` reads them."""

    cwd: str
    slots: int
    timeout: float
    retries: int
    keep_order: bool
    group: int = 0  # job_pk of its jobs, once there are some
    is_read: bool = False  # whether all its items were queued


@dataclass(slots=True)
class Run:
    """A run that we hold."""

    number: int
    folder: Path
    facts: Facts

    @property
    def name(self) -> str:
        """Return the name of its group, queue, host and agent type."""
        return f"map-{self.number}"

    @property
    def output(self) -> Path:
        """Return where commands leave what they print."""
        return self.folder / "output"

    @property
    def ends(self) -> Path:
        """Return the file with a line for each command that has ended."""
        return self.folder / "ends"

    def save(self) -> None:
        """Write the facts, whole or not at all."""
        new = self.folder / "facts.new"
        new.write_text(json.dumps(asdict(self.facts)))
        new.replace(self.folder / "facts")

    def remove(self) -> None:
        """Remove the directory of the run, which has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


def home() -> Path:
    """Return the directory of database and runs, beside the embedded database of this user."""
    return default_directory(os.environ).parent / "map"


@contextmanager
def begun(facts: Facts) -> Iterator[Run]:
    """Make the directory of a new run, and hold it; it is removed if nothing was queued."""
    runs = home() / "runs"
    with ExitStack() as held:
        try:
            runs.mkdir(mode=0o700, parents=True, exist_ok=True)
            with alone() as last:
                _remove_abandoned()
                run = _made(_next_number(last), facts)
                held.enter_context(_held(run.folder))
        except OSError as error:
            raise WorldError(f"no place for the run: {error}") from error
        try:
            yield run
        finally:
            if not run.facts.group:
                run.remove()


def _made(number: int, facts: Facts) -> Run:
    run = Run(number, home() / "runs" / str(number), facts)
    run.folder.mkdir(mode=0o700)
    run.output.mkdir()
    run.ends.touch()
    run.save()
    return run


def _remove_abandoned() -> None:
    """Remove the directories of runs that were killed before they had queued anything."""
    kept = {run.folder for run in _interrupted_or_held()}
    for folder in (home() / "runs").glob("[0-9]*"):
        if folder not in kept and not _is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def taken_up(number: int) -> Iterator[Run]:
    """Hold a run that was interrupted; 0 is the latest. Errors: ConfigError, there is none, or it goes on."""
    known = {run.number: run for run in _interrupted_or_held()}
    if number and number not in known:
        shown = ", ".join(map(str, sorted(known))) or "none"
        raise ConfigError(f"--resume {number}: there is no such run (to be continued: {shown})")
    runs = [known[number]] if number else [known[each] for each in sorted(known) if not _is_held(known[each].folder)]
    if not runs:
        raise ConfigError("--resume: no run was interrupted")
    run = runs[-1]
    with _held(run.folder):
        with run.ends.open("ab") as ends:
            ends.write(b"\n")  # if the machine died, the last line may be cut
        yield run


def _interrupted_or_held() -> Iterator[Run]:
    """Yield the runs that have queued something and are not over."""
    for file in (home() / "runs").glob("[0-9]*/facts"):
        facts = Facts(**json.loads(file.read_text()))
        if facts.group:
            yield Run(int(file.parent.name), file.parent, facts)


@contextmanager
def alone() -> Iterator[IO[str]]:
    """Keep other runs from doing the same; yield the file with the last number that was given."""
    with (home() / "runs/last").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        yield last


def _next_number(last: IO[str]) -> int:
    """Return the number after the last one that was given, and count it."""
    number = int(last.read() or 0) + 1
    last.truncate(0)
    last.write(str(number))
    return number


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as lock:
        if not _lock(lock):
            raise ConfigError(f"run {folder.name} goes on in another process")
        yield


def _is_held(folder: Path) -> bool:
    with (folder / "lock").open("a") as lock:
        return not _lock(lock)


def _lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Interrupts:
    """Counts Ctrl-C and SIGTERM, from now on; one that the caller ignores stays ignored, as below nohup(1)."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


# ---- the scheduler of a run


class Daemon:
    """A daemon of our own: it finishes what it has in hand and ends when we close its input, or are killed."""

    def __init__(self, run: Run, environment: Mapping[str, str], halt_failures: int) -> None:
        """Start it; after so many failures its agents begin nothing any more, 0 is any number."""
        pieces = _pieces(environment)
        file = run.folder / "drover.toml"
        (run.folder / "failures").write_bytes(b"")
        try:
            file.write_text(_configuration(run, list(pieces), halt_failures))
            file.chmod(0o600)
        except UnicodeEncodeError:
            raise ConfigError(f"the name of the directory is not UTF-8: {run.facts.cwd!r}") from None
        own = {name: text for name, text in environment.items() if not name.startswith(NOT_FOR_DAEMON)}
        self._log = run.folder / "log"
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "scheduler.cli.main", "run", "-I", "--allow-root", "-c", str(file)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=own | pieces, process_group=0,
            )  # fmt: skip

    def drain(self) -> None:
        """Have it begin nothing, finish what it has in hand, and end."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def stop(self) -> None:
        """Have it kill what runs, which is begun anew when the run is continued, and end."""
        self._child.terminate()

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def wait(self) -> None:
        self._child.wait()

    def last_words(self) -> str:
        """Return the end of its log in one line."""
        return " ".join(self._log.read_text(errors="replace")[-TAIL_BYTES:].split())


def _pieces(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold this environment as JSON."""
    text = json.dumps(dict(environment))
    starts = range(0, len(text), PIECE_BYTES)
    return {f"{PIECE}{number}": text[start : start + PIECE_BYTES] for number, start in enumerate(starts)}


def _configuration(run: Run, variables: list[str], halt_failures: int) -> str:
    """Return the configuration of a group of its own; a string of JSON is one of TOML too."""
    facts = run.facts
    expansions = min(max(facts.slots + 2, 8), MOST_EXPANSIONS)  # where items come slowly, each is a job
    command = ["drover-agent-map", str(run.folder), str(facts.retries), str(facts.timeout), str(halt_failures)]
    database, cwd, words = (
        json.dumps(value, ensure_ascii=False) for value in (f"embedded:{home() / 'pg'}", facts.cwd, command)
    )
    return f"""
[database]
url = {database}

[scheduler]
group = "{run.name}"
kill_grace = {KILL_GRACE_S}
retention = {KEPT_DAYS}
retention_failed = {KEPT_DAYS}
expansions = {expansions}
expansions_per_type = {expansions}

[hosts.{run.name}]

[conditions.{run.name}]  # of a run that was halted
wait = {HALTED_S}

[agents.{run.name}]
command = {words}
slots = {facts.slots}
window = 1  # a command that is sent ahead would wait for a long one before it
cwd = {cwd}
pass_env = {json.dumps(variables)}
on_start_failure = "fail"
"""
