"""Jobs that ask for attributes of their agent: which type they become, and when they are refused (F154)."""

import psycopg
import pytest

from tests.role_tools import Login
from tests.schema_tools import Connection, fetch_one

AGENTS = """
insert into drover.agent (agent_group, agent_type, agent_enabled, agent_present, agent_attributes)
values ('default', 'a', true, true, '{"version": "1"}'),
       ('default', 'a2', true, true, '{"agent": "a", "version": "2"}'),
       ('default', 'a2-bsd', true, true, '{"agent": "a", "version": "2", "os": "bsd"}'),
       ('default', 'a3', false, true, '{"agent": "a", "version": "3"}'),
       ('default', 'a3-slow', true, true, '{"agent": "a", "version": "3", "speed": "slow"}'),
       ('default', 'gone', true, false, '{"agent": "a", "version": "4"}'),
       ('far', 'a2-far', true, true, '{"agent": "a", "version": "2", "os": "bsd"}'),
       ('far', 'b', true, true, '{"colour": "red"}')
"""
QUEUES = "insert into drover.queue (queue_name, queue_group) values ('far', 'far'), ('other', 'far')"
HOST = "insert into drover.host (host_name, host_group) values ('moon', 'far')"
PUT = "insert into drover.jobqueue (jq_type) values (%s)"
TYPE = "select jq_type from drover.jobqueue"


@pytest.fixture
def owner(login: Login) -> Connection:
    connection = login("")
    for statement in (AGENTS, QUEUES, HOST):
        connection.execute(statement)
    return connection


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("a version=2", "a2"),
        ("a version=1", "a"),
        ("a os=bsd version=2", "a2-bsd"),
        ("a os=bsd", "a2-bsd"),
        ("  a   version=2 ", "a2"),
        ("a2 os=bsd", None),
        ("a2 version=2", "a2"),
        ("a version=3", "a3-slow"),
        ("a version=4", None),
        ("a version=2 version=3", None),
        ("a version=", None),
        ("a Version=2", None),
        ("b colour=red", None),
        ("c version=2", None),
        ("a' or version=2", None),
    ],
)
def test_job_becomes_one_of_a_type_that_has_all_its_attributes_f154(
    login: Login, owner: Connection, asked: str, got: str | None
) -> None:
    assert fetch_one(login("drover_frontend"), "select drover.agent_type_for(%s)", asked) == got


def test_front_end_inserts_a_job_that_asks_for_attributes_f154(login: Login, owner: Connection) -> None:
    login("drover_frontend").execute(PUT, ("a version=2",))
    assert fetch_one(owner, TYPE) == "a2"


@pytest.mark.parametrize(("column", "value"), [("jq_queue", "other"), ("jq_host", "moon")])
def test_type_is_one_of_the_group_of_the_job_f154(owner: Connection, column: str, value: str) -> None:
    owner.execute(f"insert into drover.jobqueue (jq_type, {column}) values ('a version=2', %s)".encode(), (value,))
    assert fetch_one(owner, TYPE) == "a2-far"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("a version=9", "a has version 1, 2, 3"),
        ("a os=linux version=9", "a has os bsd"),
        ("a cpu=fast", "no a has cpu"),
        ("a os=bsd version=3", "no a has all of them"),
        ("nosuch version=1", "group default has no nosuch"),
        ("b colour=red", "group default has no b"),
    ],
)
def test_job_is_refused_whose_attributes_no_type_has_f154(
    login: Login, owner: Connection, asked: str, why: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        login("drover_frontend").execute(PUT, (asked,))
    assert refused.value.diag.message_primary == f"no agent type has the attributes of {asked}: {why}"


def test_type_with_agents_on_the_host_of_the_job_goes_before_others_f154(owner: Connection) -> None:
    owner.execute("insert into drover.host (host_name, host_group) values ('sun', 'default')")
    owner.execute(
        """insert into drover.scheduler_status
             (status_scheduler, status_slot, status_host, status_agent, status_state, status_state_name, status_since)
           values (gen_random_uuid(), 0, 'sun', 'a2-bsd', 0, 'ST_FREE', now())"""
    )
    owner.execute("insert into drover.jobqueue (jq_type, jq_host) values ('a version=2', 'sun')")
    assert fetch_one(owner, TYPE) == "a2-bsd"


def test_type_that_the_submitter_may_queue_goes_before_others_f154(login: Login, owner: Connection) -> None:
    owner.execute("update drover.agent set agent_submitters = '{drover_operator,nobody}' where agent_type = 'a2'")
    login("drover_frontend").execute(PUT, ("a version=2",))
    assert fetch_one(owner, TYPE) == "a2-bsd"


def test_job_with_attributes_has_no_name_f154(login: Login, owner: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="has no jq_name, which begins with its type"):
        login("drover_frontend").execute("insert into drover.jobqueue (jq_type, jq_name) values ('a version=2', 'a.1')")


@pytest.mark.parametrize("kind", ["command colour=red", "cleanup colour=red"])
def test_nothing_but_an_agent_is_found_by_attributes_f154(login: Login, owner: Connection, kind: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        login("drover_frontend").execute(PUT, (kind,))


def test_plain_type_is_left_as_it_is_whatever_attributes_there_are_f154(owner: Connection) -> None:
    owner.execute(PUT, ("a",))
    assert fetch_one(owner, TYPE) == "a"


def test_job_that_is_resubmitted_stays_of_its_type_f154(owner: Connection) -> None:
    owner.execute(PUT, ("a version=2",))
    owner.execute(
        "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
    )
    owner.execute("update drover.agent set agent_attributes = '{}'")
    owner.execute("select drover.job_resubmit(jq_pk) from drover.jobqueue")
    assert fetch_one(owner, "select jq_type from drover.jobqueue where jq_resubmit_of is not null") == "a2"
