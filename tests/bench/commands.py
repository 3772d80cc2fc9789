"""A process for every command: the barest loop, and GNU parallel."""

import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

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


def bare(argv: Sequence[str], count: int, at_once: int) -> float:
    """Return commands a second of a loop that starts them between three pipes, hears them out and waits for them."""
    begun = time.monotonic()
    with closing(select.epoll()) as epoll:
        running = Running(epoll)
        for _ in range(count):
            while len(running) >= at_once:
                running.hear()
            running.start(argv)
        while len(running):
            running.hear()
    return count / (time.monotonic() - begun)


def why_no_parallel() -> str:
    """Say why GNU parallel cannot be measured; nothing if it can."""
    if shutil.which(PARALLEL) is None:
        return "GNU parallel (apt install parallel)"
    said = subprocess.run([PARALLEL, "--version"], capture_output=True, text=True, check=False).stdout
    return "" if said.startswith("GNU parallel") else "GNU parallel (the `parallel` here is another program)"


def parallel(program: str, count: int, at_once: int) -> float:
    """Return commands a second of GNU parallel, its own start included."""
    words = "".join(f"{i}\n" for i in range(count)).encode()
    begun = time.monotonic()
    subprocess.run([PARALLEL, "--will-cite", f"-j{at_once}", program], input=words, check=True)
    return count / (time.monotonic() - begun)
