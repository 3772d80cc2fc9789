"""What the drivers rely on in psycopg.pq and libpq."""

import os
import select
from signal import SIGCONT, SIGSTOP

import psycopg
import pytest
from psycopg import pq

from tests.connection_tools import fetch


def test_contract_libpq_is_new_enough_t3() -> None:
    assert pq.version() >= 170000  # cancel_conn, set_chunked_rows_mode


def test_contract_idle_connection_is_not_busy_t3(database: str) -> None:
    pg = pq.PGconn.connect(database.encode())
    assert not pg.is_busy()
    assert pg.get_result() is None


def test_contract_null_is_none_and_cells_are_bytes_t3(database: str) -> None:
    result = pq.PGconn.connect(database.encode()).exec_params(b"select null, '', 'a'", None)
    assert [result.get_value(0, column) for column in range(3)] == [None, b"", b"a"]


def test_contract_move_and_insert_count_in_command_tuples_t3(database: str) -> None:
    pg = pq.PGconn.connect(database.encode())
    pg.exec_(b"begin")
    pg.exec_(b"declare c scroll cursor for select generate_series(1, 5)")
    assert pg.exec_(b"move all in c").command_tuples == 5
    assert pg.exec_(b"commit").command_tuples in (None, 0)


def test_contract_notices_are_not_printed_t3(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    pq.PGconn.connect(database.encode()).exec_(b"rollback")
    assert capfd.readouterr() == ("", "")


def test_contract_flush_says_whether_bytes_remain_t3(database: str) -> None:
    pg = pq.PGconn.connect(database.encode())
    pg.nonblocking = 1
    os.kill(pg.backend_pid, SIGSTOP)  # else it may read as fast as we write
    try:
        pg.send_query_params(b"select length($1)", [b"x" * 20_000_000])
        assert pg.flush() == 1
    finally:
        os.kill(pg.backend_pid, SIGCONT)


def test_contract_broken_connection_raises_a_psycopg_error_t3(database: str) -> None:
    pg = pq.PGconn.connect(database.encode())
    fetch(database, "select pg_terminate_backend(%s)", pg.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        _read_to_the_end(pg)


def _read_to_the_end(pg: pq.abc.PGconn) -> None:
    while True:
        select.select([pg.socket], [], [])
        pg.consume_input()
