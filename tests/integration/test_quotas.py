"""Quotas of users, tenants, queues and hosts, by the real daemon: what is over one waits, and nothing is killed."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import Meeting, puppet, settings
from tests.integration.test_commands import told

TYPES = "[hosts.local]\n[hosts.other]\n" + puppet(slots=8)
INSERT = "insert into drover.jobqueue (jq_type, jq_args, jq_queue, jq_host) values ('puppet', %s, %s, %s)"
STATES = "select jq_state::text, count(*)::integer as n from drover.jobs where jq_type = 'puppet' group by 1"
ENDED = "select count(*) from drover.jobqueue where jq_type = 'puppet' and jq_state = 'done'"


@pytest.fixture
def roles(database_with_roles: str) -> Iterator[dict[str, str]]:
    """Yield logins of two members of a tenant and of another role, by name; they last as long as the test."""
    names = [f"{name}_of_quotas" for name in ("anna", "bert", "carl", "staff")]
    with psycopg.connect(database_with_roles, autocommit=True) as owner, ExitStack() as stack:
        for name in names:
            owner.execute(f"create role {name} login in role drover_frontend".encode())
            stack.callback(owner.execute, f"drop role {name}".encode())
        owner.execute("grant staff_of_quotas to anna_of_quotas, bert_of_quotas")
        yield {name.split("_")[0]: name for name in names}


def submit(daemon: Daemon, role: str, count: int, args: str, queue: str = "default", host: str | None = None) -> None:
    """Queue jobs under a role of its own."""
    with psycopg.connect(make_conninfo(daemon.database, user=role), autocommit=True) as connection:
        for _ in range(count):
            connection.execute(INSERT, (args, queue, host))


def states(daemon: Daemon) -> dict[str, int]:
    return {row["jq_state"]: row["n"] for row in daemon.execute(STATES)}


def working(states: dict[str, int]) -> int:
    return states.get("running", 0) + states.get("claimed", 0)


def settled(states: dict[str, int]) -> tuple[int, int]:
    """Return how many are worked on and how many are blocked, as one statement saw them."""
    return working(states), states.get("blocked", 0)


def set_quota(daemon: Daemon, **columns: object) -> None:
    names, marks = ", ".join(f"quota_{name}" for name in columns), ", ".join("%s" for _ in columns)
    query = f"insert into drover.quota ({names}) values ({marks})"
    daemon.execute(query, *columns.values(), role="drover_operator")
    told(daemon, "agent-enable puppet")  # ends when the tables have been read, so that no claim comes before


@pytest.mark.parametrize(
    ("quota", "anna", "bert"),
    [
        ({"user": "anna_of_quotas"}, 2, 3),
        ({"user": "*"}, 2, 2),
        ({"tenant": "staff_of_quotas", "user": "*"}, 2, 2),
        ({"queue": "q", "user": "anna_of_quotas"}, 2, 3),
        ({"host": "other", "user": "*"}, 2, 2),
    ],
)
def test_no_more_jobs_than_the_quota_are_in_hand_t116(
    launch: Launch, meeting: Meeting, roles: dict[str, str], quota: dict[str, str], anna: int, bert: int
) -> None:
    daemon = launch(TYPES + "[queues.q]\n")
    set_quota(daemon, name="few", most=2, **quota)
    submit(daemon, roles["anna"], 3, meeting.wait, "q", "other")
    submit(daemon, roles["bert"], 3, meeting.wait, "q", "other")
    assert daemon.until(lambda: settled(states(daemon)) == (anna + bert, 6 - anna - bert))


def test_a_tenant_has_one_quota_for_all_its_members_t116(
    launch: Launch, meeting: Meeting, roles: dict[str, str]
) -> None:
    daemon = launch(TYPES)
    set_quota(daemon, name="staff", most=2, tenant=roles["staff"])
    submit(daemon, roles["anna"], 2, meeting.wait)
    submit(daemon, roles["bert"], 2, meeting.wait)
    submit(daemon, roles["carl"], 2, meeting.wait)
    assert daemon.until(lambda: settled(states(daemon)) == (4, 2))


def test_why_says_which_quota_a_job_is_over_t116(launch: Launch, meeting: Meeting, roles: dict[str, str]) -> None:
    daemon = launch(TYPES)
    set_quota(daemon, name="few", most=1, user="*")
    submit(daemon, roles["anna"], 2, meeting.wait)
    daemon.until(lambda: states(daemon).get("blocked") == 1)
    blocked = daemon.value("select jq_pk from drover.jobqueue where jq_state = 'blocked'")
    assert daemon.why(blocked).endswith(": blocked: quota:few:anna_of_quotas 1 of 1 jobs are in hand")


@pytest.mark.slow
def test_jobs_over_a_quota_follow_as_others_end_t85_t116_t75(launch: Launch, roles: dict[str, str]) -> None:
    daemon = launch(TYPES)
    set_quota(daemon, name="few", most=2, user="*")
    submit(daemon, roles["anna"], 12, "sleep 0.01")
    daemon.until(lambda: daemon.value(ENDED) == 12)
    assert states(daemon) == {"done": 12}


def test_a_quota_lowered_below_its_use_kills_nothing_and_starts_nothing_t116(
    launch: Launch, meeting: Meeting, roles: dict[str, str]
) -> None:
    daemon = launch(TYPES)
    set_quota(daemon, name="few", most=4, user="*")
    submit(daemon, roles["anna"], 6, f"{meeting.tell('here')}; {meeting.wait}")
    daemon.until(lambda: states(daemon).get("running", 0) == 4)
    daemon.execute("update drover.quota set quota_most = 1", role="drover_operator")
    submit(daemon, roles["anna"], 1, meeting.wait)
    daemon.until(lambda: states(daemon).get("blocked") == 3)
    assert states(daemon)["running"] == 4


def test_a_quota_that_is_removed_lets_all_go_t116(launch: Launch, roles: dict[str, str]) -> None:
    daemon = launch(settings(blocked_delay=0.2) + TYPES)
    set_quota(daemon, name="none", most=0, user="*")
    submit(daemon, roles["anna"], 3, ":")
    daemon.until(lambda: states(daemon) == {"blocked": 3})
    daemon.execute("delete from drover.quota", role="drover_operator")
    assert daemon.until(lambda: states(daemon) == {"done": 3})


def test_a_quota_that_comes_counts_what_runs_already_t116(
    launch: Launch, meeting: Meeting, roles: dict[str, str]
) -> None:
    daemon = launch(TYPES)
    submit(daemon, roles["anna"], 2, meeting.wait)
    daemon.until(lambda: states(daemon).get("running", 0) == 2)
    set_quota(daemon, name="few", most=2, user="*")
    submit(daemon, roles["anna"], 1, meeting.wait)
    assert daemon.until(lambda: states(daemon).get("blocked", 0) == 1)


@pytest.mark.parametrize("columns", [{"most": 1}, {"most": -1, "user": "a"}, {"most": 1, "user": ""}])
def test_a_quota_that_counts_nothing_is_refused_t116(launch: Launch, columns: dict[str, object]) -> None:
    daemon = launch(TYPES)
    with pytest.raises(psycopg.errors.CheckViolation):
        set_quota(daemon, name="wrong", **columns)


def test_a_condition_that_an_agent_names_like_a_quota_is_none_t116(launch: Launch, roles: dict[str, str]) -> None:
    daemon = launch(TYPES)
    set_quota(daemon, name="few", most=2, user="*")
    submit(daemon, roles["anna"], 1, "echo BLOCKED ' quota:few' of mine")
    daemon.until(lambda: states(daemon) == {"blocked": 1})
    assert daemon.value("select condition from drover.conditions") == "agent:quota:few"
