"""Start the schedules that are due: read them, have policy/schedules.py decide, carry that out in one statement.

Times are those of the database, in microseconds since 1970. What a crash cuts off is done again by the next daemon:
the statement moves a schedule on only from the start that was read, and each start is inserted once.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from scheduler.daemon.command_rows import Ask
from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Steps
from scheduler.drivers.statements import to_json
from scheduler.model.config import Schedule as ScheduleTable
from scheduler.model.schedule_times import Times
from scheduler.policy.schedules import Plan, Schedule, plan

MOST: Final = 200  # schedules of one pass
LATE_S: Final = 30.0  # what is later by more was missed, though the daemon lives: it or the clock jumped
LOCKED_S: Final = 1.0  # until a schedule is tried again that is locked, or whose start finds what it needs locked
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def start_due(ask: Ask) -> Steps[float | None]:
    """Start what is due; return the seconds until the next look, None if nothing is to come."""
    ((now_us, since_us, seconds, found),) = yield from ask("due_schedules", most=MOST, late=LATE_S)
    waits = [] if seconds is None else [float(seconds)]
    schedules = [_schedule(row) for row in json.loads(found or b"[]")]
    now, since = _instant(int(now_us or 0)), _instant(int(since_us or 0))
    plans = {each.name: plan(each, now, since) for each in schedules}
    rows = [_row(each, plans[each.name]) for each in schedules]
    answers = (yield from ask("start_schedules", rows=to_json(rows))) if rows else []
    for cell, is_moved, started, said in answers:
        name = (cell or b"").decode()
        if is_moved != b"t":
            waits.append(LOCKED_S)
        elif (due := plans[name].due) is not None:
            waits.append((due - now).total_seconds())
        _log(name, plans[name], is_moved == b"t", int(started or 0), said)
    if len(schedules) >= MOST and any(is_moved == b"t" for _, is_moved, *_ in answers):
        waits.append(0.0)
    return min(waits, default=None)


def described(name: str, schedule: ScheduleTable) -> dict[str, Any]:
    """Return what query `register` writes down of a schedule of the configuration."""
    times = schedule.times
    return {
        "name": name,
        "at": None if times.at is None else times.at.isoformat(),
        "every": schedule.every or None,
        "cron": times.cron,
        "zone": times.zone,
        "catch_up": schedule.catch_up,
        "jitter": schedule.jitter,
        "overlap": schedule.overlap,
        "enabled": schedule.enabled,
        "job": schedule.job(name),
    }


def _log(name: str, plan: Plan, is_moved: bool, started: int, said: bytes | None) -> None:
    if plan.is_late and is_moved:
        log_line("info", f"schedule {name}: starts were missed; it makes up for {len(plan.starts)} now")
    if said is not None:
        log_line("warning", f"schedule {name}: {said.decode('utf-8', 'backslashreplace')}")
    elif started:
        log_line("debug", f"schedule {name}: {started} started")


def _schedule(row: dict[str, Any]) -> Schedule:
    times = Times(_maybe(row["at"]), _length(row["every"]), row["cron"], row["zone"], _maybe(row["from"]))
    return Schedule(row["name"], times, _maybe(row["next"]), row["catch_up"], row["jitter"] * MICROSECOND)


def _row(schedule: Schedule, plan: Plan) -> dict[str, Any]:
    """Return what query `start_schedules` gets of a schedule."""
    return {
        "name": schedule.name,
        "was": _number(schedule.next),
        "next": _number(plan.next),
        "due": _number(plan.due),
        "reason": plan.reason,
        "starts": [_number(start) for start in plan.starts],
    }


def _instant(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


def _maybe(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _instant(microseconds)


def _length(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else microseconds * MICROSECOND


def _number(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - EPOCH) // MICROSECOND
