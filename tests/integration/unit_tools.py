"""A stand-in of systemd for one service: its control group, its main process, and its store of descriptors.

It does what systemd.service(5) says of FileDescriptorStoreMax, KillMode=process and RestartKillSignal, as far as a
daemon can tell: descriptors that are sent with FDSTORE=1 are kept, under their name, and passed to the next main
process; all are closed when the service has ended for good. The control group is a real one, so this needs root.
tests/integration/test_real_unit.py does the same under systemd itself.
"""

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from uuid import uuid4

from psycopg.conninfo import make_conninfo

from scheduler.drivers.fd_store import FdStore
from scheduler.drivers.os_calls import LEAVE
from tests.integration.daemon import BASE, ERRORS, RUN, Daemon
from tests.patience import PATIENCE_S

GROUPS = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
LOOK_S = 0.02
# Enters the control group, moves the descriptors to where a service has them, and becomes the service.
LAUNCHER = """
import fcntl, os, sys
group, fds, names = sys.argv[1], [int(word) for word in sys.argv[2].split()], sys.argv[3]
open(group + "/cgroup.procs", "w").write(str(os.getpid()))
above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 1000) for fd in fds]
for number, fd in enumerate(above):
    os.dup2(fd, 3 + number)
me = str(os.getpid())
os.environ["SYSTEMD_EXEC_PID"] = me
if fds:
    os.environ |= {"LISTEN_PID": me, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names}
os.execv(sys.argv[4], sys.argv[4:])
"""
# Runs a daemon that kills itself where it would call a function.
DYING = """
import importlib, os, signal, sys
module, name = sys.argv.pop(1), sys.argv.pop(1)
owner = importlib.import_module(module)
*outer, name = name.split(".")
for each in outer:
    owner = getattr(owner, each)
getattr(owner, name)
setattr(owner, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
from scheduler.cli.main import main
sys.exit(main())
"""


def dying(module: str, name: str) -> list[str]:
    """Return the program of a daemon that is killed when it calls a function, which must not be a compiled one."""
    return [sys.executable, "-c", DYING, module, name, *RUN[3:]]


def groups() -> Path | None:
    """Return where control groups can be made."""
    for place in GROUPS:
        if (place / "cgroup.procs").exists() and os.access(place, os.W_OK):
            with suppress(OSError):
                probe = place / f"drover-probe-{uuid4().hex}"
                probe.mkdir()
                probe.rmdir()
                return place
    return None


class Manager:
    """The socket of a service manager, and its store, which takes so many descriptors."""

    def __init__(self, address: str, most: int) -> None:
        self.address, self.most = address, most
        self.store: list[tuple[str, int]] = []
        self.told: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._over = os.pipe()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.write(self._over[1], b"x")
        self._thread.join()
        self.discard()
        for fd in self._over:
            os.close(fd)
        self._socket.close()

    def names(self) -> list[str]:
        """Return the names in the store, each once."""
        return sorted({name for name, _ in self.store})

    def discard(self) -> None:
        """Close all that is in the store."""
        store, self.store = self.store, []
        for _, fd in store:
            os.close(fd)

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._over[0], select.POLLIN)
        while self._over[0] not in [fd for fd, _ in poll.poll()]:
            data, ancillary, _, _ = self._socket.recvmsg(65_536, socket.CMSG_SPACE(253 * 4))
            fds = array.array("i")
            for _, _, passed in ancillary:
                fds.frombytes(passed)
            self._obey(dict(line.partition("=")[::2] for line in data.decode().split("\n")), list(fds))

    def _obey(self, said: dict[str, str], fds: list[int]) -> None:
        self.told += [f"{name}={text}" for name, text in said.items()]
        name = said.get("FDNAME", "stored")
        if "FDSTORE" in said:
            for fd in fds:
                if len(self.store) < self.most and not any(_is_same(fd, old) for _, old in self.store):
                    self.store.append((name, fd))
                else:
                    os.close(fd)
            return
        if "FDSTOREREMOVE" in said:
            gone = [(each, fd) for each, fd in self.store if each == name]
            self.store = [each for each in self.store if each not in gone]
            fds = [fd for _, fd in gone]
        for fd in fds:  # of a barrier too
            os.close(fd)


