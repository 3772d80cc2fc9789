"""A connection behind a real pooler, and whether LISTEN is heard there, and where it is."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.daemon.wakeups import ListenProbe
from scheduler.database import migrate
from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statements import Failure, Query
from tests.cli_tools import Drover
from tests.connection_tools import QUERIES, ask, end_backends, fetch, opened, rows_of, run
from tests.loop_tools import turn_until
from tests.pooler_tools import pooler
from tests.queue_tools import quiet
from tests.replica_tools import until

Open = Callable[..., Connection]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def one(module_database: str) -> Iterator[str]:
    """Yield a pooler of transactions that has one connection for all."""
    with pooler(module_database, "transaction", size=1) as via:
        yield make_conninfo(via, user="drover_scheduler")


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, module_database: str) -> Iterator[str]:
    with pooler(module_database, request.param) as via:
        yield make_conninfo(via, user="drover_scheduler")


@pytest.fixture
def open_connection(loop: Loop) -> Iterator[Open]:
    connections: list[Connection] = []

    def open_one(conninfo: str, **options: object) -> Connection:
        connections.append(opened(loop, conninfo, **options))
        return connections[-1]

    yield open_one
    for connection in connections:
        connection.close()


# ---- statements


def test_pooler_is_detected_and_no_backend_of_another_client_is_recorded_f100(
    loop: Loop, module_database: str, pooled: str, open_connection: Open
) -> None:
    connection = open_connection(pooled)
    end_backends(module_database, "drover test")
    run(loop, connection, "select 1")  # in session mode lost, in transaction mode the pooler's loss
    turn_until(loop, lambda: connection.is_up)
    assert (connection.is_pooled, [*connection.old_backends]) == (True, [])


def test_statements_are_not_prepared_behind_a_pooler_f100(loop: Loop, one: str, open_connection: Open) -> None:
    connections = [open_connection(one), open_connection(one)]
    queries = [Query("q", "select 1, $1::text", ("v",)), Query("q", "select 2, $1::text", ("v",))]
    asked = [
        rows_of(ask(loop, connection, query, v="x"))
        for _ in "ab"
        for connection, query in zip(connections, queries, strict=True)
    ]
    assert asked == [[(b"1", b"x")], [(b"2", b"x")]] * 2


def test_settings_do_not_stay_in_a_connection_of_the_pooler_f100(loop: Loop, one: str, open_connection: Open) -> None:
    open_connection(one, settings=["set lock_timeout = '77s'"])
    assert rows_of(run(loop, open_connection(one), "show lock_timeout")) == [(b"5s",)]  # the role's


def test_init_leaves_no_setting_in_a_connection_of_the_pooler_f100(one: str) -> None:
    owner = make_conninfo(one, user="postgres")
    with psycopg.connect(owner, autocommit=True) as client:
        before = client.execute("show lock_timeout").fetchone()
        with migrate.changing(owner, patience_s=77) as connection:
            migrate.apply_missing(connection)
            migrate.apply_roles(connection)
        assert client.execute("show lock_timeout").fetchone() == before


@pytest.mark.slow
def test_statement_is_cancelled_behind_a_pooler_which_goes_on_f100(
    loop: Loop, module_database: str, one: str, open_connection: Open
) -> None:
    connection = open_connection(one)
    answers = [run(loop, connection, "select pg_sleep(60)", limit_s=0.05) for _ in range(5)]
    assert answers == [Failure(None, "dropped to stop a statement", lost=True)] * 5
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
    until(module_database, "select where not exists (select from pg_stat_activity where query = 'select pg_sleep(60)')")


def test_commands_read_times_behind_a_pooler_in_any_datestyle(
    drover: Drover, pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", pooled)
    monkeypatch.setenv("PGDATESTYLE", "German")
    assert [drover(*words.split()).status for words in ("submit --force noop x", "ls --json", "status")] == [0] * 3


# ---- the probe of LISTEN


class Probed:
    """A ListenProbe between two connections, and what it said and did."""

    def __init__(self, loop: Loop, open_connection: Open, conninfo: str) -> None:
        self.logged: list[str] = []
        self.polls = 0
        self.arrivals = 0
        listen = f"listen drover_probe_{id(self)}"
        self.sender = open_connection(conninfo)
        self.listener = open_connection(conninfo, settings=[listen], on_notify=self._notified)
        self.listen_probe = ListenProbe(
            loop, QUERIES["probe_listen"], self.sender, self.listener, ["listen drover_queue", listen], quiet(),
            self._poll, lambda level, text: self.logged.append(text), every=0.05, poll_interval=0.05,
        )  # fmt: skip
        self.listen_probe.start()

    def _poll(self) -> None:
        self.polls += 1

    def _notified(self, channel: str) -> None:
        self.arrivals += self.listen_probe.arrived(channel)


@pytest.mark.parametrize("mode", ["direct", "session"])
def test_probe_arrives_every_time_on_a_direct_connection_j46(
    loop: Loop, module_database: str, open_connection: Open, mode: str
) -> None:
    with pooler(module_database, "session") as via:
        where = make_conninfo(via if mode == "session" else module_database, user="drover_scheduler")
        probed = Probed(loop, open_connection, where)
        turn_until(loop, lambda: probed.arrivals == 5)
        probed.listener.close()
        probed.sender.close()
    assert (probed.logged, probed.polls) == ([], 0)


@pytest.mark.slow
def test_lost_notifications_behind_a_transaction_pooler_are_logged_once_and_replaced_by_polling_j46(
    loop: Loop, one: str, open_connection: Open
) -> None:
    probed = Probed(loop, open_connection, one)
    turn_until(loop, lambda: probed.polls > 60)  # several times as long as between two arrivals
    why = "a pooler gives each transaction another connection"
    assert probed.logged == [f"LISTEN gets nothing ({why}): the queue is polled every 0.05 s"]


def test_probe_that_arrives_with_an_answer_proves_nothing_j46(
    loop: Loop, module_database: str, open_connection: Open
) -> None:
    probed = Probed(loop, open_connection, make_conninfo(module_database, user="drover_scheduler"))
    before = probed.sender.sent
    turn_until(loop, lambda: probed.sender.sent > before)  # it probes
    probed.listener.run("select 1", lambda _: None)
    probed.listen_probe.is_polling = True
    turn_until(loop, lambda: probed.arrivals)
    assert probed.listen_probe.is_polling


@pytest.mark.slow
def test_lost_listen_is_noticed_and_repeated_j46(loop: Loop, module_database: str, open_connection: Open) -> None:
    probed = Probed(loop, open_connection, make_conninfo(module_database, user="drover_scheduler"))
    turn_until(loop, lambda: probed.arrivals)
    run(loop, probed.listener, "unlisten *")
    turn_until(loop, lambda: len(probed.logged) == 2)
    polls = probed.polls
    arrivals = probed.arrivals
    turn_until(loop, lambda: probed.arrivals > arrivals + 2)
    why = "the database tells us nothing"
    assert probed.logged == [
        f"LISTEN gets nothing ({why}): the queue is polled every 0.05 s",
        "LISTEN is heard again",
    ]
    assert probed.polls <= polls + 1
    assert [name.decode() for (name,) in rows_of(run(loop, probed.listener, LISTENED)) if name] == ["drover_queue"]


LISTENED = "select c from pg_listening_channels() c where c not like 'drover_probe%'"


def test_backend_that_reuses_a_pid_is_not_terminated_f100(
    loop: Loop, module_database: str, open_connection: Open
) -> None:
    where = make_conninfo(module_database, user="drover_scheduler")
    connection, other = open_connection(where), open_connection(where)
    ((pid,),) = rows_of(run(loop, other, "select pg_backend_pid()"))
    answer = ask(loop, connection, QUERIES["end_backend"], pid=int(pid or 0), start="1.5")
    assert rows_of(answer) == []
    assert rows_of(run(loop, other, "select pg_backend_pid()")) == [(pid,)]


def test_backend_of_a_lost_connection_is_terminated_f100(
    loop: Loop, module_database: str, open_connection: Open
) -> None:
    where = make_conninfo(module_database, user="drover_scheduler")
    connection, other = open_connection(where), open_connection(where)
    backend = other._backend
    assert backend is not None
    answer = ask(loop, connection, QUERIES["end_backend"], **backend._asdict())
    assert rows_of(answer) == [(b"t",)]
    assert fetch(module_database, "select pid from pg_stat_activity where pid = %s", backend.pid) == []
    turn_until(loop, lambda: [*other.old_backends] == [backend])
