"""Who this process is to other daemons, whether another is gone, how many files we may open, and who may look in.

Touches proc(5) and our limits only. Refuses to know what a daemon is: a process is named by its boot, its pid
namespace, its pid and when it started, and what cannot be proved gone is not gone.
"""

import os
import resource
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_SPACE = "/proc/self/ns/pid"
DEAD = frozenset({"Z", "X"})  # a zombie does nothing any more
PR_SET_DUMPABLE = 4  # prctl(2)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process among all there ever were; `pid_start` in clock ticks since boot, "" what proc hides."""

    host: str
    pid: int
    boot_id: str
    pid_space: str
    pid_start: int


def identity() -> Identity:
    """Give our own identity."""
    _, started = _state_and_start(os.getpid())
    return Identity(socket.gethostname(), os.getpid(), _boot_id(), _pid_space(), started)


def is_gone(other: Identity) -> bool:
    """Whether a process of this boot and pid namespace has ended; False when nobody can tell."""
    ours, theirs = (_boot_id(), _pid_space()), (other.boot_id, other.pid_space)
    if "" in ours or ours != theirs:
        return False
    try:
        state, started = _state_and_start(other.pid)
    except OSError:
        return _is_no_pid(other.pid)  # with hidepid= another user's process is merely invisible
    return started != other.pid_start or state in DEAD


def resident_mb() -> float | None:
    """Give how much memory this process has, in units of 2**20 bytes; None when no file can be opened."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * resource.getpagesize() / 2**20, 1)
    return None


def open_more_files() -> tuple[int, int]:
    """Raise our limit of open files as far as it goes, for an agent takes four; give what it was, which is theirs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def hide() -> None:
    """Let only root look into us: agents of the same user read neither memory nor environment, and take no descriptor.

    It lasts until another program is executed, and leaves no core file. Errors: OSError.
    """
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _state_and_start(pid: int) -> tuple[str, int]:
    """Give fields 3 and 22 of proc_pid_stat(5); field 2, the name, may hold blanks and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _is_no_pid(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _boot_id() -> str:
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    with suppress(ValueError):  # ProcSubset=pid hides it; systemd knows it, and writes it otherwise
        return str(UUID(os.environ.get("DROVER_BOOT_ID", "")))
    return ""


def _pid_space() -> str:
    with suppress(OSError):
        return os.readlink(PID_SPACE)
    return ""
