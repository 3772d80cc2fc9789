"""drover.why, under the real daemon: the exact reason, and that it goes away with its cause."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.cli.database_session import open_session
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.integration.puppets import LOCAL, Meeting, puppet, rows, settings
from tests.integration.test_commands import told
from tests.patience import LONG_PATIENCE_S

TWO = "[hosts.h1]\nmax = 2\n[hosts.h2]\n"
DONE = "done: all data processed"
STALE = settings(status_interval=3600, min_idle=60, lease=4, start_limit=60)  # nothing is told but what changes


def assert_why(daemon: Daemon, pk: int, reason: str) -> None:
    """Fail unless the reason becomes exactly this."""
    daemon.until(lambda: daemon.why(pk) == reason, what=f"why does not say {reason!r}, but {daemon.why(pk)!r}")


def busy(daemon: Daemon, meeting: Meeting, **columns: object) -> int:
    """Queue a job that tells when it is worked on, and waits to be let go."""
    pk = daemon.insert(jq_args=f"{meeting.tell('here')}; {meeting.wait}", **columns)
    meeting.hear()
    return pk


def test_why_says_that_the_type_has_no_slots_on_the_host_until_it_has_c35(launch: Launch) -> None:
    daemon = launch(TWO + puppet("a", hosts=["h2"]))
    pk = daemon.insert(jq_type="a", jq_args=":", jq_host="h1")
    assert_why(daemon, pk, "agent type a has no slots on host h1")
    (daemon.folder / "conf.d" / "test.toml").write_text(TWO + puppet("a", hosts=["h1", "h2"]))
    told(daemon, "reload")
    assert daemon.wait(pk)["jq_done_host"] == "h1"
    assert daemon.why(pk) == DONE


@pytest.mark.slow
def test_why_shows_a_full_host_with_its_numbers_until_it_has_capacity_j18(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(STALE + TWO + puppet("a", slots=2) + puppet("b"))
    here = [busy(daemon, meeting, jq_type="a", jq_host="h1") for _ in range(2)]
    first, second = (daemon.insert(jq_type="b", jq_args=":", jq_host="h1") for _ in range(2))
    assert_why(daemon, first, "claimed, waits for an agent: host h1 is full: 2 of 2 agents")
    assert_why(daemon, second, "host h1 is full: 2 of 2 agents")
    told(daemon, "host-max h1 3")
    daemon.wait_all([first, second])
    assert [daemon.why(pk) for pk in (first, second)] == [DONE, DONE]
    assert [daemon.row(pk)["jq_state"] for pk in here] == ["running", "running"]
    meeting.let_go(2)
    daemon.wait_all(here)


def test_why_shows_a_host_with_maximum_zero_as_full_at_once_j18(launch: Launch) -> None:
    daemon = launch(STALE + "[hosts.h1]\nmax = 2\nurgent = 0\n" + puppet("a"))
    told(daemon, "host-max h1 0")
    first, second = (daemon.insert(jq_type="a", jq_args=":") for _ in range(2))
    assert_why(daemon, first, "claimed, waits for an agent: host h1 is full: 0 of 0 agents")
    assert_why(daemon, second, "host h1 is full: 0 of 0 agents")
    told(daemon, "host-max h1 1")
    daemon.wait_all([first, second])
    assert [daemon.why(pk) for pk in (first, second)] == [DONE, DONE]


@pytest.mark.slow
def test_why_names_every_full_host_j18(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(STALE + "[hosts.h1]\nmax = 1\n[hosts.h2]\nmax = 1\n" + puppet("a", slots=2) + puppet("b"))
    here = [busy(daemon, meeting, jq_type="a", jq_host=host) for host in ("h1", "h2")]
    first, second = (daemon.insert(jq_type="b", jq_args=":") for _ in range(2))
    daemon.wait(first, "claimed")
    assert_why(daemon, second, "host h1 is full: 1 of 1 agents; host h2 is full: 1 of 1 agents")
    told(daemon, "host-max h2 2")
    daemon.wait_all([first, second])
    meeting.let_go(2)
    assert daemon.wait_all(here)


def test_why_says_that_every_agent_of_the_type_is_busy_f43(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(STALE + "[hosts.h1]\n[hosts.h2]\n" + puppet("a"))
    here = [busy(daemon, meeting, jq_type="a", jq_host=host) for host in ("h1", "h2")]
    first, second = (daemon.insert(jq_type="a", jq_args=":") for _ in range(2))
    bound = daemon.insert_all([{"jq_type": "a", "jq_args": ":", "jq_host": "h1"} for _ in range(2)])
    assert_why(daemon, first, "claimed, waits for an agent: every agent of the type is busy")
    assert_why(daemon, second, "waits its turn: every agent of the type is busy")
    assert_why(daemon, bound[1], "waits its turn: every agent of the type is busy on host h1")
    meeting.let_go(2)
    assert daemon.wait_all([*here, first, second, *bound])


def test_why_says_that_agents_of_the_type_are_starting_f43(launch: Launch, meeting: Meeting) -> None:
    slow = ["sh", "-c", f"{meeting.tell('up')}; {meeting.wait}; echo OK; while read -r line; do echo OK; done"]
    daemon = launch(STALE + "[hosts.h1]\n" + agent("a", slow))
    first, second = (daemon.insert(jq_type="a", jq_args="x") for _ in range(2))
    meeting.hear()
    assert_why(daemon, first, "claimed, waits for an agent: its agents are starting")
    meeting.let_go()
    assert daemon.wait_all([first, second])


def test_why_names_a_disabled_host_for_claimed_jobs_as_well_c35(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(STALE + "[hosts.h1]\n" + puppet("a"))
    here = busy(daemon, meeting, jq_type="a", jq_host="h1")
    first, second = (daemon.insert(jq_type="a", jq_args=":", jq_host="h1") for _ in range(2))
    daemon.wait(first, "claimed")
    told(daemon, "host-disable h1")
    assert_why(daemon, first, "claimed, waits for an agent: host h1 is disabled")
    assert_why(daemon, second, "host h1 is disabled")
    meeting.let_go()
    told(daemon, "host-enable h1")
    assert daemon.wait_all([here, first, second])


def test_why_names_all_disabled_hosts_for_jobs_of_any_host_c35(launch: Launch) -> None:
    daemon = launch(STALE + "[hosts.h1]\n[hosts.h2]\n" + puppet("a"))
    told(daemon, "host-disable h1")
    told(daemon, "host-disable h2")
    first, second = (daemon.insert(jq_type="a", jq_args=":") for _ in range(2))
    assert_why(daemon, first, "claimed, waits for an agent: host h1 is disabled; host h2 is disabled")
    assert_why(daemon, second, "host h1 is disabled; host h2 is disabled")
    told(daemon, "host-enable h2")
    assert daemon.wait_all([first, second])


def test_why_says_that_a_query_rests_while_its_type_or_hosts_are_disabled_c35(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(settings(progress_interval=0.05) + "[hosts.h1]\n" + rows("a", 'eval "$act"'))
    act = f"{meeting.tell('here')}; {meeting.wait}"
    pk = daemon.insert(jq_type="a", jq_msq=True, jq_args=f"select $$ {act} $$ as act from generate_series(1, 3)")
    meeting.hear()
    daemon.until(lambda: "of 3 items" in daemon.why(pk), what="its items are not counted")
    told(daemon, "agent-disable a")
    assert_why(daemon, pk, "running: 0 of 3 items, and no more is begun: agent type a is disabled")
    told(daemon, "host-disable h1")
    told(daemon, "agent-enable a")
    assert_why(daemon, pk, "running: 0 of 3 items, and no more is begun: host h1 is disabled")
    told(daemon, "host-enable h1")
    meeting.let_go(3)
    assert daemon.wait(pk)


def test_why_names_the_queue_for_which_agents_are_reserved_t45(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(STALE + "[hosts.h1]\n[queues.high]\nreserved = 1\n" + puppet("a", slots=2))
    here = busy(daemon, meeting, jq_type="a")
    waiting = [daemon.insert(jq_type="a", jq_args=":") for _ in range(2)]
    assert_why(daemon, waiting[1], "waits its turn; agents are reserved for queue high")
    meeting.let_go()
    assert daemon.wait_all([here, *waiting])


def test_why_says_that_the_queue_is_paused_until_it_is_resumed_j79(launch: Launch) -> None:
    daemon = launch(TWO + puppet("a") + "[queues.heavy]\nconcurrency = 1\npaused = true\n")
    pk = daemon.insert(jq_type="a", jq_args=":", jq_queue="heavy")
    assert_why(daemon, pk, "queue heavy is paused")
    daemon.execute("update drover.queue set queue_paused = false where queue_name = 'heavy'")
    assert daemon.wait(pk)


def test_why_says_that_the_queue_is_full_until_it_is_not_j18(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(TWO + puppet("a", slots=2) + "[queues.heavy]\nconcurrency = 1\n")
    here = busy(daemon, meeting, jq_type="a", jq_queue="heavy")
    waiting = daemon.insert(jq_type="a", jq_args=":", jq_queue="heavy")
    assert_why(daemon, waiting, "queue heavy is full")
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    meeting.let_go()
    assert daemon.wait_all([here, waiting])


@pytest.mark.slow
def test_why_says_that_a_query_waits_for_a_connection_then_for_its_own_end_f44(launch: Launch) -> None:
    daemon = launch(settings(expansions=1) + "[hosts.h1]\n" + rows("a", 'eval "$act"', slots=2))
    slow = "select 1 as n, ':' as act, pg_sleep(6)::text as z"
    first, second, third = (daemon.insert(jq_type="a", jq_msq=True, jq_args=slow) for _ in range(3))
    assert_why(daemon, first, "claimed: its query is running")
    assert_why(daemon, second, "claimed: waits for an expansion connection")
    assert_why(daemon, third, "waits its turn: others of its type wait for an expansion connection")
    daemon.wait(first)
    assert_why(daemon, second, "claimed: its query is running")
    assert_why(daemon, third, "claimed: waits for an expansion connection")
    assert daemon.wait_all([second, third])


@pytest.mark.slow
def test_why_shows_progress_and_time_left_of_a_running_query_f56(launch: Launch) -> None:
    daemon = launch("[hosts.h1]\n" + rows("a", "sleep 0.01", slots=2))
    pk = daemon.insert(jq_type="a", jq_msq=True, jq_args="select n from generate_series(1, 1500) n")
    how_far = r"running: (\d+) of 1,500 items, \d+/s, about \d+ s left"
    told_once = daemon.until(lambda: re.fullmatch(how_far, daemon.why(pk)))
    assert 0 < int(told_once[1]) <= 1500
    row = daemon.wait(pk, timeout=LONG_PATIENCE_S)
    assert (row["jq_expected_end"], daemon.why(pk)) == (None, "done: all data processed")


def test_why_names_the_role_that_may_not_queue_a_type_until_it_may_c35(launch: Launch) -> None:
    text = "[hosts.h1]\n" + puppet("a", submitters=["drover_operator"])
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args=":")
    daemon.wait(pk, "failed")
    assert daemon.why(pk) == "failed (not_permitted): role drover_frontend_sql may not queue agent type a"
    (daemon.folder / "conf.d" / "test.toml").write_text("[hosts.h1]\n" + puppet("a"))
    told(daemon, "reload")
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))


def test_why_of_a_job_reads_only_its_row_of_a_long_queue_f43(launch: Launch) -> None:
    daemon = launch("[hosts.h1]\n[queues.q]\nconcurrency = 1\n" + puppet("a"))
    many = (
        "insert into drover.jobqueue (jq_type, jq_args, jq_queue) select 'a', ':', 'q' from generate_series(1, 20000)"
    )
    daemon.execute(many)
    daemon.execute("update drover.agent set agent_enabled = false")
    daemon.execute("analyze drover.jobqueue")
    pk = daemon.insert(jq_type="a", jq_args=":", jq_queue="q")
    (row,) = daemon.execute("explain (analyze, format json) select reason from drover.why where jq_pk = %s", pk)
    read = [
        node["Actual Rows"] for node in nodes(row["QUERY PLAN"][0]["Plan"]) if node.get("Relation Name") == "jobqueue"
    ]
    assert max(read) <= 2


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a plan."""
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


