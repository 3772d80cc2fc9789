"""The database is down, not there yet or silent: daemons wait for it, and no job is lost or done twice."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from signal import SIGTERM, SIGUSR1

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.run import back_off
from scheduler.daemon.periodic_tasks import OWN_AGE_S
from tests.cli_tools import Drover
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec
from tests.integration.database_door import SLOW, Door, cut, execute
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.replica_tools import socket_of
from tests.ssh.net import cabled

HOST = "[hosts.alpha]\n"
MIB = 1 << 20
BABBLERS, LINES = 20, 1500
BABBLE = """
import os, time
print('OK', flush=True)
for line in open(0):
    while not os.path.exists({gate!r}): time.sleep(0.005)
    for n in range(1500): print('LOG', 'x' * 500)
    print('OK', flush=True)
"""


def rss(daemon: Daemon) -> int:
    """Return the bytes that a daemon has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def cpu(daemon: Daemon) -> float:
    """Return the seconds for which a daemon has kept a processor busy."""
    words = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def losses(daemon: Daemon, name: str = "queue") -> int:
    """Return how often a daemon has logged that it has no connection."""
    return daemon.stderr().count(f"WARNING {name} connection: ")


# ---- before it is there


@pytest.mark.slow
def test_a_daemon_that_is_started_before_its_database_waits_for_it_r79(
    launch: Launch, door: Door, record: Path
) -> None:
    daemon = launch(SLOW + HOST + agent("a", rec(record)), via=door.conninfo, wait=False)
    daemon.until(lambda: daemon.stderr().count("database not reachable") > 3)
    early = daemon.process.poll(), "serving" in daemon.stderr()
    door.open()
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    assert early == (None, False)
    assert "serving group" in daemon.stderr()


