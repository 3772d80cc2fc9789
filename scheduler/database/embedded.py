"""The embedded Postgres: a server of our own, shared by the processes that join it, stopped when the last one leaves.

Touches one directory (cluster, log, locks, socket); refuses to know what is in the database, and leaves the
processes of the server to its guardian (embedded_guardian.py). Three locks in that directory carry the whole
life; as flocks they vanish with their holders, `kill -9` included, so that no count can go stale:

    lock    exclusive, for moments: a process is joining or leaving
    users   shared by every process that uses the server
    server  exclusive: the guardian's, inherited by every process of the server; free means all are gone

The first to join finds `server` free, locks it and hands it to a guardian, which is no child of it: so the
server outlives the process that started it. The guardian waits for an exclusive lock on `users`, which it gets when
the last user is gone, however that one ended, and keeps until it has stopped the server.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from scheduler.database.embedded_guardian import LIMIT_S, PORT, ServerSpec, guardian
from scheduler.database.embedded_place import require_owner
from scheduler.database.postgres_binaries import choose_for
from scheduler.database.postgres_binaries import find_binaries as find_binaries  # for programs beside the server
from scheduler.database.server_record import ServerState, state_of
from scheduler.drivers.system_files import require_system_files
from scheduler.errors import WorldError

PAUSE_S = 0.01
LOG_BYTES = 1 << 20  # a longer log is set aside at the next start
TAIL_BYTES = 2000
PROGRAMS = ("postgres", "postmaster")
NOT_FOR_SERVER = ("PG", "DROVER_WORD")

Say = Callable[[str], None]


def _say_nothing(_text: str) -> None:
    """Ignore a message: the default of callers that print none."""


def is_running(directory: Path) -> bool:
    """Return whether the server of a directory accepts connections; nothing is started or written."""
    return _address(directory.absolute() / "data") is not None


def read_state(directory: Path) -> ServerState | None:
    """Return what the server of a directory runs from, and what is wrong with that; None if it does not run."""
    directory = directory.absolute()
    try:
        pid = int((directory / "data/postmaster.pid").read_text().partition("\n")[0])
    except (OSError, ValueError):
        return None
    return state_of(directory, pid)


@contextmanager
def join(directory: Path, *, durable: bool, binaries: Path | None = None, say: Say = _say_nothing) -> Iterator[str]:
    """Use the server of `directory`, started if it does not run; yield a conninfo; the last to leave stops it.

    `durable` counts for the one who starts it; `say` is called if binaries do not run and others are used instead.
    Errors: WorldError, with the end of the server's log, after LIMIT_S, or at once if the directory is another user's;
    ConfigError, there is no /proc or /dev/null.
    """
    require_system_files("embedded database")
    directory = directory.absolute()
    if os.geteuid() or not is_running(directory):
        require_owner(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(error) from error
    spec = ServerSpec(directory, binaries or _chosen(directory, say), durable, temporary=False)
    with _joined(spec) as conninfo:
        yield conninfo


def _chosen(directory: Path, say: Say) -> Path:
    """Return the binaries to start the server from; none are needed for one that runs, whatever became of its own."""
    is_there = is_running(directory)
    try:
        choice = choose_for(directory / "data")
    except WorldError:
        if not is_there or (state := read_state(directory)) is None:
            raise
        return state.binaries.place
    if choice.passed_over and not is_there:
        say(f"{'; '.join(choice.passed_over)}; the embedded database uses {choice.place} instead")
    return choice.place


def keep(directory: Path) -> int:
    """Return a descriptor that is one more user of a server which we use; it may be passed on. Errors: OSError."""
    fd = os.open(directory.absolute() / "users", os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)  # at once: we have one already
    return fd


@contextmanager
def temporary(*, durable: bool = False, binaries: Path | None = None, say: Say = _say_nothing) -> Iterator[str]:
    """Run a server in a directory of its own and yield a conninfo; nothing remains, even after kill -9."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="drover-pg-"))
    except OSError as error:
        raise _unusable(error) from error
    try:
        spec = ServerSpec(directory, binaries or _chosen(directory, say), durable, temporary=True)
        with _joined(spec) as conninfo:
            yield conninfo
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# Joining and leaving


@contextmanager
def _joined(spec: ServerSpec) -> Iterator[str]:
    with _lock_file(spec, "lock") as lock, _lock_file(spec, "users") as users:
        _wait_for_lock(lock, fcntl.LOCK_EX, spec, "another process kept the lock")
        _wait_for_lock(users, fcntl.LOCK_SH, spec, "the server before this one did not stop")
        conninfo = _serve(spec)
        fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            yield conninfo
        finally:
            _leave(spec, lock, users)


