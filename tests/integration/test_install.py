"""Installed as a user would, into an empty place: program, agents, schema, pages and unit are found there."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.needs import need

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the built package in it, and nothing of the checkout."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{ROOT}[agents]"], check=True, cwd=place)
    return place


def _run(prefix: Path, tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONWARNINGS": "error"}
    command = [prefix / "bin" / words[0], *words[1:]]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def test_the_package_imports_without_a_warning_f141(prefix: Path, tmp_path: Path) -> None:
    done = _run(prefix, tmp_path, "python", "-c", "import scheduler.daemon.wiring, scheduler.cli.main")
    assert (done.returncode, done.stderr) == (0, "")


def test_installed_agents_work_from_their_one_place_f142(prefix: Path, tmp_path: Path) -> None:
    need("postgres")
    done = _run(prefix, tmp_path, "drover", "demo", "--limit", "20")
    assert done.returncode == 0, done.stderr
    assert "60 items" in done.stdout


def test_nothing_is_compiled_by_default(prefix: Path, tmp_path: Path) -> None:
    assert not [*prefix.glob("lib/python3*/site-packages/scheduler/**/*.so")]
    assert _run(prefix, tmp_path, "drover", "--version").stdout == f"drover {metadata.version('drover-scheduler')}\n"


def test_a_missing_compiler_is_told_in_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"HATCH_BUILD_HOOKS_ENABLE": "1", "CC": "/nonexistent/cc"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    (told,) = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "compiler" in line]
    assert told.startswith("no C compiler: '/nonexistent/cc' is not in PATH; install it")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "man").glob("drover*.[1-8]")))
def test_manual_pages_are_installed_f141(prefix: Path, page: str) -> None:
    assert (prefix / "share" / "man" / f"man{page[-1]}" / page).is_file()


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "etc/examples").iterdir()))
def test_examples_of_front_ends_are_installed_f142(prefix: Path, name: str) -> None:
    (found,) = prefix.glob(f"lib/python3*/site-packages/scheduler/_data/etc/examples/{name}")
    assert found.read_text() == (ROOT / "etc/examples" / name).read_text()


def test_the_unit_for_systemd_is_installed_j120(prefix: Path) -> None:
    (found,) = prefix.glob("lib/python3*/site-packages/scheduler/_data/etc/drover.service")
    assert found.read_text() == (ROOT / "etc/drover.service").read_text()
