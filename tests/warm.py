"""Start the project's own programs by a fork of a process that has imported them already.

`begin` and `run` are Popen and run of subprocess for `python -m MODULE`. Three quarters of the processor time of a
daemon that does next to nothing are imports, and tests start more than a thousand daemons and as many commands. So a
server, one for each process that runs tests, imports the modules and forks for each program. The fork gets arguments,
environment, directory and standard streams as a new interpreter would, and calls `main` of the module. Other programs
are started as usual, and so are these if the environment says something that counts at the start of the interpreter or
at an import.

A request is one packet with five descriptors: a file with the pickled program, the three streams, and a pipe into which
the server writes how the program ended. The answer is the pid.
"""

import atexit
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from subprocess import DEVNULL, PIPE, CompletedProcess, TimeoutExpired
from typing import IO, Any, NamedTuple, NoReturn

MODULES = ("scheduler.cli.main", "tests.faults.launcher")
PACKAGES = ("scheduler.cli", "scheduler.daemon")  # whose modules are imported, with all that they import
ROOT = Path(__file__).parents[1]
# How names of variables begin that a fork would read too late: of the interpreter, and the mutant to be imported.
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "FAULTS_MUTANT")
FILES = 1 << 20  # descriptors are below that
Stream = int | IO[Any] | None


class Program(NamedTuple):
    """What a fork becomes."""

    module: str
    words: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    files: tuple[int, int]  # how many may be open, RLIMIT_NOFILE


class Process:
    """A program that was started by a fork: the part of Popen that tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Return the exit status, as Popen has it, or None while the program runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Errors: TimeoutExpired."""
        status = self._status(timeout)
        if status is None:
            raise TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if poll.poll(None if timeout is None else timeout * 1000):
                self.returncode = os.waitstatus_to_exitcode(int(os.read(self._ended, 100)))
                os.close(self._ended)
        return self.returncode


def begin(
    argv: Sequence[str], *, stdin: Stream = None, stdout: Stream = None, stderr: Stream = None,
    env: Mapping[str, str] | None = None, cwd: Path | None = None,
) -> "Process | subprocess.Popen[bytes]":  # fmt: skip
    """Start a program as Popen does; its pipes, of standard input and output only, are unbuffered."""
    around = dict(os.environ if env is None else env)
    if not _is_known(argv, around):
        return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=around, cwd=cwd, bufsize=0)
    program = Program(argv[2], tuple(argv[3:]), around, str(cwd or Path.cwd()), getrlimit(RLIMIT_NOFILE))
    theirs, ours = zip(*(_ends(stream, number) for number, stream in enumerate((stdin, stdout, stderr))), strict=True)
    process = _server().start(program, theirs)
    for number, fd in enumerate(theirs):
        if fd != number and (stdin, stdout, stderr)[number] in (DEVNULL, PIPE):
            os.close(fd)
    process.stdin, process.stdout = ours[:2]
    return process


def run(
    argv: Sequence[str], *, input: str = "", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> CompletedProcess[str]:
    """Run a program with this text to read, and return what it printed: files stand for pipes."""
    with _file(input.encode()) as given, _file() as out, _file() as err:
        status = begin(argv, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd).wait()
        return CompletedProcess(argv, status, *(_text(file) for file in (out, err)))


def _is_known(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    is_ours = list(argv[:2]) == [sys.executable, "-m"] and argv[2] in MODULES
    return is_ours and _at_start(environment) == _server().at_start


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(AT_START)}


def _ends(stream: Stream, number: int) -> tuple[int, IO[bytes] | None]:
    """Return the descriptor for the program, and our end of a pipe."""
    if stream is None:
        return number, None
    if stream == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if stream != PIPE:
        return stream if isinstance(stream, int) else stream.fileno(), None
    reader, writer = os.pipe()
    return (reader, open(writer, "wb", buffering=0)) if number == 0 else (writer, open(reader, "rb", buffering=0))


def _file(data: bytes = b"") -> IO[bytes]:
    file = open(os.memfd_create("drover-test"), "w+b")  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


# ---- the server


class Server:
    """Our side of the process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        self.at_start = _at_start(os.environ)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment, stdin=DEVNULL)
        theirs.close()
        atexit.register(self._close)

    def start(self, program: Program, streams: Sequence[int]) -> Process:
        ended, end = os.pipe()
        with _file(pickle.dumps(program)) as request:
            socket.send_fds(self._socket, [b"start"], [request.fileno(), *streams, end])
            os.close(end)
            answer = self._socket.recv(100)
            if not answer:
                raise RuntimeError("the server of tests/warm.py has ended: it said why on standard error")
            return Process(int(answer), ended)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _server() -> Server:
    return Server()


def serve(server: socket.socket) -> None:
    """Fork for each request and tell how each fork ended, until nobody can ask any more."""
    ends: dict[int, tuple[int, int]] = {}  # by pidfd: pid, pipe
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != server.fileno():
                poll.unregister(fd)
                _tell(fd, *ends.pop(fd))
                continue
            packet, fds, *_ = socket.recv_fds(server, 100, 5)
            if not packet:
                return
            request, *streams, end = fds
            pid = os.fork()
            if not pid:
                server.detach()
                _end(_become(request, streams))
            pidfd = os.pidfd_open(pid)
            poll.register(pidfd, select.POLLIN)
            ends[pidfd] = pid, end
            for each in (request, *streams):
                os.close(each)
            server.send(str(pid).encode())


def _tell(pidfd: int, pid: int, end: int) -> None:
    os.write(end, str(os.waitpid(pid, 0)[1]).encode())
    os.close(pidfd)
    os.close(end)


def _become(request: int, streams: Sequence[int]) -> int:
    """Be the program."""
    with open(request, "rb") as file:
        program = Program(*pickle.load(file))
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, FILES)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)  # believes that one can seek as in the file that the server has there
        mode = "w" if number else "r"
        setattr(sys, name, open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
    setrlimit(RLIMIT_NOFILE, program.files)
    module = import_module(program.module)
    sys.argv = [str(module.__file__), *program.words]
    sys.orig_argv = [sys.executable, "-m", program.module, *program.words]
    status: int = module.main()
    return status


def _end(status: int) -> NoReturn:
    """End as an interpreter does, but let objects be: to free all that was imported takes longer than most programs."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _import_all() -> None:
    for package in PACKAGES:
        for each in iter_modules(import_module(package).__path__):
            import_module(f"{package}.{each.name}")
    for name in MODULES:
        import_module(name)


if __name__ == "__main__":
    _import_all()
    gc.collect()
    gc.freeze()  # or each collection of a fork copies the pages of all that was imported
    serve(socket.socket(fileno=int(sys.argv[1])))
