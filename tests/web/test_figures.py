"""Every figure of the overview is that of SQL over the rows, after a run of a daemon in front of a backlog."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.model.counters import BIN_ERROR
from scheduler.web.database_sessions import Login
from scheduler.web.pages import minutes_of
from scheduler.web.server import make_app
from tests.integration.daemon import Daemon, agent, python, rec, start
from tests.web.conftest import KEY, ORIGIN
from tests.web.test_pages import text_of

DONE, FAILED, OF_OTHERS, BACKLOG, BEHIND = 120, 15, 7, 25_000, 4
WORK_S = 0.02  # of an answer
ANSWERS = f"""
import time
print("OK", flush=True)
for line in iter(input, ""):
    time.sleep({WORK_S})
    print("FAIL api.example.org timed out\\nOK" if "bad" in line else "OK", flush=True)
"""
CONFIG = """
[scheduler]
status_interval = 1
[hosts.local]
max = 4
[queues.slow]
concurrency = 1
"""
FILL = """
insert into drover.jobqueue (jq_type, jq_args, jq_not_before)
select 'later', 'x', now() + interval '1 day' from generate_series(1, %s)
"""
# A job in each of 150 zones, which ended one after the other, the last one now.
IN_MANY_ZONES = """
insert into drover.jobqueue (jq_pk, jq_type, jq_state, jq_queued, jq_starttime, jq_endtime, jq_end_bits,
                             jq_submitter)
overriding system value
select n * 4096, 'noop', 'done', at, at, at, 1, 'drover_frontend'
  from generate_series(1, 150) n cross join lateral (select now() - n * interval '20 s' as at) t
"""
# Whose rows a login sees, of drover.jobs: without commands.
ALL, OWN = "jq_type <> 'command'", "jq_type <> 'command' and jq_submitter = 'drover_frontend'"
LOGINS = {"operator": ALL, "readonly": ALL, "frontend": OWN}
Tables = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def database(postgres: str, migrated_with_roles: str) -> Iterator[str]:
    """Yield a database of this module, which its daemon serves."""
    from tests.conftest import _database

    with _database(postgres, migrated_with_roles) as (_, conninfo):
        yield conninfo


@pytest.fixture(scope="module")
def daemon(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon that ended jobs, has one in hand, and has a backlog whose numbers are above theirs."""
    folder = tmp_path_factory.mktemp("figures")
    config = CONFIG + agent("answer", python(ANSWERS)) + agent("gate", rec(folder / "record"))
    with ExitStack() as stack:
        daemon = stack.enter_context(start(config, database))
        _work(daemon, folder / "gate")
        yield daemon
        (folder / "gate").touch()


def _work(daemon: Daemon, gate: Path) -> None:
    texts = [*["good"] * DONE, *["bad"] * FAILED]
    jobs = [{"jq_type": "answer", "jq_args": text, "jq_retries": -1} for text in texts]
    mine = daemon.insert_all(jobs, role="drover_frontend")
    others = daemon.insert_all(jobs[:OF_OTHERS])
    daemon.wait_all([*mine, *others], {"done", "failed"})
    waiting = {"jq_type": "gate", "jq_args": f"gate:{gate}", "jq_queue": "slow"}
    daemon.wait(daemon.insert(**waiting, role="drover_frontend"), "running")
    daemon.insert_all([waiting] * BEHIND, role="drover_frontend")
    daemon.execute(FILL, BACKLOG, role="drover_frontend")
    ended = len(mine) + len(others)
    counted = "select sum(tally_jobs) from drover.tally where tally_state in ('done', 'failed')"
    daemon.until(lambda: daemon.value(counted) == ended, what="the ends are not counted")
    alive = "select count(status_pid) from drover.scheduler_status where status_slot >= 0"
    daemon.until(lambda: daemon.value(alive) == len(daemon.agent_pids()), what="its agents are not shown")


@pytest.fixture(params=LOGINS)
def login(database: str, daemon: Daemon, request: pytest.FixtureRequest) -> str:
    return str(request.param)


