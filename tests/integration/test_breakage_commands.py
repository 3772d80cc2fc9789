"""Commands against locks, cut connections, floods and deaths: each is done once, at once, and holds nobody back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.proxy import Proxy
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, python, rec
from tests.integration.test_commands import HOST, QUICK, command, told, working
from tests.patience import LONG_PATIENCE_S
from tests.replica_tools import socket_of

PATIENT = "[scheduler]\nlease = 30\nlease_renewal = 10\n"
FLOOD = 1_500


@pytest.fixture
def text(record: Path) -> str:
    return PATIENT + HOST + agent("a", rec(record), slots=2)


# ---- locks


@pytest.mark.parametrize("words", ["cancel {}", "killjob {}"])
def test_a_lock_on_a_job_delays_only_commands_about_it(launch: Launch, text: str, gate: Path, words: str) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="unknown") if "cancel" in words else working(daemon, gate)
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for no key update", (pk,))
        waits = command(daemon, words.format(pk))
        daemon.wait(command(daemon, "poll"))
        assert daemon.row(waits)["jq_state"] == "queued"
    daemon.wait(waits)


@pytest.mark.slow
def test_more_locked_jobs_than_one_read_delay_no_other_command(launch: Launch, text: str) -> None:
    daemon = launch(text)
    jobs = "insert into drover.jobqueue (jq_type) select 'unknown' from generate_series(1, 250) returning jq_pk"
    pks = [row["jq_pk"] for row in daemon.execute(jobs)]
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = any (%s) for no key update", (pks,))
        cancels = "insert into drover.jobqueue (jq_type, jq_args) select 'command', 'cancel ' || unnest(%s::bigint[])"
        daemon.execute(cancels, pks)
        daemon.wait(command(daemon, "poll"))
    assert daemon.wait_all(pks, "cancelled")


def test_a_lock_on_a_command_delays_no_other_command(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.signal(SIGSTOP)
    waits, every = command(daemon, "status"), command(daemon, "verbose 0")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk in (%s, %s) for update", (waits, every))
        daemon.signal(SIGCONT)
        daemon.wait(command(daemon, "poll"))
    assert daemon.wait_all([waits, every])


def test_a_command_whose_row_is_locked_takes_effect_when_the_lock_is_gone(
    launch: Launch, text: str, gate: Path
) -> None:
    """The same statement changes the job and marks the command, so that who comes next knows whose effect it is."""
    daemon = launch(text)
    pk = working(daemon, gate)
    daemon.signal(SIGSTOP)
    kill = command(daemon, f"killjob {pk}")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (kill,))
        daemon.signal(SIGCONT)
        daemon.wait(command(daemon, "poll"))
        assert daemon.row(pk)["jq_state"] == "running"
    assert daemon.wait(kill)["jq_endtext"] == f"job {pk}: is being killed"
    daemon.wait(pk, "failed")


@pytest.mark.slow
def test_a_lock_on_a_host_delays_only_commands_about_it(launch: Launch, text: str) -> None:
    quick = text.replace("lease = 30\nlease_renewal = 10", "lease = 4\nlease_renewal = 1")
    daemon = launch(quick)
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.host for update")
        waits = command(daemon, "host-max alpha 5")
        daemon.wait(command(daemon, "poll"))
        assert daemon.row(waits)["jq_state"] == "queued"
    daemon.wait(waits)
    assert daemon.value("select host_max from drover.host where host_name = 'alpha'") == 5


@pytest.mark.slow
def test_waiting_for_a_lock_is_not_taken_for_a_broken_listen(launch: Launch, text: str) -> None:
    daemon = launch(text.replace(PATIENT, PATIENT + "rescan = 0.5\n"))
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.host for update")
        command(daemon, "host-max alpha 5")
        daemon.until(lambda: "set_host: canceling statement" in daemon.stderr())
    assert "LISTEN gets nothing" not in daemon.stderr()


# ---- answers that are lost


@pytest.mark.slow
@pytest.mark.parametrize(("words", "name"), [("killjob", "set_wanted"), ("cancel", "cancel_job")])
def test_a_command_whose_answer_is_lost_reports_its_effect(
    launch: Launch, database_with_roles: str, text: str, gate: Path, words: str, name: str
) -> None:
    with Proxy(socket_of(database_with_roles)) as proxy:
        via = make_conninfo(database_with_roles, host="127.0.0.1", port=proxy.port)
        daemon = launch(text, via=via)
        jobs = [daemon.insert(jq_type="unknown") if name == "cancel_job" else working(daemon, gate) for _ in "12"]
        told(daemon, f"{words} {jobs[0]}")  # all is prepared
        proxy.swallow(name.encode() + b"/")
        told(daemon, f"{words} {jobs[1]}")
        assert proxy.swallowed == 1


@pytest.mark.parametrize("name", ["acknowledge", "close_commands"])
def test_a_shutdown_is_carried_out_if_the_answer_to_its_acknowledgement_is_lost(
    launch: Launch, database_with_roles: str, text: str, name: str
) -> None:
    with Proxy(socket_of(database_with_roles)) as proxy:
        via = make_conninfo(database_with_roles, host="127.0.0.1", port=proxy.port)
        daemon = launch(text, via=via)
        told(daemon, "verbose 0")  # all is prepared
        proxy.swallow(name.encode() + b"/")
        command(daemon, "shutdown")
        daemon.until(lambda: proxy.swallowed == 1)
        assert daemon.wait_exit() == 0


# ---- daemons that die between the effect of a command and its end


@contextmanager
def endless(daemon: Daemon) -> Iterator[None]:
    """Commands cannot end, whatever they do; then the daemon is killed."""
    daemon.execute("""
        create function drover.stuck() returns trigger language plpgsql as $$ begin raise 'stuck'; end $$;
        create trigger stuck before update on drover.jobqueue for each row
          when (new.jq_type = 'command' and new.jq_endtime is not null) execute function drover.stuck()""")
    yield
    daemon.until(lambda: "end_command: stuck" in daemon.stderr(), what="nothing was to end")
    daemon.kill()
    daemon.execute("drop function drover.stuck cascade")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "before", "after", "said"),
    [
        ("cancel {}", "held", "cancelled", "cancelled"),
        ("cancel {}", "running", "cancelled", "cancelled"),
        ("ice {}", "held", "skipped", "on ice"),
        ("killjob {}", "running", "failed", "killed"),
    ],
)
def test_a_command_half_done_by_a_dead_daemon_is_not_refused_by_the_next(
    launch: Launch, text: str, gate: Path, words: str, before: str, after: str, said: str
) -> None:
    first = launch(QUICK + text.removeprefix(PATIENT))
    pk = working(first, gate) if before == "running" else first.insert(jq_type="unknown", jq_state="held")
    with endless(first):
        order = command(first, words.format(pk))
        first.wait(pk, after)
    second = launch(QUICK + text.removeprefix(PATIENT))
    assert second.wait(order)["jq_endtext"] == f"job {pk}: {said}"
    assert told(second, words.format(pk), "failed").endswith(f"it is {after}")


@pytest.mark.slow
def test_a_retry_by_a_daemon_that_died_is_not_repeated_by_the_next(launch: Launch) -> None:
    text = QUICK + HOST + agent("bad", ["false"], kind="exec")
    first = launch(text)
    pk = first.wait(first.insert(jq_type="bad", jq_args="x"), "failed")["jq_pk"]
    with endless(first):
        order = command(first, f"retry {pk}")
        first.until(lambda: (first.row(pk)["jq_attempt"], first.row(pk)["jq_state"]) == (2, "failed"))
    second = launch(text)
    assert second.wait(order)["jq_endtext"] == f"job {pk}: queued again"
    told(second, "status")
    assert (second.row(pk)["jq_attempt"], second.row(pk)["jq_state"]) == (2, "failed")


@pytest.mark.slow
def test_a_job_unblocked_by_a_dead_daemon_is_counted_by_the_next(launch: Launch, gate: Path) -> None:
    says = f"print('OK' if os.path.exists({str(gate)!r}) else 'BLOCKED licence\\nOK')"
    script = f"import os, sys\nprint('OK')\nfor line in sys.stdin: {says}"
    text = QUICK + "blocked_delay = 3600\n" + HOST + agent("b", python(script))
    first = launch(text)
    pk = first.insert(jq_type="b", jq_args="x")
    first.until(lambda: "licence" in first.why(pk))
    gate.touch()
    with endless(first):
        order = command(first, f"unblock {pk}")
        first.wait(pk)
    second = launch(text)
    assert second.wait(order)["jq_endtext"] == f"job {pk}: not blocked any more"
    assert told(second, f"unblock {pk}", "failed") == f"job {pk} is not blocked: it is done"


@pytest.mark.slow
def test_a_queue_added_or_removed_by_a_dead_daemon_is_no_error_for_the_next(launch: Launch, text: str) -> None:
    text = QUICK + text.removeprefix(PATIENT)
    there = "select max(queue_concurrency) from drover.queue where queue_name = 'new'"
    for words, said, concurrency in (
        ("add-queue new 2", "queue new: concurrency 2", 2),
        ("remove-queue new", "queue new: removed", None),
    ):
        first = launch(text)
        with endless(first):
            order = command(first, words)
        second = launch(text)
        assert second.wait(order)["jq_endtext"] == said
        assert second.value(there) == concurrency
        assert told(second, words, "failed") in ("there is a queue new already", "no queue new")
        second.kill()


# ---- order


@pytest.mark.slow
def test_a_command_after_a_shutdown_is_carried_out_during_the_drain(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    past_the_first_rescan(daemon)
    pk = working(daemon, gate)
    with daemon.login("drover_operator").transaction():
        pks = [command(daemon, words) for words in ("shutdown", f"killjob {pk}")]
    daemon.wait_all(pks)
    assert daemon.wait_exit() == 0
    assert daemon.row(pk)["jq_endtext"] == "killed by command of drover_operator"


def test_a_job_below_a_command_runs_when_the_command_has_ended(launch: Launch, text: str) -> None:
    daemon = launch(text)
    past_the_first_rescan(daemon)
    with daemon._owner.transaction():
        parents = [command_by_owner(daemon, "status"), command_by_owner(daemon, "verbose 0")]
        pk = daemon.value("insert into drover.jobqueue (jq_type, jq_args) values ('a', 'x') returning jq_pk")
        for parent in parents:
            daemon.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", pk, parent)
    assert daemon.wait(pk)


def past_the_first_rescan(daemon: Daemon) -> None:
    """Have the belt that comes a second after the start now."""
    told(daemon, "poll")
    told(daemon, "status")


def command_by_owner(daemon: Daemon, words: str) -> int:
    insert = "insert into drover.jobqueue (jq_type, jq_args) values ('command', %s) returning jq_pk"
    return int(daemon.value(insert, words))


# ---- daemons that others thought dead


@pytest.mark.slow
def test_a_daemon_forgotten_while_stopped_receives_commands_again(launch: Launch, record: Path) -> None:
    text = QUICK + "rescan = 1\n" + HOST + agent("a", rec(record))  # at which the dead are removed
    first = launch(text)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    second.signal(SIGSTOP)
    known = "select count(*) from drover.scheduler"
    first.until(lambda: first.value(known) == 1)
    second.signal(SIGCONT)
    first.until(lambda: first.value(known) == 2)
    first.kill()
    second.until(lambda: "serving group" in second.stderr())
    assert told(second, "status") == "see jq_result"


@pytest.mark.slow
def test_a_command_waits_for_a_stopped_daemon_for_its_whole_lease(launch: Launch, record: Path) -> None:
    first = launch(QUICK + HOST + agent("a", rec(record)))
    slow = 'lease = 60\nlease_renewal = 20\ngroup = "slow"\n'
    second = launch(f"[scheduler]\n{slow}[hosts.beta]\n" + agent("a", rec(record)))
    long_ago = "select scheduler_seen < now() - interval '4 s' from drover.scheduler where scheduler_group = 'slow'"
    first.until(lambda: first.value(long_ago))
    second.signal(SIGSTOP)
    pk = command(first, "verbose 0")
    told(first, "status")
    second.signal(SIGCONT)
    assert len(first.wait(pk)["jq_result"]) == 2


# ---- floods


@pytest.mark.slow
def test_a_flood_of_commands_delays_no_job(launch: Launch, text: str) -> None:
    daemon = launch(text)
    job = daemon.insert(role="drover_frontend", jq_type="unknown")
    flood = f"select count(drover.command('killjob {job}')) from generate_series(1, {FLOOD})"
    daemon.signal(SIGSTOP)  # until all is there
    daemon.execute(flood, role="drover_frontend")
    soon = "insert into drover.jobqueue (jq_type, jq_args, jq_not_before) values ('a', 'x', now() + interval '1 ms')"
    pk = daemon.value(f"{soon} returning jq_pk")
    daemon.signal(SIGCONT)
    ended = daemon.wait(pk)["jq_endtime"]
    order = command(daemon, "poll")
    left = "select count(*) from drover.claimable where claim_type = 'command'"
    daemon.until(lambda: daemon.value(left) == 0, timeout=LONG_PATIENCE_S)
    daemon.wait(order)
    assert ended < daemon.value("select max(jq_endtime) from drover.jobqueue where jq_args like 'killjob%%'")


@pytest.mark.slow
def test_a_flood_of_one_front_end_delays_no_operator_and_no_other_front_end(launch: Launch, text: str) -> None:
    daemon = launch(text)
    mine, other = (
        daemon.insert(role="drover_frontend", jq_type="x"),
        daemon.insert(role="drover_frontend_sql", jq_type="x"),
    )
    flood = f"select count(drover.command('killjob {mine}')) from generate_series(1, {FLOOD})"
    daemon.signal(SIGSTOP)  # until all is there
    daemon.execute(flood, role="drover_frontend")
    order = command(daemon, "poll")
    (row,) = daemon.execute(f"select drover.command('cancel {other}') as pk", role="drover_frontend_sql")
    daemon.signal(SIGCONT)
    last = max(daemon.wait(each)["jq_endtime"] for each in (order, row["pk"]))
    ended = "select count(*) from drover.jobqueue where jq_args like 'killjob%%' and jq_endtime < %s"
    assert daemon.value(ended, last) < FLOOD // 2


@pytest.mark.slow
def test_a_long_command_costs_no_more_than_a_short_one(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.execute("update drover.size_limit set limit_bytes = 1 << 24 where limit_column = 'jq_args'")
    insert = "insert into drover.jobqueue (jq_type, jq_args) select 'command', 'killjob 1' || repeat(' a', 8000000)"
    daemon.execute(f"{insert} from generate_series(1, 3)", role="drover_operator")
    daemon.wait(command(daemon, "poll"))
    assert daemon.value("select count(*) from drover.jobqueue where jq_state = 'failed'") == 3
