"""What users install, built of this checkout: source, wheel, Debian package; and a machine to try the last one on."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.patience import LONG_PATIENCE_S

ROOT = Path(__file__).parents[1]
# A copy of this machine in memory: what is written there is gone at the end, and nobody else sees it.
COPY = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/written" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/written,workdir=$1/work" "$1/root"
for each in dev proc; do mount --rbind "/$each" "$1/root/$each"; done
mount -t tmpfs tmpfs "$1/root/run"
echo ready
exec cat
"""


class Built(NamedTuple):
    """The files of a build."""

    source: Path
    wheel: Path


def build(factory: pytest.TempPathFactory) -> Built:
    """Build the source and, of that, the wheel, as `make dist` does; once in a run."""

    def make(place: Path) -> None:
        subprocess.run([sys.executable, "-m", "build", "--outdir", place, ROOT], check=True, capture_output=True)

    place = once(factory, "dist", make)
    return Built(*place.glob("*.tar.gz"), *place.glob("*.whl"))


def build_package(factory: pytest.TempPathFactory) -> Path:
    """Build the Debian package of the wheel, as `make deb` does; once in a run."""
    wheel = build(factory).wheel
    pip = Path(sys.executable).with_name("pip")

    def make(place: Path) -> None:
        words = [ROOT / "etc/debian/build", pip, "/usr/bin/python3", wheel, place]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    (package,) = once(factory, "deb", make).glob("*.deb")
    return package


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that all processes of a run share; tests only read it. The first to ask fills it: `make`."""
    own = factory.getbasetemp()
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    made = place.with_suffix(".made")
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)  # what a `make` that failed has left
            place.mkdir()
            make(place)
            made.touch()
    return place


class Machine:
    """A copy of this machine; commands run in it as root."""

    def __init__(self, place: Path, pid: int) -> None:
        self._enter = ["nsenter", f"--target={pid}", "--mount", "chroot", str(place / "root"), "env", "-i"]
        self._enter += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"]
        self._look = ["nsenter", f"--target={pid}", "--mount", "find", str(place / "written"), "-printf", "/%P\n"]

    def run(self, *words: str, told: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with this text on its standard input."""
        return subprocess.run(
            [*self._enter, *words], input=told, capture_output=True, text=True, timeout=2 * LONG_PATIENCE_S
        )

    def written(self) -> set[str]:
        """Return the paths that were made or changed here."""
        return set(subprocess.run(self._look, capture_output=True, text=True, check=True).stdout.splitlines())


@contextmanager
def machine(place: Path) -> Iterator[Machine]:
    """Make a copy of this machine for as long as the block lasts; it needs root."""
    keeper = ["unshare", "--mount", "--kill-child", "--fork", "sh", "-ec", COPY, "sh", str(place)]
    with subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Machine(place, int(child))
        process.stdin.close()
