"""Command rows: done by the right daemon, at once, and ended with a reason or an answer."""

import json
import random
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue

from scheduler.model.verbs import HOST as HOST_VERB
from scheduler.model.verbs import TYPE as TYPE_VERB
from scheduler.model.verbs import VERBS
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec, records
from tests.patience import LONG_PATIENCE_S

HOST = "[hosts.alpha]\n"
NAPPING = "import signal,sys; print('OK'); [signal.pause() for _ in sys.stdin]"
QUICK = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\n"  # where a lease runs out
PATIENT = "[scheduler]\nlease = 120\nlease_renewal = 50\n"  # until when the first job may wait for commands
ENDED = {"done", "failed"}
NUMBERS = "select i as id, 'gate:{}' as act from generate_series(1, 10) i"


@pytest.fixture
def text(record: Path) -> str:
    return HOST + agent("a", rec(record), slots=2)


def command(daemon: Daemon, words: str, **columns: Any) -> int:
    """Insert a command as an operator does."""
    return daemon.insert(role="drover_operator", jq_type="command", jq_args=words, **columns)


def told(daemon: Daemon, words: str, state: str = "done", **columns: Any) -> str:
    """Insert a command and wait for its end; what it says."""
    return str(daemon.wait(command(daemon, words, **columns), state)["jq_endtext"])


def working(daemon: Daemon, gate: Path, **columns: Any) -> int:
    """Queue a job that an agent of type a works on until the gate opens; return its number."""
    pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}", **columns)
    daemon.wait(pk, "running")
    return pk


# ---- killing and cancelling


def test_killjob_ends_a_running_job_as_failed_f134(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = working(daemon, gate, jq_retries=3)
    assert told(daemon, f"killjob {pk}") == f"job {pk}: is being killed"
    row = daemon.wait(pk, "failed")
    assert (row["jq_endtext"], row["jq_end_bits"], row["jq_wanted"]) == (
        "killed by command of drover_operator",
        2,
        None,
    )
    daemon.wait(daemon.insert(jq_type="a", jq_args="next"))
    slots = "select status_spawns, status_state_name, status_reason from drover.scheduler_status where status_slot >= 0"
    assert all(row["status_state_name"] != "ST_FAIL" for row in daemon.execute(slots))


def test_killjob_kills_the_agent_starting_for_the_job_f134(launch: Launch) -> None:
    daemon = launch("[scheduler]\nstart_limit = 600\n" + HOST + agent("mute", python("input()")))
    pk = daemon.insert(jq_type="mute", jq_args="x")
    daemon.until(daemon.agent_pids)
    told(daemon, f"killjob {pk}")
    daemon.until(lambda: not daemon.agent_pids(), what="the agent that was starting lives on")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed by command of drover_operator"


def test_killjob_of_a_query_kills_what_runs_and_drops_the_rest_f135(
    launch: Launch, text: str, record: Path, gate: Path
) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="a", jq_args=NUMBERS.format(gate), jq_msq=True)
    daemon.until(lambda: len(lines(record)) == 2)
    told(daemon, f"killjob {pk}")
    row = daemon.wait(pk, "failed")
    assert (row["jq_endtext"], row["jq_itemsprocessed"]) == ("killed by command of drover_operator", 0)
    daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
    assert len(lines(record)) == 3


def test_killjob_of_a_job_not_in_hand_changes_nothing_f136(launch: Launch, text: str) -> None:
    daemon = launch(text)
    done = daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_pk"]
    queued = daemon.insert(jq_type="unknown")
    order = command(daemon, "poll")
    daemon.wait(order)
    for words, text_ in {
        f"killjob {done}": f"job {done} is not being worked: it is done",
        f"killjob {queued}": f"job {queued} is not being worked: it is queued",
        "killjob 999999": "no job 999999",
        f"killjob {order}": f"job {order} is a command",
        "killjob abc": "a job number is required (got 'abc'): killjob JOB",
        "killjob": "too few words: killjob JOB",
        "killjob 1 2": "too many words: killjob JOB",
        "killjob 99999999999999999999": "a job number is required (got '99999999999999999999'): killjob JOB",
    }.items():
        assert told(daemon, words, "failed") == text_
    assert [daemon.row(pk)["jq_state"] for pk in (done, queued)] == ["done", "queued"]


