"""The schedules of a simulated site: what daemon/schedule_starts.py does, with a clock of days that people may set.

A schedule is looked at when it is due, by whichever daemon serves the group; its row keeps the next start.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from scheduler.model.schedule_times import Times
from scheduler.policy.schedules import MOST_STARTS, Schedule, plan
from tests.sim.broken import broken

if TYPE_CHECKING:
    from tests.sim.world import Sim

EPOCH: Final = datetime(2026, 3, 28, tzinfo=UTC)
LOOK_S: Final = 7.0
MOMENT: Final = timedelta(seconds=LOOK_S)
SHIFTS: Final = (-3600.0, -30.0, 600.0, 86_400.0)  # seconds by which people set the clock
TABLE: Final = (
    Schedule("often", Times(every=timedelta(seconds=20), since=EPOCH), None, "all"),
    Schedule("jittery", Times(every=timedelta(seconds=50), since=EPOCH), None, "one", timedelta(seconds=30)),
    Schedule("cron", Times(cron="*/2 * * * *", zone="Europe/Berlin"), None, "none"),
    Schedule("once", Times(at=EPOCH + timedelta(seconds=1100)), None, "one"),
    Schedule("flood", Times(every=timedelta(seconds=1), since=EPOCH), None, "all"),
    Schedule("wrong", Times(cron="61 * * * *"), None, "one"),
)


@dataclass(slots=True)
class Planned:
    """A row of drover.schedule: its next start, when it is due, and which starts were made."""

    schedule: Schedule
    due: datetime | None = EPOCH
    made: list[datetime] = field(default_factory=list)


class Planner:
    """The schedules, and the clock that they go by."""

    def __init__(self, sim: "Sim") -> None:
        self._sim = sim
        self._shift = 0.0
        self.table = [Planned(schedule) for schedule in TABLE]
        sim.at(LOOK_S, self._look)

    @property
    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._sim.now + self._shift)

    def _look(self) -> None:
        sim, daemon = self._sim, self._sim.daemon
        sim.at(LOOK_S, self._look)
        if sim.chance(0.02):
            self._shift += sim.rng.choice(SHIFTS)
            for each in self.table:
                each.made.clear()  # what was made before says nothing any more
        if daemon.is_alive and daemon.watch.is_up and daemon.watch.is_serving:
            since = self._now - timedelta(seconds=sim.now - daemon.watch.sees_since)
            for each in self.table:
                if each.due is not None and each.due <= self._now:
                    self._start(each, since)

    def _start(self, each: Planned, since: datetime) -> None:
        now, schedule = self._now, each.schedule
        found = plan(schedule, now, since)
        starts_are_made_once(each, found.starts, now, since)
        each.made += found.starts
        each.schedule, each.due = replace(schedule, next=found.next), found.due
        if found.due is None and found.reason is None:
            broken("starts_are_made_once", f"schedule {schedule.name} is over, and nothing says why")


def starts_are_made_once(each: Planned, starts: list[datetime], now: datetime, since: datetime) -> None:
    """No start is made before its time or a second time, and none in time is left out."""
    name = each.schedule.name
    if early := [at for at in starts if at > now]:
        broken("starts_are_made_once", f"schedule {name}: {early} are made at {now}")
    if twice := set(starts) & set(each.made):
        broken("starts_are_made_once", f"schedule {name}: {twice} are made again")
    every, before = each.schedule.times.every, each.made[-1:]
    if every is None or not before or not starts or each.schedule.catch_up != "all":
        return
    whole = [before[0], *starts]
    if any(later - earlier != every for earlier, later in pairwise(whole)):
        broken("starts_are_made_once", f"schedule {name}: starts are left out of {whole[:4]}, {len(starts)}")
    if len(starts) > MOST_STARTS:
        broken("starts_are_made_once", f"schedule {name}: {len(starts)} starts at once")