@pytest.mark.slow
def test_why_of_a_query_whose_agents_are_throttled_says_since_until_and_why(launch: Launch) -> None:
    every = settings(respawn_count=0, respawn_interval=600)
    daemon = launch(every + "[hosts.h1]\n" + rows("a", "[ $n -lt 4 ] || kill -9 $$; sleep 0.1"))
    query = "select n from generate_series(1, 30) n"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True)
    resting = r"agent type a failed, next try [-:+ \d]+, resting since [-:+ \d]+: .*SIGKILL"
    assert daemon.until(
        lambda: re.fullmatch(rf"running: \d+ of 30 items,.* and no more is begun: {resting}", daemon.why(pk))
    )


def assert_why_matches(daemon: Daemon, pk: int, pattern: str) -> None:
    """Fail unless the reason becomes one that fits."""
    assert daemon.until(
        lambda: re.fullmatch(pattern, daemon.why(pk)), what=f"why does not say {pattern!r}, but {daemon.why(pk)!r}"
    )


def test_why_names_the_item_rate_of_a_type_and_when_the_next_item_begins(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a", slots=2, item_rate=0.001))
    first, second, *_, last = daemon.insert_all([{"jq_type": "a", "jq_args": ":"}] * 50)
    daemon.wait(first)
    rate = (
        r"agent type a has reached its item_rate of 0\.001 a second, the next at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+\d\d"
    )
    assert_why_matches(daemon, second, f"claimed, waits for an agent: {rate}")
    assert_why_matches(daemon, last, f"waits its turn: {rate}|claimed, waits for an agent: {rate}")
    reasons = [row["reason"] for row in reasons_of_all(daemon)]
    assert reasons
    assert all("has reached its item_rate of 0.001 a second, the next at " in reason for reason in reasons)
    (daemon.folder / "conf.d" / "test.toml").write_text(LOCAL + puppet("a", slots=2))
    told(daemon, "reload")
    assert daemon.wait(last)["jq_state"] == "done"


def reasons_of_all(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the rows of `drover why --all`."""
    with open_session(daemon.database) as session:
        return session.records("reasons", most=100)


def test_why_names_the_session_that_has_the_row_of_a_job_locked(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a"))
    here = busy(daemon, meeting, jq_type="a")
    pk = daemon.insert(jq_type="a", jq_args=":")
    assert daemon.until(lambda: daemon.row(here)["jq_state"] == "running")
    with psycopg.connect(daemon.database, application_name="bobs tool") as other:
        other.execute("select from drover.jobqueue where jq_pk in (%s, %s) for update", (pk, here))
        pid = other.info.backend_pid
        locked = rf"its row is locked by pid {pid}, user postgres, application bobs tool, for \d+ \w+; next: end that"
        end = rf" transaction, as with select pg_terminate_backend\({pid}\)"
        assert_why_matches(daemon, pk, rf"(claimed; )?{locked}{end}")
        assert_why_matches(daemon, here, rf"running on host .*; {locked}{end}")
        assert any(re.search(locked, row["reason"]) for row in reasons_of_all(daemon))
        other.rollback()
        assert_why_matches(daemon, pk, ".*every agent of the type is busy.*")
    meeting.let_go(1)
    assert [row["jq_state"] for row in daemon.wait_all([here, pk])] == ["done", "done"]
