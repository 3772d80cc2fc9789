"""drover stats, on a real database, and once by the real daemon."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler.cli.database_session import Session
from scheduler.cli.stats import LOG_LINES, REASONS
from tests.cli_tools import Drover, finish, insert, run_as, write_log
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import LOCAL, puppet

ENDED = """
update drover.jobqueue
   set jq_queued = now() - %s::interval - make_interval(secs => %s), jq_starttime = now() - %s::interval,
       jq_endtime = now() - %s::interval + make_interval(secs => %s), jq_done_host = %s
 where jq_pk = %s
"""
JOBS = 400


def end(connection: psycopg.Connection, kind: str, waited: float, ran: float, **more: Any) -> int:
    """Queue a job that started `ago`, after so many seconds, on a host, and ran so many."""
    job = insert(connection, kind)
    finish(connection, job, more.get("state", "done"), 2 if "state" in more else 1, more.get("text", "fine"))
    ago = more.get("ago", timedelta(minutes=10))
    connection.execute(ENDED, (ago, waited, ago, ago, ran, more.get("host", "alpha"), job))
    return job


def stats(drover: Drover, words: str = "") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(drover("stats", "--json", *words.split()).out)
    return told


def test_stats_has_rates_and_times_of_each_type(drover: Drover, active: psycopg.Connection) -> None:
    for ran in range(1, 101):
        end(active, "noop", waited=ran / 10, ran=ran)
    end(active, "sha256", waited=0, ran=2)
    end(active, "noop", waited=5, ran=5, ago=timedelta(hours=3))
    told = stats(drover)
    assert (told["ended"], told["failed"], told["per_minute"]) == (101, 0, pytest.approx(101 / 60, abs=0.01))
    noop, sha256 = told["types"]
    assert (noop["type"], noop["ended"], sha256["ended"]) == ("noop", 100, 1)
    assert [noop[f"ran_{q}"] for q in ("p50", "p95", "p99")] == pytest.approx([50.5, 95.05, 99.01])
    assert [noop[f"waited_{q}"] for q in ("p50", "p95", "p99")] == pytest.approx([5.05, 9.505, 9.901])


def test_stats_since_chooses_by_the_end(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", waited=0, ran=1, ago=timedelta(hours=3))
    assert [stats(drover, f"--since {since}")["ended"] for since in ("1h", "4h")] == [0, 1]
    done = drover("stats", "--since", "soon")
    assert (done.status, "--since: no interval 'soon'" in done.err) == (2, True)


def test_stats_shows_the_slowest_agents_first(drover: Drover, active: psycopg.Connection) -> None:
    for host, ran in (("alpha", 1), ("beta", 60), ("gamma", 5)):
        end(active, "noop", waited=0, ran=ran, host=host)
    assert [each["host"] for each in stats(drover)["agents"]] == ["beta", "gamma", "alpha"]


def test_stats_has_the_age_of_the_backlog_of_each_queue(drover: Drover, active: psycopg.Connection) -> None:
    insert(active)
    active.execute("update drover.jobqueue set jq_queued = now() - interval '1 hour'")
    insert(active)
    (backlog,) = stats(drover)["backlog"]
    assert (backlog["queue"], backlog["jobs"], backlog["oldest"] >= 3600) == ("default", 2, True)


def test_stats_groups_failures_by_code_with_the_newest_job(drover: Drover, active: psycopg.Connection) -> None:
    jobs = [end(active, "noop", 0, 1, state="failed", text=f"exit status 3: {n}") for n in range(2)]
    write_log(active, jobs[0], "it broke", "ERROR")
    write_log(active, jobs[0], "it went on")
    told = stats(drover)
    (failure,) = told["failures"]
    assert (failure["type"], failure["jobs"], failure["newest"], failure["text"]) == (
        "noop", 2, jobs[1], "exit status 3: 1",
    )  # fmt: skip
    (error,) = told["errors"]
    assert (error["host"], error["agent"], error["errors"], error["message"]) == ("alpha", "noop", 1, "it broke")


def test_stats_is_read_by_people_in_units_that_fit(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", waited=0.012, ran=200)
    lines = drover("stats").out.splitlines()
    assert lines[0].endswith(": 1 job ended, 0.02 a minute; 0 failed")
    assert "12 ms / 12 ms / 12 ms  3 min 20 s / 3 min 20 s / 3 min 20 s" in lines[4]


def test_stats_of_an_empty_queue_says_so(drover: Drover, connection: psycopg.Connection) -> None:
    assert drover("stats").out.endswith(": 0 jobs ended; 0 failed\n")


@pytest.mark.parametrize(("role", "ended", "errors"), [("readonly", 2, None), ("frontend", 1, [])])
def test_stats_counts_what_the_role_sees(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, role: str, ended: int, errors: Any
) -> None:
    finish(active_for_roles, insert(active_for_roles, args="secret"), "failed", 2, "secret")
    finish(active_for_roles, int(run_as(database_with_roles, config, "frontend", "submit noop mine").out))
    done = run_as(database_with_roles, config, role, "stats --json")
    told = json.loads(done.out)
    assert (told["ended"], told["errors"], "secret" in done.out, len(told["unseen"])) == (ended, errors, False, 1)


def scans(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the tables that a plan read, each with the rows that it looked at there."""
    if "Relation Name" in node:
        looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield node["Relation Name"], round(looked_at * node["Actual Loops"])
    for each in node.get("Plans", ()):
        yield from scans(each)


@pytest.mark.parametrize("name", ["ended_stats", "failure_stats", "error_stats", "backlog"])
def test_statements_of_stats_read_each_row_once(active: psycopg.Connection, name: str) -> None:
    active.execute("insert into drover.jobqueue (jq_type) select 'kind' || n %% 9 from generate_series(1, %s) n",
                   (JOBS,))  # fmt: skip
    active.execute(
        """update drover.jobqueue set jq_state = 'failed', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
                  jq_endtext = 'x' where jq_pk %% 2 = 0""".replace("%%", "%")
    )
    active.execute("analyze drover.jobqueue")
    values = {"since": "2001-01-01", "limit": REASONS, "most": LOG_LINES}
    text, parameters = Session(active)._permitted(name, values)
    explain = b"explain (analyze, format json) " + text
    ((((plan,)),),) = psycopg.RawCursor(active).execute(explain, parameters).fetchall()
    read = dict.fromkeys(("jobqueue", "log"), 0)
    for table, rows in scans(plan["Plan"]):
        read[table] = read.get(table, 0) + rows
    newest = 9 if name == "failure_stats" else 0  # whose texts are read
    assert read["jobqueue"] <= JOBS + newest


def test_stats_of_a_daemon_at_work(launch: Launch, ask: Ask) -> None:
    daemon = launch(LOCAL + puppet())
    daemon.wait_all(daemon.insert_all([{"jq_type": "puppet", "jq_args": f"# {n}"} for n in range(20)]))
    (puppets,) = json.loads(ask("stats --json").out)["types"]
    assert (puppets["type"], puppets["ended"], puppets["failed"]) == ("puppet", 20, 0)
    assert 0 < puppets["ran_p50"] <= puppets["ran_p95"] <= puppets["ran_p99"]
