"""The peers' packages, at the versions of package.json and requirements.txt, in a cache folder of their own."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PATIENCE_S: Final = 600.0
NPM: Final = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")


class InstallError(Exception):
    """A group of peers cannot be installed; says why."""


def default_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder that is used unless another is named."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drover" / "bench"


def node(cache: Path) -> str:
    """Install the peers in Node, and the node that runs them; its path. Errors: InstallError."""
    pins = HERE / "package.json"
    if shutil.which("npm") is None:
        raise InstallError("no npm here")
    if not _is_there(cache, pins):
        shutil.copy(pins, cache)
        _run(NPM, cache)
        _note(cache, pins)
    return str(cache / "node_modules" / ".bin" / "node")


def python(cache: Path) -> str:
    """Install the peers in Python into a venv; the path of its python. Errors: InstallError."""
    pins, venv = HERE / "requirements.txt", cache / "venv"
    if not _is_there(cache, pins):
        _run((sys.executable, "-m", "venv", str(venv)), cache)
        pip = (str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
        _run((*pip, "--requirement", str(pins)), cache)
        _note(cache, pins)
    return str(venv / "bin" / "python")


GROUPS: Final[Mapping[str, Callable[[Path], str]]] = {".mjs": node, ".py": python}


def _run(argv: tuple[str, ...], cache: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    try:
        subprocess.run(argv, cwd=cache, env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    except subprocess.CalledProcessError as error:
        raise InstallError(f"{Path(argv[0]).name}: {_blame(error.stderr) or error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error


def _blame(said: bytes) -> str:
    """Return the first two complaints: a code and what it is about, mostly."""
    lines = said.decode(errors="replace").splitlines()
    return "; ".join([line for line in lines if "error" in line.lower()][:2])[:200]


def _is_there(cache: Path, pins: Path) -> bool:
    """Return whether the last complete install was of these pins."""
    cache.mkdir(parents=True, exist_ok=True)
    note = _note_of(cache, pins)
    return note.exists() and note.read_text() == _digest(pins)


def _note(cache: Path, pins: Path) -> None:
    _note_of(cache, pins).write_text(_digest(pins))


def _note_of(cache: Path, pins: Path) -> Path:
    return cache / f"{pins.name}.installed"


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()
