"""The times of a schedule: at one instant, at equal intervals, or as cron says, in a time zone.

Local times in a cron expression follow one rule over both changes of a zone: an expression that names hours starts
once for each local time that it names. One that the clock leaves out starts when the clock has gone on, with all others
of that gap; one that comes twice starts the first time. An expression for every hour (`*/20 * * * *`) counts real time.

Reads no clock: instants are given. cronsim and zoneinfo are imported where they are needed, since most daemons have no
schedule.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

EXAMPLE: Final = 'write five fields, minute, hour, day, month and weekday, like "30 2 * * 1-5", or @daily'
NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
RANGES: Final = {
    "minute": "0-59", "hour": "0-23", "day-of-month": "1-31, or L for the last", "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT",
}  # fmt: skip
EVERY_HOUR: Final = re.compile(r"(\*|0-23)(/0*1)?")
INTERVAL: Final = re.compile(r"(?:(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?)\s*")
UNITS: Final = {"s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
FIRST_YEAR, LAST_YEAR = 1900, 9000  # of a start: drover.schedule refuses others


class TimesError(ValueError):
    """The times of a schedule cannot be; the text says why, and what to write instead."""


class UnreadableError(TimesError):
    """A text is no time at all."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule starts: exactly one of at, every and cron; `every` counts from `since`."""

    at: datetime | None = None
    every: timedelta | None = None
    cron: str | None = None
    zone: str = "UTC"
    since: datetime | None = None


def next_time(times: Times, after: datetime) -> datetime | None:
    """Return the first instant after another, in UTC; None if there is none. Errors: TimesError."""
    if times.at is not None:
        return times.at if times.at > after else None
    if times.every is not None:
        since = times.since or after
        passed = (after - since) // times.every
        found = since + (passed + 1) * times.every
        return found if found.year < LAST_YEAR else None
    assert times.cron is not None
    return _next_by_cron(times.cron, zone_of(times.zone), after)


def next_times(times: Times, after: datetime) -> Iterator[datetime]:
    """Yield one instant after the other. Errors: TimesError."""
    found = next_time(times, after)
    while found is not None:
        yield found
        found = next_time(times, found)


def zone_of(name: str) -> tzinfo:
    """Return a time zone of the IANA database. Errors: TimesError."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TimesError(f"no time zone {name[:64]!r}: write a name like Europe/Berlin") from None


def read_time(text: str, zone: tzinfo) -> datetime:
    """Return the instant of an ISO 8601 text; without an offset it is local time of the zone. Errors: TimesError."""
    try:
        given = datetime.fromisoformat(text)
        local = given if given.tzinfo else given.replace(tzinfo=zone)
        instant = local.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UnreadableError(
            f'no time {text[:64]!r}: write "2030-12-24 18:00", or with seconds and an offset'
        ) from None
    if instant.astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise TimesError(f"the clock leaves {text[:64]!r} out in that zone: write a time before or after")
    if not FIRST_YEAR <= instant.year < LAST_YEAR:
        raise TimesError(f"no time {text[:64]!r}: write one between the years {FIRST_YEAR} and {LAST_YEAR}")
    return instant


def read_interval(text: str) -> timedelta:
    """Return the length of `90`, `13m` or `1h 30m`. Errors: TimesError."""
    seconds, end = 0.0, 0
    for found in INTERVAL.finditer(text.strip().lower()):
        if found.start() != end:
            break
        seconds += float(found[1]) * UNITS[found[2] or ""]
        end = found.end()
    if not text.strip() or end != len(text.strip()):
        raise TimesError(f'{text[:64]!r} is not a duration: write seconds, or "13m", "1h 30m", "2d"')
    if not 1 <= seconds <= 3_155_760_000:
        raise TimesError(f"an interval is from 1 s to 100 years (got {text[:64]!r})")
    return timedelta(seconds=seconds)


def check_cron(text: str, zone: str, now: datetime) -> datetime:
    """Return the first instant of a cron expression after now. Errors: TimesError, among them that it never comes."""
    found = _next_by_cron(text, zone_of(zone), now)
    if found is None:
        raise TimesError(f"{text[:64]!r} never comes: no such day is in these months; {EXAMPLE}")
    return found


def _next_by_cron(text: str, zone: tzinfo, after: datetime) -> datetime | None:
    from cronsim import CronSim, CronSimError

    words = _words(text)
    try:
        # a local time that comes twice is found where it came first, which may be before
        for found in CronSim(" ".join(words), after.astimezone(zone)):
            if (instant := found.astimezone(UTC)) > after:
                return instant
    except CronSimError as error:
        raise TimesError(_what_is_wrong(text, words, str(error))) from None
    except OverflowError:
        pass
    return None


def _words(text: str) -> list[str]:
    """Return the five fields of an expression, so that cronsim follows the rule above. Errors: TimesError."""
    if text.startswith("@") and text not in NAMED:
        raise TimesError(f"there is no {text[:64]}: there are {', '.join(NAMED)}")
    words = NAMED.get(text, text).split()
    if len(words) != 5:
        raise TimesError(f"{text[:64]!r} has {len(words)} field{'s' * (len(words) != 1)}: {EXAMPLE}")
    minute, hour, *days = words
    if EVERY_HOUR.fullmatch(hour):
        return ["0-59" + minute[1:] if minute.startswith("*/") else minute, "*", *days]
    # cronsim counts real time if either field begins with a star
    return [re.sub(r"\*", "0-59", minute), re.sub(r"\*", "0-23", hour), *days]


def _what_is_wrong(text: str, words: list[str], said: str) -> str:
    field = said.removeprefix("Bad ")
    days = [int(day) for day in re.findall("[0-9]+", words[2])]
    if field == "day-of-month" and re.fullmatch("[0-9,-]+", words[2]) and all(1 <= day <= 31 for day in days):
        return f"{text[:64]!r} never comes: no such day is in these months; write L for the last day of a month"
    return f"{text[:64]!r}: wrong {field}, which is {RANGES.get(field, 'missing')}; {EXAMPLE}"
