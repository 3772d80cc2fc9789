"""How far an SQL job is, and how long what waits takes: the same text in every command, on a real database."""

import json
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import CLAIM, DROVER, OWNER, Drover, environment, one
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import LOCAL, Meeting, rows
from tests.terminal_tools import on_terminal

RUNNING = """
update drover.jobqueue
   set jq_state = 'running', jq_itemsprocessed = 7678, jq_itemsfailed = 25, jq_itemstotal = 20000,
       jq_elapsedtime = '40 s', jq_expected_end = now() + interval '2 h'
 where jq_pk = %s
"""
FAR = "7,703 of 20,000 items, 25 failed, 193/s, about 2 h left"
TALLY = """
insert into drover.tally (tally_at, tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items,
                          tally_bins, tally_counts)
values (now() - %s::interval, %s, 'alpha', %s, 'normal', %s, 0, '{}', '{}')
"""


@pytest.fixture
def query(active: psycopg.Connection) -> int:
    """Return an SQL job that runs, and has done a part of its items."""
    insert_query = "insert into drover.jobqueue (jq_type, jq_msq, jq_args) values ('noop', true, %s) returning jq_pk"
    job = int(one(active.execute(insert_query, ("select n from generate_series(1, 20000) n",)))[0])
    active.execute(CLAIM, (OWNER, job))
    active.execute(RUNNING, (job,))
    return job


@pytest.mark.parametrize("words", ["ls", "show {job}", "why {job}"])
def test_each_command_says_how_far_an_sql_job_is_in_the_same_words(drover: Drover, query: int, words: str) -> None:
    assert FAR in drover(*words.format(job=query).split()).out


def test_ls_as_json_has_the_progress_and_its_numbers(drover: Drover, query: int) -> None:
    listed = json.loads(drover("ls", "--json").out)
    assert (listed["progress"], listed["processed"], listed["failed"], listed["total"]) == (FAR, 7678, 25, 20000)


def half_done(daemon: Daemon, meeting: Meeting) -> int:
    """Return an SQL job of four items, one of which has failed and one is in work."""
    query = "select n from generate_series(1, 4) n order by n"
    job = daemon.insert(jq_type="slow", jq_msq=True, jq_args=query, jq_tolerate=1)
    meeting.hear()
    daemon.until(lambda: daemon.row(job)["jq_itemsprocessed"] == 1)
    return job


def slow(meeting: Meeting) -> str:
    script = f'[ "$n" != 2 ] || echo FAIL no; if [ "$n" = 3 ]; then {meeting.tell("3")}; {meeting.wait}; fi;'
    return LOCAL + "[queues.default]\n" + rows("slow", script, window=1)


@pytest.mark.parametrize(
    ("words", "before"), [("wait {job}", "job {job}: running: "), ("top", "")], ids=["wait", "top"]
)
def test_terminal_shows_how_far_an_sql_job_is(
    launch: Launch, database_with_roles: str, config: Path, meeting: Meeting, words: str, before: str
) -> None:
    daemon = launch(slow(meeting))
    job = half_done(daemon, meeting)
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with on_terminal([*DROVER, *words.format(job=job).split()], variables, 24, 120) as (screen, _):
        screen.until(f"{before.format(job=job)}2 of 4 items, 1 failed, ")
        meeting.let_go()
        daemon.wait(job)
        screen.type("q")
        screen.read_all()


def test_job_of_one_parameter_and_a_query_that_has_not_begun_have_no_progress(
    drover: Drover, active: psycopg.Connection
) -> None:
    for is_query in (False, True):
        active.execute("insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('noop', 'x', %s)", (is_query,))
    listed = [json.loads(line)["progress"] for line in drover("ls", "--json").out.splitlines()]
    assert listed == [None, None]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ("0, 0, 9, '3 s', null", "0 of 9 items"),
        ("1, 0, 9, '20 s', null", "1 of 9 items, 3.0 a minute"),
        ("1, 1, 9, null, null", "2 of 9 items, 1 failed"),
        ("1, 0, null, '3 s', null", None),
    ],
)
def test_progress_leaves_out_what_is_not_known(active: psycopg.Connection, numbers: str, text: str | None) -> None:
    assert one(active.execute(f"select drover.progress({numbers})")) == (text,)


# how long what waits takes


def waiting(connection: psycopg.Connection, kind: str, jobs: int) -> None:
    connection.execute("insert into drover.jobqueue (jq_type) select %s from generate_series(1, %s)", (kind, jobs))


def test_stats_says_how_long_what_waits_takes(drover: Drover, active: psycopg.Connection) -> None:
    waiting(active, "noop", 5000)
    waiting(active, "sha256", 2)
    active.execute("insert into drover.jobqueue (jq_type, jq_not_before) values ('noop', now() + interval '2 days')")
    active.execute(TALLY, ("4 minutes", "noop", "done", 600))
    active.execute(TALLY, ("2 minutes", "noop", "failed", 400))
    active.execute(TALLY, ("1 minute", "noop", "cancelled", 90_000))
    lines = drover("stats").out.splitlines()
    assert lines[1] == "sha256: 2 wait, none has ended in the last hour"
    assert re.fullmatch(r"noop: 5,000 wait, 2[345]\d a minute: about 2\d min( \d+ s)?", lines[2])
    _, noop = json.loads(drover("stats", "--json").out)["estimates"]
    assert noop["seconds"] == pytest.approx(5000 * 60 / noop["per_minute"], rel=0.01)


def test_submit_with_eta_says_how_long_jobs_of_its_type_take(drover: Drover, active: psycopg.Connection) -> None:
    waiting(active, "noop", 500)
    waiting(active, "sha256", 7)
    active.execute(TALLY, ("30 minutes", "noop", "done", 30))
    done = drover("submit", "--eta", "noop", "x")
    assert (done.status, done.out.strip().isdigit()) == (0, True)
    assert re.fullmatch(r"drover: noop: 501 wait, (1|0.99) a minute: about 8 h 2[0-9] min\n", done.err)
