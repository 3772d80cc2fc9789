"""The database is away, not there yet, read only, behind a pooler or on another machine: nothing is lost or done twice.

A daemon reaches its database through a door: a path to the server's socket that a test opens and shuts.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select
from signal import SIGTERM, SIGUSR1
from socket import AF_UNIX, socket
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.run import back_off
from scheduler.database import migrate
from scheduler.database.embedded import temporary
from tests.cli_tools import ACTIVE, ANNOUNCE, DROVER, Drover, environment, finish, insert
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec, start
from tests.needs import need
from tests.pooler_tools import pooler
from tests.replica_tools import replica, socket_of, synchronise, until
from tests.ssh.net import cabled

HOST = "[hosts.alpha]\n"
SLOW = (
    "[scheduler]\nreconnect_max = 0.2\nlease = 30\nlease_renewal = 10\n"  # so that a long absence is not past the lease
)
OURS = "usename like 'drover_%%' and application_name like 'drover %%' and datname = current_database()"
CUT = f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where {OURS}"
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


class Door:
    """A path to the socket of a server; shut, nobody comes in, and who was in is thrown out."""

    def __init__(self, folder: Path, database: str) -> None:
        self._server = socket_of(database)
        self._path = folder / self._server.name
        self._database = database
        self.conninfo = make_conninfo(database, host=str(folder))

    def open(self) -> None:
        self._path.symlink_to(self._server)

    def shut(self) -> None:
        self._path.unlink()
        cut(self._database)

    @contextmanager
    def bricked_up(self) -> Iterator[Callable[[], Counter[str]]]:
        """Let nobody in, and count who knocks: those who connect are sent away without a word."""
        self.shut()
        knocks: Counter[str] = Counter()

        def count() -> Counter[str]:
            while select([listener], [], [], 0)[0]:
                with listener.accept()[0] as guest:
                    name = re.search(rb"drover (\w+)", guest.recv(4096))
                knocks[name[1].decode() if name else "?"] += 1
            return knocks

        with socket(AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen(100)
            yield count
        self._path.unlink()


def cut(database: str, condition: str = "true") -> None:
    """End the connections of daemons."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"{CUT} and {condition}".encode().replace(b"%%", b"%"))


@pytest.fixture
def door(tmp_path: Path, database_with_roles: str) -> Door:
    folder = tmp_path / "door"
    folder.mkdir()
    return Door(folder, database_with_roles)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def rss(daemon: Daemon) -> int:
    """What a daemon has in memory, bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def cpu(daemon: Daemon) -> float:
    """How long a daemon has kept a processor busy, seconds."""
    words = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def losses(daemon: Daemon, name: str = "queue") -> int:
    """How often a daemon has said that it has no connection."""
    return daemon.stderr().count(f"WARNING {name} connection: ")


# ---- before it is there


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
    assert daemon.process.wait(10) == -SIGTERM


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
    """A daemon that came through the door, with agents that babble, print, and ask the database."""
    big = tmp_path / "big"
    big.write_text("x" * 4 * MIB)
    babble = python(BABBLE.format(gate=str(gate)))
    types = [
        agent("rec", rec(record), slots=4), agent("babble", babble, slots=BABBLERS), agent("db", rec(record), db="sql"),
        agent("print", ["cat", str(big)], kind="exec", slots=16, output_limit=8 * MIB),
    ]  # fmt: skip
    door.open()
    return launch(SLOW + HOST + "".join(types), via=door.conninfo)


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
    """Whether no agent has an item, by the last of the daemon's own words on it."""
    daemon.signal(SIGUSR1)
    counts = daemon.until(lambda: re.findall(r"jobs in hand: .* ST_RUNNING=(\d+)", daemon.stderr()))
    return bool(counts[-1] == "0")


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


@pytest.mark.parametrize(("when", "attempt"), [("before", 1), ("after", 2)])
def test_jobs_of_a_claim_whose_answer_is_lost_run_once(
    launch: Launch, database_with_roles: str, record: Path, when: str, attempt: int
) -> None:
    execute(database_with_roles, "insert into drover.jobqueue (jq_type, jq_args) values ('a', 'x')")
    config = SLOW + "rescan = 600\n" + HOST + agent("a", rec(record))
    daemon = launch(config, points=f"end_and_claim:{when}=error")
    row = daemon.wait(1)
    assert (row["jq_attempt"], row["jq_rescued"], lines(record)) == (attempt, attempt - 1, ["x"])
    assert f"failpoint end_and_claim:{when}: error" in daemon.stderr()


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
    site.execute("set session_replication_role = replica")
    site.execute(UNCLAIM, pk)
    site.execute("set session_replication_role = origin")
    site.execute(RELEASE, pk)
    site.until(lambda: "job=1: the row was put back in the queue while in hand" in site.stderr())
    gate.touch()
    site.wait(pk)
    assert (lines(record), [each["att_outcome"] for each in site.attempts(pk)]) == ([f"gate:{gate}"] * 2, ["done"])


