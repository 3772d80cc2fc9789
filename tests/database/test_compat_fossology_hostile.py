"""The views of schema/compat/fossology.sql against other logins, other sessions at the same time, and many rows."""

from collections.abc import Iterator
from threading import Thread

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege, NoDataFound, ObjectInUse

from tests.connection_tools import member
from tests.fossology_tools import (
    INSERT_EDGE,
    INSERT_STEP,
    RESET,
    SQL,
    FrontEnd,
    build_views,
    chain,
    commands,
    connected,
    finish,
)
from tests.schema_tools import Connection, fetch_all, fetch_one

TRIGGERS = [f"{what}_{view}" for view in ("job", "step", "edge") for what in ("insert", "update", "delete")]
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and pg_blocking_pids(pid) <> '{}'"
OPEN = "select count(*) from drover.jobqueue where jq_type = '{}' and jq_endtime is null"


@pytest.fixture
def queue(compat: str) -> Iterator[Connection]:
    with psycopg.connect(compat, autocommit=True) as connection:
        yield connection


@pytest.fixture
def other(compat: str) -> Iterator[Connection]:
    """Yield the connection of another login."""
    with connected(compat, "drover_frontend") as connection:
        yield connection


# ---- other logins


def test_step_is_not_hidden_by_a_job_of_another_that_names_it(
    ui: FrontEnd, queue: Connection, other: Connection
) -> None:
    _, (first, second) = chain(ui, "a", "b")
    finish(queue, first)
    other.execute("insert into drover.jobqueue (jq_type, jq_resubmit_of) values ('evil', %s)", (first,))
    assert fetch_all(ui.connection, "SELECT jq_pk, jq_type FROM jobqueue ORDER BY 1;") == [(first, "a"), (second, "b")]
    assert ui.edges() == [(second, first)]
    ui.run(RESET, first)
    assert fetch_one(queue, OPEN.format("a")) == 1


@pytest.mark.parametrize(
    "function",
    [
        "remove(1)",
        "defer('{1}')",
        "ended_below(1)",
        "move_edges('{1}', '{1}', '{}')",
        *(f"{name}()" for name in TRIGGERS),
    ],
)
def test_functions_that_act_with_more_rights_are_not_called_by_a_front_end(other: Connection, function: str) -> None:
    other.execute("create temp table mine (job_pk bigint)")
    name = f"fossology_compat.{function}"
    trigger = f"create trigger t after delete on mine for each row execute function {name}"
    with pytest.raises(InsufficientPrivilege):
        other.execute((trigger if function.endswith("()") else f"select {name}").encode())


def test_operator_resets_no_step_of_another_by_mistake(compat: str, ui: FrontEnd, queue: Connection) -> None:
    _, (step,) = chain(ui, "a")
    finish(queue, step)
    with connected(compat, "drover_operator") as operator, pytest.raises(NoDataFound, match="of yours"):
        operator.execute("select fossology_compat.reset(%s)", (step,))


def test_login_that_may_insert_no_sql_any_more_resets_none(compat: str, queue: Connection) -> None:
    with member(compat, "drover_frontend_sql", 9), connected(compat, "drover_frontend_sql_9") as connection:
        ui = FrontEnd(connection)
        ui.run(INSERT_STEP, ui.job(), "license", SQL, "no", "'host'")
        finish(queue, 1)
        queue.execute("revoke drover_frontend_sql from drover_frontend_sql_9")
        queue.execute("grant drover_frontend to drover_frontend_sql_9")
        with pytest.raises(InsufficientPrivilege, match="is SQL, which drover_frontend_sql_9 may not insert"):
            ui.run(RESET, 1)


@pytest.mark.parametrize(("column", "length"), [("job_name", 2_001), ("job_email_notify", 1_100_000)])
def test_update_of_a_job_lets_in_no_more_than_its_insert(ui: FrontEnd, column: str, length: int) -> None:
    ui.job()
    with pytest.raises(CheckViolation, match=r"bytes, and \d+ are let in"):
        ui.run(f"UPDATE job SET {column} = repeat('x', {length});")


def test_views_work_where_only_another_database_has_roles(database: str, database_with_roles: str) -> None:
    build_views(database)
    with connected(database, "postgres") as connection:
        ui = FrontEnd(connection)
        _, (first, second) = chain(ui, "a", "b")
        finish(connection, first)
        ui.run(RESET, first)
        assert ui.edges() == [(second, first)]
        ui.run("DELETE FROM job;")
        assert fetch_one(connection, "select count(*) from drover.jobqueue") == 0


# ---- priorities


def test_priority_that_was_changed_back_before_it_took_effect_is_the_first_again(
    ui: FrontEnd, queue: Connection
) -> None:
    _, (step,) = chain(ui, "a")
    for change in ("+ 1", "- 1"):
        ui.run(f"UPDATE job SET job_priority = job_priority {change};")
    assert commands(queue) == [f"priority {step} m", f"priority {step} n"]


def test_new_name_of_a_job_leaves_the_priority_that_an_operator_gave(ui: FrontEnd, queue: Connection) -> None:
    chain(ui, "a")
    queue.execute("update drover.jobqueue set jq_priority = 'a'")
    ui.run("UPDATE job SET job_name = 'new';")
    assert commands(queue) == []


def test_step_that_is_reset_has_the_priority_that_its_job_has_now(ui: FrontEnd, queue: Connection) -> None:
    _, (step,) = chain(ui, "a")
    finish(queue, step)
    ui.run("UPDATE job SET job_priority = 5;")
    ui.run(RESET, step)
    assert fetch_one(queue, "select jq_priority from drover.jobqueue where jq_endtime is null") == "i"
    assert fetch_one(queue, "select count(*) from drover.claimable where claim_rank = '1i'") == 1


