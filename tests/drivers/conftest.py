"""What tests of several drivers share."""

from collections.abc import Iterator

import pytest

from scheduler.loop import Loop
from scheduler.model.config import AgentType, Config, Host, Scheduler
from tests.child_tools import LONG_S, Family, Make


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
        one.children.close()
        one.loop.close()
