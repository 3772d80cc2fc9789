"""Room on a host under the real daemon: how many agents there may be, who must go for whom, and who must not."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.integration.puppets import LOCAL, Meeting, moves, puppet, said, settings, slots

BIRTH = ("ST_FREE", "ST_PREP")
ONE = "[hosts.local]\nmax = 1\nurgent = 0\n"


def busy(daemon: Daemon, meeting: Meeting, kind: str, **columns: Any) -> int:
    """Queue a job that tells its type when it has begun, and waits."""
    return daemon.insert(jq_type=kind, jq_args=f"{meeting.tell(kind)}; {meeting.wait}", **columns)


def births(daemon: Daemon) -> int:
    return sum(moves(daemon, slot).count(BIRTH) for slot in range(8))


def test_slots_bound_the_number_of_agents_at_once_f151_t112(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a", slots=3))
    jobs = [busy(daemon, meeting, "a") for _ in range(5)]
    meeting.hear_all(3)
    slots(daemon, "ST_RUNNING", count=3)
    assert len(daemon.agent_pids()) == 3
    meeting.let_go(5)
    daemon.wait_all(jobs)


def test_a_host_has_no_maximum_by_default_f150(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + "".join(puppet(kind, slots=3) for kind in "abcd"))
    jobs = [busy(daemon, meeting, kind) for kind in "abcd" * 3]
    assert meeting.hear_all(12) == sorted("abcd" * 3)
    meeting.let_go(12)
    daemon.wait_all(jobs)


def test_running_agents_are_never_evicted_f107_f108(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(settings(min_idle=0) + "[hosts.local]\nmax = 4\n" + puppet("a", slots=4) + puppet("b"))
    jobs = [busy(daemon, meeting, "a") for _ in range(4)]
    meeting.hear_all(4)
    fifth = daemon.insert(jq_type="b", jq_args=":")
    daemon.wait(fifth, "claimed")  # in hand, and without an agent
    assert (births(daemon), "FREEING" in daemon.stderr()) == (4, False)
    meeting.let_go(4)
    assert [row["jq_end_bits"] for row in daemon.wait_all([*jobs, fifth])] == [1] * 5
    assert daemon.stderr().count("ST_READY -> ST_FREEING") == 1


@pytest.mark.slow
def test_the_agent_idle_longest_is_evicted_first_f121(launch: Launch) -> None:
    kinds = "abc"
    daemon = launch(
        settings(min_idle=0.5, kill_grace=20)
        + "[hosts.local]\nmax = 3\n"
        + "".join(puppet(kind) for kind in kinds)
        + puppet("new")
    )
    for kind in "bca":  # so b has been idle longest
        daemon.wait(daemon.insert(jq_type=kind, jq_args=":"))
    daemon.wait(daemon.insert(jq_type="new", jq_args=":"))
    assert "reason='room for new' slot=1 agent=b " in daemon.stderr()
    assert daemon.stderr().count("room for new' slot=") == 2  # asked to go, gone
    slots(daemon, "ST_READY", count=3)


@pytest.mark.slow
def test_an_agent_is_kept_until_it_has_been_idle_for_a_while_f119(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(settings(min_idle=1.5) + ONE + puppet("a") + puppet("b"))
    idle_from = tmp_path / "idle"  # the end of the job is saved later than this
    daemon.wait(daemon.insert(jq_type="a", jq_args=f"date +%s.%N >{idle_from}"))
    second = daemon.wait(daemon.insert(jq_type="b", jq_args=":"))
    assert second["jq_endtime"].timestamp() - float(idle_from.read_text()) >= 1.5
    assert births(daemon) == 2


def test_a_job_for_an_idle_agent_prevents_its_eviction_f119(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(settings(min_idle=1) + ONE + puppet("a") + puppet("b"))
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    daemon.wait_all([daemon.insert(jq_type="a", jq_args=":") for _ in range(10)])
    assert births(daemon) == 1


@pytest.mark.slow
def test_two_types_that_compete_for_one_slot_do_not_thrash_and_both_progress_f120(launch: Launch) -> None:
    daemon = launch(settings(min_idle=0.5) + ONE + puppet("a") + puppet("b"))
    jobs = [daemon.insert(jq_type=kind, jq_args="sleep 0.05") for kind in "ab" * 20]
    rows = daemon.wait_all(jobs)
    took = max(row["jq_endtime"] for row in rows) - min(row["jq_starttime"] for row in rows)
    assert births(daemon) <= took.total_seconds() / 0.5 + 2


@pytest.mark.slow
@pytest.mark.parametrize("min_idle", [0, 0.1])
def test_a_started_agent_gets_work_before_it_is_evicted_f120(launch: Launch, min_idle: float) -> None:
    slow = ["sh", "-c", 'sleep 0.2; echo OK; while IFS= read -r line; do eval "$line"; echo OK; done']
    daemon = launch(settings(min_idle=min_idle) + ONE + agent("a", slow) + agent("b", slow))
    jobs = [daemon.insert(jq_type=kind, jq_args=":") for kind in "ab" * 3]
    daemon.wait_all(jobs)
    assert births(daemon) <= len(jobs)


@pytest.mark.slow
def test_the_urgent_slot_is_for_urgent_jobs_only_f150(launch: Launch, meeting: Meeting) -> None:
    daemon = launch("[hosts.local]\nmax = 1\nurgent = 1\n" + puppet("a", slots=3) + puppet("b"))
    first, second = busy(daemon, meeting, "a"), busy(daemon, meeting, "a")
    meeting.hear()
    daemon.until(lambda: daemon.why(second))
    urgent = [busy(daemon, meeting, "b", jq_urgent=True), busy(daemon, meeting, "a", jq_urgent=True)]
    assert meeting.hear() in ("a", "b")
    slots(daemon, "ST_RUNNING", count=2)
    assert len(daemon.agent_pids()) == 2
    meeting.let_go(4)
    assert [row["jq_end_bits"] for row in daemon.wait_all([first, second, *urgent])] == [1] * 4


def test_an_agent_in_the_urgent_slot_gets_no_plain_jobs_f150(launch: Launch, meeting: Meeting) -> None:
    daemon = launch("[hosts.local]\nmax = 1\nurgent = 1\n" + puppet("a", slots=2))
    first = busy(daemon, meeting, "a")
    meeting.hear()
    urgent = busy(daemon, meeting, "a", jq_urgent=True)
    meeting.hear()
    common = busy(daemon, meeting, "a")
    meeting.let_go()
    said(daemon, "urgent slot no longer needed")
    daemon.until(lambda: len(daemon.agent_pids()) == 1)
    meeting.let_go(2)
    assert [row["jq_state"] for row in daemon.wait_all([first, urgent, common])] == ["done"] * 3


@pytest.mark.slow
def test_an_idle_agent_on_a_disabled_host_ends_without_more_work(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a"))
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    daemon.execute("update drover.host set host_enabled = false")
    daemon.until(lambda: daemon.value("select agent_reason from drover.agent") == "every host of the type is disabled")
    job = daemon.insert(jq_type="a", jq_args=":")
    said(daemon, "reason='host disabled'")
    assert daemon.row(job)["jq_state"] in ("queued", "claimed")
    daemon.execute("update drover.host set host_enabled = true")
    daemon.wait(job)
