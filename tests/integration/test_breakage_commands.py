"""Commands against locks, cut connections, floods and deaths: each is done once, at once, and holds nobody back."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.proxy import Proxy
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.test_commands import HOST, QUICK, command, told, working
from tests.replica_tools import socket_of

PATIENT = "[scheduler]\nlease = 30\nlease_renewal = 10\nrescan = 1000\n"  # no belt comes to the rescue
FLOOD = 4_000


@pytest.fixture
def text(record: Path) -> str:
    return PATIENT + HOST + agent("a", rec(record), slots=2)


# ---- locks


@pytest.mark.parametrize("words", ["cancel {}", "killjob {}"])
def test_a_lock_on_a_job_holds_back_the_commands_about_it_alone(
    launch: Launch, text: str, gate: Path, words: str
) -> None:
    daemon = launch(text)
    pk = daemon.insert(jq_type="unknown") if "cancel" in words else working(daemon, gate)
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for no key update", (pk,))
        waits = command(daemon, words.format(pk))
        daemon.wait(command(daemon, "poll"), timeout=3)
        assert daemon.row(waits)["jq_state"] == "queued"
    daemon.wait(waits, timeout=3)


def test_more_locked_jobs_than_one_read_gives_hold_back_no_other_command(launch: Launch, text: str) -> None:
    daemon = launch(text)
    jobs = "insert into drover.jobqueue (jq_type) select 'unknown' from generate_series(1, 250) returning jq_pk"
    pks = [row["jq_pk"] for row in daemon.execute(jobs)]
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = any (%s) for no key update", (pks,))
        cancels = "insert into drover.jobqueue (jq_type, jq_args) select 'command', 'cancel ' || unnest(%s::bigint[])"
        daemon.execute(cancels, pks)
        daemon.wait(command(daemon, "poll"), timeout=3)
    daemon.wait_all(pks, "cancelled", timeout=5)


def test_a_lock_on_a_command_holds_back_no_other(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.signal(SIGSTOP)
    waits, every = command(daemon, "status"), command(daemon, "verbose 0")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk in (%s, %s) for update", (waits, every))
        daemon.signal(SIGCONT)
        daemon.wait(command(daemon, "poll"), timeout=3)
    daemon.wait_all([waits, every], timeout=3)


def test_a_command_that_was_done_says_so_however_long_its_row_is_locked(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    pk = working(daemon, gate)
    daemon.signal(SIGSTOP)
    kill = command(daemon, f"killjob {pk}")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (kill,))
        daemon.signal(SIGCONT)
        daemon.wait(pk, "failed")
    assert daemon.wait(kill)["jq_endtext"] == f"job {pk}: is being killed"


def test_a_lock_on_a_host_holds_back_the_commands_about_it_alone(launch: Launch, text: str) -> None:
    quick = text.replace("lease = 30\nlease_renewal = 10", "lease = 4\nlease_renewal = 1")
    daemon = launch(quick)
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.host for update")
        waits = command(daemon, "host-max alpha 5")
        daemon.wait(command(daemon, "poll"), timeout=5)
    daemon.wait(waits, timeout=5)


def test_who_waits_for_a_lock_is_not_taken_for_deaf(launch: Launch, text: str) -> None:
    daemon = launch(text.replace("rescan = 1000", "rescan = 0.5"))
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.host for update")
        command(daemon, "host-max alpha 5")
        daemon.until(lambda: "set_host: canceling statement" in daemon.stderr())
    assert "LISTEN is not heard" not in daemon.stderr()


# ---- answers that are lost


@pytest.mark.parametrize(("words", "name"), [("killjob", "want"), ("cancel", "cancel_job")])
def test_a_command_whose_answer_is_lost_says_what_it_did(
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
def test_a_shutdown_is_done_though_the_answer_to_its_acknowledgement_is_lost(
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


# ---- order


def test_a_command_after_a_shutdown_is_done_while_the_rest_is_finished(launch: Launch, text: str, gate: Path) -> None:
    daemon = launch(text)
    past_the_first_rescan(daemon)
    pk = working(daemon, gate)
    with daemon.login("drover_operator").transaction():
        pks = [command(daemon, words) for words in ("shutdown", f"killjob {pk}")]
    daemon.wait_all(pks, timeout=5)
    assert daemon.wait_exit() == 0
    assert daemon.row(pk)["jq_endtext"] == "killed"


def test_a_job_that_waits_for_a_command_goes_on_at_its_end(launch: Launch, text: str) -> None:
    daemon = launch(text)
    past_the_first_rescan(daemon)
    with daemon._owner.transaction():
        parents = [command_by_owner(daemon, "status"), command_by_owner(daemon, "verbose 0")]
        pk = daemon.value("insert into drover.jobqueue (jq_type, jq_args) values ('a', 'x') returning jq_pk")
        for parent in parents:
            daemon.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", pk, parent)
    daemon.wait(pk, timeout=5)


def past_the_first_rescan(daemon: Daemon) -> None:
    """Have the belt that comes a second after the start now."""
    told(daemon, "poll")
    told(daemon, "status")


def command_by_owner(daemon: Daemon, words: str) -> int:
    insert = "insert into drover.jobqueue (jq_type, jq_args) values ('command', %s) returning jq_pk"
    return int(daemon.value(insert, words))


# ---- daemons that others thought dead


def test_a_daemon_that_was_forgotten_while_it_slept_hears_commands_again(launch: Launch, record: Path) -> None:
    text = QUICK + HOST + agent("a", rec(record))
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


def test_a_daemon_with_a_longer_lease_is_waited_for_as_long(launch: Launch, record: Path) -> None:
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


def test_a_flood_of_commands_keeps_nothing_else_waiting(launch: Launch, text: str) -> None:
    daemon = launch(text)
    job = daemon.insert(role="drover_frontend", jq_type="unknown")
    flood = f"select count(drover.command('killjob {job}')) from generate_series(1, {FLOOD})"
    daemon.execute(flood, role="drover_frontend")
    soon = "insert into drover.jobqueue (jq_type, jq_not_before) values ('a', now() + interval '1 ms') returning jq_pk"
    daemon.wait(daemon.value(soon), timeout=5)
    left = "select count(*) from drover.claimable where claim_type = 'command'"
    assert daemon.value(left) > 0
    order = command(daemon, "poll")
    daemon.until(lambda: daemon.value(left) == 0, timeout=120)
    daemon.wait(order)


def test_a_command_of_any_length_costs_no_more_than_a_short_one(launch: Launch, text: str) -> None:
    daemon = launch(text)
    insert = "insert into drover.jobqueue (jq_type, jq_args) select 'command', 'killjob 1' || repeat(' a', 20000000)"
    daemon.execute(f"{insert} from generate_series(1, 3)", role="drover_operator")
    daemon.wait(command(daemon, "poll"), timeout=5)
    assert daemon.value("select count(*) from drover.jobqueue where jq_state = 'failed'") == 3
