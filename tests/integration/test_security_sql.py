"""Attacks through SQL and notifications, each tried for real (threats 12 to 17 of the model).

What one function can show alone stands with that function: grants in database/test_roles, what a process inherits in
drivers/test_spawn, limits of queries in drivers/test_queries, who may read files in unit/test_cli_config_files.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.daemon.wakeups import BURST
from scheduler.model.config import Scheduler
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec, start
from tests.integration.puppets import ASKING

HOST = "[hosts.alpha]\n"


# ---- SQL of jobs (12, 13)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    types = agent("rec", rec(record)) + agent("asking", ASKING, db="sql")
    types += agent("guarded", rec(record), submitters=["drover_operator"])
    with start(HOST + types, module_database) as daemon:
        daemon.execute("create table public.site (n int)")
        daemon.execute("grant all on public.site to drover_msq")
        daemon.execute("create function public.writes() returns int language sql as"
                       " 'insert into public.site values (1) returning n'")  # fmt: skip
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Iterator[Daemon]:
    """Yield the shared daemon; after each test nothing of the site has changed, and it serves."""
    record.write_text("")
    yield shared
    shared.wait(shared.insert(jq_type="rec", jq_args="still here"))
    assert shared.value("select count(*) from public.site") == 0


BREAK_OUT = {
    "select * from drover.jobqueue": "permission denied for schema drover",
    "select * from drover.my_jobs": "permission denied for schema drover",
    "select drover.command('shutdown now')": "permission denied for schema drover",
    "select nextval('drover.jobqueue_jq_pk_seq')": "permission denied for schema drover",
    "select set_config('role', 'drover_scheduler', false)": "permission denied to set role",
    "select set_config('session_authorization', 'drover_scheduler', false)": "permission denied to set session auth",
    "select set_config('transaction_read_only', 'off', true), public.writes()":
        "read-write mode must be set before any query",
    "select set_config('default_transaction_read_only', 'off', false), public.writes()": "in a read-only transaction",
    "select public.writes()": "cannot execute INSERT in a read-only transaction",
    "with w as (insert into public.site values (1) returning n) select n from w": "data-modifying statement",
    "select set_config('temp_file_limit', '-1', false)": 'permission denied to set parameter "temp_file_limit"',
    "select n from public.site for update": "SELECT FOR UPDATE in a read-only transaction",
    "select nextval('public.numbers')": r"cannot execute nextval\(\) in a read-only transaction",
    "select pg_read_file('/etc/passwd') as text": "permission denied for function pg_read_file",
    "select lo_import('/etc/passwd')": "permission denied for function lo_import",
    "select rolpassword from pg_authid": "permission denied for table pg_authid",
    "select pg_reload_conf()": "permission denied for function pg_reload_conf",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'": "must be a member",
    "select 1 as n; update public.site set n = 2": "syntax error",
    "select 1 as n) q; commit; insert into public.site values (1); select * from (select 2 as n": "multiple commands",
    "select 1 as n\n) q; notify drover_queue; --": "syntax error",
    "copy public.site to program 'touch /tmp/drover'": "syntax error",
    "table public.site; reset role": "syntax error",
    "do $$ begin end $$": "syntax error",
}  # fmt: skip


@pytest.mark.parametrize("query", BREAK_OUT)
def test_sql_of_a_job_cannot_break_out(daemon: Daemon, record: Path, query: str) -> None:
    daemon.execute("create sequence if not exists public.numbers")
    daemon.execute("grant usage on public.numbers to drover_msq")
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True), "failed")
    assert re.search(BREAK_OUT[query], row["jq_endtext"])
    assert lines(record) == []


def test_sql_of_a_job_leaves_no_setting_to_the_next(daemon: Daemon, record: Path) -> None:
    query = "select set_config('search_path', 'evil', false) as path, set_config('drover.left', 'x', false) as left"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True))
    record.write_text("")
    query = "select current_setting('search_path') as path, current_setting('drover.left', true) as left"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True))
    assert lines(record) in (['path="\\"\\$user\\", public"'], ['path="\\"\\$user\\", public" left=""'])


def test_sql_of_a_job_cannot_fill_the_disk_of_the_server(launch: Launch, record: Path) -> None:
    daemon = launch(HOST + agent("rec", rec(record)))
    name = daemon.value("select current_database()")
    daemon.execute(f"alter role drover_msq in database {name} set temp_file_limit = '1MB'")
    query = "select n, repeat('x', 100) as v from generate_series(1, 1000000) n"
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True), "failed")
    assert "temporary file size exceeds temp_file_limit" in row["jq_endtext"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select set_config('statement_timeout', '0', false), pg_sleep(600)::text", "the query ran longer than 2 s"),
        ("select count(*) from generate_series(1, 10) a, generate_series(1, 1000000000) b", "ran longer than 2 s"),
        ("select n from generate_series(1, 1001) n", "the query gives 1001 rows, and msq_rows allows 1000"),
        ("select repeat('x', 100000) as v from generate_series(1, 100)", "more bytes than msq_bytes allows, 1000000"),
        ("select repeat('x', 30000000) as v", "more bytes than msq_bytes allows, 1000000"),
    ],
)
def test_sql_of_a_job_keeps_to_the_limits(launch: Launch, record: Path, query: str, reason: str) -> None:
    limits = "[scheduler]\nexpansion_limit = 2\nmsq_rows = 1000\nmsq_bytes = 1000000\n"
    daemon = launch(limits + HOST + agent("rec", rec(record)))
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True), "failed")
    assert reason in row["jq_endtext"]
    running = "select count(*) from pg_stat_activity where usename = 'drover_msq' and state = 'active'"
    daemon.until(lambda: daemon.value(running) == 0)
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select 1 as n", jq_msq=True))


# ---- SQL of agents (14)


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("select * from drover.jobqueue", "permission denied for schema drover"),
        ("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'shutdown')", "permission denied"),
        ("set role drover_scheduler", "permission denied to set role"),
        ("set session authorization postgres", "permission denied to set session authorization"),
        ("reset session authorization; select 1", "cannot insert multiple commands"),
        ("select * from public.site", "permission denied for table site"),
        ("create table public.mine (n int)", "permission denied for schema public"),
        ("copy (select 1) to program 'touch /tmp/drover'", "must be superuser|permission denied"),
        ("copy public.site from stdin", "permission denied"),
        ("alter role drover_agentdb superuser", "must be superuser|permission denied"),
        ("select pg_terminate_backend(pid) from pg_stat_activity where usename ~ 'scheduler'", "must be a member"),
        ("select pg_sleep(600)", "canceling statement due to statement timeout"),
    ],
)  # fmt: skip
def test_agent_sql_reaches_only_what_the_site_granted(
    launch: Launch, daemon: Daemon, statement: str, answer: str
) -> None:
    at = daemon
    if "pg_sleep" in statement:
        at = launch("[scheduler]\nstatement_limit = 0.5\n" + HOST + agent("asking", ASKING, db="sql"))
    row = at.wait(at.insert(jq_type="asking", jq_args=statement), "failed")
    assert re.match(f"ERROR .*({answer})", row["jq_endtext"])


# ---- the queue (15)


def test_job_of_a_role_that_may_not_queue_its_type_never_reaches_an_agent(daemon: Daemon, record: Path) -> None:
    pk = daemon.insert(jq_type="guarded", jq_args="mine", role="drover_frontend")
    row = daemon.wait(pk, "failed")
    assert row["jq_endtext"] == "role drover_frontend may not queue agent type guarded"
    assert lines(record) == []


def test_job_inserted_by_copy_is_checked_for_its_submitter(daemon: Daemon, record: Path) -> None:
    ui = daemon.login("drover_frontend_sql")
    with ui.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copy:
        copy.write("guarded\tone\nguarded\ttwo\nrec\tours\n")
    count = (
        "select count(*) from drover.jobqueue where jq_type = 'guarded' and jq_args in ('one', 'two') and jq_state = %s"
    )
    daemon.until(lambda: daemon.value(count, "failed") == 2)
    assert daemon.until(lambda: lines(record) == ["ours"])


def test_query_of_a_role_that_may_not_queue_its_type_is_not_run(daemon: Daemon, record: Path) -> None:
    pk = daemon.insert(jq_type="guarded", jq_args="select 1 as n", jq_msq=True)
    assert "may not queue" in daemon.wait(pk, "failed")["jq_endtext"]
    assert lines(record) == []


@pytest.fixture
def alice(daemon: Daemon) -> Iterator[str]:
    """Yield a login of somebody's own."""
    daemon.execute("create role alice login in role drover_frontend")
    yield "alice"
    daemon.login("alice").close()
    daemon.execute("drop role alice")