def overview(database: str, login: str) -> str:
    app = make_app(make_conninfo(database, user=f"drover_{login}"), "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        client.post("/sign-in", data={"role": "", "password": KEY})
        return client.get("/").text


def tables(page: str) -> Tables:
    """Return the rows of each table of a page, by its name, each by its headings."""
    found = {}
    for name, html in re.findall(r'aria-label="([^"]*)"[^>]*><table>(.*?)</table>', page, re.DOTALL):
        heads = [text_of(cell).strip() for cell in re.findall(r"<th[^>]*>(.*?)</th>", html, re.DOTALL)]
        rows = re.findall(r"<tr>(.*?)</tr>", html.partition("</thead>")[2], re.DOTALL)
        cells = [[text_of(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows]
        found[name] = [dict(zip(heads, each, strict=False)) for each in cells]
    return found


def counted(daemon: Daemon, by: str, rows: str) -> dict[Any, dict[str, int]]:
    """Return how many jobs of these rows are in each state, for each value of `by`."""
    query = (
        f"select {by} as name, jq_state::text as state, count(*) as jobs from drover.jobs where {rows} group by 1, 2"
    )
    found: dict[Any, dict[str, int]] = {}
    for row in daemon.execute(query):
        found.setdefault(row["name"], {})[row["state"]] = row["jobs"]
    return found


def in_hand(states: dict[str, int]) -> int:
    return states.get("claimed", 0) + states.get("running", 0)


def test_tiles_of_states_are_the_counts_of_sql(daemon: Daemon, database: str, login: str) -> None:
    shown = re.findall(r'<b>([0-9,]+)</b> <span class="state s-[a-z]+">([a-z]+)<', overview(database, login))
    (states,) = counted(daemon, "true", LOGINS[login]).values()
    assert {name: int(count.replace(",", "")) for count, name in shown if count != "0"} == states
    assert states["queued"] >= BACKLOG


def test_plots_are_of_all_that_ended_behind_a_backlog(daemon: Daemon, database: str, login: str) -> None:
    access = Login(make_conninfo(database, user=f"drover_{login}"), is_visitor=False)
    with access.session() as session:
        rows = session.records("history")
    access.close_idle(0.0)
    (found,) = minutes_of([row | {"minute": 0} for row in rows])
    (wanted,) = daemon.execute(f"""
        select count(*) filter (where jq_state = 'done') as done, count(*) filter (where jq_state = 'failed') as failed,
               percentile_disc(array[0.5, 0.95]) within group (order by date_part('epoch', jq_endtime - jq_starttime))
                 filter (where jq_endtime is not null) as in_hand,
               percentile_disc(array[0.5, 0.95]) within group (order by date_part('epoch', jq_starttime - jq_queued))
                 as waited
          from drover.jobs where {LOGINS[login]} and jq_starttime is not null""")
    assert {name: found[name] for name in ("done", "failed")} == {name: wanted[name] for name in ("done", "failed")}
    for ran, in_hand in zip(found["ran"], wanted["in_hand"], strict=True):  # rows do not keep when their agent began
        assert WORK_S / (1 + BIN_ERROR) <= ran <= in_hand * (1 + BIN_ERROR)
    # Counters have the wait for the claim, rows that for the agent, which is longer.
    assert all(
        0 < shown <= of_rows * (1 + 2 * BIN_ERROR)
        for shown, of_rows in zip(found["waited"], wanted["waited"], strict=True)
    )


def test_each_type_has_the_counts_of_sql(daemon: Daemon, database: str, login: str) -> None:
    shown = {row["Type"]: row for row in tables(overview(database, login))["Agent types"]}
    types = counted(daemon, "jq_type", LOGINS[login])
    numbers = {kind: [shown[kind][name] for name in ("Queued", "In hand", "Done", "Failed")] for kind in types}
    assert {kind: [int(number.replace(",", "")) for number in row] for kind, row in numbers.items()} == {
        kind: [of.get("queued", 0), in_hand(of), of.get("done", 0), of.get("failed", 0)] for kind, of in types.items()
    }


def test_each_queue_has_the_counts_of_sql(daemon: Daemon, database: str, login: str) -> None:
    shown = tables(overview(database, login))["Queues"]
    queues = counted(daemon, "coalesce(jq_queue, 'default')", LOGINS[login])
    assert {row["Queue"]: [int(row[name].replace(",", "")) for name in ("In hand", "Queued")] for row in shown} == {
        name: [in_hand(queues.get(name, {})), queues.get(name, {}).get("queued", 0)] for name in ("default", "slow")
    }


def test_lines_of_plots_have_the_names_of_statistics(daemon: Daemon, database: str, login: str) -> None:
    page = unescape(overview(database, login))
    assert page.count('data-labels="["median", "95th percentile"]"') == 2


def test_page_of_a_failed_job_says_why_above_it_and_in_its_log_alone(daemon: Daemon, database: str) -> None:
    (job, *_) = daemon.execute("select jq_pk, jq_endtext from drover.jobs where jq_state = 'failed' limit 1")
    app = make_app(make_conninfo(database, user="drover_operator"), "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        client.post("/sign-in", data={"role": "", "password": KEY})
        page = client.get(f"/jobs/{job['jq_pk']}").text
    assert "timed out" in job["jq_endtext"]
    assert text_of(page).count(job["jq_endtext"]) == 2
    assert page.partition("<h2>Log</h2>")[2].count(job["jq_endtext"]) == 1
    assert "<progress" not in page  # it is one item


def test_slots_are_cells_by_host_and_type(daemon: Daemon, database: str) -> None:
    page = overview(database, "operator")
    cells = re.findall(r'<(?:a|span) class="cell t-(ST_[A-Z]+)"[^>]* title="slot (\d+): (ST_[A-Z]+) for ', page)
    rows = daemon.execute("select status_slot, status_state_name from drover.scheduler_status where status_slot >= 0")
    slots = sorted((row["status_state_name"], str(row["status_slot"]), row["status_state_name"]) for row in rows)
    assert sorted(cells) == slots
    kinds = re.findall(r'<span class="kind">([a-z]+)</span> <span class="dim">([^<]*)<', page)
    running = daemon.value("select jq_pk from drover.jobs where jq_state = 'running'")
    assert ("gate", f"1 of {sum(row['status_agent'] == 'gate' for row in statuses(daemon))} busy") in kinds
    assert f'href="/jobs/{running}"' in page.partition('class="slots"')[2]


def statuses(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.execute("select * from drover.scheduler_status where status_slot >= 0")


def test_hosts_and_types_have_the_agents_of_sql(daemon: Daemon, database: str) -> None:
    shown = tables(overview(database, "operator"))
    query = (
        "select {} as name, count(status_pid) as agents from drover.scheduler_status where status_slot >= 0 group by 1"
    )
    for table, column, by in (("Hosts", "Host", "status_host"), ("Agent types", "Type", "status_agent")):
        agents = {row["name"]: row["agents"] for row in daemon.execute(query.format(by))}
        assert {row[column]: int(row["Agents"]) for row in shown[table] if row[column] in agents} == agents


def test_plot_of_own_jobs_begins_after_what_it_did_not_read(web_database: str, rows: psycopg.Connection) -> None:
    rows.execute("alter table drover.jobqueue disable trigger user")
    rows.execute(IN_MANY_ZONES)
    rows.execute("alter table drover.jobqueue enable trigger user")
    rows.execute("select drover.recount(0, 1000)")
    wanted = rows.execute(
        "select min(jq_endtime), count(*) from drover.jobqueue where jq_endtime >= date_trunc('minute', ("
        "select jq_endtime from drover.jobqueue order by jq_endtime desc offset 100 limit 1)) + interval '1 minute'"
    ).fetchone()
    with psycopg.connect(make_conninfo(web_database, user="drover_frontend")) as login:
        seen = login.execute(
            "select min(tally_at), count(*) from drover.our_tally where tally_state = 'done'"
        ).fetchone()
    assert seen == wanted
    assert seen
    assert 90 < seen[1] <= 100
