"""The views of schema/compat/fossology.sql under the statements of the original front-end: quoted values, a `;` at the
end, keys that are read back by selecting what was inserted.
"""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.errors import FeatureNotSupported, ForeignKeyViolation, InsufficientPrivilege, NoDataFound, ObjectInUse

from scheduler.database import migrate
from tests.fossology_tools import (
    FIND_STEP,
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


@pytest.fixture
def queue(compat: str) -> Iterator[Connection]:
    with psycopg.connect(compat, autocommit=True) as connection:
        yield connection


# ---- inserts


def test_job_is_read_back_as_it_was_inserted_f1(ui: FrontEnd) -> None:
    job = ui.job()
    columns = "job_priority, job_email_notify, job_name, job_upload_fk, job_folder_fk, job_user_fk"
    assert fetch_all(ui.connection, f"SELECT {columns} FROM job WHERE job_pk = '{job}';") == [
        (0, "fossy@example.org", "scan", 7, 1, 2)
    ]


def test_key_is_returned_too(ui: FrontEnd) -> None:
    job = fetch_one(ui.connection, "INSERT INTO job (job_name) VALUES ('x') RETURNING job_pk")
    step = fetch_one(ui.connection, "INSERT INTO jobqueue (jq_job_fk, jq_type) VALUES (%s, 'a') RETURNING jq_pk", job)
    assert ui.column(step, "jq_job_fk") == job


def test_step_is_read_back_as_it_was_inserted_f14(ui: FrontEnd) -> None:
    step = ui.step(ui.job(), "unpack", "5")
    columns = "jq_type, jq_args, jq_repeat, jq_runonpfile, jq_starttime, jq_endtime, jq_end_bits, jq_itemsprocessed"
    assert fetch_all(ui.connection, f"SELECT {columns} FROM jobqueue WHERE jq_pk = '{step}';") == [
        ("unpack", "5", "no", None, None, None, 0, 0)
    ]


def test_step_with_a_column_to_run_on_is_a_query_f17(ui: FrontEnd, queue: Connection) -> None:
    job = ui.job()
    ui.run(INSERT_STEP, job, "license", SQL, "yes", "'host'")
    step = ui.ask(FIND_STEP, job, "license", SQL)
    assert ui.column(step, "jq_repeat") == "yes"
    row = fetch_all(queue, "select jq_msq, jq_repeat, jq_runonpfile from drover.jobqueue where jq_pk = %s", step)
    assert row == [(True, True, "host")]


def test_step_waits_a_moment_for_its_edges(ui: FrontEnd, queue: Connection) -> None:
    step = ui.step(ui.job(), "a")
    query = "select jq_wait_until between now() and now() + interval '2 s' from drover.jobqueue where jq_pk = %s"
    assert fetch_one(queue, query, step)
    ui.run("SET fossology_compat.edges_follow = '0 s'")
    other = ui.step(ui.job("other"), "b")
    assert fetch_one(queue, "select jq_wait_until is null from drover.jobqueue where jq_pk = %s", other)


def test_edge_that_is_inserted_twice_is_one_f4(ui: FrontEnd) -> None:
    _, (first, second) = chain(ui, "a", "b")
    ui.run(INSERT_EDGE, second, first)
    assert ui.edges() == [(second, first)]


def test_front_end_without_sql_inserts_no_query_f27(compat: str) -> None:
    with connected(compat, "drover_frontend") as connection:
        ui = FrontEnd(connection)
        job = ui.job()
        assert ui.step(job, "unpack")
        with pytest.raises(InsufficientPrivilege):
            ui.run(INSERT_STEP, job, "license", SQL, "no", "'host'")


@pytest.mark.parametrize(
    ("column", "value", "advice"),
    [
        ("jq_pk", "5", "the database numbers rows"),
        ("jq_end_bits", "'1'", "leave them out"),
        ("jq_starttime", "now()", "leave them out"),
        ("jq_repeat", "'often'", "'yes' or 'no'"),
        ("jq_repeat", "'yes'", "name a column in jq_runonpfile"),
    ],
)
def test_insert_beyond_the_views_names_the_column_and_what_to_do(
    ui: FrontEnd, column: str, value: str, advice: str
) -> None:
    job = ui.job()
    with pytest.raises(FeatureNotSupported, match=f"jobqueue.*{column}.* cannot be written so: .*{advice}"):
        ui.run(f"INSERT INTO jobqueue (jq_job_fk, jq_type, {column}) VALUES ('{job}', 'a', {value});")


def test_step_of_no_job_is_refused(ui: FrontEnd) -> None:
    with pytest.raises(ForeignKeyViolation, match="no job 999 of yours"):
        ui.step(999, "a")


# ---- what becomes of a step


@pytest.mark.parametrize(("state", "bits"), [("done", 1), ("failed", 2)])
def test_end_shows_in_end_bits_f41(ui: FrontEnd, queue: Connection, state: str, bits: int) -> None:
    step = ui.step(ui.job(), "a")
    finish(queue, step, state)
    assert ui.column(step, "jq_end_bits") == bits
    assert ui.column(step, "jq_endtime IS NOT NULL AND jq_starttime IS NOT NULL") is True
    assert fetch_all(ui.connection, "SELECT jq_pk FROM jobqueue WHERE jq_end_bits > 1;") == [(step,)] * (bits - 1)


def test_step_that_is_reset_runs_again_under_its_number_with_its_dependants(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second, third) = chain(ui, "a", "b", "c")
    for step in (first, second):
        finish(queue, step)
    finish(queue, third, "failed")
    ui.run(RESET, first)
    assert [ui.column(step, "jq_end_bits") for step in (first, second, third)] == [0, 0, 0]
    assert ui.edges() == [(second, first), (third, second)]
    unmet = "select jq_unmet from drover.jobqueue join fossology_compat.latest on latest_pk = jq_pk where step_pk = %s"
    assert [fetch_one(queue, unmet, step) for step in (first, second, third)] == [0, 1, 1]
    finish(queue, first)
    assert [fetch_one(queue, unmet, step) for step in (first, second, third)] == [0, 0, 1]
    assert [ui.column(step, "jq_end_bits") for step in (first, second, third)] == [1, 0, 0]


def test_step_may_be_reset_again_and_again(ui: FrontEnd, queue: Connection) -> None:
    step = ui.step(ui.job(), "a")
    for state in ("done", "failed", "done"):
        finish(queue, step, state)
        ui.run(RESET, step)
        assert ui.column(step, "jq_end_bits") == 0
    assert fetch_one(queue, "select count(*) from drover.jobqueue where jq_type = 'a'") == 4
    assert fetch_all(ui.connection, "SELECT jq_pk FROM jobqueue;") == [(step,)]


def test_step_that_was_reset_is_found_when_its_first_job_was_flushed(ui: FrontEnd, queue: Connection) -> None:
    step = ui.step(ui.job(), "a")
    finish(queue, step)
    ui.run(RESET, step)
    fetch_all(queue, "select drover.remove_jobs(array[%s::bigint])", step)
    assert fetch_all(ui.connection, f"SELECT jq_pk FROM jobqueue WHERE jq_pk = '{step}';") == [(step,)]
    finish(queue, step)
    ui.run(RESET, step)
    assert fetch_all(ui.connection, "SELECT jq_pk, jq_end_bits FROM jobqueue;") == [(step, 0)]


def test_step_that_waits_for_two_is_reset_with_either(ui: FrontEnd, queue: Connection) -> None:
    job = ui.job()
    first, second = ui.step(job, "a"), ui.step(job, "b")
    both = ui.step(job, "c", after=(first, second))
    for step in (first, second, both):
        finish(queue, step)
    ui.run("UPDATE jobqueue SET jq_starttime = NULL, jq_endtime = NULL, jq_end_bits = '0' WHERE jq_job_fk = '{}';", job)
    assert ui.edges() == [(both, first), (both, second)]
    assert fetch_one(queue, "select count(*) from drover.jobqueue where jq_type in ('a', 'b', 'c')") == 6


def test_step_that_waits_is_reset_without_effect(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    ui.run(RESET, second)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 2
    assert ui.edges() == [(second, first)]


def test_step_that_is_worked_is_not_reset(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    finish(queue, first)
    queue.execute(
        "update drover.jobqueue set jq_state = 'running', jq_attempt = 1, jq_owner = gen_random_uuid(), "
        "jq_starttime = now(), jq_wait_until = null where jq_pk = %s",
        (second,),
    )
    for step in (first, second):  # with a dependant that is worked, too
        with pytest.raises(ObjectInUse, match=f"jobqueue row {second} is being worked: set its jq_end_bits to 2"):
            ui.run(
                "UPDATE jobqueue SET jq_end_bits = '0', jq_starttime = NULL, jq_endtime = NULL WHERE jq_pk = {};", step
            )


def test_end_bits_of_a_step_that_waits_skip_it_or_fail_it(ui: FrontEnd, queue: Connection) -> None:
    job = ui.job()
    first, second = ui.step(job, "a"), ui.step(job, "b")
    ui.run("UPDATE jobqueue SET jq_end_bits = '1', jq_starttime = now(), jq_endtime = now() WHERE jq_pk = '{}';", first)
    ui.run("UPDATE jobqueue SET jq_end_bits = '2', jq_endtext = 'Killed' WHERE jq_pk = '{}';", second)
    assert commands(queue) == [f"ice {first}", f"cancel {second} Killed"]


def test_step_that_failed_may_be_skipped(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    finish(queue, first, "failed")
    ui.run("UPDATE jobqueue SET jq_end_bits = '1' WHERE jq_pk = '{}';", first)
    again = fetch_one(queue, "select max(jq_pk) from drover.jobqueue where jq_type = 'a'")
    assert commands(queue) == [f"ice {again}"]
    assert again > second
    assert ui.edges() == [(second, first)]


@pytest.mark.parametrize(
    ("assignment", "column", "advice"),
    [
        ("jq_args = 'other'", "jq_args", "insert another"),
        ("jq_type = 'other'", "jq_type", "insert another"),
        ("jq_end_bits = '3'", "jq_end_bits", "0 resets a row, 1 skips it, 2 ends it"),
        ("jq_starttime = now()", "jq_starttime", "the scheduler writes them"),
    ],
)
def test_update_beyond_the_views_names_the_column_and_what_to_do(
    ui: FrontEnd, assignment: str, column: str, advice: str
) -> None:
    step = ui.step(ui.job(), "a")
    with pytest.raises(FeatureNotSupported, match=f"jobqueue.*{column}.* cannot be written so: .*{advice}"):
        ui.run(f"UPDATE jobqueue SET {assignment} WHERE jq_pk = '{step}';")


# ---- priority


@pytest.mark.parametrize(
    ("priority", "letter"), [(0, "n"), (1, "m"), (-1, "o"), (13, "a"), (14, "Z"), (49, "0"), (99, "0"), (-50, "z")]
)
def test_more_job_priority_is_sooner_f20(ui: FrontEnd, queue: Connection, priority: int, letter: str) -> None:
    job = ui.ask("INSERT INTO job (job_name, job_priority) VALUES ('x', '{}') RETURNING job_pk", priority)
    step = ui.step(job, "a")
    assert fetch_one(queue, "select jq_priority from drover.jobqueue where jq_pk = %s", step) == letter


def test_new_job_priority_moves_what_is_queued_f20(ui: FrontEnd, queue: Connection) -> None:
    job, (first, second) = chain(ui, "a", "b")
    finish(queue, first)
    ui.run("UPDATE job SET job_priority = job_priority + 1 WHERE job_pk = '{}';", job)
    assert fetch_one(ui.connection, f"SELECT job_priority FROM job WHERE job_pk = '{job}';") == 1
    assert commands(queue) == [f"priority {second} m"]


def test_other_columns_of_a_job_may_change(ui: FrontEnd) -> None:
    job = ui.job()
    ui.run("UPDATE job SET job_name = 'new', job_user_fk = '9', job_email_notify = NULL WHERE job_pk = '{}';", job)
    query = f"SELECT job_name, job_user_fk, job_email_notify, job_upload_fk FROM job WHERE job_pk = '{job}';"
    assert fetch_all(ui.connection, query) == [("new", 9, None, 7)]
    with pytest.raises(FeatureNotSupported, match="job_queued cannot be written so"):
        ui.run("UPDATE job SET job_queued = '2001-01-01' WHERE job_pk = '{}';", job)


# ---- delete


def test_deleted_job_goes_with_all_it_has(ui: FrontEnd, queue: Connection) -> None:
    job, (first, _) = chain(ui, "a", "b")
    finish(queue, first)
    queue.execute("insert into drover.log (log_jq_fk, log_type, log_message) values (%s, 'LOG', 'x')", (first,))
    other = ui.step(ui.job("other"), "c")
    ui.run("DELETE FROM job WHERE job_pk = '{}';", job)
    assert fetch_all(queue, "select jq_pk from drover.jobqueue") == [(other,)]
    assert fetch_all(queue, "select job_name from drover.job") == [("other",)]
    assert fetch_one(queue, "select count(*) from drover.log") == 0
    assert ui.edges() == []


def test_deleted_step_releases_what_waits_for_it(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    ui.run("DELETE FROM jobqueue WHERE jq_pk = '{}';", first)
    assert fetch_one(queue, "select jq_unmet from drover.jobqueue where jq_pk = %s", second) == 0


def test_deleted_edge_releases_what_waits(ui: FrontEnd, queue: Connection) -> None:
    _, (first, second) = chain(ui, "a", "b")
    ui.run("DELETE FROM jobdepends WHERE jdep_jq_fk = '{}';", second)
    assert fetch_one(queue, "select jq_unmet from drover.jobqueue where jq_pk = %s", second) == 0
    assert ui.column(first, "jq_end_bits") == 0


def test_deleted_job_that_is_worked_is_cancelled_and_seen_no_more(ui: FrontEnd, queue: Connection) -> None:
    job = ui.job()
    step = ui.step(job, "a")
    queue.execute(
        "update drover.jobqueue set jq_state = 'running', jq_attempt = 1, jq_owner = gen_random_uuid(), "
        "jq_starttime = now(), jq_wait_until = null where jq_pk = %s",
        (step,),
    )
    ui.run("DELETE FROM job WHERE job_pk = '{}';", job)
    assert commands(queue) == [f"cancel {step} deleted"]
    assert fetch_all(ui.connection, "SELECT * FROM jobqueue;") == fetch_all(ui.connection, "SELECT * FROM job;") == []


def test_step_that_was_reset_is_deleted_with_its_jobs(ui: FrontEnd, queue: Connection) -> None:
    step = ui.step(ui.job(), "a")
    finish(queue, step)
    ui.run(RESET, step)
    ui.run("DELETE FROM jobqueue WHERE jq_pk = '{}';", step)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 0


# ---- others


def test_front_end_sees_and_changes_nothing_of_another_t113(compat: str, ui: FrontEnd, queue: Connection) -> None:
    job, (first, second) = chain(ui, "a", "b")
    with connected(compat, "drover_frontend") as connection:
        other = FrontEnd(connection)
        for view in ("job", "jobqueue", "jobdepends"):
            assert fetch_all(connection, f"SELECT * FROM {view};") == []
        for table in ("job", "jobqueue", "jobdepends"):
            other.run(f"DELETE FROM {table};")
        with pytest.raises(ForeignKeyViolation, match="of yours"):
            other.step(job, "c")
        with pytest.raises(NoDataFound, match="of yours"):
            other.run(INSERT_EDGE, first, second)
        for call in (f"reset({first})", f"add_edge({second}, {first})"):
            with pytest.raises(NoDataFound, match="of yours"):
                other.run(f"SELECT fossology_compat.{call}")
        with pytest.raises(InsufficientPrivilege):
            other.run(f"SELECT fossology_compat.remove({first})")
    assert fetch_one(queue, "select count(*) from drover.jobqueue where jq_type <> 'command'") == 2
    assert ui.edges() == [(second, first)]


def test_views_are_made_again_after_a_migration_and_only_then(compat: str, queue: Connection) -> None:
    assert migrate.lost_compat(queue) == []
    queue.execute("drop view fossology_compat.latest cascade")
    queue.execute("drop view fossology_compat.job cascade")
    assert migrate.lost_compat(queue) == ["fossology"]
    build_views(compat)
    assert (migrate.lost_compat(queue), migrate.present_compat(queue)) == ([], ["fossology"])
    with connected(compat, "drover_frontend") as connection:
        assert FrontEnd(connection).job() > 0