@pytest.mark.slow
def test_a_killed_job_stays_killed_when_its_daemon_dies_f134(launch: Launch, tmp_path: Path) -> None:
    ignoring = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); print('OK')"
    deaf = python(f"{ignoring}\nfor line in sys.stdin: signal.pause()")
    text = QUICK + "kill_grace = 60\n" + HOST + agent("deaf", deaf)
    first = launch(text)
    jobs = first.insert_all([{"jq_type": "deaf", "jq_args": "x"}])
    first.wait(jobs[0], "running")
    told(first, f"cancel {jobs[0]} not wanted any more")
    assert first.row(jobs[0])["jq_state"] == "running"  # its agent heeds no hang-up
    first.kill()
    second = launch(text)
    assert second.wait(jobs[0], "cancelled")["jq_endtext"] == "cancelled by drover_operator: not wanted any more"


def test_killing_and_deleting_a_running_job_frees_its_slot_f138(
    launch: Launch, text: str, gate: Path, record: Path
) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    told(daemon, f"killjob {pk}")
    daemon.execute("delete from drover.jobqueue where jq_pk = %s", pk)
    daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
    daemon.until(lambda: any(each["event"] == "line" and each["line"] == "after" for each in records(record)))
    assert daemon.execute("select from drover.jobqueue where jq_pk = %s", pk) == []


def test_cancel_ends_a_job_in_any_state_before_its_end_t25_t21(
    launch: Launch, text: str, record: Path, gate: Path
) -> None:
    types = agent("one", rec(record)) + agent("busy", ["sh", "-c", "exit 75"], kind="exec")
    daemon = launch("[scheduler]\nblocked_delay = 3600\n" + text + types)
    gated = {"jq_type": "one", "jq_args": f"gate:{gate}"}
    running, claimed = daemon.insert_all([gated, gated])
    daemon.wait(running, "running")
    daemon.wait(claimed, "claimed")
    queued, blocked = daemon.insert(jq_type="unknown"), daemon.insert(jq_type="busy")
    held = daemon.insert(jq_type="a", jq_state="held")
    waiting = daemon.insert(jq_type="a", jq_not_before="2100-01-01")
    depends = daemon.insert(jq_type="a", jq_state="held")
    daemon.execute("insert into drover.jobdepends values (%s, %s)", depends, running)
    told(daemon, f"release {depends}")
    daemon.until(lambda: "blocked: " in daemon.why(blocked))
    for pk in (claimed, depends, running, queued, blocked, held, waiting):
        told(daemon, f"cancel {pk} no  longer wanted")
        row = daemon.wait(pk, "cancelled")
        assert (row["jq_endtext"], row["jq_end_bits"]) == ("cancelled by drover_operator: no  longer wanted", 2)
    assert told(daemon, f"cancel {queued}", "failed") == f"job {queued} has ended: it is cancelled"
    assert lines(record) == [f"gate:{gate}"]


def test_cancelling_a_parent_settles_its_children(launch: Launch, text: str) -> None:
    daemon = launch(text)
    parent = daemon.insert(jq_type="unknown")
    child = daemon.insert(jq_type="a", jq_state="held")
    daemon.execute("insert into drover.jobdepends values (%s, %s, 1, 'skip')", child, parent)
    told(daemon, f"cancel {parent}")
    assert daemon.wait(child, "skipped")["jq_attempt"] == 0


# ---- signals


