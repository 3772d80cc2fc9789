"""Calls of the operating system: our identity and limits, pipes, pidfds, and signals as events of the loop.

A process is identified by its boot, its pid namespace, its pid and its start time; one that cannot be proved to have
ended counts as running. For signals the C handler writes the number into a pipe, which the loop reads: no Python of
ours runs when a signal arrives. Refuses to know what a daemon is and what a signal means.
"""

import gc
import os
import pwd
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from select import EPOLLIN
from typing import Any, AnyStr
from uuid import UUID

from scheduler.drivers.loop import Loop

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_SPACE = "/proc/self/ns/pid"
DEAD = frozenset({"Z", "X"})  # a zombie has ended
PR_SET_DUMPABLE, PR_SET_NAME = 4, 15  # prctl(2)
OF_KERNEL = frozenset((signal.SIGKILL, signal.SIGSTOP))  # signal(7): cannot be caught, blocked or ignored
RESET = frozenset(signal.valid_signals()) - OF_KERNEL  # in what we start: Python and our starter ignore some
LEAVE = signal.SIGRTMIN + 1  # RestartKillSignal of the unit: end, and leave the agents to the next daemon
SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, LEAVE,
)  # fmt: skip
FIRST_OWN = 3  # descriptor, after stdin, stdout and stderr
MOST_AT_ONCE = 4096  # signals read in one turn
MOST_PID = 1 << 22  # the greatest pid_max of Linux
COLLECT_AFTER = 50_000  # objects more than were freed, until the collector looks at the new ones; it is 700 by default
TRACED_S = 0.5  # between two checks of a process whose end a debugger holds

Ends = tuple[int, int, int]  # of three pipes, in the order of stdin, stdout, stderr


def is_removed() -> bool:
    """Return whether our working directory was removed: nothing is found there, and many programs do not start."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def absolute(path: str) -> str:
    """Return the path of a name that may be relative to our directory; as it is if that was removed."""
    return path if path.startswith("/") or is_removed() else os.path.join(os.getcwd(), path)


def unix_address(text: str) -> bytes:
    """Return the address of a socket; a name that is no path begins with a NUL, written as @ (unix(7))."""
    path = os.fsencode(text)
    return b"\0" + path[1:] if path.startswith(b"@") else path


class NoPidfdError(OSError):
    """A process had begun and was killed at once, since no pidfd was left to watch it with."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process; `pid_start` is in clock ticks since boot, what proc hides is ""."""

    host: str
    pid: int
    boot_id: str
    pid_space: str
    pid_start: int


def collect_rarely() -> None:
    """Leave what start-up made out of garbage collections, and make few: nothing in hand is left in a cycle (Job)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)


def identity() -> Identity:
    _, started = _state_and_start(os.getpid())
    return Identity(socket.gethostname(), os.getpid(), *_boot_and_pid_space(), started)


def is_gone(other: Identity) -> bool:
    """Return whether a process of this boot and pid namespace has ended; False if that cannot be known.

    Its pid is from a row or the name of a directory: no signal is sent, not even 0, for that reaches many by pid 0.
    """
    ours = _boot_and_pid_space()
    if "" in ours or ours != (other.boot_id, other.pid_space) or not 0 < other.pid <= MOST_PID:
        return False
    try:
        state, started = _state_and_start(other.pid)
    except OSError:  # with hidepid= processes of other users are invisible
        try:
            os.close(os.pidfd_open(other.pid))
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False
    return started != other.pid_start or state in DEAD


def resident_mb() -> float | None:
    """Return the memory of this process in units of 2**20 bytes; None when no file can be opened."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * resource.getpagesize() / 2**20, 1)
    return None


def open_more_files() -> tuple[int, int]:
    """Raise our limit of open files as far as it goes, for an agent takes four; return the old one, for agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def open_first_three() -> None:
    """Open the first three descriptors, if our starter has closed them: none of ours has their numbers.

    Errors: OSError.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < FIRST_OWN:
        os.set_inheritable(fd, True)
    os.close(fd)


def keep_descriptors() -> None:
    """Let the programs that we start have none of the descriptors that we were given, but the first three."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= FIRST_OWN:
            with suppress(OSError):  # it was that of the folder
                os.set_inheritable(int(name), False)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def pipes() -> tuple[Ends, Ends]:
    """Return the ends of three new pipes, ours and theirs."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            made.append(os.pipe())  # noqa: PERF401  (those made before a failure are closed)
    except OSError:
        close_all(chain.from_iterable(made))
        raise
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = made
    return (to_stdin, from_stdout, from_stderr), (stdin, stdout, stderr)


def let_others_open(ends: Iterable[int]) -> None:
    """Let a process of another user open its ends by a name such as /dev/stdin, as those of our user can.

    No third user can: of a process, proc(5) shows the descriptors to its own user. fchown(2) would take a capability.
    """
    for end in ends:
        os.fchmod(end, 0o666)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"SIG{number}"


