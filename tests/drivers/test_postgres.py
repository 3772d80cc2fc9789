"""A connection that never waits: one thing at a time, every ask answered once, and back after every loss."""

import os
import socket
from collections.abc import Iterator
from errno import EMFILE
from itertools import pairwise
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.drivers.libpq import CHUNK_ROWS, NO_COPY
from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import WHO, Backend, Connection
from scheduler.drivers.statements import Answer, Failure, Query, Rows
from tests.connection_tools import ask, end_backends, fetch, opened, rows_of, run
from tests.loop_tools import turn_until
from tests.patience import PATIENCE_S
from tests.server_tools import Clock, MuteServer

ONE = Query("one", "select 1 as a, null as b, $1::text as c", ("c",))


@pytest.fixture
def connection(loop: Loop, database: str) -> Iterator[Connection]:
    connection = opened(loop, database)
    yield connection
    connection.close()


# ---- statements


def test_rows_are_raw_cells_with_names_t3(loop: Loop, connection: Connection) -> None:
    assert ask(loop, connection, ONE, c="ü") == Rows([(b"1", None, "ü".encode())], (b"a", b"b", b"c"), 1)


def test_rows_without_columns_are_counted(loop: Loop, connection: Connection) -> None:
    rows = rows_of(ask(loop, connection, Query("none", "select from generate_series(1, 3)")))
    assert (list(rows), rows[0], len(rows)) == ([(), (), ()], (), 3)


def test_command_tag_counts_the_affected_rows_t3(loop: Loop, connection: Connection) -> None:
    run(loop, connection, "create temp table t (i int)")
    answer = run(loop, connection, "insert into t select generate_series(1, 7)")
    assert answer == Rows([], (), 7)


def test_requests_are_answered_in_order_t2(loop: Loop, connection: Connection) -> None:
    answers: list[Answer] = []
    connection.ask(ONE, {"c": "first"}, answers.append)
    connection.run("select 'second'", answers.append)
    connection.ask(ONE, {"c": "third"}, answers.append)
    turn_until(loop, lambda: len(answers) == 3)
    assert [rows_of(answer)[0][-1] for answer in answers] == [b"first", b"second", b"third"]
    assert connection.is_idle


def test_query_is_prepared_once_and_counted_t4(loop: Loop, connection: Connection) -> None:
    ask(loop, connection, ONE, c="a")
    ask(loop, connection, ONE, c="b")
    prepared = run(loop, connection, "select name from pg_prepared_statements")
    assert rows_of(prepared) == [(b"one/1",)]
    assert connection.stats["one"].count == 2
    assert connection.stats["one"].total_s >= connection.stats["one"].max_s >= 0


def test_two_texts_of_one_name_are_two_statements_t4(loop: Loop, connection: Connection) -> None:
    assert rows_of(ask(loop, connection, Query("q", "select 1"))) == [(b"1",)]
    assert rows_of(ask(loop, connection, Query("q", "select 2"))) == [(b"2",)]


def test_statement_is_prepared_anew_when_its_table_has_changed_t4(loop: Loop, connection: Connection) -> None:
    query = Query("q", "select * from t")
    run(loop, connection, "create temp table t (i int)")
    assert rows_of(ask(loop, connection, query)) == []
    run(loop, connection, "alter table t add column j int")
    refused = ask(loop, connection, query)
    assert isinstance(refused, Failure)
    assert refused.sqlstate == "0A000"
    assert rows_of(ask(loop, connection, query)) == []


def test_error_has_sqlstate_message_and_position_f29(loop: Loop, connection: Connection) -> None:
    answer = run(loop, connection, "select nonsense")
    assert answer == Failure("42703", 'column "nonsense" does not exist', False, 8, "parse_relation.c")


def test_error_of_a_prepared_query_leaves_the_connection_idle_f29(loop: Loop, connection: Connection) -> None:
    refused = ask(loop, connection, Query("bad", "selec 1"))
    divided = ask(loop, connection, Query("div", "select 1 / $1::int", ("n",)), n=0)
    assert [answer.sqlstate for answer in (refused, divided) if isinstance(answer, Failure)] == ["42601", "22012"]
    assert connection.is_idle


