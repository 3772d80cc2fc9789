"""Which starts of schedules are due, and when each schedule is looked at next.

A start is missed if no scheduler of the group was there at its time: then `catch_up` says whether one of those that
were missed is made up for (the first), all are, or none. Starts in time are never dropped, several are made if the
daemon was slow. Each pass makes so many starts of a schedule at most, whatever the clock has done; the rest follow.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal
from zlib import crc32

from scheduler.model.schedule_times import Times, TimesError, next_time

MOST_STARTS: Final = 100  # of a schedule in one pass

CatchUp = Literal["one", "all", "none"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that is due. `next` is its next start, None if that is to be computed."""

    name: str
    times: Times
    next: datetime | None
    catch_up: CatchUp = "one"
    jitter: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The starts that are due, the next start, when to look at the schedule again, and why there is no next start."""

    starts: list[datetime] = field(default_factory=list)
    is_late: bool = False  # some were missed
    next: datetime | None = None
    due: datetime | None = None
    reason: str | None = None


def plan(schedule: Schedule, now: datetime, since: datetime) -> Plan:
    """Return what to start of a schedule at `now`; what was due before `since` was missed."""
    try:
        return _plan(schedule, now, since)
    except TimesError as error:
        return Plan(reason=str(error))


def _plan(schedule: Schedule, now: datetime, since: datetime) -> Plan:
    at, is_late = schedule.next, False
    starts: list[datetime] = []
    if at is None or at > now:  # it is new, or the clock was set back
        at = next_time(schedule.times, now)
    elif _due(schedule, at) <= now and _due(schedule, at) < since:
        is_late = True
        if schedule.catch_up != "none":
            starts.append(at)
        # None of these is looked at one by one, if they are not made up for: there may be millions.
        at = next_time(schedule.times, at if schedule.catch_up == "all" else max(at, since - schedule.jitter))
    while at is not None and _due(schedule, at) <= now and len(starts) < MOST_STARTS:
        if _due(schedule, at) >= since or schedule.catch_up == "all":
            starts.append(at)
        at = next_time(schedule.times, at)
    due = None if at is None else _due(schedule, at)
    over = "its time had passed when it was set" if schedule.next is None else "it does not start again"
    return Plan(starts, is_late, at, due, over if at is None else None)


def _due(schedule: Schedule, at: datetime) -> datetime:
    """Return when a start is carried out: by chance, but the same for every scheduler, so much later at most."""
    if not schedule.jitter:
        return at
    chance = crc32(f"{schedule.name} {at.timestamp():.6f}".encode()) / 2**32
    return at + schedule.jitter * chance
