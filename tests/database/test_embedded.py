"""The embedded Postgres, for real: shared, durable if asked, gone with its last user however that ends."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.database import embedded
from scheduler.database.embedded import find_binaries, is_running, join, temporary
from scheduler.database.embedded_place import default_directory
from scheduler.errors import WorldError
from tests.needs import need

ROOT = Path(embedded.__file__).resolve().parents[2]

JOIN = """
import sys, pathlib, scheduler.database.embedded as embedded
with embedded.join(pathlib.Path(sys.argv[1]), durable=False) as conninfo:
    print(conninfo, flush=True)
    sys.stdin.read()
"""
TEMPORARY = """
import sys, pathlib, scheduler.database.embedded as embedded
with embedded.temporary(binaries=pathlib.Path(sys.argv[1])) as conninfo:
    print(conninfo, flush=True)
    sys.stdin.read()
"""

Child: TypeAlias = "subprocess.Popen[str]"
Spawn = Callable[..., Child]


@pytest.fixture(autouse=True)
def _postgres() -> None:
    need("postgres")
    need("setpriv")


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Yield a function that starts another process using a server; it leaves when its stdin closes."""
    started: list[Child] = []

    def start(code: str, argument: Path, python: tuple[str, ...] = (sys.executable,), **environment: str) -> Child:
        argv = [*python, "-c", code, str(argument)]
        env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd="/")
        started.append(child)
        return child

    yield start
    for child in started:
        child.communicate()


def _conninfo(child: Child) -> str:
    """Wait until the child uses its server."""
    assert child.stdout
    return child.stdout.readline().strip()


def _leave(child: Child) -> None:
    child.communicate()


def _kill(child: Child) -> None:
    child.kill()
    child.communicate()


def _one(conninfo: str, query: str) -> object:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row
    return row[0]


def _directory(conninfo: str) -> Path:
    return Path(str(conninfo_to_dict(conninfo)["host"])).parent


def _postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().partition("\n")[0])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _wait_until_gone(server: Path) -> None:
    """Block until guardian and server have let go of their lock: no process of them is left then."""
    with server.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


# A temporary server


@pytest.mark.slow
def test_temporary_server_is_ready_to_use() -> None:
    with temporary() as conninfo:
        assert _one(conninfo, "select current_user || '@' || current_database()") == "postgres@drover"
        assert _one(conninfo, "select pg_encoding_to_char(encoding) || datcollate from pg_database") == "UTF8C"


@pytest.mark.slow
def test_server_listens_on_a_private_socket_only() -> None:
    with temporary() as conninfo:
        assert _one(conninfo, "show listen_addresses") == ""
        sockets = _directory(conninfo) / "run"
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700


@pytest.mark.slow
@pytest.mark.parametrize(("durable", "fsync"), [(True, "on"), (False, "off")])
def test_durable_server_syncs(durable: bool, fsync: str) -> None:
    with temporary(durable=durable) as conninfo:
        assert _one(conninfo, "show fsync") == fsync


@pytest.mark.slow
def test_temporary_server_leaves_nothing() -> None:
    with temporary() as conninfo:
        postmaster = _postmaster(_directory(conninfo))
    assert not _directory(conninfo).exists()
    assert not Path(f"/proc/{postmaster}").exists()


@pytest.mark.slow
def test_interrupted_user_of_a_temporary_server_leaves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), temporary() as conninfo:
        raise KeyboardInterrupt
    assert not _directory(conninfo).exists()


@pytest.mark.slow
def test_killed_user_of_a_temporary_server_leaves_nothing(spawn: Spawn) -> None:
    child = spawn(TEMPORARY, find_binaries())
    conninfo = _conninfo(child)
    directory = _directory(conninfo)
    postmaster = _postmaster(directory)
    with (directory / "server").open("ab") as server:
        _kill(child)
        fcntl.flock(server, fcntl.LOCK_EX)
    assert not directory.exists()
    assert not Path(f"/proc/{postmaster}").exists()


# Binaries


@pytest.mark.slow
def test_binaries_of_the_wheel_serve_where_the_machine_has_none(tmp_path: Path) -> None:
    binaries = find_binaries(machine=tmp_path)
    with temporary(binaries=binaries) as conninfo:
        assert _one(conninfo, "select current_setting('server_version_num')::int >= 140000") is True


def test_missing_binaries_say_what_to_install() -> None:
    with pytest.raises(WorldError, match=r"no PostgreSQL 99 or newer here: install postgresql, or pip"):
        find_binaries(minimum=99)


def test_data_of_another_version_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("8\n")
    with (
        pytest.raises(WorldError, match=r"made by PostgreSQL 8, .* install postgresql-8, or"),
        _joined(tmp_path),
    ):
        pass


# Sharing


def _joined(directory: Path) -> AbstractContextManager[str]:
    return join(directory, durable=False)