class Unit:
    """A service whose program is a daemon, and what a manager does with it."""

    def __init__(self, text: str, database: str, most: int = 4096, program: Sequence[str] = RUN) -> None:
        place = groups()
        assert place is not None
        self.program = program
        self._temporary = TemporaryDirectory(prefix="drover-unit-")
        self.folder = Path(self._temporary.name)
        (self.folder / "drover.toml").write_text(BASE.replace("lease = 4", "lease = 30"))  # no restart takes longer
        (self.folder / "conf.d").mkdir()
        self.configure(text)
        self.group = place / f"drover-test-{uuid4().hex}.service"
        self.group.mkdir()
        self._errors = (self.folder / ERRORS).open("ab")
        self.manager = Manager(str(self.folder / "notify"), most)
        self.environment = os.environ | {
            "DROVER_DATABASE_URL": make_conninfo(database, user="drover_scheduler"),
            "NOTIFY_SOCKET": self.manager.address,
        }  # fmt: skip
        self._process = self._begin()
        self.daemon = Daemon(self._process, database, self._temporary)
        self.daemon._pid = self._process.pid

    def __enter__(self) -> "Unit":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self.manager.__exit__(kind, error, trace)
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemon.until(lambda: not self.pids(), what="processes stay in the group")
        self.group.rmdir()
        self.daemon.close()
        self._errors.close()

    def configure(self, text: str) -> None:
        """Change what the daemon reads at its next start; `program` and `environment` are what is run then."""
        (self.folder / "conf.d" / "test.toml").write_text(text)

    # ---- what an administrator does

    def serving(self, count: int = 1) -> Daemon:
        """Return the daemon, once it has said so often that it serves, or goes on."""
        words = ("serving group", "the daemon was started anew:")
        self.daemon.until(lambda: sum(map(self.daemon.stderr().count, words)) >= count, what="it does not serve")
        return self.daemon

    def restart(self) -> None:
        """Restart the service: with another signal than a stop, and what is in the store."""
        os.kill(self._process.pid, LEAVE)
        self.start_again()

    def crash(self) -> None:
        """Kill the main process; it is started again."""
        self._process.kill()
        self.start_again()

    def start_again(self) -> None:
        """Wait for the end of the main process, and start it again."""
        self._process.wait(PATIENCE_S)
        self._process = self.daemon.process = self._begin()
        self.daemon._pid = self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the service for good; its exit status. What was stored is closed."""
        os.kill(self._process.pid, number)
        status = self._process.wait(PATIENCE_S)
        self.manager.discard()
        return status

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        """Return what runs in the control group."""
        return [int(word) for word in (self.group / "cgroup.procs").read_text().split()]

    # ---- what it does by itself

    def _begin(self) -> "subprocess.Popen[bytes]":
        with closing(FdStore(self.manager.address)) as store:
            assert store.settle()  # systemd reads what a process has sent before it sees its end
        stored = list(self.manager.store)
        names = ":".join(name for name, _ in stored)
        fds = [fd for _, fd in stored]
        return subprocess.Popen(
            [
                sys.executable, "-S", "-c", LAUNCHER, str(self.group), " ".join(map(str, fds)), names,
                *self.program, "-c", str(self.folder / "drover.toml"),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, env=self.environment,
            cwd=Path(__file__).parents[2], pass_fds=fds, start_new_session=True,
        )  # fmt: skip


def _is_same(one: int, other: int) -> bool:
    """Return whether two descriptors are copies of one another, as far as fstat(2) and procfs know."""
    first, second = os.fstat(one), os.fstat(other)
    if (first.st_dev, first.st_ino) != (second.st_dev, second.st_ino):
        return False
    return _info(one) == _info(other)


def _info(fd: int) -> str:
    text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    return json.dumps([line for line in text.splitlines() if line.startswith(("flags", "Pid"))])
