"""A streaming replica: what the commands read there, what they refuse, and when it has what the primary has."""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.cli.database_session import translated_errors
from scheduler.database import migrate
from scheduler.database.embedded import temporary
from scheduler.errors import WorldError
from tests.cli_tools import DROVER, Done, Drover, environment
from tests.conftest import _database
from tests.integration.daemon import Daemon, agent, start
from tests.integration.puppets import LOCAL, Meeting, puppet, slots
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.replica_tools import replica, synchronise, until, wait_for_all

Ask = Callable[..., Done]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MOVING = {
    "since",
    "lease_until",
    "lease_left",
    "unseen_for",
    "slow_turns",
    "longest_turn_ms",
    "memory_mb",
    "warnings",
    "statements",
}  # clocks, and whose server it is
PAUSE = "select pg_wal_replay_pause()"
IS_PAUSED = "select where pg_get_wal_replay_pause_state() = 'paused'"
RESUME = b"select pg_wal_replay_resume()"
WAITING = "select from pg_stat_activity where application_name = 'drover queue' and wait_event = 'SyncRep'"
FLUSHED = "set synchronous_commit = on; insert into drover.log (log_type, log_message) values ('LOG', 'flushed there')"
APPLIED = ("alter system {} synchronous_commit{}", "select pg_reload_conf()")
DONE = "select from drover.jobqueue where jq_pk = %s and jq_state = 'done'"
IS_MARKED = "select true from drover.jobqueue where jq_pk = %s and jq_state = 'claimed'"
STATE = "select jq_state::text from drover.jobqueue where jq_pk = %s"
IMPATIENT = ("alter system set max_standby_streaming_delay = 0", "select pg_reload_conf()")
LOCK = "begin; lock table drover.placement in access exclusive mode; commit"
ASLEEP = "select from pg_stat_activity where wait_event = 'PgSleep'"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """Yield a server as a site has it, durable and with all grants, and its replica."""
    need("postgres")
    with temporary(durable=True) as conninfo:
        migrate.update(conninfo)
        with replica(conninfo) as there:
            yield conninfo, there


@pytest.fixture
def primary(servers: tuple[str, str]) -> Iterator[str]:
    """Yield the conninfo of a fresh database."""
    with _database(servers[0], "drover") as (_, conninfo):
        yield conninfo


@pytest.fixture
def copy(servers: tuple[str, str], primary: str) -> str:
    """Return the conninfo of the same database on the replica."""
    conninfo = make_conninfo(servers[1], dbname=str(conninfo_to_dict(primary)["dbname"]))
    wait_for_all(primary, servers[1])
    return conninfo


@pytest.fixture
def daemon(primary: str) -> Iterator[Daemon]:
    """Run a daemon on the primary."""
    with start(LOCAL + puppet() + agent("say", ["echo"], kind="exec"), primary) as daemon:
        yield daemon


