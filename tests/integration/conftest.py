"""The commands in this process, on a database of the test's own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.main import main
from tests import warm
from tests.cli_tools import ACTIVE, CONFIG, DROVER, Done, Drover, environment, finish, insert
from tests.conftest import _database
from tests.integration.daemon import Daemon, agent, start
from tests.integration.database_door import Door
from tests.integration.puppets import LOCAL, Meeting, puppet, settings
from tests.integration.ssh_tools import wired
from tests.integration.upgrade_tools import copy_program
from tests.needs import need
from tests.ssh.net import Net
from tests.ssh.sshd import Server, serving

Launch = Callable[..., Daemon]
Ask = Callable[..., Done]
Serve = Callable[..., Daemon]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "drover.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def drover(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drover:
    """Run a command in this process; the database is the one of DROVER_DATABASE_URL."""
    monkeypatch.setenv("DROVER_CONFIG", str(config))

    def run(*words: str) -> Done:
        status = main(words)
        told = capsys.readouterr()
        return Done(status, told.out, told.err)

    return run


@pytest.fixture
def connection(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """Connect to a fresh database, the one that the commands use too."""
    monkeypatch.setenv("DROVER_DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def active(connection: psycopg.Connection) -> psycopg.Connection:
    """Return that connection, to a database with a scheduler that is active and serves noop and sha256."""
    connection.execute(ACTIVE.encode())
    return connection


@pytest.fixture(scope="module")
def module_database(postgres: str, migrated_with_roles: str) -> Iterator[str]:
    """Yield the conninfo of a fresh database with all grants that the tests of one module share."""
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        yield conninfo


@pytest.fixture
def launch(database_with_roles: str) -> Iterator[Launch]:
    """Start daemons on a database of the test's own: `launch(config_text, **options)`; each is stopped at the end."""
    with ExitStack() as daemons:
        yield lambda text, **options: daemons.enter_context(start(text, database_with_roles, **options))


@pytest.fixture
def ask(database_with_roles: str, config: Path) -> Ask:
    """Run the real command as a member of drover_operator: `ask(line, standard_input, **variables)`."""
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)

    def run(line: str, data: str = "", **changes: str) -> Done:
        argv, own = [*DROVER, *line.split()], variables | changes
        done = warm.run(argv, input=data, env=own)
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def home() -> Iterator[Path]:
    """Return an empty HOME with a short name: psql and other programs take no path of a socket over 107 bytes."""
    with TemporaryDirectory(prefix="home-") as folder:
        yield Path(folder)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Return the file that rec_agent.py writes what it was given to."""
    return tmp_path / "record"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return the file that rec_agent.py waits for, at `gate:PATH`; the test creates it."""
    return tmp_path / "gate"


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    """Yield two named pipes at which a test and its agents wait for each other."""
    with Meeting(tmp_path) as meeting:
        yield meeting


@pytest.fixture
def active_for_roles(database_with_roles: str) -> Iterator[psycopg.Connection]:
    """Connect to a database with all grants, and with a scheduler that serves noop and sha256."""
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        connection.execute(ACTIVE.encode())
        yield connection


@pytest.fixture
def many(active: psycopg.Connection) -> psycopg.Connection:
    """Jobs 1 to 4: done, failed, queued, queued for sha256."""
    jobs = [insert(active, kind) for kind in ("noop", "noop", "noop", "sha256")]
    finish(active, jobs[0])
    finish(active, jobs[1], "failed", 2, "no")
    return active


@pytest.fixture
def door(tmp_path: Path, database_with_roles: str) -> Door:
    """Return a path to the server of the test's database that can be removed and restored; at first it is removed."""
    folder = tmp_path / "door"
    folder.mkdir()
    return Door(folder, database_with_roles)


@pytest.fixture
def beta(tmp_path: Path) -> Iterator[Server]:
    """Start an sshd that is host beta."""
    need("sshd")
    with serving(tmp_path / "beta") as server:
        yield server


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[tuple[Net, Server]]:
    """Start an sshd that is host beta, behind a network that can be cut."""
    with wired(tmp_path / "beta") as both:
        yield both


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a copy of the program, to be changed."""
    return copy_program(tmp_path / "program")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the path of an agent's program, once it is written."""
    return tmp_path / "own-agent"


@pytest.fixture
def serve(launch: Launch, program: Path, own: Path) -> Serve:
    """Start a daemon of that copy."""
    code = f"import sys; sys.path.insert(0, {str(program)!r}); from scheduler.cli.main import main; sys.exit(main())"

    def run(*, wait: bool = True, **scheduler: object) -> Daemon:
        config = settings(**{"status_interval": 0.1, **scheduler}) + LOCAL + puppet() + agent("own", [str(own)])
        return launch(config, wait=wait, program=[sys.executable, "-c", code, "run", "--allow-root"])

    return run