def test_several_statements_in_one_text_are_refused_f29(loop: Loop, connection: Connection) -> None:
    answer = run(loop, connection, "select 1; commit")
    assert isinstance(answer, Failure)
    assert answer.sqlstate == "42601"


def test_empty_text_is_no_error_f29(loop: Loop, connection: Connection) -> None:
    assert run(loop, connection, "") == Rows([])


def test_large_parameters_and_answers_are_transferred_whole_t3(loop: Loop, connection: Connection) -> None:
    text = "x" * 5_000_000
    assert rows_of(ask(loop, connection, ONE, c=text)) == [(b"1", None, text.encode())]


def test_sink_receives_rows_as_they_arrive_f103(loop: Loop, connection: Connection) -> None:
    sizes: list[int] = []

    def count(rows: Rows) -> bool:
        sizes.append(len(rows.rows))
        return True

    answer = run(loop, connection, "select generate_series(1, 1000)", sink=count)
    assert answer == Rows([], (b"generate_series",), 1000)
    assert sizes == [CHUNK_ROWS] * (1000 // CHUNK_ROWS)


def test_sink_that_refuses_more_rows_ends_the_statement_f103(loop: Loop, connection: Connection) -> None:
    answer = run(loop, connection, "select generate_series(1, 100000000)", sink=lambda rows: False)
    assert isinstance(answer, Failure)
    assert answer.sqlstate == "57014"
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]


@pytest.mark.parametrize("sql", ["copy (select 1) to stdout", "copy pg_temp.t from stdin"])
def test_copy_is_refused_and_the_connection_is_restored_f29(loop: Loop, connection: Connection, sql: str) -> None:
    run(loop, connection, "create temp table t (i int)")
    assert run(loop, connection, sql) == Failure("0A000", NO_COPY)
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]


def test_reset_forgets_the_session_f17(loop: Loop, database: str) -> None:
    connection = opened(loop, database, settings=["set work_mem = '3MB'"])
    ask(loop, connection, ONE, c="a")
    run(loop, connection, "set work_mem = '5MB'")
    run(loop, connection, "begin")
    before = connection.in_transaction
    connection.reset()
    assert rows_of(run(loop, connection, "select current_setting('work_mem')")) == [(b"3MB",)]
    assert (before, connection.in_transaction) == (True, False)
    assert rows_of(ask(loop, connection, ONE, c="b"))[0][2] == b"b"
    connection.close()


def test_the_server_ends_no_session_for_being_idle(loop: Loop, database: str) -> None:
    name = conninfo_to_dict(database)["dbname"]
    fetch(database, f"alter database {name} set idle_session_timeout = '1h'")
    connection = opened(loop, database)
    first = run(loop, connection, "show idle_session_timeout")
    connection.reset()
    again = run(loop, connection, "show idle_session_timeout")
    connection.close()
    assert [rows_of(first), rows_of(again)] == [[(b"0",)]] * 2


# ---- notifications


def test_notification_arrives_on_an_idle_connection_j46(loop: Loop, database: str) -> None:
    heard: list[str] = []
    connection = opened(loop, database, settings=["listen drover_queue"], on_notify=heard.append)
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a')")
    turn_until(loop, lambda: heard)
    assert heard == ["drover_queue"]
    connection.close()


def test_notification_that_is_read_together_with_an_answer_is_passed_on_j46(loop: Loop, database: str) -> None:
    heard: list[str] = []
    answers: list[Answer] = []
    connection = opened(loop, database, settings=["listen drover_queue"], on_notify=heard.append)
    ask(loop, connection, ONE, c="it is prepared by this")
    connection.ask(ONE, {"c": "x"}, answers.append)
    fetch(database, "notify drover_queue")
    assert connection._session is not None
    with socket.socket(fileno=os.dup(connection._session.pg.socket)) as unread:
        unread.settimeout(PATIENCE_S)
        while b"drover_queue" not in unread.recv(1 << 16, socket.MSG_PEEK):
            pass
    turn_until(loop, lambda: answers)
    assert heard == ["drover_queue"]  # or it would wait until the server says something else
    connection.close()


