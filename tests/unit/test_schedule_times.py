"""The times of schedules: cron in time zones over both changes of the clock, intervals, texts, and mistakes."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile

import pytest

from scheduler.model.schedule_times import (
    NAMED,
    Times,
    TimesError,
    check_cron,
    next_time,
    next_times,
    read_interval,
    read_time,
    zone_of,
)

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def year(cron: str, zone: str) -> list[datetime]:
    """Return every start in 2026, as local times of the zone."""
    here = zone_of(zone)
    first, end = datetime(2026, 1, 1, tzinfo=here), datetime(2027, 1, 1, tzinfo=here)
    times = next_times(Times(cron=cron, zone=zone), first.astimezone(UTC) - timedelta(seconds=1))
    return [at.astimezone(here) for at in takewhile(lambda at: at < end, times)]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ["30 1 * * *", "45 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *", "59 2 * * *"])
def test_a_local_time_comes_once_a_day_over_a_year_of_both_changes_c48(cron: str, zone: str) -> None:
    days = Counter(at.date() for at in year(cron, zone))
    assert len(days) == 365
    assert set(days.values()) == {1}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("cron", "a_day"),
    [("0 */2 * * *", 12), ("*/15 1-3 * * *", 12), pytest.param("* 2 * * *", 60, marks=pytest.mark.slow)],
)
def test_no_local_time_comes_twice_where_hours_are_named_c48(cron: str, a_day: int, zone: str) -> None:
    shown = [at.replace(tzinfo=None) for at in year(cron, zone)]
    assert len(shown) == len(set(shown))
    assert set(Counter(at.date() for at in shown).values()) <= set(range(1, a_day + 1))
    assert list(Counter(at.date() for at in shown).values()).count(a_day) >= 364


@pytest.mark.parametrize(
    ("zone", "day", "shown"),
    [
        ("Europe/Berlin", (2026, 3, 29), "03:00"),
        ("America/New_York", (2026, 3, 8), "03:00"),
        ("Australia/Lord_Howe", (2026, 10, 4), "02:30"),
    ],
)
def test_a_local_time_that_is_left_out_comes_when_the_clock_has_gone_on_c48(
    zone: str, day: tuple[int, int, int], shown: str
) -> None:
    before = datetime(*day, tzinfo=zone_of(zone)).astimezone(UTC)
    found = next_time(Times(cron="15 2 * * *", zone=zone), before)
    assert found is not None
    assert f"{found.astimezone(zone_of(zone)):%H:%M}" == shown


@pytest.mark.slow
def test_an_expression_for_every_hour_counts_real_time_c48() -> None:
    found = [at.astimezone(UTC) for at in year("*/20 * * * *", "Europe/Berlin")]
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=20)}


def test_a_time_that_comes_twice_is_not_found_again_from_its_second_hour_c48() -> None:
    second = datetime(2026, 10, 25, 2, 10, tzinfo=zone_of("Europe/Berlin"), fold=1)
    found = next_time(Times(cron="30 2 * * *", zone="Europe/Berlin"), second.astimezone(UTC))
    assert found == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_thirteen_minutes_for_a_day_c48() -> None:
    times = Times(every=timedelta(minutes=13), since=NEW_YEAR)
    found = list(takewhile(lambda at: at < NEW_YEAR + timedelta(days=1), next_times(times, NEW_YEAR)))
    assert found == [NEW_YEAR + n * timedelta(minutes=13) for n in range(1, 111)]


def test_an_interval_goes_on_from_its_begin_however_long_nobody_looked_c48() -> None:
    times = Times(every=timedelta(seconds=7), since=NEW_YEAR)
    found = next_time(times, NEW_YEAR + timedelta(days=36_500))
    assert found is not None
    assert timedelta(0) < found - NEW_YEAR - timedelta(days=36_500) <= timedelta(seconds=7)
    assert (found - NEW_YEAR) % timedelta(seconds=7) == timedelta(0)


def test_an_instant_comes_once_c48() -> None:
    assert next_time(Times(at=NEW_YEAR), NEW_YEAR - timedelta(seconds=1)) == NEW_YEAR
    assert next_time(Times(at=NEW_YEAR), NEW_YEAR) is None


@pytest.mark.parametrize("name", sorted(NAMED))
def test_names_for_expressions_come_at_midnight_or_each_hour_c48(name: str) -> None:
    found = list(islice(next_times(Times(cron=name), NEW_YEAR), 3))
    assert found == sorted(set(found))
    assert {at.minute for at in found} == {0}


@pytest.mark.parametrize(
    ("cron", "advice"),
    [
        ("61 * * * *", "wrong minute, which is 0-59"),
        ("* 24 * * *", "wrong hour, which is 0-23"),
        ("0 0 0 * *", "wrong day-of-month, which is 1-31"),
        ("0 0 * 13 *", "wrong month, which is 1-12"),
        ("0 0 * * 9", "wrong day-of-week, which is 0-7"),
        ("*/0 * * * *", "wrong minute"),
        ("* * * *", "has 4 fields: write five fields"),
        ("* * * * * *", "has 6 fields: write five fields"),
        ("", "has 0 fields"),
        ("@reboot", "there is no @reboot: there are @hourly"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes: no such day is in these months; write L"),
        ("0 0 */31 * 1#2", "never comes"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_to_write(cron: str, advice: str) -> None:
    with pytest.raises(TimesError, match=advice.replace("*", r"\*")):
        check_cron(cron, "Europe/Berlin", NEW_YEAR)


def test_a_leap_day_is_found() -> None:
    assert check_cron("0 0 29 2 *", "UTC", NEW_YEAR) == datetime(2028, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b", "x" * 999])
def test_an_unknown_zone_is_refused_with_what_to_write(zone: str) -> None:
    with pytest.raises(TimesError, match=r"no time zone .*: write a name like Europe/Berlin"):
        zone_of(zone)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("1", 1), ("90", 90), ("13m", 780), ("1h 30m", 5400), ("2d", 172_800), ("1.5 h", 5400), ("1W", 604_800)],
        ("3155760000", 3_155_760_000),
    ],
)
def test_an_interval_is_read(text: str, seconds: int) -> None:
    assert read_interval(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "0", "0.5s", "0.999", "3155760001", "-5", "5 parsecs", "1m x", "9" * 400, "1e9"]
)
def test_no_interval_is_refused(text: str) -> None:
    with pytest.raises(TimesError, match=r"interval|duration"):
        read_interval(text)


def test_a_time_is_local_unless_it_has_an_offset() -> None:
    berlin = zone_of("Europe/Berlin")
    assert read_time("2026-12-24 18:00", berlin) == datetime(2026, 12, 24, 17, tzinfo=UTC)
    assert read_time("2026-12-24T18:00:00Z", berlin) == datetime(2026, 12, 24, 18, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "2026-03-29 02:30", "9999-12-31 23:59", "0001-01-01"])
def test_no_time_is_refused(text: str) -> None:
    with pytest.raises(TimesError, match="write"):
        read_time(text, zone_of("Europe/Berlin"))


@pytest.mark.parametrize(("text", "year"), [("1900-01-01", 1900), ("8999-12-31 23:59", 8999)])
def test_a_time_is_within_the_years_of_the_database(text: str, year: int) -> None:
    assert read_time(text, UTC).year == year


@pytest.mark.parametrize("text", ["1899-12-31 23:59", "9000-01-01"])
def test_a_time_beyond_the_years_of_the_database_is_refused(text: str) -> None:
    with pytest.raises(TimesError, match="between the years 1900 and 9000"):
        read_time(text, UTC)


def test_an_instant_is_found_before_it_and_not_at_it_c48() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    moment = timedelta(microseconds=1)
    assert [next_time(Times(at=at), after) for after in (at - moment, at, at + moment)] == [at, None, None]


def test_an_interval_that_ends_now_is_followed_by_the_next_c48() -> None:
    times = Times(every=timedelta(hours=1), since=NEW_YEAR)
    hour, moment = timedelta(hours=1), timedelta(microseconds=1)
    assert next_time(times, NEW_YEAR) == NEW_YEAR + hour
    assert next_time(times, NEW_YEAR + hour - moment) == NEW_YEAR + hour
    assert next_time(times, NEW_YEAR + hour) == NEW_YEAR + 2 * hour
    assert next_time(Times(every=hour), NEW_YEAR) == NEW_YEAR + hour


def test_an_interval_ends_before_the_years_that_the_database_refuses() -> None:
    times = Times(every=timedelta(days=1), since=NEW_YEAR)
    assert next_time(times, datetime(8999, 12, 31, tzinfo=UTC)) is None
    found = next_time(times, datetime(8999, 12, 29, tzinfo=UTC))
    assert found is not None
    assert found.year == 8999
