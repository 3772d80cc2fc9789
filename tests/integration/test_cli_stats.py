"""drover stats, on a real database, and once by the real daemon."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler.cli.database_session import Session
from scheduler.cli.stats import LOG_LINES, QUANTILES, REASONS
from scheduler.model.counters import BIN_BOUNDS, BIN_ERROR, quantile
from tests.cli_tools import Drover, finish, insert, run_as, write_log
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import LOCAL, puppet, settings

ENDED = """
update drover.jobqueue
   set jq_queued = now() - %s::interval - make_interval(secs => %s), jq_starttime = now() - %s::interval,
       jq_endtime = now() - %s::interval + make_interval(secs => %s), jq_done_host = %s
 where jq_pk = %s
"""
FEW, MANY = 600, 12_000  # jobs that have ended
JOBS = 101  # so that each quantile is the time of a job


def end(connection: psycopg.Connection, kind: str, waited: float, ran: float, **more: Any) -> int:
    """Queue a job that started `ago`, after so many seconds, on a host, and ran so many."""
    job = insert(connection, kind)
    finish(connection, job, more.get("state", "done"), 2 if "state" in more else 1, more.get("text", "fine"))
    ago = more.get("ago", timedelta(minutes=10))
    connection.execute(ENDED, (ago, waited, ago, ago, ran, more.get("host", "alpha"), job))
    return job


def recount(connection: psycopg.Connection) -> None:
    """Count what `end` ended, since no daemon did."""
    connection.execute("select drover.recount_ends()")


def stats(drover: Drover, words: str = "") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(drover("stats", "--json", *words.split()).out)
    return told


def test_stats_has_rates_and_times_of_each_type(drover: Drover, active: psycopg.Connection) -> None:
    for ran in range(1, 101):
        end(active, "noop", waited=ran / 10, ran=ran)
    end(active, "sha256", waited=0, ran=2)
    end(active, "noop", waited=5, ran=5, ago=timedelta(hours=3))
    recount(active)
    told = stats(drover)
    assert (told["ended"], told["failed"], told["per_minute"]) == (101, 0, pytest.approx(101 / 60, abs=0.05))
    noop, sha256 = told["types"]
    assert (noop["type"], noop["ended"], sha256["ended"]) == ("noop", 100, 1)
    assert [noop[f"ran_{q}"] for q in ("p50", "p95", "p99")] == pytest.approx([50.5, 95.05, 99.01], rel=BIN_ERROR)
    assert [noop[f"waited_{q}"] for q in ("p50", "p95", "p99")] == pytest.approx([5.05, 9.505, 9.901], rel=BIN_ERROR)


def test_stats_since_chooses_by_the_end(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", waited=0, ran=1, ago=timedelta(hours=3))
    recount(active)
    assert [stats(drover, f"--since {since}")["ended"] for since in ("1h", "4h")] == [0, 1]
    done = drover("stats", "--since", "soon")
    assert (done.status, "--since: 'soon' is neither a duration" in done.err) == (2, True)


def test_stats_shows_the_slowest_agents_first(drover: Drover, active: psycopg.Connection) -> None:
    for host, ran in (("alpha", 1), ("beta", 60), ("gamma", 5)):
        end(active, "noop", waited=0, ran=ran, host=host)
    recount(active)
    assert [each["host"] for each in stats(drover)["agents"]] == ["beta", "gamma", "alpha"]


def test_jobs_that_never_started_are_on_no_slow_agent(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", waited=0, ran=1)
    finish(active, insert(active, "noop"), "cancelled", 2, "cancelled")
    recount(active)
    told = stats(drover)
    assert [(each["host"], each["ended"]) for each in told["agents"]] == [("alpha", 1)]
    assert told["ended"] == 2


def test_failure_of_a_job_that_is_done_since_has_no_text(drover: Drover, active: psycopg.Connection) -> None:
    job = end(active, "noop", 0, 1, state="failed", text="exit status 3")
    recount(active)
    active.execute("set session_replication_role = replica")  # it was retried, which counts the failure no less
    active.execute("update drover.jobqueue set jq_state = 'done', jq_end_bits = 1, jq_endtext = 'all data processed'")
    active.execute("set session_replication_role = origin")
    (failure,) = stats(drover)["failures"]
    assert (failure["newest"], failure["jobs"], failure["text"]) == (job, 1, None)


def test_stats_has_the_age_of_the_backlog_of_each_queue(drover: Drover, active: psycopg.Connection) -> None:
    insert(active)
    active.execute("update drover.jobqueue set jq_queued = now() - interval '1 hour'")
    insert(active)
    (backlog,) = stats(drover)["backlog"]
    assert (backlog["queue"], backlog["jobs"], backlog["oldest"] >= 3600) == ("default", 2, True)


def test_stats_shows_the_most_frequent_texts_of_failures_with_their_counts(
    drover: Drover, active: psycopg.Connection
) -> None:
    for text, jobs in (("no such file /a/1", 2), ("connection 7 timed out", 4), ("one", 1), ("zebra", 1)):
        for n in range(jobs):
            end(active, "noop", 0, 1, state="failed", text=text.replace("7", str(n)))
    end(active, "noop", 0, 1, state="failed", text="timeout: ran longer than 5 s")
    recount(active)
    (found,) = [row for row in stats(drover)["failures"] if row["code"] == "agent_error"]
    assert found["texts"] == [
        {"jobs": 4, "text": "connection 3 timed out"}, {"jobs": 2, "text": "no such file /a/1"},
        {"jobs": 1, "text": "one"},
    ]  # fmt: skip
    shown = drover("stats").out
    assert "4 x connection 3 timed out; 2 x no such file /a/1; 1 x one\n" in shown
    assert "timeout: ran longer than 5 s\n" in shown


def test_stats_groups_failures_by_code_with_the_newest_job(drover: Drover, active: psycopg.Connection) -> None:
    jobs = [end(active, "noop", 0, 1, state="failed", text=f"exit status 3: {n}") for n in range(2)]
    recount(active)
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
    recount(active)
    lines = drover("stats").out.splitlines()
    assert lines[0].startswith("1 job ended in 1 h, since ")
    assert "12 ms / 12 ms / 12 ms  3 min 21 s / 3 min 21 s / 3 min 21 s" in lines[4]


def test_stats_of_an_empty_queue_says_so(drover: Drover, connection: psycopg.Connection) -> None:
    assert drover("stats").out.startswith("0 jobs ended in 1 h, since ")


@pytest.mark.parametrize(("role", "ended", "errors"), [("readonly", 2, None), ("frontend", 1, [])])
def test_stats_counts_what_the_role_sees(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, role: str, ended: int, errors: Any
) -> None:
    finish(active_for_roles, insert(active_for_roles, args="secret"), "failed", 2, "secret")
    finish(active_for_roles, int(run_as(database_with_roles, config, "frontend", "submit noop mine").out))
    recount(active_for_roles)
    done = run_as(database_with_roles, config, role, "stats --json")
    told = json.loads(done.out)
    assert (told["ended"], told["errors"], "secret" in done.out, len(told["unseen"])) == (ended, errors, False, 1)


STATEMENTS = ["ended_stats", "failure_stats", "error_stats", "history"]
VALUES = {"since": "2001-01-01", "limit": REASONS, "most": LOG_LINES}
# Jobs that were done or failed in the last hour, by 3 types on 2 hosts.
ENDS = """
insert into drover.jobqueue (jq_type, jq_state, jq_attempt, jq_queued, jq_starttime, jq_endtime, jq_end_bits,
                             jq_endtext, jq_done_host)
