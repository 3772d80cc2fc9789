"""The guardian of an embedded Postgres: a process that runs the server as long as it is used.

Touches the processes of the server, its files and its socket; decides only when to start and when to stop;
refuses to know who the users are: it sees only that their lock on `users` is gone (embedded.py describes
the locks). Should the guardian itself be killed, the kernel sends postgres SIGINT, its fast shutdown; should
postgres be killed, or its files be replaced below it (replaced_files.py), the guardian starts it again at the same
address.
"""

import fcntl
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.database.embedded_place import ACCOUNTS
from scheduler.database.postgres_binaries import Binaries, cluster_major, examine
from scheduler.database.replaced_files import INITDB, LOOK_S, TRIAL, FileWatch, usable
from scheduler.database.server_record import remove_record

LIMIT_S = 60.0  # for each wait: to join, to create the cluster, to start, to stop
UNUSED, DEAD = "unused", "dead"  # why a server is not waited for any more
RESTART_S = 1.0  # between the death of a server and the next one
PORT = 5432  # only names the socket: there is no TCP

# libpq splits a host at commas; sun_path holds 107 bytes, 14 of which are the socket's own name.
SOCKET_PLACE = re.compile(r"/[A-Za-z0-9._/+-]{1,91}")
SOCKET_NAMES = (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock")
SETTINGS = ("-h", "", "-p", str(PORT))
FAST_SETTINGS = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
ALONE = ("--single", "-j", "-c", "exit_on_error=true")

# The death signal is armed only here: postgres is executed only if the parent has not died before that.
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "INT", "--", "sh", "-c", 'test $PPID = "$0" && exec "$@"')
STOPS = ((signal.SIGINT, LIMIT_S), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The server that a guardian is to run; `temporary` means that it removes the directory at the end."""

    directory: Path
    binaries: Path
    durable: bool
    temporary: bool


def guardian(spec: ServerSpec, server: int) -> list[str]:
    """Return the argv of a guardian that inherits the locked descriptor `server`."""
    flags = ["durable"] * spec.durable + ["temporary"] * spec.temporary
    # -P: a directory called scheduler where the user happens to stand is not ours
    module = [sys.executable, "-P", "-m", "scheduler.database.embedded_guardian"]
    return [*module, str(server), str(spec.directory), str(spec.binaries), *flags]


def main(argv: list[str]) -> None:
    """Become a guardian: the process that was started ends at once, its child goes on."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it ends when its users end; SIG_IGN would reach postgres
    server, directory, binaries, *flags = argv
    spec = ServerSpec(Path(directory), Path(binaries), "durable" in flags, "temporary" in flags)
    _guard(spec, int(server))


def _guard(spec: ServerSpec, server: int) -> None:
    unused = _readable_when_unused(spec.directory / "users")
    prefix, owner = _privileges()
    _chown(spec.directory, owner)
    shutil.rmtree(spec.directory / TRIAL, ignore_errors=True)
    _initialise(spec, prefix, server)
    sockets = _make_sockets(spec.directory, owner)
    _serve(spec, prefix, sockets, unused, server)
    _remove_sockets(spec.directory)
    remove_record(spec.directory)
    if spec.temporary:
        shutil.rmtree(spec.directory, ignore_errors=True)


def _serve(spec: ServerSpec, prefix: list[str], sockets: Path, unused: int, server: int) -> None:
    """Run the server until it is unused; again if it was killed or its files replaced, not if it failed or was stopped.

    Once it was started again, it is so whatever ends it: the files may be replaced at that moment.
    """
    binaries = examine(spec.binaries)
    major = cluster_major(spec.directory / "data") or binaries.major
    was_started_again = False
    while True:
        watch = FileWatch(spec.directory, binaries, prefix, server)
        child = _start(spec, binaries, prefix, sockets, server)
        end = _end_of(child, unused, watch)
        if end is UNUSED or isinstance(end, Binaries):
            _stop(child)
        if end is UNUSED:
            return
        if isinstance(end, Binaries):
            binaries, was_started_again = end, True
            continue
        was_started_again = child.wait() < 0 or was_started_again
        if not was_started_again or select.select([unused], [], [], RESTART_S)[0]:
            return
        binaries = usable(binaries.place, major)


def _start(
    spec: ServerSpec, binaries: Binaries, prefix: list[str], sockets: Path, server: int
) -> subprocess.Popen[bytes]:
    postgres = [str(binaries.place / "postgres"), "-D", str(spec.directory / "data"), "-k", str(sockets), *SETTINGS]
    fast = [] if spec.durable else FAST_SETTINGS
    argv = [*prefix, *DIES_WITH_PARENT, str(os.getpid()), *postgres, *fast]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(server,))


