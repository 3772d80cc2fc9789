"""Wheel and source, built and installed into empty places: program, agents, schema, pages and unit are found there."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.needs import need
from tests.package_tools import Built, build, machine, once
from tests.patience import LONG_PATIENCE_S

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory)


@pytest.fixture(scope="module")
def prefix(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel in it, and nothing of the checkout."""

    def make(place: Path) -> None:
        _make_empty(place)
        _pip(place, "install", f"{built.wheel}[agents]")

    return once(tmp_path_factory, "installed", make)


def _make_empty(place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", place], check=True)


def _pip(place: Path, action: str, *words: str | Path) -> None:
    subprocess.run([place / "bin/pip", action, "--quiet", "--disable-pip-version-check", *words], check=True, cwd=place)


def _files(place: Path) -> dict[str, bytes]:
    """Return what is installed; of what pip writes beside it, no more than that it is there."""
    return {
        str(path.relative_to(place)): b"" if path.parent.name.endswith(".dist-info") else path.read_bytes()
        for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.parent.name != "bin"
    }  # fmt: skip


def _run(prefix: Path, tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONWARNINGS": "error"}
    command = [prefix / "bin" / words[0], *words[1:]]
    return subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=2 * LONG_PATIENCE_S
    )


def test_source_installs_the_same_as_the_wheel_and_both_leave_nothing_behind_r12_t107(
    built: Built, tmp_path: Path
) -> None:
    place = tmp_path / "venv"
    _make_empty(place)
    empty, installed = _files(place), []
    for each in built:
        _pip(place, "install", "--no-deps", each)
        installed.append(_files(place))
        _pip(place, "uninstall", "--yes", "drover-scheduler")
        assert _files(place) == empty
    assert installed[0] == installed[1] != empty


def test_bundled_agents_are_on_the_path_of_the_environment_r12(prefix: Path) -> None:
    found = {path.name for path in (prefix / "bin").glob("drover-agent-*")}
    assert found == {path.name for path in (ROOT / "agents").glob("*/drover-agent-*")}


def test_the_package_imports_without_a_warning_f141_t107(prefix: Path, tmp_path: Path) -> None:
    done = _run(prefix, tmp_path, "python", "-c", "import scheduler.daemon.wiring, scheduler.cli.main")
    assert (done.returncode, done.stderr) == (0, "")


def test_installed_agents_work_from_their_one_place_f142_t107(prefix: Path, tmp_path: Path) -> None:
    need("postgres")
    done = _run(prefix, tmp_path, "drover", "demo", "--limit", "20")
    assert done.returncode == 0, done.stderr
    assert "60 items" in done.stdout


# ---- make install


def _make(target: str, *settings: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(["make", "-C", ROOT, target, *settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def destination(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that make install has filled, as for a package, with PREFIX=/opt/d."""

    def make(place: Path) -> None:
        _make("install", f"DESTDIR={place}", "PREFIX=/opt/d", f"WHAT={built.wheel}", "EXTRAS=agents")

    return once(tmp_path_factory, "made", make)


def test_make_install_puts_everything_below_prefix_and_destdir_f141_r12(destination: Path) -> None:
    prefix = destination / "opt/d"
    assert [path.name for path in destination.iterdir()] == ["opt"]
    assert [path.name for path in prefix.parent.iterdir()] == ["d"]
    assert sorted(path.name for path in prefix.iterdir()) == ["bin", "etc", "lib", "share"]
    assert {path.name for path in (prefix / "bin").iterdir()} == {
        "drover", *(path.name for path in (ROOT / "agents").glob("*/drover-agent-*"))
    }  # fmt: skip
    pages = {path.name for path in (ROOT / "man").glob("drover*.[1-8]")}
    assert {path.name for path in (prefix / "share/man").glob("*/*")} == pages
    assert (prefix / "etc/drover/drover.toml").read_bytes() == (ROOT / "etc/drover.toml").read_bytes()
    unit = (prefix / "lib/systemd/system/drover.service").read_text()
    assert "\nExecStart=/opt/d/bin/drover run\n" in unit
    assert str(destination) not in "".join(path.read_text() for path in (prefix / "lib/drover/bin").glob("drover*"))


def test_a_program_of_make_install_runs_where_it_belongs_and_reads_the_configuration_beside_it_f141_r15(
    destination: Path, tmp_path: Path
) -> None:
    need("overlay")
    with machine(tmp_path) as copy:
        copy.run("cp", "-r", f"{destination}/opt/d", "/opt/d")
        assert copy.run("/opt/d/bin/drover", "version").stdout == f"drover {metadata.version('drover-scheduler')}\n"
        shown = copy.run("/opt/d/bin/drover", "config", "file", "--json").stdout
        assert '"value": "/opt/d/etc/drover/drover.toml"' in shown
        assert copy.run("/opt/d/bin/drover-agent-sha256", told="/dev/null\n").stdout.startswith("OK\n")


def test_make_uninstall_leaves_the_configuration_alone_f141(built: Built, tmp_path: Path) -> None:
    given = (f"DESTDIR={tmp_path}", "PREFIX=/usr")
    (conf := tmp_path / "etc/drover").mkdir(parents=True)
    (conf / "drover.toml").write_text("# mine\n")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/drover-of-the-site").symlink_to("/bin/true")
    for _ in range(2):
        _make("install", *given, f"WHAT={built.wheel}", "EXTRAS=agents")
    assert (tmp_path / "usr/bin/drover").readlink() == Path("../lib/drover/bin/drover")
    _make("uninstall", *given)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert left == {"etc/drover/drover.toml", "usr/bin/drover-of-the-site"}
    assert (conf / "drover.toml").read_text() == "# mine\n"


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
