"""What a person at a terminal does in a day: a greeting, jobs with conditions, pauses, drains, psql, long waits."""

import json
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.cli_tools import DROVER, Done, Drover, environment, finish, insert, one
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import LOCAL, Meeting, puppet
from tests.terminal_tools import on_terminal


def next_step(drover: Drover) -> str:
    done = drover()
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Drover ")
    return done.out.splitlines()[-2].strip()


# ---- drover alone


def test_drover_alone_names_the_step_that_fits(drover: Drover, connection: psycopg.Connection) -> None:
    assert next_step(drover) == "drover run"


def test_drover_alone_without_a_database_starts_none_j101(
    drover: Drover, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    for name in ("DROVER_DATABASE_URL", "DROVER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(home))
    assert next_step(drover) == "drover demo"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("words", [[], ["-c", "mine.toml"]])
def test_drover_alone_with_a_configuration_and_no_database_proposes_the_daemon(
    drover: Drover, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Path, words: list[str]
) -> None:
    monkeypatch.delenv("DROVER_DATABASE_URL", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    config.rename(tmp_path / "mine.toml")
    monkeypatch.setenv("DROVER_CONFIG", "" if words else "mine.toml")
    done = drover(*words)
    assert (done.status, done.out.splitlines()[1:4]) == (
        0, [f"No daemon runs, and no database is in {tmp_path}/state/pg yet.", "", "  drover run"]
    )  # fmt: skip
    assert not (tmp_path / "state").exists()


def test_drover_alone_says_that_jobs_wait_and_no_daemon_runs(drover: Drover, connection: psycopg.Connection) -> None:
    for _ in range(9):
        insert(connection)
    done = drover()
    assert done.out.splitlines()[1] == (
        "No daemon runs for group default; jobs in the database: 9 wait or run, 0 have ended."
    )
    assert next_step(drover) == "drover run"


def test_a_database_alone_is_greeted_too(
    drover: Drover, connection: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(connection)
    monkeypatch.setenv("DROVER_DATABASE_URL", "host=/nonexistent")
    done = drover("-d", database)
    assert (done.status, "1 wait or run" in done.out) == (0, True)


def test_drover_alone_proposes_a_first_job_then_stats(drover: Drover, active: psycopg.Connection) -> None:
    assert next_step(drover) == "drover submit --wait sha256 /etc/hosts"
    job = insert(active)
    assert next_step(drover) == "drover why --all"
    finish(active, job)
    assert next_step(drover) == "drover stats"


def test_drover_alone_tells_what_is_wrong(drover: Drover, active: psycopg.Connection, config: Path) -> None:
    insert(active, "nosuch")
    assert next_step(drover) == "drover status"
    config.write_text("nonsense")
    assert next_step(drover) == "drover check"


def test_drover_alone_with_an_unreachable_database_proposes_check(
    drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", "host=/nonexistent dbname=x")
    assert next_step(drover) == "drover check"


# ---- submit


def test_submit_writes_times_and_keys_into_the_row(drover: Drover, active: psycopg.Connection) -> None:
    words = "--not-before 1h --not-after 2100-01-01 --timeout 10m --unique-key k"
    job = int(drover("submit", *words.split(), "noop", "x").out)
    row = one(active.execute(
        """select jq_not_before - jq_queued, extract(year from jq_not_after at time zone 'UTC'), jq_timeout,
                  jq_unique_key from drover.jobqueue where jq_pk = %s""", (job,)))  # fmt: skip
    assert timedelta(minutes=59) < row[0] <= timedelta(hours=1)
    assert (int(row[1]) in (2099, 2100), row[2], row[3]) == (True, timedelta(minutes=10), "k")
    again = drover("submit", "noop", "--unique-key", "k")
    assert (again.status, "a job with this jq_unique_key has not ended yet" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--not-before", "is neither a duration (90, 15m, 2d) nor a time (2030-12-24 18:00)"),
        ("--not-after", "is neither a duration (90, 15m, 2d) nor a time (2030-12-24 18:00)"),
        ("--timeout", 'is not a duration: write seconds, or "13m", "1h 30m", "2d"'),
    ],
)
def test_submit_refuses_a_time_that_is_none(drover: Drover, active: psycopg.Connection, option: str, told: str) -> None:
    assert drover("submit", "noop", option, "tomorrow") == Done(2, "", f"{option}: 'tomorrow' {told}\n")


def test_submit_depends_on_jobs_all_or_none(drover: Drover, active: psycopg.Connection) -> None:
    parents = [insert(active), insert(active)]
    job = int(drover("submit", "noop", "x", *(f"--depends={parent}" for parent in parents)).out)
    edges = active.execute("select jdep_jq_fk, jdep_jq_depends_fk from drover.jobdepends order by 2").fetchall()
    assert edges == [(job, parent) for parent in parents]
    refused = drover("submit", "noop", "x", "--depends", "4711")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith("drover: no job 4711; nothing was queued")
    assert one(active.execute("select count(*) from drover.jobqueue"))[0] == 3


def test_submit_prints_the_result_alone(launch: Launch, ask: Ask) -> None:
    launch(LOCAL + puppet())
    done = ask("submit --result puppet -- echo")
    assert (done.status, done.out.strip()) == (0, "null")
    failed = ask("submit --result puppet -- echo FAIL no")
    assert (failed.status, failed.out.strip()) == (1, "null")
    assert "failed" in failed.err


# ---- pause --wait, drain --wait


@pytest.mark.slow
def test_pause_and_drain_wait_until_nothing_is_in_hand(launch: Launch, ask: Ask, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet())
    daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    meeting.hear()
    daemon.until(lambda: daemon.execute("select jq_pk from drover.jobqueue where jq_state = 'running'"))
    late = ask("pause --wait=1")
    assert (late.status, "1 jobs are still in hand" in late.err) == (1, True)
    meeting.let_go()
    done = ask("pause --wait")
    assert (done.status, done.out.splitlines()[-1]) == (0, "nothing is in hand any more")
    drained = ask("drain --wait --json")
    assert (drained.status, json.loads(drained.out.splitlines()[-1])) == (0, {"in_hand": 0})
    assert ask("drain").out == "no scheduler is active: there is nothing to drain\n"


# ---- psql


def test_psql_logs_in_as_the_commands_do(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, ask: Ask
) -> None:
    done = ask("psql -- -XAtc select(current_user)")
    assert (done.status, done.out) == (0, "drover_operator\n")


# ---- long waits


@pytest.mark.slow
def test_wait_shows_how_far_it_is_on_a_terminal(database: str, config: Path, active: psycopg.Connection) -> None:
    jobs = [insert(active) for _ in range(4)]
    finish(active, jobs[0])
    with on_terminal([*DROVER, "wait", *map(str, jobs)], environment(database, config)) as (terminal, process):
        terminal.until(f"{jobs[0]} noop done fine")
        terminal.until("1 of 4 jobs, ")
        terminal.until(" left")
        for job in jobs[1:]:
            finish(active, job)
            active.execute("select drover.announce(array[%s::bigint], array['done'])", (job,))
        text = terminal.read_all()
        assert (process.wait(), text.rstrip().endswith("noop done fine")) == (0, True)


@pytest.mark.slow
def test_wait_shows_nothing_but_ends_elsewhere(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    done = drover("wait", str(job), "--timeout", "1.2")
    assert (done.out, done.err) == ("", "drover: after 1.2 s, 1 of 1 jobs have not ended; see drover why\n")