select 'kind' || n %% 3, case n %% 4 when 0 then 'failed' else 'done' end::drover.job_state, 1,
       now() - interval '59 min', now() - interval '58 min' + (n %% 7) * interval '1 s',
       now() - interval '57 min' + (n %% 50) * interval '1 min' + (n %% 11) * interval '1 s',
       case n %% 4 when 0 then 2 else 1 end, 'exit status 3', 'host' || n %% 2
  from generate_series(1, %s) n
"""


def pages(connection: psycopg.Connection, name: str, **values: Any) -> int:
    """Return the pages that a statement of the commands looks at, when it runs again."""
    text, parameters = Session(connection)._permitted(name, VALUES | values)
    return pages_of(connection, text, parameters)


def pages_of(connection: psycopg.Connection, text: bytes, parameters: Sequence[Any] = ()) -> int:
    explain = b"explain (analyze, buffers, timing off, format json) " + text
    for _ in range(2):
        ((((plan,)),),) = psycopg.RawCursor(connection).execute(explain, parameters).fetchall()
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


@pytest.mark.parametrize("name", STATEMENTS)
def test_stats_looks_at_no_more_pages_beside_many_ended_jobs(active: psycopg.Connection, name: str) -> None:
    active.execute("insert into drover.agent (agent_group, agent_type) select 'default', 'kind' || n"
                   " from generate_series(0, 2) n")  # fmt: skip
    active.execute("set session_replication_role = replica")  # rows that have ended, without their story
    active.execute(ENDS.encode(), (FEW,))
    recount(active)
    active.execute("vacuum analyze drover.tally, drover.jobqueue")
    few = pages(active, name)
    active.execute(ENDS.encode(), (MANY,))
    recount(active)
    active.execute("vacuum full drover.tally")
    active.execute("vacuum analyze drover.tally, drover.jobqueue")
    assert pages(active, name) <= few + 20


SPANS = """
insert into drover.tally (tally_at, tally_span, tally_type, tally_host, tally_state, tally_code, tally_jobs,
                          tally_items, tally_bins, tally_counts)
