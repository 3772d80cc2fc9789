"""A front-end leaves a transaction open: the daemon's start that needs its lock waits, and nothing else does.

The lease is so long that the watch connection would wait minutes for a lock if nothing shorter were set.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.test_commands import command, told
from tests.integration.test_schedules import add

TIMES: Final = "[scheduler]\nlease = 3600\nlease_renewal = 600\n"
# A pass of tidying begins at a rescan, and the status counts it.
TIDIED: Final = "rescan = 1\nstatus_interval = 1\n"
SITE: Final = TIMES + "[hosts.alpha]\n[queues.q]\nmax_length = 5\n"
STARTED: Final = "select count(*) from drover.schedule_start where start_schedule = any (%s) and start_jobs <> '{}'"
NOW: Final = "update drover.schedule set schedule_next = now(), schedule_due = now()"
REASON: Final = "select schedule_reason from drover.schedule where schedule_name = %s"
KEYED: Final = "insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'key')"
QUEUED: Final = "insert into drover.jobqueue (jq_type, jq_queue) values ('a', 'q')"
EDGE: Final = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
BY_KEY: Final = {"jq_unique_key": "key"}
BY_QUEUE: Final = {"jq_queue": "q"}
REGISTERED: Final = "select count(*) from drover.schedule where schedule_name = 's'"
OF_CONFIG: Final = """
[schedules.s]
every = 3600
jobs.main = { type = "a", queue = "q" }
"""


@pytest.fixture
def text(record: Path) -> str:
    return SITE + agent("a", rec(record), slots=2)


@pytest.fixture
def front_end(database_with_roles: str) -> Iterator[psycopg.Connection]:
    """Yield a front-end's connection, in a transaction as soon as it is used."""
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_frontend")) as connection:
        yield connection


def started(daemon: Daemon, *names: str) -> int:
    """Return how many of these schedules have started."""
    return int(daemon.value(STARTED, list(names)))


def times_tidied(daemon: Daemon) -> int:
    """Return how often the daemon has removed events and subscriptions that are over."""
    return int(daemon.vitals()["statements"].get("forget_events", {}).get("count", 0))


@pytest.mark.parametrize(
    ("statement", "needs", "reason"),
    [
        (KEYED, BY_KEY, "a transaction that has not ended has a lock on what it queues: its jq_unique_key"),
        (QUEUED, BY_QUEUE, "queue q: another transaction that inserts into it has not ended"),
    ],
    ids=["unique key", "queue of limited length"],
)
def test_starts_that_a_front_end_keeps_from_its_lock_hold_up_neither_others_nor_commands(
    launch: Launch,
    text: str,
    front_end: psycopg.Connection,
    ask: Ask,
    statement: str,
    needs: dict[str, Any],
    reason: str,
) -> None:
    daemon = launch(text)
    kept, free = [f"a{n}" for n in range(12)], [f"b{n}" for n in range(12)]
    add(daemon, *kept, after="1 hour", **needs)
    add(daemon, *free, after="1 hour")
    front_end.execute(statement.encode())
    daemon.execute(NOW)
    daemon.until(lambda: started(daemon, *free) == len(free), what="the others do not start")
    told(daemon, "pause q")
    daemon.until(lambda: daemon.value(REASON, "a0"), what="there is no reason")
    told(daemon, "continue q")
    assert started(daemon, *kept) == 0
    assert f"tried again later: {reason}" in ask("schedule list").out
    assert daemon.stderr().count("schedule a0: tried again later") == 1
    front_end.rollback()
    daemon.until(lambda: started(daemon, *kept) > 0, what="they do not start when it has ended")


def test_a_schedule_that_is_started_by_hand_holds_up_no_other_command(
    launch: Launch, text: str, front_end: psycopg.Connection
) -> None:
    daemon = launch(text)
    add(daemon, "s", **BY_KEY)
    front_end.execute(KEYED.encode())
    runs = [command(daemon, "schedule-run s") for _ in range(3)]
    told(daemon, "pause q")
    assert {daemon.row(pk)["jq_state"] for pk in runs} == {"queued"}
    front_end.rollback()
    daemon.until(lambda: started(daemon, "s") > 0, what="it does not start when the transaction has ended")


def test_a_daemon_registers_its_schedules_while_a_front_end_holds_what_they_queue(
    launch: Launch, text: str, front_end: psycopg.Connection
) -> None:
    launch(text).stop()
    front_end.execute(QUEUED.encode())
    daemon = launch(text + OF_CONFIG)
    told(daemon, "pause q")
    assert daemon.value(REGISTERED) == 1


def test_a_daemon_registers_its_schedules_though_a_front_end_has_filled_their_queue(
    launch: Launch, text: str, front_end: psycopg.Connection
) -> None:
    first = launch(text)
    told(first, "pause q")
    front_end.execute(b"insert into drover.jobqueue (jq_type, jq_queue) select 'a', 'q' from generate_series(1, 5)")
    front_end.commit()
    first.stop()
    assert launch(text + OF_CONFIG).value(REGISTERED) == 1


def test_a_subscription_that_its_owner_keeps_locked_holds_up_no_command(
    launch: Launch, text: str, front_end: psycopg.Connection
) -> None:
    daemon = launch(text.replace(TIMES, TIMES + TIDIED))
    ((number,),) = front_end.execute("select subscription from drover.subscribe(kind => 'status')").fetchall()
    front_end.commit()
    daemon.execute("update drover.subscription set sub_expires = now() - interval '2 days'")
    front_end.execute("select drover.subscription_enable(%s, false)", (number,))
    before = times_tidied(daemon)
    daemon.until(lambda: times_tidied(daemon) > before + 1, what="nothing is tidied")
    told(daemon, "pause q")
    front_end.rollback()
    assert daemon.until(lambda: daemon.value("select count(*) from drover.subscription") == 0, what="it is not removed")


def test_edges_that_a_front_end_has_not_committed_hold_up_nobody_elses_jobs(
    launch: Launch, text: str, front_end: psycopg.Connection, gate: Path
) -> None:
    daemon = launch(text)
    parent = daemon.insert(jq_type="a", jq_args=f"gate:{gate}", role="drover_frontend")
    child = daemon.insert(jq_type="a", jq_state="held", role="drover_frontend")
    daemon.wait(parent, "running")
    front_end.execute(EDGE.encode(), (child, parent))
    gate.touch()
    with daemon.login("drover_frontend_sql").transaction():  # else the lower one may be over before it has a parent
        above, below = daemon.insert(jq_type="a", jq_state="held"), daemon.insert(jq_type="a")
        daemon.execute(EDGE, below, above, role="drover_frontend_sql")
    told(daemon, f"release {above}")
    daemon.wait_all([above, below])
    front_end.commit()
    assert daemon.wait(parent)