@pytest.mark.parametrize("word", ["TERM", "SIGTERM", "term", "15"])
def test_signal_reaches_the_agent_of_the_job_by_name_or_number_j84_j85_j86_j126(launch: Launch, word: str) -> None:
    daemon = launch(HOST + agent("sleep", ["sleep", "100"], kind="exec"))
    pk = daemon.insert(jq_type="sleep")
    daemon.wait(pk, "running")
    order = daemon.wait(command(daemon, f"signal {pk} {word}"))
    assert order["jq_result"] == {str(pk): True}
    row = daemon.wait(pk, "failed")
    assert row["jq_signal"] == "SIGTERM"


def test_signal_to_a_job_not_running_and_an_unknown_signal_fail_j84(launch: Launch, text: str) -> None:
    daemon = launch(text)
    done = daemon.wait(daemon.insert(jq_type="a", jq_args="x"))["jq_pk"]
    assert told(daemon, f"signal {done} TERM", "failed") == f"job {done} is not running: it is done"
    assert told(daemon, f"signal {done} FROBNICATE", "failed").startswith("no signal 'FROBNICATE'")


# ---- the daemons themselves


def test_shutdown_finishes_what_runs_and_its_row_ends_first_f132_f148_j125(
    launch: Launch, text: str, gate: Path
) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    row = daemon.wait(command(daemon, "shutdown"))
    assert row["jq_endtext"].endswith(": shutting down")
    late = daemon.insert(jq_type="a", jq_args="late")
    gate.touch()
    daemon.wait(pk)
    assert daemon.wait_exit() == 0
    assert daemon.row(late)["jq_state"] == "queued"


