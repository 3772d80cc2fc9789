"""Finds the file of a program, and says why it cannot be executed, for the daemon and all commands.

Looks at what execve(2) looks at: rights, mounts, the first line of a script, the header of a binary. Starts nothing.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from scheduler.drivers.os_calls import absolute

ADVICE: Final = {  # where nothing is seen in the file itself
    errno.ENOENT: "look at its command, its cwd and PATH",
    errno.EACCES: "look at the rights of the file and its folders",
    errno.ENOEXEC: "it is no program of this machine; a script needs a first line with its interpreter, as #!/bin/sh",
    errno.ETXTBSY: "it is being written; replace a program by a new file with its name, as mv(1) and install(1) do",
    errno.EMFILE: "raise LimitNOFILE of the scheduler",
    errno.EAGAIN: "raise TasksMax of the scheduler, or run fewer agents",
    errno.ENFILE: "raise fs.file-max of the machine, or run fewer agents",
    errno.ENOMEM: "raise MemoryMax of the scheduler, or run fewer agents",
}
# Of the machine or the moment, whatever is started: items wait, and it is tried again.
SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM))
HEAD_BYTES: Final = 4096  # of a file that are looked at
SHEBANG_BYTES: Final = 256  # of them those in which Linux looks for an interpreter
BOM: Final = b"\xef\xbb\xbf"
FORMATS: Final = "/proc/sys/fs/binfmt_misc"  # what the machine executes besides, as binaries of others
FORMATS_OWN: Final = frozenset(("register", "status"))
MACHINES: Final = {  # by e_machine of elf(5), as uname(1) has them
    3: "i386", 8: "mips", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64",
}  # fmt: skip
RUNS_TOO: Final = {"x86_64": "i386", "aarch64": "arm", "ppc64le": "ppc64", "mips64": "mips"}
PT_INTERP: Final = 3
KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def find_program(word: str, path: str, directory: str | None) -> str:
    """Return the path of a program as execvp(3) would find it in `directory`.

    Errors: FileNotFoundError; PermissionError, with the file that may not be executed as filename2.
    """
    is_path = "/" in word
    folders = [""] if is_path else path.split(os.pathsep)
    places = [absolute(os.path.join(directory or "", folder, word)) for folder in folders]
    refused = [place for place in places if os.path.isfile(place)]
    for place in refused:
        if os.access(place, os.X_OK):
            return place
    if is_path and not refused and _is_refused(places[0]):
        refused = places
    if refused:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), word, None, refused[0])
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), word)


def advice_for(error: OSError, path: str) -> str:
    """Return what is wrong with a program that could not be started, and what to do; PATH as its agents have it."""
    file = error.filename2 or error.filename
    is_theirs = error.strerror == os.strerror(error.errno or 0)  # an error of ours says itself what is wrong
    is_program = error.filename2 is not None or (isinstance(file, str) and os.path.isfile(file))
    may_show = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
    problem = problem_of(os.fsdecode(file), path) if is_theirs and is_program and may_show else ""
    return problem or ADVICE.get(error.errno or 0, "")


def problem_of(file: str, path: str) -> str:
    """Return why a file cannot be executed and what to do, with PATH as its agents have it; empty if nothing is seen.

    A file that may be executed but not read is not looked into.
    """
    try:
        mode = os.stat(file).st_mode
    except OSError as error:
        return _not_reached(file, error)
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in KINDS if is_kind(mode)), "no ordinary file")
        return f"{file} is {kind}; name a program"
    if not os.access(file, os.X_OK):
        return _not_executable(file, mode)
    try:
        with open(file, "rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError:
        return ""
    problem = _script_problem(head, path) if head.startswith(b"#!") else _binary_problem(head)
    return f"{file}: {problem}" if problem else ""


def is_run_by_sh(file: str) -> bool:
    """Return whether a program that execve(2) refuses is run by sh(1) where execvp(3) or a shell starts it."""
    try:
        with open(file, "rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError:
        return False
    return os.access(file, os.X_OK) and not head.startswith((b"#!", b"\x7fELF")) and b"\0" not in head


# ---- rights and places


def _is_refused(place: str) -> bool:
    """Return whether there is something else than a program, or a directory on the way may not be entered."""
    try:
        os.stat(place)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _not_reached(file: str, error: OSError) -> str:
    for folder in reversed(Path(file).parents):
        if folder.is_dir() and not os.access(folder, os.X_OK):
            return f"{file}: this user may not enter the directory {folder}; chmod +x {folder}, or run as its owner"
    return f"{file}: {error.strerror}"


def _not_executable(file: str, mode: int) -> str:
    if os.statvfs(file).f_flag & os.ST_NOEXEC:
        place = next(folder for folder in Path(file).parents if folder.is_mount())
        return f"{file} is on {place}, which is mounted noexec; move it, or mount {place} without noexec"
    if mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        return f"{file} may not be executed by this user (its mode is {mode & 0o7777:04o}); chmod a+x {file}"
    return f"{file} is not executable; chmod +x {file}"


# ---- what is in the file


def _script_problem(head: bytes, path: str) -> str:
    """Return what is wrong with the `#!` line of a script."""
    line = head[2:SHEBANG_BYTES].partition(b"\n")[0]
    if line.endswith(b"\r"):
        advice = "convert it: sed -i 's/\\r$//' FILE, or dos2unix(1)"
        return f"its lines end in CR LF, so that the interpreter of its first line is not found; {advice}"
    words = os.fsdecode(line).split()
    if not words:
        return "its first line names no interpreter"
    interpreter, *given = words
    if not os.access(interpreter, os.X_OK):
        if os.path.isfile(interpreter) and os.statvfs(interpreter).f_flag & os.ST_NOEXEC:
            return f"its interpreter {interpreter} is on a file system that is mounted noexec"
        return f"its interpreter {interpreter} is not there or not executable; install it or correct the first line"
    called = next((word for word in given if not word.startswith("-") and "=" not in word), None)
    if os.path.basename(interpreter) == "env" and called is not None:
        try:
            find_program(called, path, None)
        except OSError:
            return f"its interpreter {called} is not on PATH; install it or correct the first line"
    return ""


def _binary_problem(head: bytes) -> str:
    """Return what is wrong with a file that is no script, unless the machine may know its format."""
    if not head:
        return "it is empty"
    if head.startswith(BOM + b"#!"):
        return "it begins with a byte order mark, before #!; save it as UTF-8 without one"
    if _knows_more_formats():
        return ""
    if not head.startswith(b"\x7fELF"):
        return "it is no program of this machine; a script needs a first line with its interpreter, as #!/bin/sh"
    order = ">" if head[5:6] == b"\2" else "<"
    try:
        theirs, here = MACHINES.get(struct.unpack_from(f"{order}H", head, 18)[0]), os.uname().machine
        if theirs and here in {*MACHINES.values(), *RUNS_TOO} and theirs not in (here, RUNS_TOO.get(here)):
            return f"it is a program for {theirs}, and this machine is {here}; build or install that for {here}"
        loader = next(_loaders(head, order), "")
    except struct.error:
        return ""
    if loader and not os.access(loader, os.X_OK):
        return f"its loader {loader} is not there: it was built for another system; install that, or build it here"
    return ""


def _knows_more_formats() -> bool:
    with suppress(OSError):
        return not FORMATS_OWN.issuperset(os.listdir(FORMATS))
    return False


def _loaders(head: bytes, order: str) -> Iterator[str]:
    """Yield the loader that a binary names in its program headers. Errors: struct.error, they are cut off."""
    if head[4:5] == b"\2":  # of 64 bits
        (start,), (size, count) = struct.unpack_from(f"{order}Q", head, 32), struct.unpack_from(f"{order}HH", head, 54)
        fields, layout = (0, 2, 5), f"{order}IIQQQQ"
    else:
        (start,), (size, count) = struct.unpack_from(f"{order}I", head, 28), struct.unpack_from(f"{order}HH", head, 42)
        fields, layout = (0, 1, 4), f"{order}IIIII"
    for number in range(count):
        header = struct.unpack_from(layout, head, start + number * size)
        kind, offset, length = (header[field] for field in fields)
        if kind == PT_INTERP and offset + length <= len(head):
            yield os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
