"""What tests of several drivers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.drivers.loop import Loop
from scheduler.model.config import AgentType, Config, Host, Scheduler
from tests.child_tools import LONG_S, Family, Make


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
