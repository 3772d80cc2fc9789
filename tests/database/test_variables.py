"""Variables that operators give to jobs: to which, in which order, and what they cost where there are none (C57)."""

import psycopg
import pytest

from tests.role_tools import Login
from tests.schema_tools import Connection, fetch_all, fetch_one

AGENTS = """
insert into drover.agent (agent_group, agent_type, agent_present, agent_enabled, agent_enabled_file, agent_kind,
                          agent_submitters, agent_cwd, agent_revision)
values ('default', 'run', true, true, true, 'exec', '{*}', '', ''),
       ('default', 'line', true, true, true, 'line', '{*}', '', '')
"""
GIVE = "insert into drover.variable (variable_type, variable_name, variable_value) values (%s, %s, %s)"
PUT = "insert into drover.jobqueue (jq_type, jq_variables) values (%s, %s)"
IS_ON = "select tgenabled::text from pg_trigger where tgname = 'jobqueue_give_variables'"


@pytest.fixture
def owner(login: Login) -> Connection:
    """Yield the owner's connection; the types run, for commands, and line are served."""
    connection = login("")
    connection.execute(AGENTS)
    return connection


@pytest.mark.parametrize(
    ("kind", "own", "got"),
    [
        ("run", None, '{"a": "all", "b": "type"}'),
        ("run", '{"a": "own"}', '{"a": "own", "b": "type"}'),
        ("line", None, None),
    ],
)
def test_commands_get_the_variables_of_all_and_of_their_type_behind_their_own_c57(
    login: Login, owner: Connection, kind: str, own: str | None, got: str | None
) -> None:
    operator = login("drover_operator")
    for row in (("", "a", "all"), ("", "b", "all"), ("run", "b", "type"), ("other", "c", "x")):
        operator.execute(GIVE, row)
    login("drover_frontend").execute(PUT, (kind, own))
    assert fetch_one(owner, "select jq_variables::text from drover.jobqueue") == got


def test_inserts_call_nothing_for_variables_while_there_is_none_c57(owner: Connection) -> None:
    seen = [fetch_one(owner, IS_ON)]
    owner.execute(GIVE, ("", "a", "x"))
    seen.append(fetch_one(owner, IS_ON))
    owner.execute("delete from drover.variable")
    assert [*seen, fetch_one(owner, IS_ON)] == ["D", "O", "D"]


@pytest.mark.parametrize("name", ["", "1a", "a b", "a" * 65])
def test_variable_without_a_proper_name_is_refused_c57(owner: Connection, name: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        owner.execute(GIVE, ("", name, "x"))


def test_front_end_neither_reads_nor_gives_variables_of_the_site_c53(login: Login) -> None:
    front = login("drover_frontend")
    for query in ("select * from drover.variable", "delete from drover.variable"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            fetch_all(front, query)