select now() - n * interval '1 s', span, 'noop', 'alpha', 'done', 'normal', 1, 1, '{1}', '{1}'
  from generate_series(1, 6000) n, (values (interval '1 minute'), ('1 hour'), ('1 day')) s(span)
"""


def test_folding_reads_only_the_spans_that_are_over(active: psycopg.Connection) -> None:
    fold = b"select drover.fold_tally(10000)"
    few = pages_of(active, fold)
    active.execute(SPANS)
    assert pages_of(active, fold) <= few + 20


@pytest.mark.parametrize("name", ["log_rows", "page_of_log", "job_log"])
def test_log_of_a_job_is_read_by_its_index_in_a_table_never_analyzed(active: psycopg.Connection, name: str) -> None:
    lines = """insert into drover.log (log_jq_fk, log_type, log_message) select n / 3 + 2, 'LOG', 'a line of the log'
                 from generate_series(1, 20000) n"""
    active.execute(lines)
    values = {"job": 1, "after": 0, "limit": 1, "before": None, "kind": None, "text": None}
    assert pages(active, name, **values) <= 10


def test_bins_of_times_are_the_same_in_the_daemon_and_in_the_database(active: psycopg.Connection) -> None:
    seconds = [0.0, -1.0, 1e9, float("inf"), *(bound * 1.01 for bound in BIN_BOUNDS)]
    query = "select drover.time_bin(s) from unnest(%s::float8[]) with ordinality as u(s, n) order by n"
    assert [bin for (bin,) in active.execute(query, (seconds,))] == [bisect_left(BIN_BOUNDS, each) for each in seconds]


def test_middle_of_a_bin_is_within_the_error() -> None:
    for low, high in pairwise(BIN_BOUNDS):
        middle = quantile({bisect_left(BIN_BOUNDS, high): 1}, 0.5)
        assert [low, high] == pytest.approx([middle] * 2, rel=BIN_ERROR)


def test_folded_spans_count_the_same(drover: Drover, active: psycopg.Connection) -> None:
    for hours in (0, 1, 5, 30, 300, 3000):
        ago = timedelta(hours=hours, minutes=3)
        end(active, "noop", 1, 2 + hours, ago=ago)
        end(active, "noop", 1, 2, ago=ago, state="failed", text="exit status 3")
    recount(active)
    folded = stats(drover, "--since 9000h")
    active.execute("delete from drover.tally")
    active.execute("select drover.count_ends(array_agg(jq_pk), array_agg(jq_state::text)) from drover.jobqueue")
    counted = stats(drover, "--since 9000h")
    spans = "select tally_span::text, count(*) from drover.tally group by 1"
    assert active.execute(spans).fetchall() == [("00:00:00", 7)]
    assert [folded[key] for key in ("ended", "failed")] == [counted[key] for key in ("ended", "failed")] == [12, 6]
    assert [folded["types"][0][f"ran_{q}"] for q in QUANTILES] == [counted["types"][0][f"ran_{q}"] for q in QUANTILES]
    assert folded["failures"] == counted["failures"]


def test_older_ends_are_folded_into_hours_and_days(drover: Drover, active: psycopg.Connection) -> None:
    for hours in (0, 1, 5, 30, 300, 3000):
        for minutes in (3, 5):
            end(active, "noop", 1, 1, ago=timedelta(hours=hours, minutes=minutes))
    recount(active)
    rows = "select tally_span::text, sum(tally_jobs)::integer from drover.tally where tally_state = 'done' group by 1"
    assert dict(active.execute(rows).fetchall()) == {"00:01:00": 4, "01:00:00": 4, "1 day": 4}
    assert stats(drover, "--since 3000d")["ended"] == 12
    active.execute("update drover.tally set tally_at = tally_at - interval '400 days'")
    active.execute("select drover.fold_tally(1000)")
    assert stats(drover, "--since 3000d")["ended"] == 0


def test_stats_says_since_when_it_counts(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", 1, 1, ago=timedelta(hours=5))
    recount(active)
    ((hour,),) = active.execute("select extract(epoch from tally_at) from drover.tally where tally_state = 'done'")
    (since,) = active.execute("select to_char(to_timestamp(%s) + interval '59 min', 'YYYY-MM-DD HH24:MI')", (hour,))
    told = stats(drover, f"--since {since[0].replace(' ', 'T')}")
    assert (told["ended"], datetime.fromisoformat(told["since"]).timestamp()) == (1, hour)


def test_ends_of_removed_jobs_stay_counted(drover: Drover, active: psycopg.Connection) -> None:
    end(active, "noop", 0, 1, state="failed", text="exit status 3")
    recount(active)
    active.execute("select drover.flush_jobs(array_agg(jq_pk)) from drover.jobqueue")
    told = stats(drover)
    assert (told["ended"], told["failures"][0]["jobs"], told["failures"][0]["text"]) == (1, 1, None)


def ended(ask: Ask, kind: str) -> dict[str, Any]:
    """Return the figures of a type; 0 have ended if there are none."""
    found = [row for row in json.loads(ask("stats --json").out)["types"] if row["type"] == kind]
    return found[0] if found else {"ended": 0}


def test_stats_of_a_daemon_at_work(launch: Launch, ask: Ask) -> None:
    daemon = launch(settings(status_interval=0.2) + LOCAL + puppet())
    daemon.wait_all(daemon.insert_all([{"jq_type": "puppet", "jq_args": f"# {n}"} for n in range(20)]))
    daemon.until(lambda: ended(ask, "puppet")["ended"] == 20, what="20 ends are not counted")
    puppets = ended(ask, "puppet")
    assert (puppets["failed"], puppets["items"]) == (0, 20)
    assert 0 < puppets["ran_p50"] <= puppets["ran_p95"] <= puppets["ran_p99"]


QUEUED = """
insert into drover.jobqueue (jq_type, jq_args, jq_queued)
select %s, line, now() - n * interval '10 s' from unnest(%s::text[]) with ordinality as u(line, n) returning jq_pk
"""
WAITED = """
select percentile_cont(array[0.5, 0.95, 0.99]) within group (order by extract(epoch from jq_starttime - jq_queued)) as w
  from drover.jobqueue where jq_type = 'puppet'
