"""What tests of several drivers share."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from scheduler.drivers.loop import Loop
from scheduler.model.config import AgentType, Config, Host, Scheduler
from tests.child_tools import LONG_S, Family, Make
from tests.connection_tools import OWNER, PATIENT, QUERIES, ask, opened, take_group
from tests.fossology_tools import FrontEnd, connected
from tests.queue_tools import Desk
from tests.role_tools import Login
from tests.schema_tools import Connection


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Make]:
    """Make a family of these agent types; all its processes are killed at the end."""
    made: list[Family] = []

    def make(
        *,
        exit_grace: float = LONG_S,
        hosts: dict[str, Host] | None = None,
        folders: tuple[str, ...] = (),
        **agents: AgentType,
    ) -> Family:
        config = Config(hosts=hosts or {}, agents=agents, scheduler=Scheduler(exit_grace=exit_grace))
        made.append(Family(Loop(), config, folders, str(tmp_path / "copies")))
        return made[-1]

    yield make
    for one in made:
        one.processes.close()
        one.loop.close()


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
def compat(database_with_roles: str) -> str:
    """Return the conninfo of a database with the views of the original front-end."""
    migrate.apply_compat(database_with_roles, "fossology")
    return database_with_roles


@pytest.fixture
def ui(compat: str) -> Iterator[FrontEnd]:
    with connected(compat, "drover_frontend_sql") as connection:
        yield FrontEnd(connection)
