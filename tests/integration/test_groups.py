"""Two daemons and one group: one serves, the other stands by and takes over; two groups do not meet."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec

QUICK = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\nrescan = 0.5\n"
HOST = "[hosts.alpha]\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    return QUICK + HOST + agent("a", rec(tmp_path / "record"), slots=2)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def standby(launch: Launch, text: str) -> Daemon:
    """A daemon that has found that another one serves its group."""
    daemon = launch(text, wait=False)
    daemon.until(lambda: "standing by" in daemon.stderr())
    return daemon


def serving(daemon: Daemon) -> bool:
    """Whether the group's owner is this process."""
    owner = """select scheduler_pid from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner"""
    return daemon.execute(owner) == [{"scheduler_pid": daemon.pid}]


def test_a_second_daemon_stands_by_and_claims_nothing_f164_r77(launch: Launch, text: str, record: Path) -> None:
    first = launch(text)
    second = standby(launch, text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": str(n)} for n in range(20)])
    first.wait_all(pks)
    assert second.agent_pids() == []
    assert serving(first)
    outcomes = first.execute(
        "select distinct scheduler_pid from drover.attempt join drover.scheduler on scheduler_uuid = att_scheduler"
    )
    assert outcomes == [{"scheduler_pid": first.pid}]
    assert second.value("select count(*) from drover.scheduler") == 2


def test_the_standby_takes_over_when_the_first_is_killed_f45_t68_t70_r81_j127(
    launch: Launch, text: str, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = launch(text)
    second = standby(launch, text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks[:2], "running")
    first.kill()
    gate.touch()
    rows = second.wait_all(pks)
    assert serving(second)
    assert {row["jq_state"] for row in rows} == {"done"}
    assert [row["jq_rescued"] for row in rows][:2] == [1, 1]
    assert sorted(set(lines(record))) == sorted(f"gate:{gate};{n}" for n in range(4))


def test_on_the_same_machine_it_does_not_wait_for_the_lease_f45(launch: Launch, text: str, record: Path) -> None:
    long = text.replace("lease = 1.5", "lease = 600")
    first = launch(long)
    second = standby(launch, long)
    first.kill()
    second.wait(second.insert(jq_type="a", jq_args="x"))
    assert serving(second)


def test_an_orderly_end_hands_the_group_over_f46(launch: Launch, text: str, record: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = launch(text)
    second = standby(launch, text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    assert first.stop() == 0
    gate.touch()
    row = second.wait(pk)
    assert (row["jq_rescued"], row["jq_interruptions"], row["jq_attempt"]) == (0, 0, 2)


def test_a_daemon_that_was_stopped_past_its_lease_writes_nothing_and_stands_by_t65(
    launch: Launch, text: str, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = launch(text)
    second = standby(launch, text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    first.signal(SIGSTOP)
    second.until(lambda: second.row(pk)["jq_attempt"] == 2)
    assert serving(second)
    first.signal(SIGCONT)
    first.until(lambda: "has another owner: standing by" in first.stderr())
    first.until(lambda: first.agent_pids() == [])
    gate.touch()
    row = second.wait(pk)
    assert (row["jq_attempt"], row["jq_state"]) == (2, "done")
    assert [a["att_outcome"] for a in second.attempts(pk)] == ["rescued", "done"]
    second.stop()
    first.wait(first.insert(jq_type="a", jq_args="again"))


def test_rows_of_a_live_owner_are_never_touched_by_another_f45_t71(
    launch: Launch, text: str, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = launch(text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    standby(launch, text).stop()
    gate.touch()
    assert first.wait(pk)["jq_attempt"] == 1


def test_two_groups_serve_their_own_rows_at_the_same_time_f164(launch: Launch, tmp_path: Path) -> None:
    records_of = [tmp_path / "one", tmp_path / "two"]
    one = launch(QUICK + "[hosts.alpha]\n" + agent("a", rec(records_of[0])))
    two = launch(QUICK + 'group = "other"\n[hosts.beta]\n' + agent("a", rec(records_of[1])))
    rows = [{"jq_type": "a", "jq_args": "one"}, {"jq_type": "a", "jq_args": "two", "jq_queue": "other"}]
    rows.append({"jq_type": "a", "jq_args": "bound", "jq_host": "beta"})
    one.wait_all(one.insert_all(rows))
    assert [sorted(lines(each)) for each in records_of] == [["one"], ["bound", "two"]]
    assert two.process.poll() is None


def test_a_host_of_another_group_is_a_mistake_f164(launch: Launch, text: str) -> None:
    launch(text)
    other = launch(text.replace("[scheduler]", '[scheduler]\ngroup = "other"'), wait=False)
    assert other.wait_exit() == 2
    assert "host alpha belongs to group default: another group has it; rename it here" in other.stderr()


def test_a_job_that_kills_every_daemon_uses_up_its_interruptions_t70(launch: Launch, text: str, record: Path) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args="mute", jq_max_interruptions=2)
    daemon.wait(pk, "running")
    daemon.kill()
    kill_at_line(launch(text), record, 2)
    kill_at_line(launch(text), record, 3)
    row = launch(text).wait(pk, "failed")
    assert row["jq_endtext"] == "interrupted more than 2 times"
    assert lines(record) == ["mute"] * 3


def kill_at_line(daemon: Daemon, record: Path, count: int) -> None:
    daemon.until(lambda: len(lines(record)) == count)
    daemon.kill()
