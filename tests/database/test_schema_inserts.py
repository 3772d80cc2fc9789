"""Columns that the schema fills in when a job is inserted, and values that it refuses."""

from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.errors import CheckViolation, UniqueViolation

from tests.schema_tools import Connection, add_job, end_job, fetch_all, fetch_one, read_column

# ---- columns filled in


@pytest.mark.parametrize(("priority", "urgent"), [(99, False), (100, True)])
def test_urgency_is_copied_from_the_group(queue: Connection, priority: int, urgent: bool) -> None:
    group = fetch_one(queue, "insert into drover.job (job_priority) values (%s) returning job_pk", priority)
    assert read_column(queue, add_job(queue, jq_job_fk=group), "jq_urgent") is urgent


def test_urgent_job_stays_urgent_in_any_group(queue: Connection) -> None:
    group = fetch_one(queue, "insert into drover.job default values returning job_pk")
    assert read_column(queue, add_job(queue, jq_job_fk=group, jq_urgent=True), "jq_urgent")


def test_manual_job_is_held(queue: Connection) -> None:
    assert read_column(queue, add_job(queue, jq_mode="manual"), "jq_state") == "held"


def test_naming_a_host_column_says_that_args_is_sql_f20(queue: Connection) -> None:
    assert read_column(queue, add_job(queue, jq_runonpfile="host"), "jq_msq")


def test_neither_key_nor_repeat_without_sql_f36(queue: Connection) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_key_needs_sql"):
        add_job(queue, jq_key="pfile_pk")
    with pytest.raises(CheckViolation, match="jobqueue_repeat_needs_sql"):
        add_job(queue, jq_repeat=True)


def test_job_for_a_host_goes_to_the_queue_of_its_group(queue: Connection) -> None:
    queue.execute("insert into drover.queue (queue_name, queue_group) values ('east', 'east')")
    queue.execute("insert into drover.host (host_name, host_group) values ('alpha', 'east')")
    assert read_column(queue, add_job(queue, jq_host="alpha"), "jq_queue") == "east"
    assert read_column(queue, add_job(queue, jq_host="unheard-of"), "jq_queue") == "default"


def test_named_queue_of_a_job_is_kept(queue: Connection) -> None:
    assert read_column(queue, add_job(queue, jq_queue="heavy", jq_host="alpha"), "jq_queue") == "heavy"
    assert read_column(queue, add_job(queue, jq_queue=None), "jq_queue") == "default"


def test_job_with_a_later_start_time_waits(queue: Connection) -> None:
    job = add_job(queue, jq_not_before="2999-01-01")
    assert read_column(queue, job, "jq_wait_until = jq_not_before")
    assert read_column(queue, add_job(queue, jq_not_before="1999-01-01"), "jq_wait_until") is None


def test_only_one_live_row_has_a_unique_key(queue: Connection) -> None:
    first = add_job(queue, jq_unique_key="k")
    with pytest.raises(UniqueViolation):
        add_job(queue, jq_unique_key="k", jq_state="held")
    end_job(queue, first)
    assert add_job(queue, jq_unique_key="k") > first


# ---- the column that names a host


def test_empty_host_column_name_is_null_f160(queue: Connection) -> None:
    job = add_job(queue, jq_args="a parameter", jq_runonpfile="")
    assert (read_column(queue, job, "jq_msq"), read_column(queue, job, "jq_runonpfile")) == (False, None)


def test_empty_host_column_name_leaves_jq_msq_unchanged_f160(queue: Connection) -> None:
    job = add_job(queue, jq_args="select 1 as n", jq_msq=True, jq_runonpfile="")
    assert (read_column(queue, job, "jq_msq"), read_column(queue, job, "jq_runonpfile")) == (True, None)


# ---- times


@pytest.mark.parametrize("column", ["jq_not_before", "jq_not_after"])
@pytest.mark.parametrize(
    "time", ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "10000-01-01", "0001-01-01 BC"]
)
def test_a_start_window_outside_the_readable_range_is_refused(queue: Connection, column: str, time: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_start_window_is_of_dates"):
        queue.execute(f"insert into drover.jobqueue (jq_type, {column}) values ('a', %s)".encode(), (time,))


@pytest.mark.parametrize("time", ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "10000-01-01"])
def test_a_time_of_a_job_group_outside_the_readable_range_is_refused(queue: Connection, time: str) -> None:
    with pytest.raises(CheckViolation, match="job_queued_is_a_date"):
        queue.execute("insert into drover.job (job_queued) values (%s)", (time,))


@pytest.mark.parametrize("length", ["178000000 years", "101 years", "0", "-1 s"])
def test_an_invalid_time_limit_is_refused(queue: Connection, length: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_jq_timeout_check"):
        queue.execute("insert into drover.jobqueue (jq_type, jq_timeout) values ('a', %s)", (length,))


def test_times_of_all_readable_years_are_accepted(queue: Connection) -> None:
    queue.execute("insert into drover.job (job_queued) values ('0001-01-02 UTC'), ('9999-12-31 09:59:59 UTC')")
    insert = "insert into drover.jobqueue (jq_type, jq_not_before, jq_not_after, jq_timeout) values"
    queue.execute(f"{insert} ('a', '0001-01-02 UTC', '9999-12-31', '100 years')".encode())
    assert len(fetch_all(queue, "select job_queued from drover.job")) == 2


# ---- times


def test_every_time_is_an_instant_whatever_zone_a_session_has_t118(database: str, queue: Connection) -> None:
    kinds = """select distinct data_type from information_schema.columns
                where table_schema = 'drover' and data_type ~ '^(date|time)'"""
    assert fetch_all(queue, kinds) == [("timestamp with time zone",)]
    seen = []
    for zone in ("UTC", "Asia/Tokyo"):
        with psycopg.connect(database, options=f"-c timezone={zone}", autocommit=True) as session:
            add_job(session, jq_not_before="2030-01-01 00:00:00+00")
            query = "select jq_not_before, now() - jq_queued < interval '1 min' from drover.jobqueue order by jq_pk"
            seen.append(fetch_all(session, query)[-1])
    assert seen[0] == seen[1] == (datetime(2030, 1, 1, tzinfo=UTC), True)