def test_a_daemon_that_waits_for_its_database_ends_when_told_to_r79(launch: Launch, door: Door) -> None:
    daemon = launch(HOST + agent("a", ["true"], kind="exec"), via=door.conninfo, wait=False)
    daemon.until(lambda: "database not reachable" in daemon.stderr())
    daemon.process.send_signal(SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == -SIGTERM


def test_reconnect_delays_double_up_to_a_maximum_with_jitter() -> None:
    longest = 2.0
    found = [wait for wait, _ in zip(back_off(longest), range(2000), strict=False)]
    whole = [0.2, 0.4, 0.8, 1.6, *[longest] * 1996]
    assert all(most / 2 <= wait <= most for wait, most in zip(found, whole, strict=True))
    assert len(set(found)) > 1900


@pytest.mark.parametrize("words", ["status", "ls", "why 1", "log 1", "out 1", "submit noop x", "init", "init --roles"])
def test_a_command_without_its_database_exits_with_one_sentence(
    door: Door, drover: Drover, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", door.conninfo)
    done = drover(*words.split())
    assert (done.status, done.out, len(done.err.splitlines())) == (3, "", 1)
    assert "database not reachable" in done.err


# ---- while it is away


@pytest.fixture
def site(launch: Launch, door: Door, record: Path, gate: Path, tmp_path: Path) -> Daemon:
    """Return a daemon that came through the door, with agents that babble, print, and ask the database."""
    big = tmp_path / "big"
    big.write_text("x" * 4 * MIB)
    babble = python(BABBLE.format(gate=str(gate)))
    types = [
        agent("rec", rec(record), slots=4), agent("babble", babble, slots=BABBLERS), agent("db", rec(record), db="sql"),
        agent("print", ["cat", str(big)], kind="exec", slots=16, output_limit=8 * MIB),
    ]  # fmt: skip
    door.open()
    return launch(SLOW + HOST + "".join(types), via=door.conninfo)


@pytest.mark.slow
def test_ends_during_a_database_outage_are_saved_after_it_t73_j72(
    site: Daemon, door: Door, gate: Path, record: Path
) -> None:
    pks = site.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    site.wait_all(pks, "running")
    door.shut()
    site.until(lambda: losses(site) > 1)
    gate.touch()
    site.until(lambda: are_idle(site))
    before = [site.row(pk)["jq_state"] for pk in pks]
    door.open()
    rows = site.wait_all(pks)
    assert before == ["running"] * 4
    assert [(row["jq_attempt"], row["jq_rescued"]) for row in rows] == [(1, 0)] * 4
    assert sorted(lines(record)) == sorted(f"gate:{gate};{n}" for n in range(4))


# A way to the socket of a server for those who come over a network.
RELAY = """
import asyncio, sys
async def copy(source, sink):
    while data := await source.read(65536):
        sink.write(data)
    sink.close()
async def serve(*near):
    far = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(copy(near[0], far[1]), copy(far[0], near[1]))
async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", 5432)
    print("up", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
NOTICED = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 1, "tcp_user_timeout": 2000}


@pytest.mark.slow
def test_a_silent_connection_to_the_database_is_noticed_within_the_lease_j73(
    launch: Launch, database_with_roles: str, record: Path, gate: Path
) -> None:
    need("netns")
    argv = [sys.executable, "-c", RELAY, str(socket_of(database_with_roles))]
    with cabled() as net, subprocess.Popen([*net.inside, *argv], stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"up\n"
        via = make_conninfo(database_with_roles, host=net.address, port=5432, **NOTICED)
        daemon = launch(SLOW + HOST + agent("rec", rec(record)), via=via)
        pk = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}")
        daemon.wait(pk, "running")
        net.cut()
        daemon.until(lambda: losses(daemon) > 0)
        assert "past the lease" not in daemon.stderr()
        net.mend()
        gate.touch()
        assert daemon.wait(pk)["jq_attempt"] == 1
        daemon.wait(daemon.insert(jq_type="rec", jq_args="after"))
        daemon.stop()
        relay.kill()
    assert lines(record) == [f"gate:{gate}", "after"]


def are_idle(daemon: Daemon) -> bool:
    """Return whether no agent has an item, by the last of the daemon's own words on it."""
    daemon.signal(SIGUSR1)
    counts = daemon.until(lambda: re.findall(r"jobs in hand: .* ST_RUNNING=(\d+)", daemon.stderr()))
    return bool(counts[-1] == "0")


@pytest.mark.slow
def test_agent_output_during_a_database_outage_is_bounded_and_counted(site: Daemon, door: Door, gate: Path) -> None:
    pks = site.insert_all([{"jq_type": "babble", "jq_args": "x"}] * BABBLERS)
    site.wait_all(pks, "running")
    door.shut()
    site.until(lambda: losses(site) > 1)
    before = rss(site)
    gate.touch()
    site.until(lambda: are_idle(site))
    grown = rss(site) - before
    door.open()
    site.wait_all(pks)
    site.until(lambda: site.value(KEPT) + site.value(DROPPED) == BABBLERS * LINES)
    assert site.value(KEPT) <= 20_000
    assert grown < 40 * MIB


KEPT = "select count(*) from drover.log where log_message like 'x%'"
DROPPED = """
select coalesce(sum(split_part(log_message, ' ', 1)::integer), 0) from drover.log
 where log_message like '% log lines were dropped: %'"""


@pytest.mark.slow
def test_a_daemon_without_its_database_retries_and_logs_at_a_bounded_rate_j51(site: Daemon, door: Door) -> None:
    with door.bricked_up() as knocks:
        site.until(lambda: min(knocks()["queue"], knocks()["watch"]) > 1)
        began, lines_before, worked = time.monotonic(), len(site.stderr().splitlines()), cpu(site)
        tries = Counter(knocks())
        site.until(lambda: knocks()["queue"] > tries["queue"] + 20)
        passed = time.monotonic() - began
        more = [knocks()[name] - tries[name] for name in ("queue", "watch")]
    assert all(each <= 2 + passed / 0.1 for each in more)  # the longest wait is 0.2 s, less a half by chance
    assert len(site.stderr().splitlines()) - lines_before <= 2
    assert cpu(site) - worked < passed / 3
    door.open()


@pytest.mark.slow
def test_agent_sql_during_a_database_outage_gets_an_error(
    launch: Launch, door: Door, gate: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    script = f"""
import os, sys, time
print('OK', flush=True)
for line in sys.stdin:
    while not os.path.exists({str(gate)!r}): time.sleep(0.005)
    print('DB: select 1', flush=True)
    answer = sys.stdin.readline() + sys.stdin.readline()
    open({str(told)!r}, 'w').write(answer)
    print('OK', flush=True)
"""
    door.open()
    timers = "[scheduler]\nstatement_limit = 0.5\nlease = 30\nlease_renewal = 10\n"
    daemon = launch(timers + HOST + agent("db", python(script), db="sql"), via=door.conninfo)
    pk = daemon.insert(jq_type="db", jq_args="x")
    daemon.wait(pk, "running")
    door.shut()
    daemon.until(lambda: losses(daemon))
    gate.touch()
    daemon.until(told.exists)
    daemon.until(lambda: "OK" in told.read_text())
    door.open()
    daemon.wait(pk)
    assert re.fullmatch(r"ERROR no database connection within 0.5 s: .+\nOK\n", told.read_text())


@pytest.mark.slow
def test_output_that_cannot_be_saved_blocks_agents_and_is_saved_whole_later(site: Daemon) -> None:
    with psycopg.connect(site.database) as locker:
        locker.execute("lock table drover.output in access exclusive mode")
        pks = site.insert_all([{"jq_type": "print"}] * 20)
        site.until(lambda: "of results wait to be saved: no agent is given work" in site.stderr())
        site.until(lambda: are_idle(site))
        grown = rss(site)
    site.wait_all(pks)
    sizes = "select out_jq_fk, sum(length(out_data)) as size from drover.output group by 1"
    assert {row["size"] for row in site.execute(sizes)} == {4 * MIB}
    assert len(site.execute(sizes)) == 20
    assert grown < 400 * MIB  # 16 agents at once, each with 4 MiB, and the statement that is under way


# ---- what was under way


@pytest.mark.slow
@pytest.mark.parametrize(("when", "attempt"), [("before", 1), ("after", 2)])
def test_jobs_of_a_claim_whose_answer_is_lost_run_once(
    launch: Launch, database_with_roles: str, record: Path, when: str, attempt: int
) -> None:
    execute(database_with_roles, "insert into drover.jobqueue (jq_type, jq_args) values ('a', 'x')")
    config = SLOW + HOST + agent("a", rec(record))
    daemon = launch(config, points=f"end_and_claim:{when}=error")
    row = daemon.wait(1)
    assert (row["jq_attempt"], row["jq_rescued"], lines(record)) == (attempt, attempt - 1, ["x"])
    assert f"failpoint end_and_claim:{when}: error" in daemon.stderr()


@pytest.mark.slow
def test_a_row_taken_over_during_a_database_outage_is_dropped(
    site: Daemon, door: Door, gate: Path, record: Path
) -> None:
    """As after a failover to a replica that had not heard of the claim."""
    pk = site.insert(jq_type="rec", jq_args=f"gate:{gate}")
    site.wait(pk, "running")
    door.shut()
    site.until(lambda: losses(site) > 1)
    site.execute("set session_replication_role = replica")  # no trigger forbids it
    site.execute(UNCLAIM, pk)
    site.execute("set session_replication_role = origin")
    site.execute(RELEASE, pk)
    door.open()
    site.until(lambda: site.row(pk)["jq_attempt"] == 1 and site.row(pk)["jq_state"] in ("claimed", "running"))
    gate.touch()
    site.wait(pk)
    assert "job=1: the row is no longer ours" in site.stderr()
    assert (lines(record), [each["att_outcome"] for each in site.attempts(pk)]) == ([f"gate:{gate}"] * 2, ["done"])


def test_a_running_row_put_back_by_hand_runs_again_and_ends_once(site: Daemon, gate: Path, record: Path) -> None:
    pk = site.insert(jq_type="rec", jq_args=f"gate:{gate}")
    site.until(lambda: record.exists() and lines(record) == [f"gate:{gate}"])
    site.until(lambda: site.row(pk)["jq_state"] == "running")
    site.execute("set session_replication_role = replica")
    site.execute(UNCLAIM, pk)
    site.execute("set session_replication_role = origin")
    site.execute(RELEASE, pk)
    site.until(lambda: "job=1: the row was put back in the queue while in hand" in site.stderr())
    gate.touch()
    site.wait(pk)
    assert (lines(record), [each["att_outcome"] for each in site.attempts(pk)]) == ([f"gate:{gate}"] * 2, ["done"])


@pytest.mark.slow
def test_a_row_locked_when_the_queue_connection_is_back_is_given_back_after_the_lock_t69(
    launch: Launch, record: Path
) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.5\n" + HOST + agent("a", rec(record)))
    daemon.until(lambda: daemon.value(RESCANS) == 1)  # what is locked now is for nobody else to find
    daemon.execute("set session_replication_role = replica")
    pk = daemon.value(LOST)
    daemon.execute("set session_replication_role = origin")
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (pk,))
        cut(daemon.database, "application_name = 'drover queue'")
        daemon.wait(daemon.insert(jq_type="a", jq_args="compared"))
    daemon.wait(pk, timeout=OWN_AGE_S + PATIENCE_S)
    assert (lines(record), daemon.value(RESCANS)) == (["compared", "lost"], 1)


RESCANS = """
select (select (status_parameter::jsonb #>> '{statements,rescan,count}')::integer
          from drover.scheduler_status where status_slot = -1)"""
LOST = """
with row as (
  insert into drover.jobqueue (jq_type, jq_args, jq_state, jq_attempt, jq_starttime, jq_attempt_start, jq_owner)
  select 'a', 'lost', 'running', 1, now(), now(), group_owner from drover.scheduler_group
  returning jq_pk),
noted as (
  insert into drover.in_hand
  select '00000000-0000-0000-0000-000000000000', array[jq_pk], now() from row)
select jq_pk from row"""
UNCLAIM = """
update drover.jobqueue set jq_state = 'held', jq_owner = null, jq_attempt = 0, jq_starttime = null, jq_endtext = null
 where jq_pk = %s"""
RELEASE = "update drover.jobqueue set jq_state = 'queued' where jq_pk = %s"