@pytest.mark.slow
def test_data_outlive_the_server(tmp_path: Path) -> None:
    with join(tmp_path, durable=True) as conninfo, psycopg.connect(conninfo) as connection:
        connection.execute("create table kept as select 42 as answer")
    with join(tmp_path, durable=True) as conninfo:
        assert _one(conninfo, "select answer from kept") == 42


@pytest.mark.slow
def test_second_user_shares_the_server_of_the_first(tmp_path: Path, spawn: Spawn) -> None:
    first = _conninfo(spawn(JOIN, tmp_path))
    postmaster = _postmaster(tmp_path)
    with _joined(tmp_path) as second:
        assert (second, _postmaster(tmp_path)) == (first, postmaster)


@pytest.mark.slow
def test_concurrent_users_start_one_server(tmp_path: Path, spawn: Spawn) -> None:
    children = [spawn(JOIN, tmp_path) for _ in range(3)]
    assert len({_conninfo(child) for child in children}) == 1
    assert (tmp_path / "log").read_text().count("ready to accept connections") == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [_leave, _kill])
def test_server_outlives_the_user_that_started_it(tmp_path: Path, spawn: Spawn, end: Callable[[Child], None]) -> None:
    starter = spawn(JOIN, tmp_path)
    _conninfo(starter)
    with _joined(tmp_path) as conninfo, psycopg.connect(conninfo) as connection:
        end(starter)
        assert connection.execute("select 1").fetchone() == (1,)
        assert _one(conninfo, "select 2") == 2


@pytest.mark.slow
@pytest.mark.parametrize("end", [_leave, _kill])
def test_server_stops_with_its_last_user(tmp_path: Path, spawn: Spawn, end: Callable[[Child], None]) -> None:
    first = spawn(JOIN, tmp_path)
    _conninfo(first)
    last = spawn(JOIN, tmp_path)
    _conninfo(last)
    postmaster = _postmaster(tmp_path)
    end(first)
    end(last)
    _wait_until_gone(tmp_path / "server")
    assert not Path(f"/proc/{postmaster}").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "lock", "log", "server", "users"]


@pytest.mark.slow
def test_orderly_last_user_waits_for_the_end_of_the_server(tmp_path: Path) -> None:
    with _joined(tmp_path):
        postmaster = _postmaster(tmp_path)
    assert not Path(f"/proc/{postmaster}").exists()
    assert not (tmp_path / "data" / "postmaster.pid").exists()


# Crashes


@pytest.mark.slow
def test_server_dies_with_its_guardian_and_keeps_its_data(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn(JOIN, tmp_path)
    conninfo = _conninfo(child)
    with psycopg.connect(conninfo) as connection:
        connection.execute("create table kept as select 42 as answer")
    os.kill(_parent(_postmaster(tmp_path)), 9)
    _wait_until_gone(tmp_path / "server")
    _leave(child)
    with _joined(tmp_path) as conninfo:
        assert _one(conninfo, "select answer from kept") == 42


@pytest.mark.slow
def test_killed_server_restarts_at_the_same_address(tmp_path: Path) -> None:
    with _joined(tmp_path) as conninfo:
        postmaster = _postmaster(tmp_path)
        os.kill(postmaster, 9)
        while Path(f"/proc/{postmaster}").exists():
            os.sched_yield()
        with _joined(tmp_path) as again:
            assert again == conninfo
            assert _one(again, "select 1") == 1


@pytest.mark.slow
def test_remains_of_a_killed_server_do_not_hinder_the_next(tmp_path: Path) -> None:
    with _joined(tmp_path):
        remains = (tmp_path / "data" / "postmaster.pid").read_text().partition("\n")[2]
    (tmp_path / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{remains}")
    (tmp_path / "data.new").mkdir()
    with _joined(tmp_path) as conninfo:
        assert _one(conninfo, "select 1") == 1


@pytest.mark.slow
def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with _joined(tmp_path):
        pass
    with (tmp_path / "data" / "postgresql.conf").open("a") as settings:
        settings.write("nonsense = on\n")
    with (
        pytest.raises(WorldError, match=r'did not start; the end of .*log:\n(.*\n)*.*"nonsense"'),
        _joined(tmp_path),
    ):
        pass


def test_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(WorldError, match=r"no place .*file/pg.* set \[database\] url"),
        _joined(tmp_path / "file/pg"),
    ):
        pass


# Places


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 120, "comma, blank and 'quote'"])
def test_directory_unfit_for_a_socket_gets_a_temporary_one(tmp_path: Path, name: str) -> None:
    with _joined(tmp_path / name) as conninfo:
        sockets = Path(str(conninfo_to_dict(conninfo)["host"]))
        assert _one(conninfo, "select 1") == 1
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()
    assert not (tmp_path / name / "run").is_symlink()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/drover"}, Path("/var/lib/drover/pg")),
        ({"STATE_DIRECTORY": "/var/lib/drover:/var/lib/more"}, Path("/var/lib/drover/pg")),
        ({}, Path.home() / ".local/share/drover/pg"),
    ],
)
def test_default_directory_is_the_states_or_the_homes(environment: dict[str, str], expected: Path) -> None:
    assert default_directory(environment) == expected


