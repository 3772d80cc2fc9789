"""Limits on what is let in: too much is refused with what, which and what next; an operator may change them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, InsufficientPrivilege

Connection = psycopg.Connection[Any]
Login = Callable[[str], Connection]

MOST = 1 << 20
JOB = "insert into drover.jobqueue (jq_type, {}) values ('noop', {}) returning jq_pk"
GROUP = "insert into drover.job ({}) values ({})"
RAISE = "put them in a file or a table and name that, or ask an operator to raise drover.size_limit"
SHORTER = "choose a shorter one"
# A byte \x01 is six as JSON text.
REFUSED = {
    "parameter": (JOB, "jq_args", f"repeat('x', {MOST + 1})", MOST + 1, MOST, RAISE),
    "variables": (JOB, "jq_variables", "jsonb_build_object('a', repeat(chr(1), 200000))", 1_200_009, MOST, RAISE),
    "variables as in the attack": (
        JOB, "jq_variables", "jsonb_build_object('a', repeat(chr(1), 10000000))", 60_000_009, MOST, RAISE
    ),
    "name": (JOB, "jq_name", "'noop.' || repeat('x', 1996)", 2001, 2000, SHORTER),
    "unique key": (JOB, "jq_unique_key", "repeat('é', 1001)", 2002, 2000, SHORTER),
    "name of a group": (GROUP, "job_name", "repeat('x', 2001)", 2001, 2000, SHORTER),
    "tenant": (GROUP, "job_tenant", "repeat('x', 2001)", 2001, 2000, SHORTER),
    "data of a group": (GROUP, "job_data", f"to_jsonb(repeat('x', {MOST}))", MOST + 2, MOST, RAISE),
}  # fmt: skip
LET_IN = {
    "parameter": (JOB, "jq_args", f"repeat('x', {MOST})"),
    "variables": (JOB, "jq_variables", "jsonb_build_object('a', repeat(chr(1), 100000))"),
    "name": (JOB, "jq_name", "'noop.' || repeat('x', 1995)"),
    "data of a group": (GROUP, "job_data", f"to_jsonb(repeat('x', {MOST - 2}))"),
}


@pytest.fixture
def login(database_with_roles: str) -> Iterator[Login]:
    with ExitStack() as stack:
        yield lambda role: stack.enter_context(
            psycopg.connect(make_conninfo(database_with_roles, user=role), autocommit=True)
        )


@pytest.mark.parametrize(("query", "column", "value", "size", "most", "next_step"), REFUSED.values(), ids=REFUSED)
def test_oversized_text_is_refused_with_size_limit_and_what_next(
    login: Login, query: str, column: str, value: str, size: int, most: int, next_step: str
) -> None:
    with pytest.raises(CheckViolation, match=f"{column} has {size} bytes, and {most} are let in: {next_step}"):
        login("drover_frontend").execute(query.format(column, value).encode())


@pytest.mark.parametrize("column", ["jq_runonpfile", "jq_key"])
def test_oversized_column_name_is_refused(login: Login, column: str) -> None:
    query = f"insert into drover.jobqueue (jq_type, jq_msq, {column}) values ('noop', true, repeat('x', 2001))"
    with pytest.raises(CheckViolation, match=f"{column} has 2001 bytes"):
        login("drover_frontend_sql").execute(query.encode())


def test_oversized_sql_is_refused(login: Login) -> None:
    query = JOB.format("jq_msq, jq_args", f"true, 'select ' || repeat('1', {MOST})")
    with pytest.raises(CheckViolation, match=f"jq_args has {MOST + 7} bytes"):
        login("drover_frontend_sql").execute(query.encode())


def test_oversized_command_is_refused(login: Login) -> None:
    with pytest.raises(CheckViolation, match="jq_args has 1048585 bytes"):
        login("drover_operator").execute(f"select drover.command('cancel 1 ' || repeat('x', {MOST}))".encode())


def test_compressed_variables_count_at_their_full_size(login: Login) -> None:
    """A row of a table brings them compressed: a hundredth of it."""
    ui = login("drover_frontend")
    ui.execute("create temp table big as select jsonb_build_object('a', repeat('x', 2000000)) as v")
    with pytest.raises(CheckViolation, match="jq_variables has 2000009 bytes"):
        ui.execute("insert into drover.jobqueue (jq_type, jq_variables) select 'noop', v from big")


@pytest.mark.parametrize(("query", "column", "value"), LET_IN.values(), ids=LET_IN)
def test_values_just_within_the_limits_are_accepted(login: Login, query: str, column: str, value: str) -> None:
    assert login("drover_frontend").execute(query.format(column, value).encode()).rowcount == 1


def test_operator_raises_a_limit_and_a_front_end_reads_it(login: Login) -> None:
    ui = login("drover_frontend")
    long = JOB.format("jq_args", f"repeat('x', {MOST + 1})").encode()
    login("drover_operator").execute(
        "update drover.size_limit set limit_bytes = 2000000 where limit_column = 'jq_args'"
    )
    assert ui.execute(long).fetchone()
    query = "select limit_bytes from drover.size_limit where limit_column = 'jq_args'"
    assert ui.execute(query).fetchone() == (2_000_000,)


@pytest.mark.parametrize(
    ("column", "statement"),
    [
        ("jq_name", "insert into drover.jobqueue (jq_type, jq_name) values ('noop', 'noop.' || repeat('x', {} - 5))"),
        ("job_name", "insert into drover.job (job_name) values (repeat('x', {}))"),
    ],
)
def test_operator_lets_in_names_of_64_bytes_and_no_more_t117(login: Login, column: str, statement: str) -> None:
    ui = login("drover_frontend")
    ui.execute(statement.format(65).encode())
    login("drover_operator").execute("update drover.size_limit set limit_bytes = 64 where limit_column = %s", (column,))
    ui.execute(statement.format(64).encode())
    with pytest.raises(CheckViolation, match=f"{column} has 66 bytes, and 64 are let in: choose a shorter one"):
        ui.execute(statement.format(66).encode())


@pytest.mark.parametrize("size", [63, 2001])
def test_limit_of_names_has_bounds_t117(login: Login, size: int) -> None:
    with pytest.raises(CheckViolation):
        login("drover_operator").execute(
            f"update drover.size_limit set limit_bytes = {size} where limit_column = 'jq_name'".encode()
        )


def test_front_end_raises_no_limit(login: Login) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_frontend").execute("update drover.size_limit set limit_bytes = 2000000")


@pytest.mark.parametrize("size", [65535, 16777217])
def test_limit_beyond_what_can_be_enforced_is_refused(login: Login, size: int) -> None:
    with pytest.raises(CheckViolation):
        login("drover_operator").execute(
            f"update drover.size_limit set limit_bytes = {size} where limit_column = 'jq_args'".encode()
        )


def test_clean_up_has_the_limit_of_the_list_of_files_alone(database_with_roles: str) -> None:
    """It comes with the end of a job, which may not fail."""
    with psycopg.connect(database_with_roles, autocommit=True) as owner:
        owner.execute("update drover.size_limit set limit_bytes = 65536 where limit_column like '%args'")
        owner.execute("insert into drover.jobqueue (jq_type, jq_delete) values ('noop', array[repeat('x', 100000)])")
        owner.execute(
            "update drover.jobqueue set jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now()"
        )
        owner.execute(
            "update drover.jobqueue set jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1"
        )
        found = owner.execute("select octet_length(jq_args) > 100000 from drover.jobqueue where jq_type = 'cleanup'")
        assert found.fetchone() == (True,)