def spawn(
    argv: tuple[str, ...],
    environment: Mapping[AnyStr, AnyStr],
    ends: Sequence[int],
    files: tuple[int, int] | None = None,
) -> int:
    """Return the pid of a new process, the first of its group, with these as its first descriptors.

    No signal is ignored or blocked in it. `files` is its limit of open files, None: ours. posix_spawn(3) takes two
    thirds of the time of Popen. Errors: OSError, ValueError.
    """
    streams = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends)]
    is_above = files is not None and max(ends) >= files[0]  # posix_spawn(3) takes no descriptor above the limit
    with _limit_of_files(None if is_above else files):
        pid = os.posix_spawn(
            argv[0], argv, environment, file_actions=streams, setpgroup=0, setsigmask=(), setsigdef=RESET
        )
    if is_above and files is not None:
        with suppress(OSError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, files)
    return pid


@contextmanager
def _limit_of_files(limit: tuple[int, int] | None) -> Iterator[None]:
    """Have another limit of open files for a moment: a process that begins meanwhile has it from its first step."""
    if limit is None:
        yield
        return
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = ours[1]  # which may have been lowered since, from outside
    soft = limit[0] if hard == resource.RLIM_INFINITY else min(limit[0], hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, ours)


def reset_signals() -> None:
    """Ignore and block no signal, as after a login; for a child between fork(2) and execve(2)."""
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pidfd_of(pid: int) -> int:
    """Return a pidfd of a child; without one it is killed and reaped. Errors: NoPidfdError."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:  # no descriptor left: a child that is not watched must not live
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended, and was reaped elsewhere
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise NoPidfdError(error.errno, error.strerror) from error


def is_pidfd_of(pid: int, pidfd: int) -> bool:
    """Return whether a descriptor is a pidfd of this process, or of one that was reaped. Errors: OSError."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return pid > 1 and any(line.split() in (["Pid:", str(pid)], ["Pid:", "-1"]) for line in lines)


def is_readable(fd: int, within_s: float = 0.0) -> bool:
    """Return whether a descriptor is readable, or becomes so in time; a pidfd is when its process has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def take_name(name: str) -> None:
    """Let ps(1) and top(1) show this process by a name; Linux keeps 15 bytes of it. Agents do not inherit it."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def hide() -> None:
    """Make this process undumpable: agents of the same user read neither memory nor environment, nor take descriptors.

    It lasts until another program is executed, and leaves no core file. Errors: OSError.
    """
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def start_of(pid: int) -> int:
    """Return when a process began, in clock ticks since boot. Errors: OSError, it has ended."""
    return _state_and_start(pid)[1]


def is_group(pid: int) -> bool:
    """Return whether a process group has a member that is not reaped."""
    try:
        os.killpg(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            fields = _stat_of(int(name))
            if int(fields[2]) == group and fields[0] not in DEAD:
                found.append(int(name))
    return found


def owner_of(pid: int) -> str:
    """Return the user of a process, in words."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        number = next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    except (OSError, StopIteration):  # hidepid= hides it, or it has ended
        return "another user"
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return fields 3 and 22 of proc_pid_stat(5)."""
    fields = _stat_of(pid)
    return fields[0], int(fields[19])


def _stat_of(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on; the second, the name, may hold blanks and brackets."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def boot_id() -> str:
    """Return what tells this boot of the machine from others; nothing if that is hidden."""
    boot = ""
    with suppress(ValueError):  # where ProcSubset=pid hides it; systemd writes it without the dashes
        boot = str(UUID(os.environ.get("DROVER_BOOT_ID", "")))
    with suppress(OSError):
        boot = BOOT_ID.read_text().strip()
    return boot


def _boot_and_pid_space() -> tuple[str, str]:
    pid_space = ""
    with suppress(OSError):
        pid_space = os.readlink(PID_SPACE)
    return boot_id(), pid_space


class Signals:
    """Calls back with each of SIGNALS that arrived, in order; made and closed in the main thread."""

    def __init__(self, loop: Loop, on_signal: Callable[[int], None]) -> None:
        self._loop, self._on_signal = loop, on_signal
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # the pipe comes first: a handler that is set before it would lose a signal
        self._old_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # these do nothing, but without a handler in Python there would be no C handler, which writes to the pipe
        self._old: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        loop.register(self._reader, EPOLLIN, self._read)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a program before us may have blocked them

    def close(self) -> None:
        """Restore the handlers of before."""
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        signal.set_wakeup_fd(self._old_writer)
        self._loop.unregister(self._reader)
        os.close(self._reader)
        os.close(self._writer)

    def _read(self, _mask: int) -> None:
        for number in os.read(self._reader, MOST_AT_ONCE):
            if number in self._old:
                self._on_signal(number)