UNCLAIM = """
update drover.jobqueue set jq_state = 'held', jq_owner = null, jq_attempt = 0, jq_starttime = null, jq_endtext = null
 where jq_pk = %s"""
RELEASE = "update drover.jobqueue set jq_state = 'queued' where jq_pk = %s"


# ---- read only, and another server


def test_a_daemon_waits_until_a_read_only_database_is_writable_r79(launch: Launch, record: Path) -> None:
    daemon = launch(SLOW + HOST + agent("a", rec(record)))
    daemon.login("drover_frontend_sql")  # whoever is connected may write
    name = conninfo_to_dict(daemon.database)["dbname"]
    daemon.execute(f"alter database {name} set default_transaction_read_only = on")
    cut(daemon.database)
    daemon.until(lambda: daemon.stderr().count("session is read-only") >= 2)
    pk = daemon.insert(jq_type="a", jq_args="x")
    early = daemon.row(pk)["jq_state"]
    daemon.execute(f"alter database {name} reset default_transaction_read_only")
    assert (early, daemon.wait(pk)["jq_attempt"]) == ("queued", 1)


@pytest.mark.slow
def test_a_running_daemon_waits_while_its_server_is_read_only(own_server: str, record: Path) -> None:
    with start(SLOW + HOST + agent("a", rec(record)), own_server) as daemon:
        daemon.execute("alter system set default_transaction_read_only = on")
        daemon.execute("select pg_reload_conf()")
        daemon.until(lambda: daemon.value("show default_transaction_read_only") == "on")
        daemon.execute("set default_transaction_read_only = off")
        daemon.login("drover_frontend_sql").execute("set default_transaction_read_only = off")
        pk = daemon.insert(jq_type="a", jq_args="x")
        daemon.until(lambda: daemon.stderr().count("read-only transaction") > 2)
        early = daemon.row(pk)["jq_state"]
        daemon.execute("alter system reset default_transaction_read_only")
        daemon.execute("select pg_reload_conf()")
        assert (early, daemon.wait(pk)["jq_attempt"]) == ("queued", 1)


@pytest.fixture
def own_server() -> Iterator[str]:
    """A server that nobody else uses."""
    need("postgres")
    with temporary(durable=True) as conninfo:
        migrate.apply(conninfo)
        migrate.apply_roles(conninfo)
        yield conninfo


@pytest.mark.slow
def test_a_daemon_follows_its_primary_to_the_replica_that_is_promoted(record: Path, gate: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(ExitStack())
        here = primary.enter_context(temporary(durable=True))
        migrate.apply(here)
        migrate.apply_roles(here)
        there = stack.enter_context(replica(here))
        synchronise(here)
        daemon = stack.enter_context(start(SLOW + HOST + agent("a", rec(record)), here, via=both(here, there)))
        pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
        daemon.wait(pk, "running")
        primary.close()
        daemon_says(daemon, "session is read-only")
        gate.touch()
        execute(there, "select pg_promote()")
        execute(there, "insert into drover.jobqueue (jq_type, jq_args) values ('a', 'more')")
        until(there, "select where (select count(*) from drover.jobqueue where jq_state = 'done') = 2")
        assert value(there, "select max(jq_attempt) from drover.jobqueue") == 1
        assert lines(record) == [f"gate:{gate}", "more"]


def both(here: str, there: str) -> str:
    """The conninfo of two servers, whichever can be written to."""
    first, second = conninfo_to_dict(here), conninfo_to_dict(there)
    return make_conninfo(here, host=f"{first['host']},{second['host']}", port=f"{first['port']},{second['port']}")


def daemon_says(daemon: Daemon, words: str) -> None:
    """Wait without the database."""
    deadline = time.monotonic() + 20.0
    while words not in daemon.stderr():
        assert time.monotonic() < deadline, daemon.stderr()[-3000:]
        time.sleep(0.02)


def execute(conninfo: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def value(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        (found,) = connection.execute(query.encode()).fetchone() or (None,)
    return found


# ---- two daemons


QUICK = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\nrescan = 0.5\nreconnect_max = 0.2\n"


def owner(daemon: Daemon) -> int:
    """The pid of the group's owner."""
    query = "select scheduler_pid from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner"
    return int(daemon.value(query))


def test_the_active_daemon_resumes_after_lost_connections_and_runs_no_job_twice_c14(
    launch: Launch, record: Path
) -> None:
    text = QUICK.replace("lease = 1.5", "lease = 5") + HOST + agent("a", rec(record), slots=2)
    first, second = launch(text), launch(text, wait=False)
    first.until(lambda: "standing by" in second.stderr())
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"nap:0.02;{n}"} for n in range(60)])
    for share in range(1, 6):
        first.wait(pks[10 * share])
        cut(first.database, "application_name = any ('{drover queue,drover watch}')")
    rows = first.wait_all(pks)
    assert {row["jq_state"] for row in rows} == {"done"}
    worked = sorted(lines(record))
    assert sorted(set(worked)) == sorted(f"nap:0.02;{n}" for n in range(60))
    assert len(worked) == 60 + sum(row["jq_rescued"] for row in rows if began(first, row["jq_pk"]))
    assert owner(first) == first.pid


