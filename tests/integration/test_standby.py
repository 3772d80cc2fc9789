"""Several daemons of a group under load: whoever serves is killed, stopped or steps down; no job is lost or doubled."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.cli_tools import Drover
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec
from tests.integration.test_groups import LASTING, QUICK, serving, standby
from tests.patience import LONG_PATIENCE_S

PATIENT = "[scheduler]\nlease = 600\nlease_renewal = 200\n"  # nobody looks by himself while a test lasts
HOST = "[hosts.alpha]\n"
LOAD = 40  # jobs that are queued before each fault
IN_HAND = "select count(*) from drover.jobs where jq_state in ('claimed', 'running')"
LEFT = "select count(*) from drover.jobqueue where jq_endtime is null and jq_type <> 'command'"
ENDED = "select count(*) from drover.jobqueue where jq_endtime is not null"
OWNER = """
select scheduler_pid as pid from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner
 where group_name = %s
"""
ATTEMPTS = """
select jq_pk, array_agg(att_attempt order by att_attempt) as numbers,
       array_agg(att_outcome order by att_attempt) as outcomes
  from drover.jobqueue left join drover.attempt on att_jq_fk = jq_pk where jq_type <> 'command' group by jq_pk
"""


@pytest.fixture
def text(record: Path) -> str:
    return QUICK + HOST + agent("a", rec(record), slots=3)


def step_down(daemon: Daemon, words: str = "step-down") -> int:
    return daemon.insert(role="drover_operator", jq_type="command", jq_args=words)


def stepped_down(daemon: Daemon, words: str = "step-down", state: str = "done") -> str:
    """Submit the command and wait for its end; return what it says."""
    return str(daemon.wait(step_down(daemon, words), state)["jq_endtext"])


def load(daemon: Daemon, count: int = LOAD, **columns: Any) -> list[int]:
    """Queue jobs that take a moment each."""
    return daemon.insert_all([{"jq_type": "a", "jq_args": f"nap:0.02;{n}", **columns} for n in range(count)])


def under_load(daemon: Daemon, **columns: Any) -> list[int]:
    """Queue jobs, and wait until some are in hand and others done."""
    before, pks = daemon.value(ENDED), load(daemon, **columns)

    def is_at_work() -> bool:
        if daemon.value(LEFT) == 0:  # we came too late
            pks.extend(load(daemon, **columns))
        return bool(daemon.value(IN_HAND)) and daemon.value(ENDED) > before

    daemon.until(is_at_work)
    return pks


def active(daemons: Sequence[Daemon], group: str = "default") -> Daemon | None:
    """Return the one of these that owns the group, if one does."""
    pids = {row["pid"] for row in daemons[0].execute(OWNER, group)}
    return next((daemon for daemon in daemons if daemon.pid in pids), None)


def heir(daemons: Sequence[Daemon], group: str = "default") -> Daemon:
    """Wait until one of these owns the group."""
    found: Daemon = daemons[0].until(lambda: active(daemons, group), what="nobody takes over")
    return found


def assert_done_once(daemon: Daemon, pks: Sequence[int], record: Path) -> None:
    """Every job is done, with one row for each of its attempts, and its agents were given it that often at most."""
    rows = {row["jq_pk"]: row for row in daemon.wait_all(pks, timeout=LONG_PATIENCE_S)}
    kept = {row["jq_pk"]: row for row in daemon.execute(ATTEMPTS)}
    for pk, row in rows.items():
        assert kept[pk]["numbers"] == list(range(1, row["jq_attempt"] + 1))
        assert kept[pk]["outcomes"][-1] == "done"
        assert "done" not in kept[pk]["outcomes"][:-1]
        assert Counter(kept[pk]["outcomes"])["rescued"] == row["jq_rescued"]
        assert row["jq_itemsprocessed"] == 1
    given, most = Counter(lines(record)), Counter[str]()
    for row in rows.values():
        most[row["jq_args"]] += row["jq_attempt"]
    assert all(given[words] <= most[words] for words in given)
    assert set(most) <= set(given)


# ---- faults under load


@pytest.mark.slow
def test_killing_or_stopping_active_daemons_loses_and_repeats_no_job_c1_c13_t68(
    launch: Launch, text: str, record: Path
) -> None:
    daemons = [launch(text), standby(launch, text), standby(launch, text)]
    pks = []
    for number in range(6):
        first = heir(daemons)
        pks += under_load(first)
        others = [daemon for daemon in daemons if daemon is not first]
        if number % 2:
            first.signal(SIGSTOP)
            heir(others)
            first.signal(SIGCONT)
            first.until(lambda: "has another owner: standing by" in first.stderr())  # noqa: B023
        else:
            first.kill()
            heir(others)
            daemons = [*others, standby(launch, text)]
    assert_done_once(heir(daemons), pks, record)


@pytest.mark.slow
def test_a_takeover_is_logged_only_when_it_succeeds_c13(launch: Launch, text: str, database_with_roles: str) -> None:
    first, second = launch(text), standby(launch, text)
    with psycopg.connect(database_with_roles) as somebody:
        somebody.execute("lock table drover.scheduler_group in share mode")  # it can be read, and no lease be had
        second.until(lambda: "take_lease: " in second.stderr())
        tried = second.stderr()
        first.signal(SIGSTOP)
    heir([second])
    second.until(lambda: "serving group" in second.stderr())
    first.signal(SIGCONT)
    assert "taking over" not in tried
    assert second.stderr().count("taking over group default from") == 1


@pytest.mark.slow
def test_the_standby_sees_committed_state_of_the_active_daemon_at_once_c5(
    launch: Launch, record: Path, gate: Path, ask: Ask
) -> None:
    text = LASTING + HOST + "[queues.slow]\n" + agent("a", rec(record), slots=2)
    first, second = launch(text), standby(launch, text)
    done = first.insert(jq_type="a", jq_args="x")
    first.wait(done)
    running = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(running, "running")
    stepped_down(first, "pause slow")
    paused = first.insert(jq_type="a", jq_args="y", jq_queue="slow")
    listed = {job["job"]: job["state"] for job in map(json.loads, ask("ls --all --json").out.splitlines())}
    assert [listed[pk] for pk in (done, running, paused)] == ["done", "running", "queued"]
    first.kill()
    gate.touch()
    assert second.wait(running)["jq_attempt"] == 2
    second.wait(second.insert(jq_type="a", jq_args="z"))
    assert (second.row(done)["jq_attempt"], second.row(paused)["jq_attempt"]) == (1, 0)
    assert second.why(paused) == "queue slow is paused"
    assert lines(record).count("x") == 1


@pytest.mark.slow
def test_killing_a_standby_changes_nothing_c15(launch: Launch, text: str, record: Path) -> None:
    text = text.replace(QUICK, LASTING)
    first, second = launch(text), standby(launch, text)
    pks = under_load(first)
    second.kill()
    pks += load(first)
    rows = first.wait_all(pks)
    assert {(row["jq_attempt"], row["jq_rescued"], row["jq_interruptions"]) for row in rows} == {(1, 0, 0)}
    assert sorted(lines(record)) == sorted(row["jq_args"] for row in rows)
    assert serving(first)
    assert "standing by" not in first.stderr()


@pytest.mark.slow
def test_a_daemon_added_under_load_takes_over_later_c10(launch: Launch, text: str, record: Path) -> None:
    first, second = launch(text), standby(launch, text)
    pks = under_load(first)
    third = standby(launch, text)
    pks += under_load(first)
    first.kill()
    following = heir([second, third])
    pks += under_load(following)
    following.kill()
    last = heir([daemon for daemon in (second, third) if daemon is not following])
    assert_done_once(last, [*pks, *load(last)], record)


@pytest.mark.slow
def test_each_of_two_groups_works_and_has_its_own_standby_c2_c16_c17(launch: Launch, tmp_path: Path) -> None:
    records_of = [tmp_path / "one", tmp_path / "two"]
    one = LASTING + "[hosts.alpha]\n[queues.left]\n" + agent("a", rec(records_of[0]), slots=2)
    two = LASTING + 'group = "other"\n[hosts.beta]\n[queues.right]\n' + agent("a", rec(records_of[1]), slots=2)
    first, second = launch(one), launch(two)
    heirs = [standby(launch, one), standby(launch, two)]
    left, right = load(first, jq_queue="left"), load(first, jq_queue="right")
    first.until(lambda: lines(records_of[0]) and lines(records_of[1]))
    first.kill()
    assert heir(heirs) is heirs[0]
    assert active([second], "other") is second
    assert_done_once(second, left, records_of[0])
    rows = second.wait_all(right, timeout=LONG_PATIENCE_S)
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(1, 0)}
    second.kill()
    assert heir(heirs, "other") is heirs[1]
    heirs[1].wait_all(load(heirs[1], jq_queue="right"))
    assert active(heirs) is heirs[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_of_five_daemons_exactly_one_serves_a_hundred_times_c4_j59(launch: Launch, text: str) -> None:
    patient = text.replace(QUICK, PATIENT)
    daemons = [launch(patient, wait=False) for _ in range(5)]
    served = [1]
    daemons[0].until(lambda: sum("standing by" in daemon.stderr() for daemon in daemons) == 4)
    for _ in range(99):
        stepped_down(daemons[0])
        served.append(sum(daemon.stderr().count("serving group") for daemon in daemons))
    assert served == list(range(1, 101))


@pytest.mark.slow
def test_jobs_are_listed_without_the_active_daemon_and_without_the_standby_c6_c42_c43(
    launch: Launch, text: str, drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = text.replace(QUICK, PATIENT)
    first = launch(patient)
    second = standby(launch, patient)
    pk = first.wait(first.insert(jq_type="a", jq_args="x"))["jq_pk"]
    monkeypatch.setenv("DROVER_DATABASE_URL", first.database)
    listed = drover("ls", "--all")
    first.signal(SIGSTOP)
    assert [drover("ls", "--all"), drover("status").status] == [listed, 0]
    first.signal(SIGCONT)
    second.kill()
    assert [drover("ls", "--all"), drover("status").status] == [listed, 0]
    assert (listed.status, listed.out.splitlines()[-1].split()[0]) == (0, str(pk))


# ---- stepping down


@pytest.mark.slow
def test_the_standby_takes_over_at_once_when_the_active_daemon_steps_down_c9(
    launch: Launch, text: str, gate: Path
) -> None:
    patient = text.replace(QUICK, PATIENT)
    first = launch(patient)
    second = standby(launch, patient)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    assert stepped_down(first).endswith(f".{second.pid}")
    assert serving(second)
    first.until(lambda: first.agent_pids() == [])
    gate.touch()
    row = second.wait(pk)
    assert (row["jq_attempt"], row["jq_rescued"], row["jq_interruptions"]) == (2, 0, 0)
    first.until(lambda: "standing by: group default is served by" in first.stderr())
    stepped_down(first)
    assert serving(first)
    first.wait(first.insert(jq_type="a", jq_args="again"))


def test_the_standby_takes_over_at_once_when_the_active_daemon_exits_in_order_c9(launch: Launch, text: str) -> None:
    patient = text.replace(QUICK, PATIENT)
    first = launch(patient)
    second = standby(launch, patient)
    first.stop()
    assert second.wait(second.insert(jq_type="a", jq_args="x"))["jq_attempt"] == 1
    assert serving(second)


@pytest.mark.slow
def test_stepping_down_under_load_interrupts_no_job_c9(launch: Launch, text: str, record: Path) -> None:
    text = text.replace(QUICK, LASTING)
    daemons = [launch(text), standby(launch, text), standby(launch, text)]
    pks = []
    for _ in range(4):
        first = heir(daemons)
        pks += under_load(first)
        stepped_down(first)
        assert active(daemons) not in (first, None)
    assert_done_once(first, pks, record)
    rows = first.wait_all(pks)
    assert {(row["jq_rescued"], row["jq_interruptions"]) for row in rows} == {(0, 0)}


def test_daemon_does_not_step_down_without_a_standby_c9(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.wait(pk, "running")
    assert stepped_down(daemon, state="failed") == "no other scheduler of the group stands by"
    gate.touch()
    assert daemon.wait(pk)["jq_attempt"] == 1
    assert "stepping down" not in daemon.stderr()


@pytest.mark.slow
def test_a_group_that_no_standby_takes_is_taken_back_c9(launch: Launch, record: Path) -> None:
    text = "[scheduler]\nlease = 8\nlease_renewal = 0.3\n" + HOST + agent("a", rec(record))
    first = launch(text)
    second = standby(launch, text)
    second.signal(SIGSTOP)
    said = stepped_down(first, state="failed")
    assert said.endswith(f".{first.pid}, for no other scheduler took the group over")
    assert first.stderr().count("serving group") == 2
    first.wait(first.insert(jq_type="a", jq_args="x"))
    second.signal(SIGCONT)
    second.wait(second.insert(jq_type="a", jq_args="y"))
    assert serving(first)


@pytest.mark.slow
def test_a_group_is_named_where_there_are_several_c9(launch: Launch, record: Path) -> None:
    one = LASTING + "[hosts.alpha]\n" + agent("a", rec(record))
    two = LASTING + 'group = "other"\n[hosts.beta]\n' + agent("a", rec(record))
    first, second = launch(one), launch(two)
    third = standby(launch, two)
    assert stepped_down(first, state="failed") == "there are several groups: step-down GROUP"
    assert stepped_down(first, "step-down nosuch", "failed") == "no such group"
    assert stepped_down(first, "step-down default", "failed") == "no other scheduler of the group stands by"
    stepped_down(first, "step-down other")
    assert active([second, third], "other") is third
    assert active([first]) is first


@pytest.mark.slow
def test_a_stopping_daemon_does_not_step_down_c9(launch: Launch, text: str, gate: Path) -> None:
    text = text.replace(QUICK, LASTING)
    first = launch(text)
    second = standby(launch, text)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    first.signal(SIGINT)
    first.until(lambda: "draining" in first.stderr())
    assert stepped_down(first, state="failed") == "it ends anyway"
    gate.touch()
    assert first.wait_exit() == 0
    assert second.row(pk)["jq_attempt"] == 1


@pytest.mark.slow
def test_a_daemon_stopped_while_stepping_down_ends_c9(launch: Launch) -> None:
    deaf = python(
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); print('OK')\n"
        "for line in sys.stdin: signal.pause()"
    )
    text = LASTING + "kill_grace = 2\n" + HOST + agent("deaf", deaf)
    first = launch(text)
    second = standby(launch, text)
    pk = first.insert(jq_type="deaf")
    first.wait(pk, "running")
    step = step_down(first)
    first.until(lambda: "stepping down" in first.stderr())
    assert first.stop(SIGTERM) == 0
    assert second.wait(step)["jq_endtext"].endswith(f".{second.pid}")
    row = second.wait(pk, "running")
    assert (row["jq_attempt"], row["jq_rescued"], row["jq_interruptions"]) == (2, 0, 0)


@pytest.mark.slow
def test_the_group_is_released_in_time_even_if_a_row_cannot_be_given_back_c9(
    launch: Launch, text: str, gate: Path
) -> None:
    quick = text.replace(QUICK, LASTING + "kill_grace = 0.1\n")
    first = launch(quick)
    second = standby(launch, quick)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    holder = first.login("drover_scheduler")
    with holder.transaction():
        holder.execute("select from drover.jobqueue where jq_pk = %s for update", [pk])
        stepped_down(first)
        assert serving(second)
    gate.touch()
    assert second.wait(pk)["jq_attempt"] == 2


def test_only_an_operator_may_order_a_step_down_c9(launch: Launch, text: str) -> None:
    daemon = launch(text)
    with pytest.raises(InsufficientPrivilege):
        daemon.insert(role="drover_frontend_sql", jq_type="command", jq_args="step-down")
    with pytest.raises(InsufficientPrivilege):
        daemon.execute("select drover.command('step-down')", role="drover_frontend")
