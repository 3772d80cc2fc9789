"""Two daemons and one group: one serves, the other stands by and takes over; two groups do not meet."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP
from socket import gethostname
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import RUN, Daemon, agent, await_lines, lines, rec
from tests.needs import need
from tests.pooler_tools import pooler

QUICK = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\n"  # where a lease runs out
LASTING = QUICK.replace("lease = 1.5", "lease = 30")  # where no lease is to run out
HOST = "[hosts.alpha]\n"
RUNNING = "select count(*) from drover.jobqueue where jq_state = 'running'"
ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", *RUN]


@pytest.fixture
def text(tmp_path: Path) -> str:
    return QUICK + HOST + agent("a", rec(tmp_path / "record"), slots=2)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def standby(launch: Launch, text: str) -> Daemon:
    """Start a daemon, and return it once it has found that another one serves its group."""
    daemon = launch(text, wait=False)
    daemon.until(lambda: "standing by" in daemon.stderr())
    return daemon


def serving(daemon: Daemon) -> bool:
    """Return whether the group's owner is this process."""
    owner = """select scheduler_pid from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner"""
    return daemon.execute(owner) == [{"scheduler_pid": daemon.pid}]


def test_a_second_daemon_stands_by_and_claims_nothing_f164_r77_r51(launch: Launch, text: str, record: Path) -> None:
    text = text.replace(QUICK, LASTING)
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


def test_a_daemon_that_is_to_quit_if_served_exits_at_once_r51_r77(launch: Launch, text: str, ask: Ask) -> None:
    text = text.replace(QUICK, LASTING)
    first = launch(text, options=["--once"])
    again = launch(text, options=["--quit-if-served"], stdin=b"", wait=False)
    assert again.process.wait() == 0
    assert again.process.stdout is not None
    assert again.process.stdout.read().decode() == f"group default is served by {gethostname()}.{first.pid}\n"
    assert again.stderr() == ""
    assert first.value("select count(*) from drover.scheduler") == 1
    first.wait(first.insert(jq_type="a"))


def test_of_daemons_that_start_together_to_quit_if_served_one_remains_r51(launch: Launch, text: str) -> None:
    text = text.replace(QUICK, LASTING)
    daemons = [launch(text, options=["--once"], wait=False) for _ in range(3)]
    left = daemons[0].until(lambda: [each for each in daemons if each.process.poll() is None][1:] == [] and daemons)
    (rest,) = [each for each in left if each.process.poll() is None]
    rest.wait(rest.insert(jq_type="a"))
    assert {each.process.poll() for each in daemons} == {0, None}


def test_a_daemon_that_is_to_quit_if_served_does_not_wait_for_the_database_r51(launch: Launch, text: str) -> None:
    daemon = launch(text, options=["--once"], via="host=/no/such/directory", wait=False)
    assert daemon.process.wait() == 3


def test_a_daemon_that_is_to_quit_if_served_quits_when_it_has_stepped_down_r51(launch: Launch, text: str) -> None:
    text = text.replace(QUICK, LASTING)
    first = launch(text, options=["--once"])
    second = standby(launch, text)
    first.insert(role="drover_operator", jq_type="command", jq_args="step-down")
    assert first.wait_exit() == 0
    second.wait(second.insert(jq_type="a"))
    assert "quitting, since another daemon serves the group (--quit-if-served)" in first.stderr()


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


@pytest.mark.slow
def test_a_takeover_on_the_same_machine_does_not_wait_for_the_lease_f45(
    launch: Launch, text: str, record: Path
) -> None:
    long = text.replace("lease = 1.5", "lease = 600")
    first = launch(long)
    second = standby(launch, long)
    first.kill()
    second.wait(second.insert(jq_type="a", jq_args="x"))
    assert serving(second)


