"""A network namespace of our own, at the end of a cable that can be pulled."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.ssh.sshd import run

_numbers = itertools.count()


class Net:
    """A namespace that is reached over one cable, at `address`."""

    def __init__(self, number: int) -> None:
        subnet = f"10.{64 + number % 128}.{os.getpid() % 250}"  # two suites at once are other processes
        self.name = f"drover-{os.getpid()}-{number}"
        self.ours, self.theirs = f"dr{os.getpid() % 100_000}n{number}", "cable"
        self.address, self._own = f"{subnet}.2", f"{subnet}.1"
        run("ip", "netns", "add", self.name)

    def plug_in(self) -> None:
        run("ip", "link", "add", self.ours, "type", "veth", "peer", "name", self.theirs, "netns", self.name)
        run("ip", "address", "add", f"{self._own}/24", "dev", self.ours)
        run("ip", "-n", self.name, "address", "add", f"{self.address}/24", "dev", self.theirs)
        run("ip", "link", "set", self.ours, "up")
        run("ip", "-n", self.name, "link", "set", self.theirs, "up")

    @property
    def inside(self) -> list[str]:
        """The words before a program that is to run there."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Lose every packet from now on, in silence."""
        run("ip", "-n", self.name, "link", "set", self.theirs, "down")

    def mend(self) -> None:
        run("ip", "-n", self.name, "link", "set", self.theirs, "up")

    def close(self) -> None:
        for words in (["ip", "link", "del", self.ours], ["ip", "netns", "del", self.name]):
            subprocess.run(words, check=False, capture_output=True)


@contextmanager
def cabled() -> Iterator[Net]:
    """Yield a namespace for as long as this lasts."""
    net = Net(next(_numbers))
    try:
        net.plug_in()
        yield net
    finally:
        net.close()
