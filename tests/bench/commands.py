"""A process for every command: the barest loop, and GNU parallel."""

import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from tests.bench.rates import Rate
from tests.bench.usage import Workers, metered, this_process

PIPE: Final = subprocess.PIPE
OUTPUT: Final = 65_536  # bytes: a full pipe
PARALLEL: Final = "parallel"


@dataclass(slots=True)
class Running:
    """The processes whose output has not ended yet, by descriptor; each stands there twice."""

    epoll: select.epoll
    by_output: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __len__(self) -> int:
        return len({process.pid for process in self.by_output.values()})

    def start(self, argv: Sequence[str]) -> None:
        """Start a command between three pipes."""
        process = subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0)
        assert process.stdin is not None
        process.stdin.close()
        for file in (process.stdout, process.stderr):
            assert file is not None
            self.epoll.register(file, select.EPOLLIN)
            self.by_output[file.fileno()] = process

    def hear(self) -> None:
        """Read what is there; wait for those that have nothing more to say."""
        for out, _ in self.epoll.poll():
            process = self.by_output[out]
            file = process.stdout if process.stdout and process.stdout.fileno() == out else process.stderr
            assert file is not None
            if not file.read(OUTPUT):
                self._end(out, process)

    def _end(self, out: int, process: "subprocess.Popen[bytes]") -> None:
        del self.by_output[out]
        self.epoll.unregister(out)
        if process not in self.by_output.values():
            for file in (process.stdout, process.stderr):
                assert file is not None
                file.close()
            process.wait()


def find(name: str) -> str:
    """Return the path of a program, so that nobody has to look for it each time."""
    path = shutil.which(name)
    assert path is not None, f"no {name} here"
    return path


def bare(conninfo: str, argv: Sequence[str], count: int, at_once: int) -> Rate:
    """Return the rate of a loop that starts commands between three pipes, hears them out and waits for them."""
    with metered(conninfo) as meter:
        meter.begin(this_process())
        begun = time.monotonic()
        _start_all(argv, count, at_once)
        seconds = time.monotonic() - begun
        return Rate(count / seconds, meter.cost(count))


def why_no_parallel() -> str:
    """Return why GNU parallel cannot be measured; nothing if it can."""
    if shutil.which(PARALLEL) is None:
        return "GNU parallel (apt install parallel)"
    said = subprocess.run([PARALLEL, "--version"], capture_output=True, text=True, check=False).stdout
    return "" if said.startswith("GNU parallel") else "GNU parallel (the `parallel` here is another program)"


def parallel(conninfo: str, program: str, count: int, at_once: int) -> Rate:
    """Return the rate of GNU parallel, its own start included."""
    argv = [PARALLEL, "--will-cite", f"-j{at_once}", program]
    with metered(conninfo) as meter:
        begun = time.monotonic()
        process = subprocess.Popen(argv, stdin=PIPE)
        meter.begin(Workers(process.pid, lambda pid, _: "driver" if pid == process.pid else "agents"))
        assert process.stdin is not None
        process.stdin.write("".join(f"{i}\n" for i in range(count)).encode())
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its CPU time goes when it is waited for
        seconds = time.monotonic() - begun
        cost = meter.cost(count)
    assert process.wait() == 0, f"GNU parallel ended with status {process.returncode}"
    return Rate(count / seconds, cost)


def _start_all(argv: Sequence[str], count: int, at_once: int) -> None:
    with closing(select.epoll()) as epoll:
        running = Running(epoll)
        for _ in range(count):
            while len(running) >= at_once:
                running.hear()
            running.start(argv)
        while len(running):
            running.hear()