def test_operator_may_queue_a_type_restricted_to_operators(daemon: Daemon, record: Path) -> None:
    daemon.wait(daemon.insert(jq_type="guarded", jq_args="his", role="drover_operator"))
    assert lines(record) == ["his"]


def test_member_of_a_role_may_queue_the_types_of_the_role(daemon: Daemon, alice: str, record: Path) -> None:
    refused = daemon.insert(jq_type="guarded", jq_args="too early", role=alice)
    assert daemon.wait(refused, "failed")["jq_endtext"] == "role alice may not queue agent type guarded"
    daemon.execute("grant drover_operator to alice")
    daemon.wait(daemon.insert(jq_type="guarded", jq_args="hers", role=alice))
    assert lines(record) == ["hers"]


def test_dropped_submitter_role_has_no_rights(daemon: Daemon, record: Path) -> None:
    daemon.execute("create role bob login in role drover_operator")
    bob = daemon.login("bob")
    bob.execute("insert into drover.jobqueue (jq_type, jq_args, jq_state) values ('guarded', 'late', 'held')")
    bob.close()
    daemon.execute("drop role bob")
    pk = daemon.value("select jq_pk from drover.jobqueue where jq_args = 'late'")
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", pk)
    assert daemon.wait(pk, "failed")["jq_endtext"] == "role bob may not queue agent type guarded"


