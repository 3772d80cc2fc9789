"""An embedded server whose files are replaced or removed while it runs; a few real servers, and binaries of our own."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from scheduler.database.embedded import join
from scheduler.database.postgres_binaries import MACHINE, choose, choose_for, examine, find_binaries
from scheduler.database.replaced_files import FileWatch
from scheduler.database.server_record import state_of
from scheduler.errors import WorldError
from tests.needs import need
from tests.patience import LONG_PATIENCE_S
from tests.postgres_copy import copy_binaries, upgrade

ROOT = Path(__file__).resolve().parents[2]
POSTGRES = """#!/bin/sh
echo 'postgres (PostgreSQL) {version}'
"""
INITDB = """#!/bin/sh
echo '{words}' >&2
exit {status}
"""
NO_LIBRARY = """#!/bin/sh
echo 'postgres: error while loading shared libraries: libnone.so.1: cannot open shared object file' >&2
exit 127
"""


def _postmaster(directory: Path) -> int:
    """Return the pid of the server, 0 while there is none."""
    try:
        return int((directory / "data/postmaster.pid").read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):
        return 0


def _wait_for_another(directory: Path, before: int) -> None:
    deadline = time.monotonic() + LONG_PATIENCE_S
    while _postmaster(directory) in (0, before):
        assert time.monotonic() < deadline, f"the server is the same: {(directory / 'log').read_text()[-2000:]}"
        time.sleep(0.05)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name("new")
    new.write_text(text)
    new.chmod(0o755)
    new.rename(path)


# ---- servers


def _remove(binaries: Path) -> None:
    shutil.rmtree(binaries.parent)


@pytest.mark.slow
@pytest.mark.parametrize("change", [upgrade, _remove])
def test_server_whose_files_change_is_started_again_with_its_data(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    need("postgres")
    need("setpriv")
    binaries = copy_binaries(tmp_path / "copy")
    with join(tmp_path / "pg", durable=False, binaries=binaries) as conninfo:
        with psycopg.connect(conninfo) as connection:
            connection.execute("create table kept as select 42 as answer")
        before = _postmaster(tmp_path / "pg")
        change(binaries)
        _wait_for_another(tmp_path / "pg", before)
        with join(tmp_path / "pg", durable=False) as again, psycopg.connect(again) as connection:
            connection.execute("do 'begin end'")
            assert connection.execute("select answer from kept").fetchone() == (42,)
        assert again == conninfo
    assert sorted(path.name for path in (tmp_path / "pg").iterdir()) == ["data", "lock", "log", "server", "users"]


@pytest.mark.slow
def test_killed_server_whose_binaries_were_removed_goes_on_from_others_of_its_version(tmp_path: Path) -> None:
    need("postgres")
    need("setpriv")
    binaries = copy_binaries(tmp_path / "copy")
    with join(tmp_path / "pg", durable=False, binaries=binaries):
        before = _postmaster(tmp_path / "pg")
        _remove(binaries)
        assert before > 1  # else it would be no process of ours
        os.kill(before, 9)
        _wait_for_another(tmp_path / "pg", before)
        with join(tmp_path / "pg", durable=False) as conninfo, psycopg.connect(conninfo) as connection:
            connection.execute("do 'begin end'")


# ---- the watch of the files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory of programs that say that they are PostgreSQL 99.1."""
    _program(tmp_path / "99/bin/postgres", POSTGRES.format(version="99.1"))
    _program(tmp_path / "99/bin/initdb", INITDB.format(words="", status=0))
    return tmp_path / "99/bin"


@pytest.fixture
def watch(tmp_path: Path, place: Path) -> FileWatch:
    return FileWatch(tmp_path, examine(place), [], 0)


def _trouble(directory: Path) -> str:
    return state_of(directory, os.getpid()).trouble


def test_files_that_are_the_same_are_no_trouble(tmp_path: Path, place: Path, watch: FileWatch) -> None:
    os.utime(place)
    (place / "postgres").chmod(0o775)
    assert (watch.look(), watch.look(), _trouble(tmp_path)) == (None, None, "")


def test_library_of_an_extension_that_is_added_is_no_trouble(tmp_path: Path, place: Path, watch: FileWatch) -> None:
    _program(place.parent / "lib/extension.so", "")
    assert (watch.look(), watch.look(), _trouble(tmp_path)) == (None, None, "")