"""
RAN = "select counter_value from drover.counters where counter_name = 'ran_seconds' and counter_labels = '{puppet}'"
BINS = """
select bin, sum(n)::integer as jobs from drover.tally cross join lateral unnest(tally_bins, tally_counts) as u(bin, n)
 where tally_type = 'puppet' and tally_state = 'done' group by 1
"""


def test_counted_ends_are_those_of_the_rows(launch: Launch, ask: Ask) -> None:
    daemon = launch(LOCAL + puppet(slots=30) + puppet("broken"))
    naps = [n * 37 % JOBS * 0.015 for n in range(JOBS)]
    jobs = [row["jq_pk"] for row in daemon.execute(QUEUED, "puppet", [f"sleep {nap}" for nap in naps])]
    jobs += [row["jq_pk"] for row in daemon.execute(QUEUED, "broken", ["echo FAIL it broke"] * 10)]
    daemon.wait_all(jobs, {"done", "failed"})
    daemon.stop()
    puppets, broken = ended(ask, "puppet"), ended(ask, "broken")
    assert [puppets[key] for key in ("ended", "failed", "items")] == [JOBS, 0, JOBS]
    assert [broken[key] for key in ("ended", "failed")] == [10, 10]
    assert [puppets[f"waited_{q}"] for q in QUANTILES] == pytest.approx(daemon.value(WAITED), rel=BIN_ERROR)
    # Rows have the time of their saves too, so how long jobs ran is compared with what the daemon has added up.
    in_bins = sum(row["jobs"] * quantile({row["bin"]: 1}, 0.5) for row in daemon.execute(BINS))
    assert in_bins == pytest.approx(daemon.value(RAN), rel=BIN_ERROR)
    for name, part in QUANTILES.items():
        assert puppets[f"ran_{name}"] >= sorted(naps)[round(part * (JOBS - 1))] * (1 - BIN_ERROR)