@pytest.mark.parametrize(
    "statement",
    [
        "copy drover.jobqueue (jq_type, jq_submitter) from stdin",
        "copy drover.jobqueue (jq_type, jq_msq) from stdin",
        "copy drover.jobqueue to stdout",
        "copy drover.jobqueue (jq_args) to stdout",
        "copy drover.jobqueue (jq_type) from program 'echo noop'",
        "lock table drover.jobqueue in access share mode",
        "lock table drover.claimable",
        "select jq_pk from drover.jobqueue for update",
        "select jq_pk from drover.jobqueue for key share",
        "insert into drover.jobqueue (jq_type) values ('a') on conflict (jq_name) do update set jq_key = ''",
        "create trigger mine before insert on drover.jobqueue for each row execute function drover.wake('x')",
        "alter table drover.jobqueue disable trigger all",
        "set session_replication_role = replica",
        "set role drover_operator",
        "set session authorization drover_operator",
        "alter role drover_frontend in role drover_operator",
        "grant drover_operator to drover_frontend",
        "create schema drover_frontend",
        "create table public.jobqueue (jq_pk int)",
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'",
        "select pg_cancel_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'",
    ],
)  # fmt: skip
def test_front_end_can_neither_forge_rows_nor_block_the_daemon(daemon: Daemon, statement: str) -> None:
    ui = daemon.login("drover_frontend")
    with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.SyntaxError)), ui.transaction():
        ui.execute(statement.encode())


def test_advisory_lock_of_another_role_does_not_block_edges(daemon: Daemon) -> None:
    """Any role may take any advisory lock, so inserting an edge takes none."""
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    watcher, ui = daemon.login("drover_readonly"), daemon.login("drover_frontend_sql")
    ui.execute("set lock_timeout = '5s'")
    with watcher.transaction(), ui.transaction():
        watcher.execute("select pg_advisory_xact_lock(hashtext('drover.jobdepends'))")
        parent, child = (daemon.insert(jq_type="none", jq_args="x", jq_state="held") for _ in range(2))
        ui.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
        assert daemon.value(held, ui.info.backend_pid) == 0
    assert daemon.row(child)["jq_unmet"] == 1