def test_replaced_files_are_trouble_at_once_and_taken_when_they_have_settled(
    tmp_path: Path, place: Path, watch: FileWatch
) -> None:
    _program(place / "postgres", POSTGRES.format(version="99.2"))
    assert "its files were replaced or removed while it runs" in _trouble(tmp_path)
    assert watch.look() is None
    _program(place.parent / "lib/plpgsql.so", "")
    assert watch.look() is None
    successor = watch.look()
    assert successor is not None
    assert str(successor) == f"PostgreSQL 99.2 in {place}"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("initdb", INITDB.format(words="could not load library", status=1), "could not load library"),
        ("initdb", INITDB.format(words="", status=3), "initdb: exit status 3"),
        ("postgres", NO_LIBRARY, "error while loading shared libraries: libnone.so.1"),
        ("postgres", POSTGRES.format(version="98.7"), "it is PostgreSQL 98.7 now, and the database is of 99"),
    ],
)
def test_files_that_cannot_take_over_are_named_with_the_reason(
    tmp_path: Path, place: Path, watch: FileWatch, name: str, text: str, reason: str
) -> None:
    _program(place / "postgres", POSTGRES.format(version="99.2"))
    _program(place / name, text)
    assert (watch.look(), watch.look()) == (None, None)
    assert f"{place} cannot take over: " in _trouble(tmp_path)
    assert reason in _trouble(tmp_path)


def test_removed_files_are_trouble_until_they_are_back(tmp_path: Path, place: Path, watch: FileWatch) -> None:
    (place / "postgres").rename(tmp_path / "kept")
    assert (watch.look(), watch.look()) == (None, None)
    assert "cannot take over: " in _trouble(tmp_path)
    (tmp_path / "kept").rename(place / "postgres")
    assert watch.look() is None
    assert _trouble(tmp_path) == ""


def test_server_of_an_older_drover_is_told_by_its_program(tmp_path: Path) -> None:
    program = tmp_path / "postgres"
    shutil.copy2(str(shutil.which("cat")), program)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        assert state_of(tmp_path, process.pid).trouble == ""
        shutil.copy2(str(shutil.which("cat")), tmp_path / "new")
        (tmp_path / "new").rename(program)
        assert "it was started by an older drover" in state_of(tmp_path, process.pid).trouble
        program.unlink()
        assert "it was started by an older drover" in state_of(tmp_path, process.pid).trouble


# ---- which binaries


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [(NO_LIBRARY, 0o755, "libnone.so.1"), (NO_LIBRARY, 0o644, "Permission denied"), ("", 0o755, "Exec format error")],
)
def test_binaries_of_the_machine_that_do_not_run_are_passed_over_with_the_reason(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    need("postgres")
    _program(tmp_path / "18/bin/initdb", "")
    _program(tmp_path / "18/bin/postgres", text)
    (tmp_path / "18/bin/postgres").chmod(mode)
    assert tmp_path not in find_binaries(machine=tmp_path).parents
    (passed_over,) = choose(machine=tmp_path).passed_over
    assert passed_over.startswith(f"{tmp_path}/18/bin/postgres does not run: ")
    assert reason in passed_over


def test_data_whose_binaries_do_not_run_say_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/PG_VERSION").write_text("97\n")
    _program(tmp_path / "97/bin/initdb", "")
    _program(tmp_path / "97/bin/postgres", NO_LIBRARY)
    with pytest.raises(WorldError, match=r"made by PostgreSQL 97, .*libnone.so.1.*: install postgresql-97, or"):
        choose_for(tmp_path / "data", machine=tmp_path)


JOIN = """
import sys, pathlib, scheduler.database.embedded as embedded
with embedded.join(pathlib.Path(sys.argv[1]), durable=False, say=print):
    print(embedded.read_state(pathlib.Path(sys.argv[1])).binaries)
"""


@pytest.mark.slow
def test_server_from_other_binaries_than_those_of_the_machine_says_why_and_which(tmp_path: Path) -> None:
    need("postgres account")
    need("mount")
    need("setpriv")
    _program(tmp_path / "18/bin/initdb", "")
    _program(tmp_path / "18/bin/postgres", NO_LIBRARY)
    script = f'mount --bind {tmp_path} {MACHINE} && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", JOIN, str(tmp_path / "pg")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    reason, running = done.stdout.splitlines()
    assert reason.startswith(f"{MACHINE}/18/bin/postgres does not run: postgres: error while loading shared libraries")
    used = reason.partition("; the embedded database uses ")[2].removesuffix(" instead")
    assert running.endswith(f" in {used}")
