"""The periodic tasks of a daemon: what a reload changes."""

import json
from typing import Any
from unittest.mock import Mock

from scheduler.daemon.periodic_tasks import PeriodicTasks
from scheduler.drivers.loop import Steps
from scheduler.model.config import Scheduler
from scheduler.model.states import LeaseState


def test_what_is_removed_by_age_follows_a_reload_though_a_pass_is_under_way_r52() -> None:
    asked: list[dict[str, int]] = []

    def ask(_name: str, **values: Any) -> Steps[list[tuple[bytes | None, ...]]]:
        asked.append(json.loads(values["days"]))
        return [(b"5", values["stage"].encode(), b"17")]  # there is more
        yield

    loop, lease = Mock(now=0.0), Mock(state=LeaseState.SERVING)
    tasks = PeriodicTasks(loop, Scheduler(retention_failed=1), Mock(), lease, ask, Mock(), Mock(), Mock())
    for timers in (Scheduler(retention_failed=1), Scheduler(retention_failed=90)):
        tasks.set_timers(timers)
        assert list(tasks._remove_old()) == []
    assert asked == [{"failed": 1}, {"failed": 90}]
