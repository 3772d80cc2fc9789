"""`drover schedule` against a real daemon: what is added, listed, started, switched, removed; and what is refused."""

import json
import re
from pathlib import Path

import psycopg
import pytest

from tests.cli_tools import Drover
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import agent, rec

GRAPH = [{"name": "load", "jq_type": "a", "jq_args": "x"}, {"jq_type": "a", "jq_args": "y", "after": ["load"]}]
DONE = "select count(*) from drover.jobqueue where jq_state = 'done' and jq_type = 'a'"


@pytest.fixture
def text(record: Path) -> str:
    return "[hosts.alpha]\n" + agent("a", rec(record), slots=2)


@pytest.mark.slow
def test_a_schedule_is_added_shown_run_switched_and_removed_c50(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    added = ask("schedule add nightly --every 1h --priority b a {}")
    assert (added.status, added.out.startswith("schedule nightly: next ")) == (0, True)
    (row,) = [json.loads(line) for line in ask("schedule list --json").out.splitlines()]
    assert (row["schedule"], row["type"], row["times"], row["enabled"]) == ("nightly", "a", "every 01:00:00", True)
    assert row["next"] == daemon.value("select schedule_next from drover.schedule").isoformat()
    said = ask("schedule run nightly")
    job = daemon.value("select max(jq_pk) from drover.jobqueue where jq_type = 'a'")
    assert (said.status, said.out) == (0, f"schedule nightly: queued {job}\n")
    assert daemon.wait(job)["jq_priority"] == "b"
    assert ask("schedule disable nightly").out == "schedule nightly: disabled\n"
    assert ask("schedule enable nightly").out == "schedule nightly: enabled\n"
    daemon.until(lambda: daemon.value("select schedule_next > now() from drover.schedule"))
    assert ask("schedule remove nightly").out == "schedule nightly: removed\n"
    assert [ask(f"schedule {each} nightly").status for each in ("run", "enable", "remove", "next")] == [1, 1, 1, 1]


def test_a_group_of_jobs_is_added_from_a_file_and_runs_in_order(
    launch: Launch, text: str, ask: Ask, tmp_path: Path
) -> None:
    daemon = launch(text)
    (tmp_path / "jobs").write_text(json.dumps(GRAPH))
    assert ask(f"schedule add g --cron @yearly --jobs {tmp_path / 'jobs'}").status == 0
    assert ask("schedule run g").status == 0
    daemon.until(
        lambda: daemon.value("select count(*) from drover.jobqueue where jq_state = 'done' and jq_type = 'a'") == 2
    )


def test_a_command_is_scheduled_r52(launch: Launch, text: str, ask: Ask) -> None:
    daemon = launch(text)
    assert ask("schedule add flush --cron @daily command flush 30").status == 0
    assert ask("schedule run flush").status == 0
    query = "select count(*) from drover.jobqueue where jq_args = 'flush 30' and jq_state = 'done'"
    daemon.until(lambda: daemon.value(query) == 1)


def test_next_starts_are_shown_in_their_zone_in_order_c50(launch: Launch, text: str, ask: Ask) -> None:
    launch(text)
    ask("schedule add berlin --zone Europe/Berlin --cron @daily a")
    ask("schedule add often --every 6h a")
    found = [json.loads(line) for line in ask("schedule next 9 --json").out.splitlines()]
    assert len(found) == 9
    assert {row["start"][11:19] for row in found if row["schedule"] == "berlin"} == {"00:00:00"}
    assert [row["schedule"] for row in found].count("often") >= 6
    shown = ask("schedule next berlin 3", TZ="America/New_York").out.splitlines()[1:]
    assert [line.split()[1][:9] for line in shown] == ["00:00:00+"] * 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cron", "61 * * * *", "noop"), "wrong minute, which is 0-59"),
        (("--cron", "0 0 30 2 *", "noop"), "never comes: no such day"),
        (("--cron", "@reboot", "noop"), "there are @hourly"),
        (("--cron", "* * * *", "noop"), "has 4 fields: write five fields"),
        (("--cron", "@daily", "--zone", "Mars/Base", "noop"), "write a name like Europe/Berlin"),
        (("--every", "soon", "noop"), 'write seconds, or "13m"'),
        (("--every", "1h", "--jitter", "2h", "noop"), "a jitter must be less than the interval"),
        (("--at", "2001-01-01", "noop"), "has passed: write a later time"),
        (("--at", "2030-13-01", "noop"), "write"),
        (("noop",), "one of --at, --every and --cron is required (got none)"),
        (("--every", "1h", "--cron", "@daily", "noop"), "(got --every and --cron)"),
        (("--every", "1h"), "a type is required"),
        (("--every", "1h", "--priority", "?", "noop"), "a priority must be 1 to 16 letters"),
        (("--every", "1h", "--key", "id", "noop"), "a key names a column of a query"),
        (("--every", "1h", "command", "fly", "9"), "unknown command 'fly'"),
        (("--every", "1h", "command", "flush"), "too few words"),
        (("--every", "1h", "--jobs", "/nowhere"), "No such file"),
    ],
)
def test_what_could_never_start_is_refused_with_what_to_write(
    active: object, drover: Drover, words: tuple[str, ...], told: str
) -> None:
    done = drover("schedule", "add", "x", *words)
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert drover("schedule", "list", "--json").out == ""


def test_a_name_that_is_taken_or_is_none_is_refused(active: object, drover: Drover) -> None:
    assert drover("schedule", "add", "x", "--every", "1h", "noop").status == 0
    assert "exists already; remove it first" in drover("schedule", "add", "x", "--every", "1h", "noop").err
    assert "has letters, digits" in drover("schedule", "add", "a b", "--every", "1h", "noop").err


def test_a_type_that_nobody_serves_needs_force(active: object, drover: Drover) -> None:
    assert drover("schedule", "add", "x", "--every", "1h", "nosuch").status == 1
    assert drover("schedule", "add", "x", "--every", "1h", "--force", "nosuch").status == 0


@pytest.mark.parametrize("words", [("list", "x"), ("next", "0"), ("next", "a", "b"), ("run",), ("list", "--at", "now")])
def test_words_that_mean_nothing_are_refused(active: object, drover: Drover, words: tuple[str, ...]) -> None:
    assert drover("schedule", *words).status == 2


def test_times_of_a_schedule_are_shown_in_its_zone_with_the_offset(drover: Drover, active: psycopg.Connection) -> None:
    added = drover("schedule", "add", "nightly", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "noop", "x")
    assert added.status == 0
    assert re.search(r" 02:30:00\+0[12]:00 ", drover("schedule").out)