@pytest.fixture
def ask(drover: Drover, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command as the operator, of the server named first."""

    def asked(server: str, *words: str) -> Done:
        monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(server, user="drover_operator"))
        return drover(*words)

    return asked


@pytest.fixture
def in_hand(daemon: Daemon, meeting: Meeting) -> Iterator[int]:
    """Yield a job that an agent works on until the test ends it."""
    job = daemon.insert(jq_type="puppet", jq_args=f"echo LOG begun; {meeting.tell('begun')}; {meeting.wait}")
    meeting.hear()
    daemon.wait(job, "running")
    slots(daemon, "ST_RUNNING", "puppet")
    yield job
    meeting.let_go()


@pytest.fixture
def applied(primary: str, copy: str) -> Iterator[None]:
    """Let every commit wait until the replica shows it."""
    _execute(primary, *(text.format("set", " = remote_apply") for text in APPLIED))
    synchronise(primary)
    yield
    synchronise(primary, "")
    _execute(primary, *(text.format("reset", "") for text in APPLIED))


# ---- reading


def test_read_commands_show_the_same_from_a_replica_c36(
    primary: str, copy: str, daemon: Daemon, in_hand: int, ask: Ask
) -> None:
    behind, said = daemon.insert(jq_type="puppet", jq_args=":"), daemon.insert(jq_type="say", jq_args="this")
    late = daemon.insert(jq_type="puppet", jq_host="nowhere")
    daemon.until(lambda: daemon.execute(IS_MARKED, behind))  # a record says less than the row, for a moment
    daemon.wait(said)
    commands = [f"why {in_hand}", f"why {late}", f"log {in_hand}", f"out {said}", "ls", "ls --all --json", "log -n 1"]
    wait_for_all(primary, copy)
    told = {words: ask(copy, *words.split()) for words in commands}
    assert told == {words: ask(primary, *words.split()) for words in commands}
    assert [words for words, each in told.items() if each.status or each.err or not each.out] == []
    assert daemon.row(behind)["jq_state"] == "claimed"  # and the one before it is still in hand


def test_status_of_a_replica_shows_the_same_as_the_primary_c36(
    primary: str, copy: str, daemon: Daemon, in_hand: int, ask: Ask
) -> None:
    wait_for_all(primary, copy)
    there, here = (lasting(json.loads(ask(server, "status", "--json").out)) for server in (copy, primary))
    assert there == here
    assert there["group"]["active"]
    assert [slot["job"] for slot in there["slots"] if slot["state"] == "ST_RUNNING"] == [in_hand]


def test_status_for_people_is_printed_from_a_replica_c36(copy: str, daemon: Daemon, primary: str, ask: Ask) -> None:
    wait_for_all(primary, copy)
    done = ask(copy, "status")
    assert (done.status, done.err) == (0, "")
    assert " is active since " in done.out.splitlines()[0]


def test_log_is_followed_on_a_replica_until_the_job_has_ended_c36(
    primary: str, copy: str, daemon: Daemon, meeting: Meeting, config: Path
) -> None:
    script = f"echo LOG begun; {meeting.tell('begun')}; {meeting.wait}; echo LOG at last"
    job = daemon.insert(jq_type="puppet", jq_args=script)
    meeting.hear()
    daemon.until(lambda: daemon.log_text(job))
    wait_for_all(primary, copy)
    argv = [*DROVER, "log", str(job), "-f"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=environment(copy, config), **pipes) as follower:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        meeting.let_go()
        rest, errors = follower.communicate(timeout=PATIENCE_S)
    assert (first.split(": ")[-1], rest.split(": ")[-1], errors) == ("begun\n", "at last\n", "")
    assert follower.returncode == 0


# ---- writing


@pytest.mark.parametrize("words", ["submit noop x --force", "init", "init --roles"])
def test_write_command_on_a_replica_says_so_c36(
    copy: str, drover: Drover, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", copy)
    done = drover(*words.split())
    assert (done.status, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "name the primary in [database] url if this is a replica" in done.err


def test_check_says_that_no_scheduler_can_serve_a_replica(copy: str, ask: Ask) -> None:
    done = ask(copy, "check")
    assert done.status == 1
    failed = [line for line in done.out.splitlines() if line.startswith("FAIL")]
    what = "FAIL the database is read-only, but a scheduler must write"
    assert failed[0] == f"{what}: it is a replica: name its primary in [database] url"
    assert all("is read-only; name the primary" in line for line in failed[1:])


def test_query_cancelled_by_a_replica_is_not_reported_as_a_wrong_url(primary: str, copy: str) -> None:
    _execute(copy, *IMPATIENT)

    def read() -> None:
        with translated_errors():
            _execute(copy, "select pg_sleep(1000) from (select count(*) from drover.placement) p")

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        until(copy, ASLEEP)
        _execute(primary, LOCK)
        with pytest.raises(
            WorldError, match="cancelled the query: canceling statement due to conflict with recovery; try again"
        ):
            reading.result(PATIENCE_S)


# ---- the latest


def test_end_of_a_job_is_notified_only_when_the_synchronous_replica_has_it_c37_c12(
    primary: str, copy: str, applied: None, daemon: Daemon, in_hand: int, meeting: Meeting
) -> None:
    with psycopg.connect(copy, autocommit=True) as there:
        there.execute(PAUSE.encode())
        try:
            until(copy, IS_PAUSED)
            meeting.let_go()
            until(primary, f"{WAITING} union all {DONE}", in_hand)
            _execute(primary, FLUSHED)  # whoever waits for no more than this is let go before us
            meanwhile = daemon.row(in_hand)["jq_state"], _value(primary, f"select count(*) from ({WAITING}) w")
        finally:
            there.execute(RESUME)
        daemon.wait(in_hand)
        on_replica = _value(copy, STATE, in_hand)
    assert (meanwhile, on_replica) == (("running", 1), "done")


# ---- how it is looked at


def lasting(status: Any) -> Any:
    """Return what does not change while one looks."""
    if isinstance(status, list):
        return [lasting(each) for each in status]
    if isinstance(status, dict):
        return {name: lasting(value) for name, value in status.items() if name not in MOVING}
    return status


def _execute(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _value(conninfo: str, query: str, *values: Any) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        (value,) = connection.execute(query.encode(), values or None).fetchone() or (None,)
    return value