def _end_of(child: subprocess.Popen[bytes], unused: int, watch: FileWatch) -> str | Binaries:
    """Wait until the server is unused or dead, or other binaries are to take over, and return that."""
    death = os.pidfd_open(child.pid)
    try:
        while True:
            ready = select.select([unused, death], [], [], LOOK_S)[0]
            if ready:
                return UNUSED if unused in ready else DEAD
            with suppress(OSError):  # too many open files, most likely; the next look may find it better
                if successor := watch.look():
                    return successor
    finally:
        os.close(death)


def _stop(child: subprocess.Popen[bytes]) -> None:
    for number, limit_s in STOPS:
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(limit_s)
            return


def _readable_when_unused(users: Path) -> int:
    """Return a descriptor that becomes readable when the server is not used any more.

    The one thread there is: nothing else turns a wait for a flock into something that can be selected.
    """
    receiver, sender = os.pipe()
    file = users.open("ab")

    def wait() -> None:
        fcntl.flock(file, fcntl.LOCK_EX)  # held from now on until the guardian ends
        os.close(sender)

    threading.Thread(target=wait, daemon=True).start()
    return receiver


# Whose the server is


def _privileges() -> tuple[list[str], int]:
    """Return how to run postgres, which refuses to be root: a prefix of argv, and the owner of its files.

    Where root may not open a user namespace, an unprivileged account takes the directory over. Both ways are
    direct execs: the death signal goes by parenthood, and runuser would stand between.
    """
    if os.geteuid() != 0:
        return [], os.geteuid()
    account = _account()
    ids = f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}"  # initdb wants a uid with a name
    namespace = ["unshare", "--user", *ids, "--"]
    if shutil.which("unshare") and subprocess.run([*namespace, "true"], check=False).returncode == 0:
        return namespace, 0
    ids = f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"
    return ["setpriv", *ids, "--clear-groups", "--"], account.pw_uid


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise SystemExit(f"postgres will not run as root, and there is no account {' or '.join(ACCOUNTS)}")


def _chown(directory: Path, owner: int) -> None:
    """Make all files `owner`'s: the last start may have had other privileges."""
    if directory.stat().st_uid == owner:
        return
    for path in (directory, *directory.rglob("*")):
        os.chown(path, owner, -1, follow_symlinks=False)


# Its files and its socket


def _initialise(spec: ServerSpec, prefix: list[str], server: int) -> None:
    """Create the cluster and the database `drover` in it, unless they are there; all or nothing."""
    data, unfinished = spec.directory / "data", spec.directory / "data.new"
    if data.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    initdb, postgres = str(spec.binaries / "initdb"), str(spec.binaries / "postgres")
    no_sync, no_fsync = ([], []) if spec.durable else (["-N"], ["-F"])
    where = ["-D", str(unfinished)]
    _run([*prefix, initdb, *INITDB, *no_sync, *where], b"", server)
    _run([*prefix, postgres, *ALONE, *no_fsync, *where, "postgres"], b"create database drover;\n\n", server)
    unfinished.rename(data)


def _run(argv: list[str], text: bytes, server: int) -> None:
    done = subprocess.run(argv, input=text, timeout=LIMIT_S, pass_fds=(server,), check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit status {done.returncode}")


def _make_sockets(directory: Path, owner: int) -> Path:
    """Make the private directory of the socket: inside ours, or a temporary one where that name is unfit."""
    _remove_sockets(directory)
    place = directory / "run"
    if SOCKET_PLACE.fullmatch(str(place)):
        place.mkdir(mode=0o700, exist_ok=True)
    else:
        top = tempfile.gettempdir()
        top = top if SOCKET_PLACE.fullmatch(f"{top}/drover-12345678") else "/tmp"
        link, place = place, Path(tempfile.mkdtemp(prefix="drover-", dir=top))
        link.symlink_to(place)
    _chown(place, owner)  # whose it is already: a hardened service may not even try
    return place


def _remove_sockets(directory: Path) -> None:
    """Remove what _make_sockets made, now or in an earlier life, and never anything else."""
    link = directory / "run"
    place = link.resolve()
    for name in SOCKET_NAMES:
        (place / name).unlink(missing_ok=True)
    with suppress(OSError):
        place.rmdir()
    if link.is_symlink():
        link.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
