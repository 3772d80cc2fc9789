"""The guardian: the parent of a daemon, which kills every descendant that is left when the daemon has ended.

It waits as a small program of its own (`python -I -S guardian.py PID`), so it imports next to nothing, and nothing
of ours. As a sub-reaper it becomes the parent of every process below that loses its own: of agents when the daemon
dies, of what they started when they die, whatever session these moved to. So it kills its children until no
descendant is left. Before that it sends them SIGHUP, for some stand for a process elsewhere, as srun(1) does, and end
that. It touches processes and signals only and refuses to know what a daemon is: signals are passed on, and it ends
when the daemon has ended.

What is started before `begin` is not below it, such as the server of an embedded database, which others may use.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
AWAITED = FORWARDED | {signal.SIGCHLD}
SI_KERNEL = 0x80  # sigaction(2): a terminal's signal, which the whole process group has got already
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
HANG_UP_S = 1.0  # from SIGHUP to SIGKILL: time to end a process elsewhere
CHECK_S = 0.05  # between two checks of children that are not dead yet
CHECKS = 100  # in a row in which no child died: the rest is not ours to kill, or sleeps in the kernel
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
STDERR = 2
GUARDED = "DROVER_GUARDIAN"  # in the environment of a daemon that is executed anew: the pid of its guardian
WRITE_MS = 1000  # for a reader of standard error
COMMAND_BYTES = 200
KEPT = b"DROVER_KEEPER="  # drivers/keeper_scripts.py


def begin(environment: Mapping[str, str]) -> int | None:
    """Go on as the child of a guardian, which this process becomes; return a pidfd of it.

    None under systemd, which ends what is left in the control group, and wants the daemon to be its main process. A
    daemon that was executed by one before it has its guardian already.
    """
    if environment.get(GUARDED) == str(os.getppid()):
        return os.pidfd_open(os.getppid())
    if environment.get("SYSTEMD_EXEC_PID") == str(os.getpid()):  # systemd.exec(5)
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how a child ended
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # what comes from now on waits for the guardian
    adopt_orphans()  # first: a daemon that is dead at once must not have escaped
    guardian = os.pidfd_open(os.getpid())
    daemon = os.fork()
    if daemon:
        # Any agent can read the environment of the guardian, and a password may be in ours. Some build Python so that
        # it needs this variable.
        needed = {name: text for name, text in environment.items() if name == "LD_LIBRARY_PATH"}
        with suppress(OSError):  # then it goes on here, and uses more memory
            os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, str(daemon)], needed)
        guard(daemon)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return guardian


def adopt_orphans() -> None:
    """Be from now on the parent of every process below that loses its own. Errors: OSError."""
    import ctypes  # not in the guardian itself: the mark stays with the process when it executes another program

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def guard(daemon: int) -> None:
    """Pass signals on until the daemon is gone, kill all that it left, and end as it did; never returns."""
    while (end := _reap(daemon)) is None:
        sent = signal.sigwaitinfo(AWAITED)
        if sent.si_signo in FORWARDED and sent.si_code != SI_KERNEL:
            _kill(daemon, sent.si_signo)
    table = _table(end.si_status) if end.si_code != os.CLD_EXITED and end.si_status in CRASHES else b""
    _hang_up()
    end_family()
    if children := _children():
        table += b"processes that could not be ended: %d\n" % len(children) + b"".join(map(_line, children))
    _write(table)  # last: a reader that blocks must keep no process alive
    # Exit with the same status, or die of the same signal.
    if end.si_code == os.CLD_EXITED:
        os._exit(end.si_status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core dump to keep is the daemon's
    with suppress(OSError):  # of SIGKILL there is nothing to restore
        signal.signal(end.si_status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), end.si_status)
    os._exit(128 + end.si_status)  # the first process of a container does not die of its own signals


def _hang_up() -> None:
    """Send SIGHUP to the process groups of all children, and wait HANG_UP_S at most until they are dead."""
    deadline, signalled = time.monotonic() + HANG_UP_S, {os.getpgrp()}
    with suppress(ChildProcessError):  # there are none
        while (left := deadline - time.monotonic()) > 0 and _children():
            for group in set(map(os.getpgid, _children())) - signalled:
                signalled.add(group)
                with suppress(OSError):  # another user's by now
                    os.killpg(group, signal.SIGHUP)
            _reap()
            signal.sigtimedwait({signal.SIGCHLD}, left)


def end_family() -> None:
    """Kill all children, and those that become ours by that, until none is left.

    Give up on those that do not die, and at once if all are other users', whom we may not kill.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    quiet = 0
    with suppress(ChildProcessError):  # there are none
        while quiet < CHECKS and (children := _children()):
            if set(map(_kill, children)) == {False}:
                quiet = CHECKS
            _reap()
            quiet = 0 if signal.sigtimedwait({signal.SIGCHLD}, CHECK_S) else quiet + 1


def _reap(wanted: int = 0) -> os.waitid_result | None:
    """Reap dead children up to the wanted one; return how that ended. Errors: ChildProcessError, no child."""
    while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
        if dead.si_pid == wanted:
            return dead
    return None


def _children() -> list[int]:
    """Return our children that are ours to kill, for a pid is not used again before we have reaped it."""
    with open("/proc/thread-self/children") as children:
        return [child for child in map(int, children.read().split()) if not is_kept(child)]


def is_kept(child: int) -> bool:
    """Return whether a process is of a detached job, which goes on: its environment says so from its start."""
    try:
        with open(f"/proc/{child}/environ", "rb") as environment:
            return any(each.startswith(KEPT) for each in environment.read().split(b"\0"))
    except OSError:  # it is another user's, or has ended
        return False


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third on: the second may hold blanks. Errors: OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def _table(number: int) -> bytes:
    """Return a line for the daemon's end, and for each process that it has left: pid, state as in ps(1), command."""
    children = _children()
    first = b"the daemon died of %s and left children: %d\n"
    return first % (signal.Signals(number).name.encode(), len(children)) + b"".join(map(_line, children))


def _line(child: int) -> bytes:
    """Return a line for a process: pid, state as in ps(1), command."""
    state = command = b"?"
    with suppress(OSError, IndexError):  # it is another user's, and hidden
        state = stat_of(child)[0]
        with open(f"/proc/{child}/cmdline", "rb") as line:
            command = line.read(COMMAND_BYTES).rstrip(b"\0").replace(b"\0", b" ")
    # What an agent calls itself must not steer a terminal.
    shown = command.decode("ascii", "backslashreplace").encode("unicode_escape")
    return b"pid=%d state=%s command=%s\n" % (child, state, shown)


def _write(text: bytes) -> None:
    """Write to standard error while it is read; PIPE_BUF bytes go at once when any do."""
    import select  # seldom needed

    ready = select.poll()
    ready.register(STDERR, select.POLLOUT)
    with suppress(OSError):
        while text and ready.poll(WRITE_MS):
            text = text[os.write(STDERR, text[: select.PIPE_BUF]) :]


def _kill(child: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return False if that is refused: it is another user's by now."""
    with suppress(ProcessLookupError):  # dead already
        try:
            os.kill(child, number)
        except PermissionError:
            return False
    return True


if __name__ == "__main__":
    guard(int(sys.argv[1]))