# Other users


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """Yield a directory that everybody may read, with Python, this package and binaries of Postgres in it.

    Those in use may lie where only root can read.
    """
    need("runuser")
    top = Path(tempfile.mkdtemp(prefix="drover-public-"))
    top.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    large = shutil.ignore_patterns("test", "site-packages", "dist-packages", "config-*", "__pycache__", "idlelib")
    shutil.copytree(sysconfig.get_path("stdlib"), top / "lib" / version, ignore=large)
    shutil.copytree(ROOT / "scheduler", top / "scheduler", ignore=large)
    wheel = find_binaries(machine=top).parent.parent
    shutil.copytree(wheel, top / wheel.name, symlinks=True)
    shutil.copytree(wheel.with_suffix(".libs"), top / f"{wheel.name}.libs", symlinks=True)
    shutil.copy(Path(sys.executable).resolve(), top / "python")
    for library in Path(sysconfig.get_config_var("LIBDIR")).glob("libpython*.so*"):
        shutil.copy(library, top / "lib")
    (top / "home").mkdir()
    shutil.chown(top / "home", "nobody")
    yield top
    shutil.rmtree(top)


def test_server_that_an_agent_starts_has_not_the_word_of_the_agent(spawn: Spawn, tmp_path: Path) -> None:
    """By that word a host finds what an agent has left, to kill it; others may use the server by then."""
    child = spawn(JOIN, tmp_path / "pg", DROVER_WORD="0123456789abcdef")
    _conninfo(child)
    postmaster = _postmaster(tmp_path / "pg")
    for pid in (postmaster, _parent(postmaster)):
        assert b"DROVER_WORD" not in Path(f"/proc/{pid}/environ").read_bytes()
    _leave(child)


@pytest.mark.slow
def test_normal_user_has_an_embedded_database_too(public: Path, spawn: Spawn) -> None:
    python = "runuser", "-u", "nobody", "--", str(public / "python")
    paths = {"PYTHONHOME": str(public), "PYTHONPATH": str(public), "LD_LIBRARY_PATH": str(public / "lib")}
    child = spawn(TEMPORARY, _binaries_in(public), python, **paths, TMPDIR=str(public / "home"))
    conninfo = _conninfo(child)
    assert (_directory(conninfo) / "data").owner() == "nobody"
    assert _one(conninfo, "select 1") == 1
    _leave(child)
    assert list((public / "home").iterdir()) == []


@pytest.mark.slow
def test_root_without_user_namespaces_uses_an_unprivileged_account(public: Path, spawn: Spawn) -> None:
    tools = public / "tools"
    tools.mkdir()
    (tools / "setpriv").symlink_to(str(shutil.which("setpriv")))
    (tools / "sh").symlink_to(str(shutil.which("sh")))
    conninfo = _conninfo(spawn(TEMPORARY, _binaries_in(public), PATH=str(tools)))
    directory = _directory(conninfo)
    assert _one(conninfo, "select 1") == 1
    assert (directory / "data").owner() in ("postgres", "nobody")
    with (directory / "server").open("ab") as server:
        os.kill(_parent(_postmaster(directory)), 9)
        fcntl.flock(server, fcntl.LOCK_EX)


def _binaries_in(public: Path) -> Path:
    return max(public.glob("*/pginstall*/bin"))


LONG, OURS = pytest.param("9" * 5000, id="long"), pytest.param(str(os.getpid()), id="ours")


@pytest.mark.parametrize("number", ["", "0", "-1", "1", "text", "2147483648", LONG, OURS])
def test_a_server_whose_pid_is_of_another_process_or_of_none_does_not_run(tmp_path: Path, number: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "postmaster.pid").write_text(f"{number}\n{tmp_path}\n0\n5432\n/tmp\n\n\nready\n")
    assert not is_running(tmp_path)


WITHOUT_PTRACE = "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"
ASK = """\
import os, sys
from pathlib import Path
from scheduler.database.embedded import is_running
try:
    print(os.readlink("/proc/1/cwd"))
except PermissionError:
    print(is_running(Path(sys.argv[1])))
"""


def test_a_process_of_another_account_that_is_no_postgres_is_no_server(tmp_path: Path) -> None:
    need("setpriv")
    weaker = WITHOUT_PTRACE if os.geteuid() == 0 else ()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "postmaster.pid").write_text(f"1\n{tmp_path}\n0\n5432\n/tmp\n\n\nready\n")
    said = subprocess.run([*weaker, sys.executable, "-c", ASK, tmp_path], capture_output=True, check=True)
    assert said.stdout == b"False\n"
