"""Where a connection looks for its server: paths, names, ports, several hosts, servers that are not the right one."""

import socket
from collections.abc import Sequence
from pathlib import Path
from select import EPOLLIN

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.drivers.libpq import HOST_NAME, look_up, with_addresses, writable
from scheduler.drivers.loop import Loop, Task
from scheduler.drivers.postgres import Connection
from tests.connection_tools import fetch, opened, rows_of, run
from tests.loop_tools import turn_until
from tests.server_tools import Clock, MuteServer, relay


def test_port_and_socket_are_honoured_j109(loop: Loop, database: str) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", make_conninfo(database, port=5999), on_down=downs.append)
    connection.open()
    turn_until(loop, lambda: downs)
    assert ".s.PGSQL.5999" in downs[0]
    connection.close()


def test_database_is_reached_by_host_name_and_port_j109(loop: Loop, database: str) -> None:
    """A proxy on a TCP port of its own stands for a server there."""
    directory, port = (conninfo_to_dict(database)[key] for key in ("host", "port"))
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = f"{directory}/.s.PGSQL.{port}"
        loop.register(server.fileno(), EPOLLIN, lambda mask: relay(loop, server, path, ends))
        connection = opened(loop, make_conninfo(database, host="localhost", port=server.getsockname()[1]))
        assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
        connection.close()
        turn_until(loop, lambda: not ends)


def test_password_is_not_passed_to_the_resolver(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGPASSWORD", "DROVER_DATABASE_URL"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.setenv("RES_OPTIONS", "ndots:1")
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\necho 127.0.0.1\n")
    spy.chmod(0o755)
    found: list[Sequence[str]] = []
    Task(loop, look_up("name", loop.now + 20.0, str(spy)), found.append).start()
    turn_until(loop, lambda: found)
    seen = (tmp_path / "seen").read_text()
    assert "RES_OPTIONS=ndots:1" in seen
    assert "swordfish" not in seen


def test_unknown_host_name_is_an_error_and_does_not_block_j109(loop: Loop) -> None:
    downs: list[str] = []
    connection = Connection(loop, "test", "host=no-such-host.invalid", on_down=downs.append)
    connection.open()
    turn_until(loop, lambda: downs)
    assert downs == ["host 'no-such-host.invalid' has no address"]
    connection.close()


def test_host_without_address_does_not_prevent_the_others_j109(loop: Loop, database: str) -> None:
    parts = conninfo_to_dict(database)
    both = {"host": f"no-such-host.invalid,{parts['host']}", "port": f"5432,{parts['port']}"}
    connection = opened(loop, make_conninfo(database, **both))
    assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
    connection.close()


def test_server_that_accepts_and_stays_silent_does_not_prevent_the_others_f100(database: str, tmp_path: Path) -> None:
    parts, clock = conninfo_to_dict(database), Clock()
    loop = Loop(clock.read)
    both = {"host": f"{tmp_path},{parts['host']}", "port": f"1,{parts['port']}"}
    downs: list[str] = []
    with MuteServer(tmp_path / ".s.PGSQL.1"):
        connection = Connection(loop, "test", make_conninfo(database, **both), on_down=downs.append)
        connection.open()
        clock.turn_until(loop, lambda: downs, step=1.0)
        clock.turn_until(loop, lambda: not connection.retry_in, step=0.01)
        clock.turn_until(loop, lambda: connection.is_up)
        assert rows_of(run(loop, connection, "select 1")) == [(b"1",)]
        connection.close()
    loop.close()
    assert downs == ["no connection within 15 s"]


def test_a_read_only_server_is_skipped_j109(loop: Loop, database: str) -> None:
    downs: list[str] = []
    name = conninfo_to_dict(database)["dbname"]
    fetch(database, f"alter database {name} set default_transaction_read_only = on")
    connection = Connection(loop, "test", writable(database), on_down=downs.append)
    connection.open()
    turn_until(loop, lambda: downs)
    fetch(database, f"begin read write; alter database {name} reset default_transaction_read_only; commit")
    turn_until(loop, lambda: connection.is_up)
    assert all("session is read-only" in reason for reason in downs)
    connection.close()


def test_target_session_attrs_of_the_operator_stays_j109() -> None:
    assert conninfo_to_dict(writable("target_session_attrs=any"))["target_session_attrs"] == "any"


def test_without_a_resolver_libpq_looks_the_name_up_j109(loop: Loop) -> None:
    found: list[list[str]] = []
    Task(loop, look_up("name", loop.now + 20.0, "no-such-program"), found.append).start()
    assert found == [[""]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"host": "a"}, {"host": "a,a", "hostaddr": "1.1.1.1,::2"}),
        ({"host": "a", "port": "5"}, {"host": "a,a", "hostaddr": "1.1.1.1,::2", "port": "5,5"}),
        (
            {"host": "/run,a", "port": "5,6"},
            {"host": "/run,a,a", "hostaddr": ",1.1.1.1,::2", "port": "5,6,6"},
        ),
    ],
)
def test_every_address_of_a_name_is_tried_j109(parameters: dict[str, str], expected: dict[str, str]) -> None:
    assert with_addresses(parameters, {"a": ["1.1.1.1", "::2"]}) == expected


@pytest.mark.parametrize("host", ["/run/postgresql", "127.0.0.1", "::1", "", "@abstract"])
def test_paths_and_addresses_are_not_looked_up_j109(host: str) -> None:
    assert HOST_NAME.fullmatch(host) is None
