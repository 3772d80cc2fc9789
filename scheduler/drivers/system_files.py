"""Checks at the start of a command for the system files that starting processes takes: /proc and /dev/null.

Containers, chroots and namespaces may lack them, and the errors that follow would not name the cause.
"""

import os
import stat
import tempfile

from scheduler.errors import ConfigError


def require_system_files(who: str) -> None:
    """Return if /proc of our processes and /dev/null are there. Errors: ConfigError, in a sentence."""
    if problem := _problem_of_proc() or _problem_of_null():
        raise ConfigError(f"{who}: {problem}")


def require_temporary_folder(who: str) -> None:
    """Return if there is a directory for scratch files. Errors: ConfigError, in a sentence."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        advice = "make /tmp writable, or set TMPDIR"
        raise ConfigError(f"{who}: no place for scratch files: {error.strerror}; {advice}") from error


def _problem_of_proc() -> str:
    advice = "mount it: mount -t proc proc /proc (unshare: --mount-proc)"
    try:
        ours = os.readlink("/proc/self")
    except OSError:
        return f"/proc, by which processes are told apart, is not mounted; {advice}"
    if ours == str(os.getpid()):
        return ""
    return f"/proc, by which processes are told apart, is that of another pid namespace; {advice}"


def _problem_of_null() -> str:
    advice = f"make it: mknod -m 666 {os.devnull} c 1 3"
    try:
        opened = os.open(os.devnull, os.O_RDWR)
    except OSError as error:
        return f"{os.devnull} cannot be opened: {error.strerror}; {advice}"
    is_device = stat.S_ISCHR(os.fstat(opened).st_mode)
    os.close(opened)
    return "" if is_device else f"{os.devnull} is no device, and would grow; remove it and {advice}"