# ---- steps that wait


def test_step_whose_edge_was_deleted_waits_until_it_may_be_deleted_too(ui: FrontEnd, queue: Connection) -> None:
    _, (_, second, third) = chain(ui, "a", "b", "c")
    queue.execute("update drover.jobqueue set jq_wait_until = null")
    ui.run("DELETE FROM jobdepends WHERE jdep_jq_fk = '{}';", second)
    ui.run("DELETE FROM jobqueue WHERE jq_pk = '{}';", second)
    query = "select jq_wait_until > now() and jq_unmet = 0 from drover.jobqueue where jq_type in ('b', 'c')"
    assert fetch_all(queue, query) == [(True,)]
    ui.run("DELETE FROM jobqueue WHERE jq_pk = '{}';", third)


def test_step_that_waits_for_one_that_is_worked_comes_free_when_that_is_deleted(
    ui: FrontEnd, queue: Connection
) -> None:
    _, (first, second) = chain(ui, "a", "b")
    queue.execute(
        "update drover.jobqueue set jq_state = 'running', jq_attempt = 1, jq_owner = gen_random_uuid(), "
        "jq_starttime = now(), jq_wait_until = null where jq_pk = %s",
        (first,),
    )
    ui.run("DELETE FROM jobqueue WHERE jq_pk = '{}';", first)
    assert fetch_one(queue, "select jq_unmet from drover.jobqueue where jq_pk = %s", second) == 0


def test_step_that_waits_for_a_failed_one_waits_for_it_again(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    finish(queue, first, "failed")
    ui.run(RESET, first)
    assert ui.edges() == [(second, first)]
    assert fetch_one(queue, "select jq_unmet from drover.jobqueue where jq_pk = %s", second) == 1
    finish(queue, first)
    assert fetch_one(queue, "select jq_unmet from drover.jobqueue where jq_pk = %s", second) == 0


# ---- many rows, and several sessions


@pytest.mark.slow
@pytest.mark.parametrize("where", ["jq_pk = '77'", "jq_job_fk = '7'"])
def test_steps_are_found_by_an_index_among_many(ui: FrontEnd, queue: Connection, where: str) -> None:
    ui.run("SET fossology_compat.edges_follow = '1 h'")
    ui.run("INSERT INTO job (job_name) SELECT n::text FROM generate_series(1, 50) n;")
    ui.run("INSERT INTO jobqueue (jq_job_fk, jq_type) SELECT 1 + n % 50, 'a' FROM generate_series(1, 5000) n;")
    queue.execute("analyze drover.jobqueue")
    queue.execute("set session authorization drover_frontend_sql")
    plan = fetch_all(queue, f"explain select * from fossology_compat.jobqueue where {where}")
    assert [line for (line,) in plan if "Subquery Scan" in line and "rows=5000" in line] == []


@pytest.mark.slow
def test_chain_of_a_thousand_steps_is_reset(ui: FrontEnd, queue: Connection) -> None:
    ui.run("SET fossology_compat.edges_follow = '1 h'")
    job = ui.job()
    ui.run("INSERT INTO jobqueue (jq_job_fk, jq_type) SELECT {}, 'a' FROM generate_series(1, 1000);", job)
    ui.run("INSERT INTO drover.jobdepends SELECT n + 1, n FROM generate_series(1, 999) n;")
    queue.execute("set session_replication_role = replica")
    queue.execute(
        "update drover.jobqueue set jq_state = 'done', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 1,"
        " jq_attempt = 1, jq_unmet = 0, jq_wait_until = null"
    )
    queue.execute("update drover.jobdepends set jdep_met_at = now()")
    ui.run(RESET, 1)
    assert fetch_one(queue, OPEN.format("a")) == 1000
    assert fetch_one(queue, "select count(*) from drover.jobqueue where jq_unmet = 1") == 999
    assert len(ui.edges()) == 999


def test_steps_that_two_sessions_reset_at_once_are_run_once(compat: str, ui: FrontEnd, queue: Connection) -> None:
    job = ui.job()
    first, second = ui.step(job, "a"), ui.step(job, "b")
    both = ui.step(job, "c", after=(first, second))
    for step in (first, second, both):
        finish(queue, step)
    with connected(compat, "drover_frontend_sql") as connection:
        late = Thread(target=FrontEnd(connection).run, args=(RESET, second))
        with ui.connection.transaction():
            ui.run(RESET, first)
            late.start()
            while late.is_alive() and fetch_one(queue, WAITING) == 0:
                pass
        late.join()
    assert [fetch_one(queue, OPEN.format(kind)) for kind in "abc"] == [1, 1, 1]
    assert ui.edges() == [(both, first), (both, second)]


def test_step_that_ends_while_its_parent_is_reset_is_told_of(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    finish(queue, first)
    again = fetch_one(ui.connection, "select drover.job_resubmit(%s)", first)
    finish(queue, second)
    function = "fossology_compat.move_edges"
    queue.execute(f"grant execute on function {function} to drover_frontend_sql".encode())
    with pytest.raises(ObjectInUse, match="has just begun: try again"):
        ui.run(f"SELECT {function}(ARRAY[{first}::bigint], ARRAY[{again}::bigint], ARRAY[{second}::bigint])")


def test_step_of_a_group_that_depends_on_one_of_another_group_is_reset_with_it(ui: FrontEnd, queue: Connection) -> None:
    first, second = ui.step(ui.job("one"), "a"), ui.step(ui.job("two"), "b")
    ui.run(INSERT_EDGE, second, first)
    for step in (first, second):
        finish(queue, step)
    ui.run(RESET, first)
    assert [ui.column(step, "jq_end_bits") for step in (first, second)] == [0, 0]
    assert ui.edges() == [(second, first)]
