"""The real daemon leaves nothing that cannot be: at work, after a kill, and beside jobs in every state."""

from typing import Any

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import LOCAL, Meeting, puppet
from tests.integration.test_commands import told
from tests.schema_tools import walk_suspects

IMPOSSIBLE = "select rule, jq_pk, what from drover.impossible"
SOON = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\n"


def impossible(daemon: Daemon) -> list[dict[str, Any]]:
    """Return what cannot be, after a whole walk."""
    walk_suspects(daemon.execute)
    return daemon.execute(IMPOSSIBLE)


def every_state(daemon: Daemon, meeting: Meeting) -> list[int]:
    """Queue jobs of which some end, and others are running, blocked, held or wait; return those that end."""
    daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    meeting.hear()
    blocked = daemon.insert(jq_type="other", jq_args="echo BLOCKED tape")
    daemon.insert(jq_type="other", jq_args=":", jq_state="held")
    daemon.insert(jq_type="other", jq_args=":", jq_not_before="2100-01-01")
    ending = daemon.insert_all([{"jq_type": "other", "jq_args": f"# {n}"} for n in range(50)])
    ending.append(daemon.insert(jq_type="other", jq_args="echo FAIL no"))
    daemon.insert(jq_type="nobody")
    daemon.wait(blocked, "blocked")
    return ending


@pytest.mark.slow
def test_a_daemon_at_work_leaves_nothing_impossible_t119(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet() + puppet("other"))
    ending = every_state(daemon, meeting)
    daemon.wait(ending[-1], "failed")
    daemon.wait_all(ending[:-1])
    assert impossible(daemon) == []


@pytest.mark.slow
def test_a_killed_daemon_and_its_heir_leave_nothing_impossible_t119(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(SOON + LOCAL + puppet() + puppet("other"))
    ending = every_state(daemon, meeting)
    daemon.kill()
    assert impossible(daemon) == []
    heir = launch(SOON + LOCAL + puppet() + puppet("other"))
    heir.wait(ending[-1], "failed")
    assert impossible(heir) == []
    told(heir, f"cancel {ending[-1] + 1}")
    assert impossible(heir) == []


@pytest.mark.slow
def test_a_daemon_finds_what_was_broken_behind_its_back_and_forgets_it_when_it_is_mended(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    job = daemon.insert(jq_type="nobody")
    daemon.execute("delete from drover.claimable")
    (found,) = daemon.until(lambda: daemon.execute(IMPOSSIBLE), what="it does not look")
    assert (found["rule"], found["jq_pk"]) == ("no token", job)
    daemon.execute("update drover.jobqueue set jq_state = 'held' where jq_pk = %s", job)
    assert daemon.execute(IMPOSSIBLE) == []


@pytest.fixture
def loaded(launch: Launch) -> tuple[Daemon, int]:
    """Return a daemon that serves the type of a job which was inserted with the triggers off, and the job."""
    daemon = launch(LOCAL + puppet())
    daemon.execute("set session_replication_role = replica")
    job = daemon.value("insert into drover.jobqueue (jq_type, jq_args) values ('puppet', ':') returning jq_pk")
    daemon.execute("set session_replication_role = origin")
    daemon.execute("select drover.recount(0, 1)")  # the walk reads the zones that have jobs
    return daemon, job


@pytest.mark.slow
def test_the_advice_for_a_job_without_a_token_lets_it_run(loaded: tuple[Daemon, int], ask: Ask) -> None:
    daemon, job = loaded
    walk_suspects(daemon.execute)
    (found,) = daemon.execute("select rule, next from drover.impossible where jq_pk = %s", job)
    assert found["rule"] == "no token"
    for advice in found["next"].replace("JOB", str(job)).split(", then "):
        done = ask(advice.removeprefix("drover ") + " --for 5")
        assert done.status == 0, done.err
    daemon.wait(job, "done")
    assert impossible(daemon) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "state"),
    [("cancel {}", "cancelled"), ("ice {}", "skipped"), ("priority {} zz", "done"), ("hold {}", "held")],
)
def test_a_job_without_a_token_obeys_commands(loaded: tuple[Daemon, int], ask: Ask, words: str, state: str) -> None:
    daemon, job = loaded
    done = ask(words.format(job) + " --for 5")
    assert done.status == 0, done.err
    daemon.wait(job, state)
