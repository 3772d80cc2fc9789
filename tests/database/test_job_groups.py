"""The group of a job: it is there, and it stays as long as it has jobs, whoever writes at the same time."""

from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import FeatureNotSupported, ForeignKeyViolation, LockNotAvailable

from tests.role_tools import Login

Connection = psycopg.Connection[Any]

JOB = "insert into drover.jobqueue (jq_type, jq_job_fk) values ('noop', %s) returning jq_pk"
REMOVE = "delete from drover.job where job_pk = %s"
IMPATIENT = "set lock_timeout = '50ms'"


@pytest.fixture
def front_end(login: Login) -> Connection:
    return login("drover_frontend")


@pytest.fixture
def owner(login: Login) -> Connection:
    return login("")


@pytest.fixture
def group(front_end: Connection) -> int:
    """Return the number of a new job group."""
    return _first(front_end, "insert into drover.job (job_name) values ('upload') returning job_pk")


def _first(session: Connection, statement: str, *parameters: object) -> int:
    row = session.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return int(row[0])


def test_a_job_of_no_group_is_refused(front_end: Connection) -> None:
    with pytest.raises(ForeignKeyViolation, match="no job group has job_pk 999"):
        front_end.execute(JOB, (999,))


def test_a_copied_row_of_no_group_is_refused(front_end: Connection, group: int) -> None:
    rows = "copy drover.jobqueue (jq_type, jq_job_fk) from stdin"
    with pytest.raises(ForeignKeyViolation, match="no job group has job_pk 999"), front_end.cursor().copy(rows) as copy:
        copy.write(f"noop\t{group}\nnoop\t999\n")


def test_a_job_cannot_move_to_no_group(front_end: Connection, owner: Connection, group: int) -> None:
    job = _first(front_end, JOB, group)
    with pytest.raises(ForeignKeyViolation, match="no job group has job_pk 999"):
        owner.execute("update drover.jobqueue set jq_job_fk = 999 where jq_pk = %s", (job,))


def test_a_group_with_jobs_stays(front_end: Connection, owner: Connection, group: int) -> None:
    job = _first(front_end, JOB, group)
    with pytest.raises(ForeignKeyViolation, match=f"job group {group} has jobs: remove them first"):
        owner.execute(REMOVE, (group,))
    owner.execute("delete from drover.jobqueue where jq_pk = %s", (job,))
    owner.execute(REMOVE, (group,))


def test_a_group_is_not_deleted_under_a_job_of_an_open_transaction(
    front_end: Connection, owner: Connection, group: int
) -> None:
    owner.execute(IMPATIENT)
    with front_end.transaction():
        front_end.execute(JOB, (group,))
        with pytest.raises(LockNotAvailable):
            owner.execute(REMOVE, (group,))
    with pytest.raises(ForeignKeyViolation):
        owner.execute(REMOVE, (group,))


def test_a_job_waits_for_the_deletion_of_its_group(front_end: Connection, owner: Connection, group: int) -> None:
    front_end.execute(IMPATIENT)
    with owner.transaction():
        owner.execute(REMOVE, (group,))
        with pytest.raises(LockNotAvailable):
            front_end.execute(JOB, (group,))
    with pytest.raises(ForeignKeyViolation):
        front_end.execute(JOB, (group,))


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_transaction_that_sees_no_later_jobs_deletes_no_group(
    front_end: Connection, owner: Connection, group: int, level: IsolationLevel
) -> None:
    owner.isolation_level = level
    with owner.transaction():
        owner.execute("select 1")
        front_end.execute(JOB, (group,))
        with pytest.raises(FeatureNotSupported, match="in a transaction that is read committed"):
            owner.execute(REMOVE, (group,))
