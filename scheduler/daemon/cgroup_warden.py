"""The warden: kills what a daemon has left in the control group of its unit, unless another daemon comes in time.

Where agents are kept over a restart (keep_agents), systemd must not kill what is left, so the warden does: a process of
its own, which the daemon starts. It knows that the daemon has ended by a pidfd, and that another one comes by a socket,
the lifeline: the daemon has its other end, and the service manager keeps a copy for the next daemon. A daemon that has
given that copy away tells its warden to watch; until then the warden of the daemon before watches. The next daemon asks
to take over; from the answer on the old warden does nothing, and that of the new daemon watches. A warden that has
begun to kill does not answer, so the new daemon knows that nothing is left. A warden kills when the service has ended
for good (then all copies of the other end are closed), when no daemon asks in time, and before the lease of the daemon
ends: then another daemon may take the group and begin the items again.

Only processes of a control group are killed that is the unit's own: the daemon is the process which systemd started in
it, and its parent is not in it.
"""

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from scheduler.daemon.guardian import is_kept, stat_of

PATIENCE_S: Final = 30.0  # for another daemon
KILL_EARLY_S: Final = 1.0  # before the lease ends; only what is blocked in the kernel does not die at once
ANSWER_S: Final = 10.0  # for a warden: one that kills needs KILL_S
MESSAGE_BYTES: Final = 64
NO_LEASE_MS: Final = 1 << 53  # later than all deadlines
KILL_S: Final = 5.0  # for what does not die: it is blocked in the kernel
LOOK_S: Final = 0.02  # between two looks at what is not dead yet
LINE: Final = "warden"  # begins the name of a lifeline in the store
WATCH, TAKE, YOURS, ENDS, LEASE = b"watch", b"take", b"yours", b"ends", b"lease"
MOUNTS: Final = {"": ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "name=systemd": ("/sys/fs/cgroup/systemd",)}
START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from scheduler.daemon.cgroup_warden import main; main()"
)