def test_an_orderly_stop_hands_the_group_over_f46(launch: Launch, text: str, record: Path, tmp_path: Path) -> None:
    text = text.replace(QUICK, LASTING)
    gate = tmp_path / "gate"
    first = launch(text)
    second = standby(launch, text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    assert first.stop() == 0
    gate.touch()
    row = second.wait(pk)
    assert (row["jq_rescued"], row["jq_interruptions"], row["jq_attempt"]) == (0, 0, 2)


@pytest.mark.slow
def test_a_daemon_that_was_stopped_past_its_lease_writes_nothing_and_stands_by_t65(
    launch: Launch, text: str, record: Path, tmp_path: Path
) -> None:
    gate, text = tmp_path / "gate", text.replace("lease = 1.5", "lease = 5")
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
    text = text.replace(QUICK, LASTING)
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


@pytest.mark.slow
def test_a_job_that_kills_every_daemon_fails_after_its_interruptions_t70(
    launch: Launch, text: str, record: Path
) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args="mute", jq_max_interruptions=2)
    kill_at_line(daemon, record, 1)
    kill_at_line(launch(text), record, 2)
    kill_at_line(launch(text), record, 3)
    row = launch(text).wait(pk, "failed")
    assert row["jq_endtext"] == "interrupted more than 2 times"
    assert lines(record) == ["mute"] * 3


def kill_at_line(daemon: Daemon, record: Path, count: int) -> None:
    await_lines(daemon, record, count)
    daemon.until(lambda: daemon.value(RUNNING) == 1)
    daemon.kill()


# ---- what is known of daemons