@pytest.mark.slow
def test_a_child_locked_by_its_owner_delays_no_other_job(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(HOST + agent("rec", rec(tmp_path / "record")))
    child, sister, other, parent = (daemon.insert(jq_type="rec", jq_state="held") for _ in range(4))
    edge = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
    ui = daemon.login("drover_frontend_sql")
    ui.execute(edge, (child, parent))
    ui.execute(edge, (sister, parent))
    with ui.transaction():
        ui.execute(edge, (child, other))
        daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = any (%s)", [sister, parent])
        daemon.wait_all([parent, sister])
        daemon.wait_all(
            daemon.insert_all([{"jq_type": "rec", "jq_args": str(n)} for n in range(200)], role="drover_frontend")
        )
        assert daemon.row(child)["jq_unmet"] == 1
    daemon.until(lambda: met(daemon, child) == [False, True])
    assert "lock timeout" not in daemon.stderr()


@pytest.mark.slow
def test_jobs_in_hand_locked_by_their_owner_delay_no_other_job(launch: Launch, tmp_path: Path) -> None:
    """Whoever adds a job that depends on 200 jobs keeps them locked until it commits."""
    gate, record = tmp_path / "gate", tmp_path / "record"
    daemon = launch("[scheduler]\nhold = 5\n" + HOST + agent("rec", rec(record)) + agent("other", rec(record)))
    queue = "insert into drover.jobqueue (jq_type, jq_args) select 'rec', unnest(%s::text[]) returning jq_pk"
    for args in ["x"] * 2000, [f"gate:{gate}", *["x"] * 200]:  # the first show how many are worked in five seconds
        jobs = [row["jq_pk"] for row in daemon.execute(queue, args, role="drover_frontend_sql")]
        daemon.until(
            lambda: daemon.value("select bool_and(jq_state in ('claimed', 'running', 'done')) from drover.jobqueue")
        )
    ui = daemon.login("drover_frontend_sql")
    with ui.transaction():
        child = daemon.insert(jq_type="rec", jq_args="child")
        edges = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select %s, unnest(%s::bigint[])"
        ui.execute(edges, (child, jobs))
        gate.touch()
        daemon.until(lambda: len(lines(record)) == 2000 + len(jobs))
        for n in range(20):
            daemon.wait(daemon.insert(role="drover_frontend", jq_type="other", jq_args=str(n)))
        assert (
            daemon.value("select count(*) from drover.jobqueue where jq_pk = any (%s) and jq_state = 'done'", jobs) == 0
        )
    daemon.wait_all([*jobs, child])
    assert len(lines(record)) == 2000 + len(jobs) + 20 + 1


def met(daemon: Daemon, child: int) -> list[bool]:
    """Return whether each dependency of a job is met, the older parent first."""
    query = """select jdep_met_at is not null as is_met from drover.jobdepends where jdep_jq_fk = %s
                order by jdep_jq_depends_fk"""
    return [row["is_met"] for row in daemon.execute(query, child)]


# ---- names and wake-ups (16, 17)


@pytest.mark.slow
def test_daemon_resolves_no_names_in_schemas_of_others(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(HOST + agent("rec", rec(tmp_path / "record")))
    daemon.execute("create table public.seen (path text)")
    daemon.execute("""create function public.spy() returns trigger language plpgsql as $$
        begin insert into public.seen select current_setting('search_path'); return null; end $$""")
    daemon.execute("grant insert on public.seen to drover_scheduler")
    for table in ("jobqueue", "scheduler_status", "scheduler_group"):
        daemon.execute(f"create trigger spy after update on drover.{table} execute function public.spy()")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="x"))
    daemon.until(lambda: daemon.value("select count(*) from public.seen") > 4)
    daemon.stop()
    assert [row["path"] for row in daemon.execute("select distinct path from public.seen")] == ["pg_catalog, pg_temp"]


def asked(daemon: Daemon) -> dict[str, int]:
    """Return how often the daemon has asked what, as it says itself."""
    return {name: stat["count"] for name, stat in daemon.vitals()["statements"].items()}


def flooded(database: str, role: str, channel: str, stop: Event) -> int:
    """NOTIFY as fast as one connection can, until stopped; how often that was."""
    count = 0
    with psycopg.connect(make_conninfo(database, user=role), autocommit=True) as connection:
        while not stop.is_set():
            connection.execute(f"notify {channel}, '{count}'".encode())
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channel", "statement"),
    [("drover_queue", "end_and_claim"), ("drover_change", "read_shared_settings"), ("drover_due", "due")],
)
def test_flood_of_notifications_causes_at_most_ten_polls_a_second(
    launch: Launch, tmp_path: Path, channel: str, statement: str
) -> None:
    record = tmp_path / "record"
    daemon = launch(HOST + agent("rec", rec(record)))
    daemon.wait(daemon.insert(jq_type="rec", jq_args="before"))
    told: list[int] = []
    stop = Event()
    floods = [
        Thread(target=lambda role=role: told.append(flooded(daemon.database, role, channel, stop)))
        for role in ("drover_msq", "drover_readonly")
    ]
    before, began = asked(daemon), time.monotonic()
    for flood in floods:
        flood.start()
    try:
        daemon.until(lambda: time.monotonic() - began > 3)
        daemon.wait(daemon.insert(jq_type="rec", jq_args="during"))
    finally:
        stop.set()
        for flood in floods:
            flood.join()
    daemon.until(lambda: asked(daemon).get("show_status", 0) > before.get("show_status", 0) + 2)
    polls = asked(daemon)[statement] - before.get(statement, 0)
    gap_s = Scheduler().wake_interval
    most = (time.monotonic() - began) / gap_s + BURST + 20  # a few are asked for the job, the status and the clock
    print(f"{channel}: {sum(told)} notifications, {polls} {statement}, {most:.0f} allowed")
    assert polls < most < sum(told)