class Warden:
    """The warden of this daemon: our end of the lifeline, and its process."""

    def __init__(self, line: socket.socket, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.line, self.pid, self._process = line, pid, process
        self._lease_until = -math.inf  # as it was told

    @classmethod
    def started(cls, group: Path) -> "Warden":
        """Start it; it kills nothing before `watch`. Errors: OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[2])
        # Agents can read its environment, and a password may be in ours. Some build Python so that it needs this one.
        needed = {name: text for name, text in os.environ.items() if name == "LD_LIBRARY_PATH"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, root, str(os.getpid()), str(group)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=needed, process_group=0,
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(ours, process.pid, process)

    @classmethod
    def inherited(cls, pid: int, fd: int) -> "Warden":
        """Return the warden of a program that was executed before us."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd), pid)

    @property
    def name(self) -> str:
        """Return the name of the lifeline in the store: each warden has its own."""
        return f"{LINE}{self.pid}"

    def watch(self) -> None:
        """Let it kill what we leave: its lifeline was given to the service manager, for the daemon after us."""
        self._tell(WATCH)

    def set_lease(self, until: float) -> None:
        """Tell it when the lease of our group ends, by the monotonic clock; minus infinity: the group is not ours."""
        if until not in (-math.inf, self._lease_until):
            self._tell(b"%b %d" % (LEASE, until * 1000))
            self._lease_until = until

    def forget_lease(self) -> None:
        """Tell it that nothing is left of the work under a lease."""
        if self._lease_until != -math.inf:
            self._tell(b"%b %d" % (LEASE, NO_LEASE_MS))
            self._lease_until = -math.inf

    def close(self) -> None:
        """Tell it when we end: of processes that began later, those of the next daemon, it kills none."""
        self._tell(b"%b %d" % (ENDS, _ticks()))
        self.line.close()
        if self._process is not None:
            self._process.returncode = 0  # it outlives us

    def _tell(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead
            self.line.send(message, socket.MSG_DONTWAIT)


def own_group(environment: Mapping[str, str]) -> Path | None:
    """Return the file with the pids of our control group; None if that is not a unit's of which we are the process."""
    if environment.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in MOUNTS.get(controllers, ()) if path != "/" else ():
            group = Path(f"{mount}{path}/cgroup.procs")
            pids = members(group)
            if os.getpid() in pids and os.getppid() not in pids:
                return group
    return None


def members(group: Path) -> list[int]:
    """Return the pids of a control group; none if it cannot be read."""
    with suppress(OSError):
        return [int(pid) for pid in group.read_text().split()]
    return []


def dismiss(line: socket.socket) -> bool:
    """Ask the warden of an earlier daemon to kill nothing; return False if it does not answer: it kills, or is dead."""
    line.settimeout(ANSWER_S)
    with suppress(OSError):
        line.send(TAKE)
        return line.recv(len(YOURS)) == YOURS
    return False


def sweep(group: Path, is_spared: Callable[[int], bool]) -> int:
    """Kill the processes of a control group, but not ourselves, for KILL_S at most; return how many there were."""
    deadline, killed = time.monotonic() + KILL_S, set[int]()
    while left := [pid for pid in members(group) if pid != os.getpid() and not is_detached(pid) and not is_spared(pid)]:
        for pid in left:
            _kill_member(pid, group)
        killed.update(left)
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_S)
    return len(killed)


def is_detached(pid: int) -> bool:
    """Return whether a process is of a detached job: the environment of it, or of one above it, says so.

    A command may clear its environment, or hide it by the rights of another user; its keeper does not.
    """
    while pid > 1:
        if is_kept(pid):
            return True
        stat = _stat(pid)
        if stat is None:
            return False
        pid = int(stat[1])
    return False


def belongs_to(pids: Collection[int]) -> Callable[[int], bool]:
    """Return a function that says whether a process is one of these, in its process group, or a descendant."""

    def is_of_one(pid: int) -> bool:
        while pid > 1 and pid not in pids:
            stat = _stat(pid)
            if stat is None:
                return False
            if int(stat[2]) in pids:
                return True
            pid = int(stat[1])
        return pid in pids

    return is_of_one


def _kill_member(pid: int, group: Path) -> None:
    """Kill a process if it is in the group still: its pid may be another's by now."""
    with suppress(OSError):  # it is dead
        pidfd = os.pidfd_open(pid)
        try:
            if pid in members(group):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of proc_pid_stat(5) from the third on; None if it cannot be read."""
    with suppress(OSError):
        return stat_of(pid)
    return None


# ---- the process itself


def main() -> None:
    """Watch a daemon, and the lifeline, which is our standard input."""
    daemon, group = int(sys.argv[1]), Path(sys.argv[2])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(fileno=os.dup(0))
    if (found := Watch(daemon, line).outcome()) is None:
        return
    line.close()
    os.close(0)
    why, ended = found
    if count := sweep(group, began_after(ended, daemon)):
        os.write(2, f"drover: {why}: killed what the daemon has left, {count} processes\n".encode())


class Watch:
    """Waits until a daemon has ended, and nobody comes who has the other end of the lifeline.

    A warden that another daemon has asked to kill nothing stays for a while: if that one dies before it has had the
    lifeline removed, the daemon after it asks again.
    """

    def __init__(self, daemon: int, line: socket.socket) -> None:
        self._line = line
        self._is_held, self._is_watching = True, False
        self._deadline, self._lease_until = math.inf, math.inf
        self._ended = 0  # when the daemon ended, in ticks since boot; 0: not known yet
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._pidfd = -1  # -1: the daemon has ended
        try:
            self._pidfd = os.pidfd_open(daemon)
        except ProcessLookupError:
            self._daemon_ended()
        else:
            self._poll.register(self._pidfd, select.POLLIN)

    def outcome(self) -> tuple[str, int] | None:
        """Return why all is to be killed, and when the daemon ended; None if that is not ours to do."""
        why = "the service has ended"
        while self._is_held or (self._is_watching and self._pidfd >= 0):
            until, why_not_later = self._limit()
            left_s = max(until - time.monotonic(), 0.0)
            ready = self._poll.poll(None if left_s == math.inf else left_s * 1000)
            if not ready:
                why = why_not_later
                break
            for fd, _ in ready:
                if fd == self._pidfd:
                    self._poll.unregister(fd)
                    self._daemon_ended()
                else:
                    self._heard(_message(self._line))
        return (why, self._ended) if self._is_watching else None

    def _limit(self) -> tuple[float, str]:
        """Return until when another daemon may come, and why not later."""
        if self._is_watching and self._pidfd < 0 and (last := self._lease_until - KILL_EARLY_S) < self._deadline:
            return last, "no daemon has come before the lease ends"
        return self._deadline, f"no daemon has come in {PATIENCE_S:g} s"

    def _daemon_ended(self) -> None:
        self._pidfd, self._ended = -1, self._ended or _ticks()
        self._deadline = time.monotonic() + PATIENCE_S

    def _heard(self, message: bytes) -> None:
        if message == WATCH:
            self._is_watching = True
        elif message == TAKE:
            self._is_watching, self._deadline = False, time.monotonic() + PATIENCE_S
            with suppress(OSError):  # who asked is dead
                self._line.send(YOURS)
        elif message.startswith(ENDS):
            self._ended = int(message.split()[1])
        elif message.startswith(LEASE):
            self._lease_until = int(message.split()[1]) / 1000
        elif not message:  # nobody has the other end; anything else is of a later version, and ignored
            self._is_held = False
            self._poll.unregister(self._line)


def _message(line: socket.socket) -> bytes:
    """Return what has come; nothing if nobody has the other end any more."""
    with suppress(OSError):  # closed, with an answer that was not read
        return line.recv(MESSAGE_BYTES)
    return b""


def _ticks() -> int:
    """Return the time since boot as proc_pid_stat(5) has it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def began_after(ticks: int, daemon: int) -> Callable[[int], bool]:
    """Return a function that says whether a process is of a session that began later, which is a new daemon's.

    The session of the daemon that ended never is, even if its process is not reaped yet and hidden, as a new one is.
    """

    def is_new(pid: int) -> bool:
        with suppress(OSError):  # it is dead, or its session has no leader any more
            leader = os.getsid(pid)
            if leader == daemon:
                return False
            os.getsid(leader)
            stat = _stat(leader)
            return stat is None or int(stat[19]) >= ticks  # a daemon hides itself
        return False

    return is_new


if __name__ == "__main__":
    main()
