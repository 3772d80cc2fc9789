"""How long it takes until the jobs that could start are done, at the rate at which jobs of their type end now.

For `drover stats` and `drover submit --eta`. What is queued meanwhile is not counted, nor what a job waits for.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from scheduler.cli.database_session import Session
from scheduler.cli.output import span

NEWEST: Final = timedelta(minutes=10)  # in which the rate is looked for, and if no job ended in them
LONGER: Final = timedelta(hours=1)


def estimates(session: Session, job: int | None = None) -> list[dict[str, Any]]:
    """Return for each type, or that of a job, how many jobs could start, how many end a minute, and the seconds left.

    Those that take longest come first; before them the types of which none has ended, whose seconds are None.
    """
    waiting = session.rows("jobs_that_could_start", job=job)
    rates = _rates(session, LONGER) | _rates(session, NEWEST) if waiting else {}
    found = (_estimate(kind, jobs, rates.get(kind)) for kind, jobs in waiting)
    return sorted(found, key=lambda row: (row["seconds"] is not None, -(row["seconds"] or 0.0), -row["jobs"]))


def _rates(session: Session, length: timedelta) -> dict[str, float]:
    return dict(session.rows("recent_rates", since=session.value("now") - length))


def _estimate(kind: str, jobs: int, per_minute: float | None) -> dict[str, Any]:
    seconds = round(jobs * 60 / per_minute, 1) if per_minute else None
    rate = round(per_minute, 2) if per_minute else None
    return {"type": kind, "jobs": jobs, "per_minute": rate, "seconds": seconds}


def in_words(row: Mapping[str, Any]) -> str:
    """Return `noop: 50,000 wait, 2,500 a minute: about 20 min`."""
    head = f"{row['type']}: {row['jobs']:,} {'waits' if row['jobs'] == 1 else 'wait'}"
    if row["seconds"] is None:
        return f"{head}, none has ended in the last hour"
    rate = f"{row['per_minute']:,.0f}" if row["per_minute"] >= 10 else f"{row['per_minute']:.2g}"
    return f"{head}, {rate} a minute: about {span(max(row['seconds'], 1.0))}"