# ---- time


def test_slow_statement_is_cancelled_at_its_deadline_f100(loop: Loop, connection: Connection) -> None:
    answer = run(loop, connection, "select pg_sleep(60)", limit_s=0.05)
    assert isinstance(answer, Failure)
    assert (answer.sqlstate, answer.lost) == ("57014", False)
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]


def test_deadline_counts_from_when_the_statement_is_sent_f100(loop: Loop, connection: Connection) -> None:
    answers: list[Answer] = []
    connection.run("select pg_sleep(0.2)", answers.append)
    connection.run("select 1", answers.append, limit_s=0.1)
    turn_until(loop, lambda: len(answers) == 2)
    assert rows_of(answers[1]) == [(b"1",)]


def test_other_connection_answers_while_one_is_slow_f100(loop: Loop, connection: Connection, database: str) -> None:
    slow: list[Answer] = []
    other = opened(loop, database)
    connection.run("select pg_sleep(30)", slow.append)
    assert rows_of(run(loop, other, "select 1")) == [(b"1",)]
    assert slow == []
    connection.cancel()
    turn_until(loop, lambda: slow)
    other.close()


def test_cancel_never_hits_the_next_statement_f100(loop: Loop, connection: Connection) -> None:
    answers: list[Answer] = []
    connection.run("select pg_sleep(30)", answers.append)
    connection.run("select pg_sleep(0.1)", answers.append)
    connection.cancel()
    turn_until(loop, lambda: len(answers) == 2)
    assert [type(answer) for answer in answers] == [Failure, Rows]
    assert not answers[0].lost  # type: ignore[union-attr]


def test_cancel_of_nothing_is_harmless_f100(loop: Loop, connection: Connection) -> None:
    connection.cancel()
    assert connection.is_idle


def test_cancel_spares_the_settings_of_a_new_connection_f100(loop: Loop, database: str) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", database, settings=["select pg_sleep(0.2)"], on_down=downs.append)
    connection.open()
    turn_until(loop, lambda: connection._session and connection._session.statement)
    connection.cancel()
    turn_until(loop, lambda: connection.is_up)
    assert downs == []
    connection.close()


def test_server_that_ignores_a_cancel_loses_the_connection_f100(tmp_path: Path) -> None:
    clock = Clock()
    loop = Loop(clock.read)
    answers: list[Answer] = []
    connection = Connection(loop, "test", f"host={tmp_path} port=1 user=x")
    with MuteServer(tmp_path / ".s.PGSQL.1") as server:
        connection.open()
        server.greet(loop)
        clock.turn_until(loop, lambda: connection.is_up)
        connection.run("select 1", answers.append, limit_s=1.0)
        clock.turn_until(loop, lambda: answers, step=0.5)
    assert answers == [Failure(None, "no answer within 5 s of a cancel", lost=True)]
    assert 6.0 <= clock.now <= 7.5
    connection.close()
    loop.close()


# ---- connecting and losing


def test_refused_connection_is_reported_at_each_attempt_f100(loop: Loop, tmp_path: Path) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", f"host={tmp_path} port=1", on_down=downs.append, chance=lambda: 0.0)
    connection.open()
    turn_until(loop, lambda: len(downs) == 2)
    assert all("No such file or directory" in reason for reason in downs)
    connection.close()


def test_back_off_doubles_up_to_its_limit_with_jitter_f100(tmp_path: Path) -> None:
    clock = Clock()
    loop = Loop(clock.read)
    instants: list[float] = []
    connection = Connection(
        loop,
        "test",
        f"host={tmp_path} port=1",
        on_down=lambda reason: instants.append(clock.now),
        reconnect_max=0.8,
        chance=lambda: 1.0,
    )
    connection.open()
    clock.turn_until(loop, lambda: len(instants) == 6, step=0.01)
    waits = [after - before for before, after in pairwise(instants)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.8], abs=0.011)
    connection.close()
    loop.close()