def test_shutdown_now_kills_and_gives_back_f133(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    daemon.wait(command(daemon, "shutdown now"))
    assert daemon.wait_exit() == 0
    assert (daemon.row(pk)["jq_state"], daemon.row(pk)["jq_starttime"]) == ("queued", None)


def test_shutdown_is_for_every_daemon_or_the_one_that_is_named(launch: Launch, record: Path) -> None:
    text = "[scheduler]\nlease = 30\nlease_renewal = 0.3\n" + HOST + agent("a", rec(record))
    first = launch(text)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    named = f"select scheduler_host || '.' || scheduler_pid from drover.scheduler where scheduler_pid = {second.pid}"
    told(first, "shutdown", jq_host=first.value(named))
    assert second.wait_exit() == 0
    assert first.process.poll() is None
    row = first.wait(command(first, "verbose 1"))
    assert list(row["jq_result"].values()) == ["log level trace"]
    told(first, "shutdown")
    assert first.wait_exit() == 0


def test_why_says_that_the_scheduler_drains(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    working(daemon, gate)
    told(daemon, "shutdown")
    pk = daemon.insert(jq_type="a", jq_args="x")
    daemon.until(lambda: daemon.why(pk) == "waits its turn: the scheduler drains")
    assert daemon.value("select status_state_name from drover.scheduler_status where status_slot = -1") == "draining"


def test_old_shutdown_does_not_stop_a_new_daemon(launch: Launch, text: str) -> None:
    first = launch(text)
    first.stop()
    pk = command(first, "shutdown")
    second = launch(text)
    row = second.wait(pk, "failed")
    assert row["jq_endtext"] == "no scheduler was running that knows it"
    second.wait(second.insert(jq_type="a", jq_args="x"))


def test_every_daemon_acts_once_and_the_row_ends_when_all_have(launch: Launch, record: Path) -> None:
    text = "[scheduler]\nlease = 30\nlease_renewal = 0.3\n" + HOST + agent("a", rec(record))
    first = launch(text)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    row = first.wait(command(first, "verbose 0"))
    assert len(row["jq_result"]) == 2
    acks = first.value("select count(*) from drover.command_ack where ack_jq_fk = %s", row["jq_pk"])
    assert acks == 2


def test_standby_leaves_commands_about_the_work_to_the_active_daemon(launch: Launch, text: str, gate: Path) -> None:
    text = "[scheduler]\nlease = 30\n" + text
    first = launch(text)
    pk = working(first, gate)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    first.signal(SIGSTOP)
    asked = command(first, "status"), command(first, f"signal {pk} CONT")
    named = first.value(
        "select scheduler_host || '.' || scheduler_pid from drover.scheduler where scheduler_pid = %s", second.pid
    )
    told(first, "verbose 0", jq_host=named)
    assert [first.row(each)["jq_state"] for each in asked] == ["queued", "queued"]
    first.signal(SIGCONT)
    counts, signalled = (first.wait(each)["jq_result"] for each in asked)
    assert counts["agents"]["a"]["ST_RUNNING"] == 1
    assert signalled == {str(pk): True}


@pytest.mark.slow
def test_a_dead_daemon_does_not_keep_a_command_open(launch: Launch, record: Path) -> None:
    text = QUICK + HOST + agent("a", rec(record))
    first = launch(text)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    second.signal(SIGSTOP)
    pk = command(first, "verbose 0")
    row = first.wait(pk)
    assert len(row["jq_result"]) == 1


@pytest.mark.slow
def test_reset_tries_failed_slots_at_once(launch: Launch, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    lines_ = ["import os, sys", f"if os.path.exists({str(broken)!r}): sys.exit(1)", "print('OK')"]
    daemon = launch(HOST + agent("b", python("\n".join([*lines_, "for line in sys.stdin: print('OK')"]))))
    broken.touch()
    pk = daemon.insert(jq_type="b")
    daemon.until(lambda: "failed, next try" in daemon.why(daemon.insert(jq_type="b")))
    broken.unlink()
    assert "1 failed slots" in told(daemon, "reset")
    daemon.wait(pk)


# ---- before the first job


def test_a_job_is_visible_at_once_and_never_starts_if_cancelled_before_t66(
    launch: Launch, text: str, record: Path, gate: Path
) -> None:
    daemon = launch(text)
    busy = [working(daemon, gate) for _ in range(2)]
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": "never"}] * 20, role="drover_frontend")
    seen = "select count(*) from drover.my_jobs where jq_state in ('queued', 'claimed') and jq_args = 'never'"
    assert daemon.execute(seen, role="drover_frontend") == [{"count": 20}]
    for pk in pks:
        daemon.execute(f"select drover.command('cancel {pk}')", role="drover_frontend")
    daemon.wait_all(pks, "cancelled")
    gate.touch()
    daemon.wait_all(busy)
    daemon.wait(daemon.insert(jq_type="a", jq_args="last"))
    assert lines(record) == [f"gate:{gate}"] * 2 + ["last"]
    assert {(daemon.row(pk)["jq_state"], daemon.row(pk)["jq_end_bits"]) for pk in pks} == {("cancelled", 2)}


@pytest.mark.slow
def test_a_command_in_the_second_of_the_claim_reaches_the_job_t59(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    for _ in range(10):
        pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 2)
        daemon.wait_all(pks, {"claimed", "running"})
        for pk in pks:
            daemon.execute(f"select drover.command('cancel {pk}')", role="drover_operator")
        assert [row["jq_state"] for row in daemon.wait_all(pks, "cancelled")] == ["cancelled"] * 2


@pytest.mark.slow
def test_jobs_that_were_cancelled_while_no_daemon_ran_never_start_t66(launch: Launch, text: str, record: Path) -> None:
    first = launch(PATIENT + text)
    first.stop()
    pks = first.insert_all([{"jq_type": "a", "jq_args": str(n)} for n in range(120)])
    orders = [command(first, f"cancel {pk} not wanted") for pk in pks]
    second = launch(PATIENT + text)
    rows = second.wait_all(pks, "cancelled")
    assert {(row["jq_attempt"], row["jq_endtext"]) for row in rows} == {(0, "cancelled by drover_operator: not wanted")}
    second.wait_all(orders)
    second.wait(second.insert(jq_type="a", jq_args="wanted"))
    assert lines(record) == ["wanted"]


@pytest.mark.slow
def test_jobs_paused_held_or_iced_while_no_daemon_ran_do_not_start_t36(launch: Launch, text: str, record: Path) -> None:
    config = PATIENT + "[queues.one]\n" + text
    first = launch(config)
    first.stop()
    held, iced, paused = (first.insert(jq_type="a", jq_args="x", jq_queue=name) for name in ("default", None, "one"))
    orders = [command(first, words) for words in (f"hold {held}", f"ice {iced}", "pause one", "host-max alpha 1")]
    second = launch(config)
    second.wait_all(orders)
    second.wait(second.insert(jq_type="a", jq_args="wanted"))
    assert [second.row(pk)["jq_state"] for pk in (held, iced, paused)] == ["held", "skipped", "queued"]
    assert lines(record) == ["wanted"]


# ---- hosts and types


def test_a_host_is_drained_and_enabled_again_t50(launch: Launch, text: str, record: Path) -> None:
    daemon = launch(text)
    assert told(daemon, "host-disable alpha") == "host alpha: disabled, max -1, urgent 1"
    pk = daemon.insert(jq_type="a", jq_args="x")
    daemon.until(lambda: "disabled" in daemon.why(pk))
    assert lines(record) == []
    told(daemon, "host-enable alpha")
    daemon.wait(pk)
    assert told(daemon, "host-enable beta", "failed") == "no host beta"


@pytest.mark.slow
def test_the_maximum_of_a_host_changes_at_once(launch: Launch, text: str, record: Path, gate: Path) -> None:
    daemon = launch(text)
    told(daemon, "host-max alpha 1 0")
    first = working(daemon, gate)
    second = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.until(lambda: "no room" in daemon.why(second) or "waits for an agent" in daemon.why(second))
    assert len(daemon.agent_pids()) == 1
    told(daemon, "host-max alpha 2")
    daemon.wait(second, "running")
    gate.touch()
    daemon.wait_all([first, second])


def test_agent_disable_ends_idle_agents_and_busy_ones_after_their_item(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    busy = working(daemon, gate)
    daemon.wait(daemon.insert(jq_type="a", jq_args="soon done"))
    assert len(daemon.agent_pids()) == 2
    told(daemon, "agent-disable a")
    daemon.until(lambda: len(daemon.agent_pids()) == 1, what="the idle agent lives on")
    gate.touch()
    daemon.wait(busy)
    daemon.until(lambda: not daemon.agent_pids(), what="the other agent lives on after its item")


def test_a_type_is_disabled_and_enabled_again(launch: Launch, text: str) -> None:
    daemon = launch(text)
    told(daemon, "agent-disable a")
    pk = daemon.insert(jq_type="a", jq_args="x")
    daemon.until(lambda: daemon.why(pk) == "agent type a is disabled")
    told(daemon, "agent-enable a")
    daemon.wait(pk)
    assert told(daemon, "agent-disable nobody", "failed") == "no agent type nobody"


def test_status_answers_with_counts_j70(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    working(daemon, gate)
    answer = daemon.wait(command(daemon, "status"))["jq_result"]
    assert answer["jobs"] == 1
    assert answer["agents"]["a"] == {"ST_RUNNING": 1, "ST_FREE": 1}


# ---- nothing holds a command back


def test_commands_are_carried_out_with_every_slot_busy_and_the_queue_full_f139_t14(
    launch: Launch, text: str, gate: Path
) -> None:
    daemon = launch(text)
    jobs = [working(daemon, gate), working(daemon, gate)]
    daemon.execute("insert into drover.jobqueue (jq_type, jq_args) select 'a', 'x' from generate_series(1, 20000)")
    daemon.execute("update drover.queue set queue_paused = true")
    for pk in jobs:
        told(daemon, f"killjob {pk}")
        daemon.wait(pk, "failed")
    assert daemon.value("select count(*) from drover.jobqueue where jq_state = 'queued'") > 19_000


def test_many_commands_over_one_connection_all_end_j92(launch: Launch, text: str) -> None:
    daemon = launch(text)
    dice = random.Random(88)
    pks = [command(daemon, dice.choice(["status", "poll", "reset", "verbose 0"])) for _ in range(50)]
    assert all(row["jq_endtext"] for row in daemon.wait_all(pks))


ARGUMENTS = {
    "JOB": "{job}", "JOB|NAME": "{job}", "JOB|CONDITION": "{job}", "JOB...": "{job}", "SIGNAL": "TERM", "LEVEL": "0",
    "QUEUE": "{queue}", "LETTERS": "a", "LENGTH": "9", "CONCURRENCY": "2", "PRIORITY": "1", "MAX": "4", "DAYS": "1",
    "FILTER...": "types=", "SCHEDULE": "nightly",
}  # fmt: skip
NAMES = {HOST_VERB: "alpha", TYPE_VERB: "a"}
NIGHTLY = "insert into drover.schedule (schedule_name, schedule_cron, schedule_job) values ('nightly', '@daily', %s)"
ENDS_DAEMONS = ("shutdown", "step-down")


def one_of(verb: str, job: int) -> str:
    """Return a command that a scheduler understands, without what may be left out."""
    name = NAMES.get(VERBS[verb].about, "")
    words = [ARGUMENTS.get(each, name) for each in VERBS[verb].usage.split() if not each.startswith("[")]
    return " ".join([verb, *words]).format(job=job, queue="new" if verb in ("add-queue", "remove-queue") else "one")


@pytest.mark.slow
def test_a_command_of_each_verb_ends_with_an_answer_j88_t36(launch: Launch, text: str) -> None:
    daemon = launch("[queues.one]\n" + text)
    second = launch("[queues.one]\n" + text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    nightly = (
        "insert into drover.schedule (schedule_name, schedule_cron, schedule_job) values ('nightly', '@daily', %s)"
    )
    daemon.execute(nightly, '{"jq_type": "a"}', role="drover_operator")
    verbs = [verb for verb in VERBS if verb not in ENDS_DAEMONS]
    late = [verb for verb in verbs if verb.endswith("-disable")]  # the job of `run` wants an agent
    rows = {}
    for some in ([verb for verb in verbs if verb not in late], late):
        orders = [one_of(verb, daemon.insert(jq_type="a", jq_state="held")) for verb in some]
        rows |= zip(some, daemon.wait_all([command(daemon, order) for order in orders], ENDED), strict=True)
    assert [verb for verb, row in rows.items() if not row["jq_endtext"]] == []
    assert [verb for verb, row in rows.items() if row["jq_state"] == "done" and row["jq_result"] is None] == []
    told_of = rows["pause"]["jq_endtext"], rows["continue"]["jq_endtext"]
    assert told_of == ("paused: default, one", "running: default, one")
    failed = {verb for verb, row in rows.items() if row["jq_state"] == "failed"}
    no_trials = {verb for verb in verbs if VERBS[verb].carried_out_by == "set_program"}  # of new programs of this type
    assert failed == {"killjob", "signal", "retry", "unblock"} | no_trials  # what they name is held, and no more
    for verb in ENDS_DAEMONS[::-1]:
        assert daemon.wait(command(daemon, verb))["jq_endtext"]
    assert [each.wait_exit() for each in (daemon, second)] == [0, 0]


@pytest.mark.slow
def test_more_commands_in_one_transaction_than_one_read_all_end_j88(launch: Launch, text: str) -> None:
    daemon = launch(text)
    insert = "insert into drover.jobqueue (jq_type, jq_args) select 'command', 'poll' from generate_series(1, 350)"
    daemon.execute(insert, role="drover_operator")
    daemon.until(lambda: daemon.value("select count(*) from drover.jobqueue where jq_endtime is not null") == 350)
    assert daemon.value("select count(*) from drover.jobqueue where jq_state = 'done'") == 350


def test_capital_command_is_an_ordinary_type_f130(launch: Launch, text: str) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="Command", jq_args="shutdown")
    told(daemon, "poll")
    assert daemon.row(pk)["jq_state"] == "queued"


# ---- malformed


WORDS = [
    "shutdown",
    "killjob",
    "cancel",
    "signal",
    "host-max",
    "verbose",
    "status",
    "frobnicate",
    "now",
    "-1",
    "0",
    "1",
]
ODD = [
    "",
    " ",
    "\n",
    "'",
    '"',
    ";",
    "--",
    "\\",
    "\x01",
    "é",
    "😀",
    "a" * 1200,
    "1" * 30,
    "%s",
    "$1",
    "null",
    "; drop table",
]


@pytest.mark.slow
def test_a_thousand_malformed_commands_all_fail_with_a_reason_f137_j87_j95(launch: Launch, text: str) -> None:
    daemon = launch(text)
    dice = random.Random(20260101)
    texts = [" ".join(dice.choice(WORDS + ODD) for _ in range(dice.randint(0, 4))) for _ in range(1000)]
    texts = ["x" + each if each.split()[:1] in (["shutdown"], ["status"], ["verbose"]) else each for each in texts]
    with daemon.login("drover_operator").cursor() as cursor:
        cursor.executemany(
            "insert into drover.jobqueue (jq_type, jq_args) values ('command', %s)", [(t,) for t in texts]
        )
    left = "select count(*) from drover.jobqueue where jq_type = 'command' and jq_endtime is null"
    daemon.until(lambda: daemon.value(left) == 0, timeout=LONG_PATIENCE_S)
    ends = daemon.execute(
        "select jq_args, jq_state::text as state, jq_endtext from drover.jobqueue where jq_type = 'command'"
    )
    assert [end for end in ends if end["state"] != "failed" or not end["jq_endtext"]] == []
    daemon.wait(daemon.insert(jq_type="a", jq_args="still there"))


# ---- who may


def test_an_owner_may_give_commands_about_own_jobs_only_j93(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    mine, other = working(daemon, gate, role="drover_frontend"), working(daemon, gate)
    (row,) = daemon.execute(f"select drover.command('killjob {mine}') as pk", role="drover_frontend")
    assert daemon.wait(row["pk"])["jq_submitter"] == "drover_frontend"
    daemon.wait(mine, "failed")
    with pytest.raises(InvalidParameterValue, match="killjob of which job"):
        daemon.execute("select drover.command('killjob')", role="drover_frontend")
    for words in (f"killjob {other}", "shutdown", "killjob x"):
        with pytest.raises(InsufficientPrivilege):
            daemon.execute(f"select drover.command('{words}')", role="drover_frontend")
    with pytest.raises(InsufficientPrivilege):
        daemon.insert(role="drover_frontend", jq_type="command", jq_args=f"killjob {mine}")
    assert daemon.row(other)["jq_state"] == "running"


def test_a_command_is_queued_at_once_and_takes_no_dependencies(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        insert = "insert into drover.jobqueue (jq_type, jq_args, jq_state, jq_not_before, jq_queue, jq_mode) values"
        given = "('command', 'poll', 'held', 'infinity', 'q', 'manual')"
        row = connection.execute(f"{insert} {given} returning jq_state, jq_wait_until, jq_queue").fetchone()
        assert row == ("queued", None, None)
        connection.execute("insert into drover.jobqueue (jq_type) values ('a')")
        with pytest.raises(psycopg.errors.CheckViolation, match="is a command: it waits for nothing"):
            connection.execute("insert into drover.jobdepends values (1, 2)")


def test_result_and_reason_are_never_both_empty_j94(launch: Launch, text: str) -> None:
    daemon = launch(text)
    good, bad = daemon.wait(command(daemon, "poll")), daemon.wait(command(daemon, "frobnicate 1"), "failed")
    assert good["jq_result"] is not None
    assert bad["jq_endtext"].startswith("unknown command 'frobnicate'")
    assert json.dumps(bad["jq_result"]) == "null"