def backends(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the connections of daemons, and since when each is there."""
    query = """select pid, backend_start from pg_stat_activity
                where datname = current_database() and application_name in ('drover queue', 'drover watch')
                order by 1"""
    return daemon.execute(query)


@pytest.mark.slow
def test_an_idle_daemon_keeps_the_same_connections_j60(launch: Launch, text: str) -> None:
    daemon = launch(text.replace("lease_renewal = 0.3", "lease_renewal = 0.02"))
    first = daemon.until(lambda: found if len(found := backends(daemon)) == 2 else None)
    until = {daemon.value("select group_lease_until from drover.scheduler_group")}

    def is_renewed() -> bool:
        until.add(daemon.value("select group_lease_until from drover.scheduler_group"))
        return len(until) > 60  # seen; an hour has 360 of them by default

    daemon.until(is_renewed)
    assert backends(daemon) == first


def test_a_daemon_logs_its_name_queues_and_hosts_at_start_up_j61(launch: Launch, text: str) -> None:
    daemon = launch(text + "[queues.heavy]\nconcurrency = 3\n")
    rows = daemon.execute("select scheduler_group, scheduler_host, scheduler_pid from drover.scheduler")
    machine = Path("/proc/sys/kernel/hostname").read_text().strip()
    assert rows == [{"scheduler_group": "default", "scheduler_host": machine, "scheduler_pid": daemon.pid}]
    queues = daemon.execute("select queue_name, queue_group, queue_concurrency from drover.queue order by 1")
    assert [tuple(row.values()) for row in queues] == [("default", "default", None), ("heavy", "default", 3)]
    assert daemon.execute("select host_name, host_group from drover.host") == [
        {"host_name": "alpha", "host_group": "default"}
    ]


@pytest.mark.slow
def test_a_standby_that_was_killed_is_forgotten_j74(launch: Launch, text: str) -> None:
    text = text.replace(QUICK, QUICK + "rescan = 1\n")  # at which the dead are removed
    first, second = launch(text), standby(launch, text)
    assert first.value("select count(*) from drover.scheduler") == 2
    second.kill()
    first.until(lambda: first.execute("select scheduler_pid from drover.scheduler") == [{"scheduler_pid": first.pid}])


# ---- waking


@pytest.mark.slow
def test_a_row_wakes_the_daemon_that_serves_its_queue_j64(launch: Launch, tmp_path: Path) -> None:
    records_of = [tmp_path / "one", tmp_path / "two"]
    one = launch(HOST + agent("a", rec(records_of[0])))
    launch('[scheduler]\ngroup = "other"\n[hosts.beta]\n[queues.low]\n' + agent("a", rec(records_of[1])))
    for queue in (None, "other", "low", "default"):
        one.wait(one.insert(jq_type="a", jq_args=str(queue), jq_queue=queue))
    assert [lines(each) for each in records_of] == [["None", "default"], ["other", "low"]]


@pytest.mark.slow
def test_a_thousand_rows_in_one_transaction_wake_the_daemon_a_few_times_j66(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.2\n" + text.replace(QUICK, ""))
    daemon.wait(daemon.insert(jq_type="a", jq_args="first"))
    before = claims(daemon)
    daemon.insert_all([{"jq_type": "a", "jq_args": "x", "jq_not_before": "2100-01-01"}] * 1000)
    daemon.wait(daemon.insert(jq_type="a", jq_args="last"))
    assert claims(daemon) - before < 10


@pytest.mark.slow
def test_rows_that_are_due_are_claimed_many_at_once_c23(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.2\n" + text.replace(QUICK, ""))
    before = claims(daemon)
    daemon.wait_all(daemon.insert_all([{"jq_type": "a", "jq_args": str(n)} for n in range(250)]))
    assert claims(daemon) - before < 125


def claims(daemon: Daemon) -> int:
    """Return how often the daemon has asked for rows, as it shows after two more looks at the clock."""
    shown = "select status_updated from drover.scheduler_status where status_slot = -1"
    for _ in range(2):
        before = daemon.execute(shown)
        daemon.until(lambda: daemon.execute(shown) != before)  # noqa: B023
    query = "select status_parameter::jsonb #> '{statements,end_and_claim,count}' from drover.scheduler_status"
    return int(daemon.value(query + " where status_slot = -1"))


@pytest.mark.slow
def test_a_standby_without_notifications_takes_over_after_the_lease_c8(
    launch: Launch, text: str, database_with_roles: str
) -> None:
    first = launch(text)
    with pooler(database_with_roles, "transaction") as deaf:
        second = launch(text, wait=False, via=deaf)
        second.until(lambda: "standing by" in second.stderr() and "LISTEN gets nothing" in second.stderr())
        first.signal(SIGSTOP)
        second.wait(second.insert(jq_type="a", jq_args="x"))
        assert serving(second)
        second.stop()
        first.signal(SIGCONT)


# ---- other machines, other servers


@pytest.mark.slow
def test_jobs_in_hand_before_a_reboot_run_again_r58(launch: Launch, text: str, gate: Path, record: Path) -> None:
    first = launch(text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    await_lines(first, record, 1)
    first.kill()
    first.execute("update drover.scheduler set scheduler_boot_id = gen_random_uuid()::text")
    gate.touch()
    row = launch(text).wait(pk)
    assert (row["jq_attempt"], row["jq_rescued"], len(lines(record))) == (2, 1, 2)


@pytest.mark.slow
def test_a_daemon_on_another_machine_continues_with_the_same_database_t106(
    launch: Launch, text: str, gate: Path
) -> None:
    need("uts")
    first = launch(text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    second = launch(text, wait=False, program=ELSEWHERE)
    second.until(lambda: "standing by" in second.stderr())
    first.stop()
    gate.touch()
    second.wait(pk)
    assert second.execute("select scheduler_host from drover.scheduler") == [{"scheduler_host": "elsewhere"}]


def test_a_daemon_skips_servers_that_do_not_answer_c40(launch: Launch, text: str, database_with_roles: str) -> None:
    there = conninfo_to_dict(database_with_roles)
    hosts, ports = f"127.0.0.1,{there['host']}", f"1,{there['port']}"
    daemon = launch(text, via=make_conninfo(database_with_roles, host=hosts, port=ports))
    assert daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_attempt"] == 1