def test_lost_connection_fails_its_requests_and_reconnects_j51(loop: Loop, database: str) -> None:
    story: list[str] = []
    connection = opened(
        loop, database, on_up=lambda: story.append("up"), on_down=lambda reason: story.append(f"down: {reason}")
    )
    (found,) = rows_of(run(loop, connection, WHO))
    connection.run("select pg_sleep(60)", lambda answer: story.append(f"first {answer.lost}"))  # type: ignore[union-attr]
    connection.run("select 1", lambda answer: story.append(f"second {answer.lost}"))  # type: ignore[union-attr]
    end_backends(database, "drover test")
    turn_until(loop, lambda: story.count("up") == 2)
    down = "down: terminating connection due to administrator command"
    assert story == ["up", "first True", "second True", down, "up"]
    assert [*connection.old_backends] == [Backend(int(found[0] or 0), (found[1] or b"").decode())]
    assert not connection.is_pooled
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
    connection.close()


def test_a_session_lost_while_it_is_set_up_hides_no_earlier_one_f100(loop: Loop, database: str) -> None:
    connection = opened(loop, database)
    first = connection.backend
    end_backends(database, "drover test")
    turn_until(loop, lambda: connection.losses == 1 and connection._session is not None)
    assert (connection.backend, connection.is_up) == (None, False)
    end_backends(database, "drover test")
    turn_until(loop, lambda: connection.is_up)
    assert (connection.losses, connection.old_backends[0]) == (2, first)
    connection.close()


def test_idle_connection_notices_its_loss_j51(loop: Loop, database: str) -> None:
    downs: list[str] = []
    connection = opened(loop, database, on_down=downs.append)
    end_backends(database, "drover test")
    turn_until(loop, lambda: downs)
    assert not connection.is_up
    turn_until(loop, lambda: connection.is_up)
    connection.close()


def test_a_lost_connection_is_forgotten_though_a_process_being_started_has_its_socket(
    loop: Loop, database: str
) -> None:
    connection = opened(loop, database)
    assert connection._session is not None
    with socket.socket(fileno=os.dup(connection._session.pg.socket)):  # as if until its exec
        end_backends(database, "drover test")
        turn_until(loop, lambda: not connection.is_up)
        turn_until(loop, lambda: connection.is_up)
        for _ in range(3):
            loop.turn(loop.now)  # nobody is called for the old one
        assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
    connection.close()


def test_connection_that_no_descriptor_is_left_for_is_tried_again(
    loop: Loop, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", database, on_down=downs.append)

    def refuse(fd: int) -> int:
        raise OSError(EMFILE, os.strerror(EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", refuse)
        connection.open()
        turn_until(loop, lambda: downs)
    assert downs == ["no descriptor is left: Too many open files"]
    turn_until(loop, lambda: connection.is_up)
    connection.close()


def test_requests_made_while_down_wait_for_the_connection_j51(loop: Loop, database: str) -> None:
    answers: list[Answer] = []
    connection = Connection(loop, "test", database)
    connection.run("select 1", answers.append)
    connection.open()
    turn_until(loop, lambda: answers)
    assert rows_of(answers[0]) == [(b"1",)]
    connection.close()


def test_setting_that_fails_is_a_failed_connection_f100(loop: Loop, database: str) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", database, settings=["set nonsense = 1"], on_down=downs.append)
    connection.open()
    turn_until(loop, lambda: downs)
    assert downs[0].startswith("set nonsense = 1: unrecognized configuration parameter")
    assert not connection.is_up
    connection.close()


def test_closing_fails_pending_requests_j51(loop: Loop, connection: Connection) -> None:
    answers: list[Answer] = []
    connection.run("select pg_sleep(60)", answers.append)
    connection.close()
    assert answers == [Failure(None, "the connection was closed", lost=True)]


def test_bad_connection_string_is_reported_j109(loop: Loop) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", "nonsense", on_down=downs.append)
    connection.open()
    assert downs
    assert downs[0].startswith("connection string:")
    connection.close()
