"""One Postgres for each process that runs tests, a fresh database for each test that asks for one, and its logins."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from scheduler.database.embedded import temporary
from scheduler.drivers.loop import Loop
from tests import guard
from tests.connection_tools import OWNER, PATIENT, QUERIES, ask, opened, take_group
from tests.needs import need
from tests.progress import Progress
from tests.queue_tools import Desk
from tests.role_tools import Login, grant_roles
from tests.schema_tools import Connection

MEMORY = Path("/dev/shm")
SERVER = "DROVER_TEST_SERVER"  # the conninfo of a server that is there already, for the tests of a copy
TEMPLATES = "DROVER_TEST_TEMPLATES"  # two databases of that server: one with all migrations, one with the grants too
# Whether a test passes is no matter of load.
settings.register_profile("drover", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("drover")
ROOM_BYTES = 4 << 30  # free there: for the server, its log of writes, and what tests fill in


def pytest_configure(config: pytest.Config) -> None:
    """Put a guard over the process that was started; the workers of xdist are below it.

    Where a shell runs the tests in the background SIGINT is ignored, and would be by all that the tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # nohup(1), or a shell that runs us beside itself
            signal.signal(number, lambda *_: None)  # which programs do not inherit, unlike SIG_IGN
    guard.begin()
    config.pluginmanager.register(Progress(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has to be alone where several tests run at once."""
    if getattr(config, "workerinput", {}).get("workercount", 1) > 1:
        left_out = [item for item in items if item.get_closest_marker("alone")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Yield the conninfo of a server for the whole session; in memory if there is room, for that is fast."""
    need("postgres")
    if SERVER in os.environ:
        yield os.environ[SERVER]
        return
    with in_memory() as conninfo:
        yield conninfo


@contextmanager
def in_memory() -> Iterator[str]:
    """Run a server whose files are in memory if there is room, and yield its conninfo."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
                patch.setattr("tempfile.tempdir", str(MEMORY))
            conninfo = stack.enter_context(temporary())
            with psycopg.connect(conninfo, autocommit=True) as session:  # of tests; drover sets it itself
                session.execute("alter role current_user set jit = off")
        yield conninfo


@pytest.fixture(scope="session")
def migrated(postgres: str) -> Iterator[str]:
    """Yield the name of a database with all migrations, for others to be copied from."""
    if TEMPLATES in os.environ:
        yield os.environ[TEMPLATES].split()[0]
        return
    with _database(postgres, "template0") as (name, conninfo):
        migrate.apply(conninfo)
        yield name


@pytest.fixture(scope="session")
def migrated_with_roles(postgres: str, migrated: str) -> Iterator[str]:
    """Yield the name of a database with all migrations and the grants of roles.sql."""
    if TEMPLATES in os.environ:
        yield os.environ[TEMPLATES].split()[1]
        return
    with _database(postgres, migrated) as (name, conninfo):
        grant_roles(conninfo)
        yield name


@pytest.fixture
def database(postgres: str, migrated: str) -> Iterator[str]:
    """Yield the conninfo of a fresh database with all migrations applied, and no rows."""
    with _database(postgres, migrated) as (_, conninfo):
        yield conninfo


@pytest.fixture
def database_with_roles(postgres: str, migrated_with_roles: str) -> Iterator[str]:
    """Yield the conninfo of a fresh database with all migrations and grants; a role logs in with `user=`."""
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        yield conninfo


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    """Yield the conninfo of a database that has never seen a migration."""
    with _database(postgres, "template0") as (_, conninfo):
        yield conninfo


@pytest.fixture
def queue(database: str) -> Iterator[Connection]:
    """Yield a connection of the owner that commits each statement."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def login(database_with_roles: str) -> Iterator[Login]:
    """Yield a function that connects as a role, committing each statement; the empty name is the superuser."""
    with ExitStack() as stack:

        def connect(role: str) -> Connection:
            conninfo = make_conninfo(database_with_roles, **({"user": role} if role else {}))
            return stack.enter_context(psycopg.connect(conninfo, autocommit=True))

        yield connect


@pytest.fixture
def tenants(login: Login) -> Iterator[list[Connection]]:
    """Yield the connections of two logins that are members of drover_frontend."""
    names = [f"tenant_{uuid4().hex}" for _ in range(2)]
    admin = login("")
    for name in names:
        admin.execute(f"create role {name} login in role drover_frontend".encode())
    connections = [login(name) for name in names]
    yield connections
    for name, connection in zip(names, connections, strict=True):
        connection.close()
        admin.execute(f"drop role {name}".encode())


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    """Yield the desk of the daemon that owns the group."""
    take_group(database)
    with Desk(database) as desk:
        yield desk


@pytest.fixture
def watch(database: str) -> Iterator[Any]:
    """Yield a function that runs a named query of the daemon that owns the group."""
    take_group(database)
    loop = Loop()
    connection = opened(loop, database, settings=PATIENT)
    yield lambda query, /, **values: ask(
        loop, connection, QUERIES[query], **{"group": "default", "owner": OWNER, **values}
    )
    connection.close()
    loop.close()


@contextmanager
def _database(server: str, template: str) -> Iterator[tuple[str, str]]:
    """Create a database, yield its name and conninfo, and drop it.

    Copying files takes two thirds of the processor time of writing each page to the log too; old servers do nothing
    else. One session does both, for a new one takes as long as a tenth of all this.
    """
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        strategy = "strategy file_copy" if connection.info.server_version >= 150_000 else ""
        connection.execute(f"create database {name} template {template} {strategy}".encode())
        try:
            yield name, make_conninfo(server, dbname=name)
        finally:
            connection.execute(f"drop database {name} with (force)".encode())