def _serve(spec: ServerSpec) -> str:
    """Return the address of the running server; launch one, at most once, where none is."""
    launched = False
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with _lock_file(spec, "server") as server:  # opened anew each time: what we launched has the last one
            is_free = _try_lock(server, fcntl.LOCK_EX)
            if is_free and launched:
                break
            if is_free:
                launched = True
                require_owner(spec.directory)  # root may have found a server here that has stopped since
                _forget_dead_server(spec.directory / "data")
                _launch(spec, server)
        conninfo = _address(spec.directory / "data")
        if conninfo:
            return conninfo
        time.sleep(PAUSE_S)
    raise WorldError(f"the embedded database in {spec.directory} did not start; {_tail(spec)}")


def _launch(spec: ServerSpec, server: IO[bytes]) -> None:
    """Start a guardian, which inherits the locked `server`; the process started here ends at once."""
    log = spec.directory / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".old"))
    # Without libpq's variables; without the word by which a host finds what an agent of it has left, as others may use
    # the server; and able to import this package from anywhere.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_SERVER)}
    environment |= {"LC_ALL": "C", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with log.open("ab") as output:
        subprocess.run(
            guardian(spec, server.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            pass_fds=(server.fileno(),),
            start_new_session=True,
            timeout=LIMIT_S,
            check=False,
        )


def _leave(spec: ServerSpec, lock: IO[bytes], users: IO[bytes]) -> None:
    """Stop being a user; the last one waits until the server is gone."""
    with _lock_file(spec, "server") as server:
        _wait_for_lock(lock, fcntl.LOCK_EX, spec, "another process kept the lock")
        fcntl.flock(users, fcntl.LOCK_UN)
        # If neither succeeds, the guardian has the lock, and releases it only when the server has stopped.
        is_last = _try_lock(users, fcntl.LOCK_EX) or not _try_lock(users, fcntl.LOCK_SH)
        users.close()
        if is_last:
            _wait_for_lock(server, fcntl.LOCK_EX, spec, "the server did not stop")


def _address(data: Path) -> str | None:
    """Read where the server listens from its postmaster.pid: line 5, once line 8 says ready and it is alive."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        if [line.strip() for line in lines[7:8]] != ["ready"]:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not _stands_in(data, lines[0]):
        return None
    return f"host={lines[4]} port={PORT} user=postgres dbname=drover"


def _forget_dead_server(data: Path) -> None:
    """Remove the postmaster.pid of a killed server: its number may be another process's by now.

    Postgres would refuse to start then. Holding `server` we know that none of ours runs; one that was
    started by hand is recognised by the directory it stands in.
    """
    pid_file = data / "postmaster.pid"
    with suppress(FileNotFoundError):
        if not _stands_in(data, pid_file.read_text(errors="replace").partition("\n")[0]):
            pid_file.unlink()


def _stands_in(data: Path, number: str) -> bool:
    """Return whether this is the pid of the server of a directory: it stands there, or is another account's.

    No signal is sent: the number may be another process's by now, or anything. Where a process of another account
    stands cannot be read; then each server is taken for that one.
    """
    try:
        process = Path("/proc", str(int(number)))
        return number.isdecimal() and os.readlink(process / "cwd") == str(data.resolve())
    except PermissionError:
        return _program(process) in PROGRAMS
    except (OSError, ValueError):
        return False


def _program(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_text().strip()
    return ""


# Locks


def _lock_file(spec: ServerSpec, name: str) -> IO[bytes]:
    try:
        return (spec.directory / name).open("ab")
    except OSError as error:
        raise _unusable(error) from error


def _unusable(error: OSError) -> WorldError:
    return WorldError(f"no place for the embedded database: {error}; make it writable or set [database] url")


def _try_lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(file: IO[bytes], how: int, spec: ServerSpec, failure: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not _try_lock(file, how):
        if time.monotonic() > deadline:
            problem = f"embedded database in {spec.directory}: {failure} for {LIMIT_S:.0f} s"
            raise WorldError(f"{problem}; {_tail(spec)}")
        time.sleep(PAUSE_S)


def _tail(spec: ServerSpec) -> str:
    log = spec.directory / "log"
    try:
        return f"the end of {log}:\n{log.read_bytes()[-TAIL_BYTES:].decode(errors='replace')}"
    except OSError as error:
        return f"it left no log ({error})"