def began(daemon: Daemon, pk: int) -> bool:
    """Whether an attempt that was rescued had come to an agent; a claim that was cut off had not."""
    return any(each["att_outcome"] == "rescued" and each["att_agent"] for each in daemon.attempts(pk))


def test_the_standby_takes_over_when_only_the_active_daemon_loses_the_database_c11_c14(
    launch: Launch, door: Door, record: Path, gate: Path
) -> None:
    door.open()
    text = QUICK + HOST + agent("a", rec(record))
    first = launch(text, via=door.conninfo)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    door.shut()
    second = launch(text, wait=False)
    second.until(lambda: second.row(pk)["jq_attempt"] == 2)
    second.until(lambda: "past the lease: no agent is given work" in first.stderr())
    gate.touch()
    row = second.wait(pk)
    door.open()
    first.until(lambda: "has another owner: standing by" in first.stderr())
    first.until(lambda: first.agent_pids() == [])
    assert [each["att_outcome"] for each in second.attempts(pk)] == ["rescued", "done"]
    assert second.row(pk) == row
    assert owner(second) == second.pid


def test_a_second_daemon_with_reset_takes_no_job_of_a_live_one_f128(launch: Launch, record: Path, gate: Path) -> None:
    text = QUICK + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    second = launch(text, options=["-R"], wait=False)
    first.until(lambda: "standing by" in second.stderr())
    gate.touch()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in first.wait_all(pks)} == {(1, 0)}
    assert len(lines(record)) == 4


def test_rows_of_a_daemon_that_was_killed_elsewhere_are_given_back_once_its_lease_is_over_f126(
    launch: Launch, record: Path, gate: Path
) -> None:
    text = QUICK + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    first.kill()
    first.execute("update drover.scheduler set scheduler_boot_id = 'of another machine'")
    first.execute("update drover.scheduler_group set group_lease_until = now() + interval '1 hour'")
    gate.touch()
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    assert [(second.row(pk)["jq_state"], second.row(pk)["jq_attempt"]) for pk in pks] == [("running", 1)] * 4
    over = second.value("update drover.scheduler_group set group_lease_until = now() returning now()")
    rows = second.wait_all(pks)
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(2, 1)}
    for pk in pks:
        rescued, done = second.attempts(pk)
        assert (rescued["att_outcome"], done["att_outcome"]) == ("rescued", "done")
        assert over <= rescued["att_end"] <= done["att_start"]
    assert "its lease has run out" in second.stderr()


def test_a_daemon_with_reset_runs_jobs_of_a_dead_one_at_once_f127(launch: Launch, record: Path, gate: Path) -> None:
    text = QUICK.replace("lease = 1.5", "lease = 600") + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    first.kill()
    gate.touch()
    rows = launch(text, options=["-R"]).wait_all(pks)
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(2, 1)}


def test_no_agent_is_started_before_rows_of_dead_daemons_are_given_back_r57_r78(launch: Launch, record: Path) -> None:
    text = QUICK + HOST + agent("a", rec(record), slots=2)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": str(n), "jq_state": "held"} for n in range(100)])
    first.kill()
    for statement in ABANDON:
        first.execute(statement)
    second = launch(text)
    rows = second.wait_all(pks)
    story = second.stderr()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(2, 1)}
    assert 0 < story.index("rows given back that had no living owner: 100") < story.index("ST_FREE -> ST_PREP")


ABANDON = (
    "update drover.jobqueue set jq_state = 'queued'",
    "delete from drover.claimable",
    "update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_starttime = now(), jq_owner = group_owner"
    " from drover.scheduler_group",
    "insert into drover.in_hand select group_owner, array_agg(jq_pk)"
    " from drover.jobqueue, drover.scheduler_group group by 1",
)


# ---- a server that ends sessions which are idle


