"""What tests of several drivers share."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.drivers.loop import Loop
from scheduler.model.config import AgentType, Config, Host, Scheduler
from tests.child_tools import LONG_S, Family, Make
from tests.connection_tools import OWNER, PATIENT, QUERIES, ask, opened, take_group
from tests.queue_tools import Desk
from tests.schema_tools import Connection


@pytest.fixture
def family() -> Iterator[Make]:
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
        made.append(Family(Loop(), config, folders))
        return made[-1]

    yield make
    for one in made:
        one.processes.close()
        one.loop.close()


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    """Give the desk of the daemon that owns the group."""
    take_group(database)
    with Desk(database) as desk:
        yield desk


@pytest.fixture
def watch(database: str) -> Iterator[Any]:
    """Give what runs a named query of the daemon that owns the group."""
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
    """Give a connection of the owner that commits each statement."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
