"""The Debian package, built as CI builds it, installed on a copy of this machine, used, and removed again."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.config_files import load
from tests.needs import need
from tests.package_tools import Machine, build_package, machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PAGES = sorted(path.name for path in (Path(__file__).parents[2] / "man").glob("drover*.[1-8]"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-deb")
    return build_package(tmp_path_factory)


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that the files of the package are in."""
    place = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--extract", package, place], check=True)
    return place


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a copy of this machine with the package installed by dpkg."""
    need("overlay")
    with machine(tmp_path_factory.mktemp("installed")) as copy:
        _dpkg(copy, "--install", package)
        yield copy


def _dpkg(copy: Machine, action: str, what: str | Path) -> None:
    done = copy.run("dpkg", action, str(what))
    assert done.returncode == 0, done.stderr


def test_installed_package_has_program_user_and_directories_t107(installed: Machine) -> None:
    assert installed.run("drover", "--version").stdout.startswith("drover ")
    assert installed.run("drover-agent-sha256", told="/dev/null\n").stdout.startswith("OK\n")
    assert installed.run("getent", "passwd", "drover").stdout.split(":")[5] == "/var/lib/drover"
    owners = installed.run("stat", "-c", "%U", "/etc/drover", "/var/lib/drover", "/var/log/drover").stdout
    assert owners.split() == ["root", "drover", "drover"]


def test_systemd_finds_nothing_wrong_with_the_installed_unit_j120(installed: Machine) -> None:
    need("systemd-analyze")
    unit = "/usr/lib/systemd/system/drover.service"
    done = installed.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_installed_daemon_does_a_job_as_the_user_of_the_unit(installed: Machine) -> None:
    need("postgres account")
    start = ["runuser", "-u", "drover", "--", "env", "STATE_DIRECTORY=/var/lib/drover", "drover", "run", "-I"]
    done = installed.run(*start, told="sha256 | /etc/passwd\n")
    assert done.stdout == "1 sha256 done all data processed\n", done.stderr
    assert "/etc/drover/drover.toml" in installed.run("drover", "check").stdout
    status = installed.run("drover", "status")
    assert (status.returncode, "run it as drover: sudo -u drover drover status" in status.stderr) == (3, True)
    as_owner = installed.run("runuser", "-u", "drover", "--", "drover", "ls", "--all")
    assert ["1", "sha256", "done"] in [line.split()[:3] for line in as_owner.stdout.splitlines()], as_owner.stderr


def test_a_file_of_the_site_names_another_database_than_the_package(unpacked: Path, tmp_path: Path) -> None:
    text = (unpacked / "etc/drover/drover.toml").read_text()
    assert 'url = "embedded:/var/lib/drover/pg"' in text.splitlines()
    (folder := tmp_path / "conf.d").mkdir(mode=0o755)
    (tmp_path / "drover.toml").write_text(text)
    for each in (*(unpacked / "etc/drover/conf.d").glob("*.toml"), None):
        name, own = (each.name, each.read_text()) if each else ("10-site.toml", '[database]\nurl = "dbname=site"\n')
        (folder / name).write_text(own)
    assert load(str(tmp_path / "drover.toml"), {}).database.url == "dbname=site"


def test_an_upgrade_keeps_changes_and_a_purge_leaves_the_queue_alone(package: Path, tmp_path: Path) -> None:
    need("overlay")
    own = "/etc/drover/drover.toml"
    with machine(tmp_path) as copy:
        _dpkg(copy, "--install", package)
        copy.run("sh", "-c", f"mkdir /var/lib/drover/pg && echo '# mine' >>{own}")
        for action, what in (("--install", package), ("--remove", "drover-scheduler")):
            _dpkg(copy, action, what)
            assert copy.run("tail", "-n", "1", own).stdout == "# mine\n"
        assert copy.run("test", "-e", "/usr/bin/drover").returncode == 1
        _dpkg(copy, "--purge", "drover-scheduler")
        left = {path for path in copy.written() if "drover" in path and not copy.run("test", "-e", path).returncode}
    assert left == {"/var/lib/drover", "/var/lib/drover/pg"}


def test_systemd_takes_users_and_directories_of_the_package(unpacked: Path) -> None:
    need("systemd-analyze")
    for program in ("systemd-sysusers", "systemd-tmpfiles"):
        done = subprocess.run([program, f"--root={unpacked}", "--cat-config"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "drover" in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_package_has_each_manual_page(unpacked: Path, page: str) -> None:
    assert (unpacked / f"usr/share/man/man{page[-1]}/{page}.gz").is_file()


def test_nothing_in_the_package_names_the_place_where_it_was_built(unpacked: Path) -> None:
    words = ["grep", "--recursive", "--files-with-matches", "/tmp/tmp[.]", unpacked]
    assert subprocess.run(words, capture_output=True).stdout == b""


def test_python_modules_of_the_package_are_compiled_for_their_place(unpacked: Path) -> None:
    (module,) = unpacked.glob("usr/lib/drover/lib/python3*/site-packages/scheduler/__pycache__/errors.*.pyc")
    assert b"/usr/lib/drover/lib/python3" in module.read_bytes()


def test_sums_of_the_package_are_those_of_its_files(package: Path, unpacked: Path) -> None:
    sums = subprocess.run(["dpkg-deb", "--ctrl-tarfile", package], capture_output=True, check=True).stdout
    told = subprocess.run(["tar", "-xO", "./md5sums"], input=sums, capture_output=True, check=True).stdout
    assert subprocess.run(["md5sum", "--check", "--quiet"], cwd=unpacked, input=told).returncode == 0
