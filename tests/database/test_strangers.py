"""A login changes no job of another login through the functions that run with the rights of the schema's owner.

Each test also calls the function as the owner of the rows, so that a refusal for another reason does not pass.
"""

from contextlib import suppress
from typing import Final

import psycopg
import pytest

from tests.role_tools import PLAIN, Login
from tests.schema_tools import Connection, end_job, fetch_all

# Of each login in turn: group 1 and 2, subscription 1 and 2, jobs 1 and 2 and command 3, jobs 4 and 5 and command 6.
ROWS: Final = (
    "insert into drover.job (job_name) values ('scan') returning job_pk",
    "select subscription from drover.subscribe()",
    PLAIN,
    PLAIN,
    "select drover.command('hold 1')",
    "select drover.command('hold 4')",
)
EVERYTHING: Final = """
select (select jsonb_agg(j order by jq_pk) from drover.jobqueue j), (select jsonb_agg(g) from drover.job g),
       (select jsonb_agg(h) from drover.hidden h), (select jsonb_agg(s) from drover.share s),
       (select jsonb_agg(s order by sub_pk) from drover.subscription s), (select count(*) from drover.event)
"""


@pytest.fixture
def both(login: Login, tenants: list[Connection]) -> list[Connection]:
    """Return the owner of the first rows and a stranger, each of whom has rows."""
    for connection in tenants:
        for statement in ROWS:
            with suppress(psycopg.errors.InsufficientPrivilege):  # the command about a job of the other
                connection.execute(statement.encode())
    end_job(login(""), 2, "failed", 2)
    return tenants


@pytest.mark.parametrize(
    "statement",
    [
        "select drover.hide(1)",
        "select drover.job_hide(1)",
        "select drover.job_share(1, 'drover_tenant')",
        "select drover.job_event(1, 'x')",
        "select drover.job_resubmit(2)",
        "select drover.subscription_enable(1, false)",
        "select drover.unsubscribe(1)",
        "select drover.withdraw_commands('{3}', 'x')",
        "select drover.command('cancel 1')",
    ],
)
def test_a_stranger_changes_nothing_of_another_t113(login: Login, both: list[Connection], statement: str) -> None:
    owner, stranger = both
    before = fetch_all(login(""), EVERYTHING)
    with suppress(psycopg.Error):
        stranger.execute(statement.encode())
    assert fetch_all(login(""), EVERYTHING) == before
    owner.execute(statement.encode())
    assert fetch_all(login(""), EVERYTHING) != before


@pytest.mark.parametrize(
    "query",
    [
        "select * from drover.ended_in_vain('{2}')",
        "select * from drover.command_waits('{3}', '{}', '{}', '{}')",
    ],
)
def test_a_stranger_is_told_nothing_of_another_t113(both: list[Connection], query: str) -> None:
    owner, stranger = both
    assert fetch_all(stranger, query) == []
    assert fetch_all(owner, query) != []