def test_connections_survive_idle_session_timeout(
    launch: Launch, database_with_roles: str, record: Path, gate: Path
) -> None:
    for role in ("scheduler", "msq", "agentdb"):
        _end_idle(database_with_roles, f"drover_{role}")
    daemon = launch(HOST + agent("a", rec(record)))
    query = f"select n, case n when 1 then 'gate:{gate}' end as act from generate_series(1, 200) n"
    job = daemon.insert(jq_type="a", jq_args=query, jq_msq=True)
    daemon.until(lambda: lines(record))
    _wait_for_an_end(make_conninfo(database_with_roles, user="drover_msq"))
    gate.touch()
    row = daemon.wait(job)
    daemon.stop()
    assert (row["jq_itemsprocessed"], row["jq_interruptions"], row["jq_attempt"]) == (200, 0, 1)
    assert "idle" not in daemon.stderr()


def test_wait_survives_idle_session_timeout(database_with_roles: str, config: Path) -> None:
    _end_idle(database_with_roles, "drover_operator")
    operator = make_conninfo(database_with_roles, user="drover_operator")
    with psycopg.connect(database_with_roles, autocommit=True) as owner:
        owner.execute(ACTIVE.encode())
        job = insert(owner)
        argv = [*DROVER, "wait", "--timeout=30", str(job)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=environment(operator, config)) as waiting:
            looked = "query like '%%jq_endtime is not null%%'"
            until(database_with_roles, f"select from pg_stat_activity where usename = 'drover_operator' and {looked}")
            _wait_for_an_end(operator)
            finish(owner, job)
            owner.execute(ANNOUNCE, (job, "done"))
            assert waiting.wait() == 0


def _end_idle(database: str, role: str) -> None:
    """Have the server end what a role leaves idle for a while in this database."""
    with psycopg.connect(database, autocommit=True) as owner:
        names = map(sql.Identifier, (role, owner.info.dbname))
        owner.execute(sql.SQL("alter role {} in database {} set idle_session_timeout = '0.5s'").format(*names))


def _wait_for_an_end(conninfo: str) -> None:
    """Until the server has ended a session that was begun now."""
    with psycopg.connect(conninfo, autocommit=True) as idle:
        assert select([idle], [], [], 20.0)[0]


# ---- behind a pooler


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_daemon_works_behind_a_pooler(launch: Launch, database_with_roles: str, record: Path, mode: str) -> None:
    count = 1200
    query = f"select n from generate_series(1, {count}) n"
    with pooler(database_with_roles, mode) as via:
        daemon = launch(QUICK + HOST + agent("a", rec(record), slots=2, db="sql"), via=via)
        plain = daemon.insert_all([{"jq_type": "a", "jq_args": f"plain {n}"} for n in range(40)])
        many = daemon.insert_all([{"jq_type": "a", "jq_args": query, "jq_msq": True} for _ in range(3)])
        asks = daemon.insert(jq_type="a", jq_args="say:DB: select 1")
        rows = daemon.wait_all([*plain, *many, asks])
        late = daemon.wait(daemon.insert(jq_type="a", jq_args="late"))
        daemon.stop()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in [*rows, late]} == {(1, 0)}
    assert [row["jq_itemsprocessed"] for row in rows[40:43]] == [count] * 3
    worked = lines(record)
    assert sorted(line for line in worked if line.startswith("plain")) == sorted(f"plain {n}" for n in range(40))
    assert [worked.count(f'n="{n}"') for n in (1, 777, count)] == [3] * 3
    assert not re.search(r"ERROR|prepared statement|cursor", daemon.stderr())


def test_a_daemon_behind_a_transaction_pooler_polls_and_says_so_once(
    launch: Launch, database_with_roles: str, record: Path
) -> None:
    with pooler(database_with_roles, "transaction") as via:
        timers = "[scheduler]\npoll_interval = 0.1\nrescan = 600\n"
        daemon = launch(timers + HOST + agent("a", rec(record)), via=via)
        daemon.until(lambda: "LISTEN gets nothing" in daemon.stderr())
        for n in range(3):
            daemon.wait(daemon.insert(jq_type="a", jq_args=str(n)))
        assert daemon.stderr().count("LISTEN gets nothing") == 1
        daemon.stop()


def test_a_daemon_goes_on_when_its_pooler_restarts(launch: Launch, database_with_roles: str, record: Path) -> None:
    with ExitStack() as poolers:
        via = poolers.enter_context(pooler(database_with_roles, "session"))
        daemon = launch(SLOW + HOST + agent("a", rec(record)), via=via)
        daemon.wait(daemon.insert(jq_type="a", jq_args="before"))
        cut(daemon.database)
        daemon.wait(daemon.insert(jq_type="a", jq_args="after"))
        assert "queue connection: up again" in daemon.stderr()
        daemon.stop()
