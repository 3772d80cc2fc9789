"""Strangers who keep connections, places and tries to themselves keep nobody else away."""

import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlencode

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from scheduler.web.live_updates import MOST_OF_VISITOR, Changes
from scheduler.web.server import make_app
from scheduler.web.sign_in import MOST_OF_ROLE, People
from tests.cli_tools import DROVER, environment
from tests.patience import LONG_PATIENCE_S, PATIENCE_S
from tests.web.asking_server import PASSWORD, ROLE, AskingServer
from tests.web.conftest import KEY
from tests.web.served import HALF_BODY, HALF_HEAD, PAGE, Address, client, clients, said, served, status, status_of

FILES = 1024  # open files, as a session of a person may have
STRANGERS = 1030


@contextmanager
def web_process(conninfo: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """Run `drover web` with few open files; it is stopped with Ctrl-C."""
    command = ["prlimit", f"--nofile={FILES}:{FILES}", *DROVER, "web", "--port", "0"]
    variables, pipe = environment(conninfo, folder / "none"), subprocess.PIPE
    with subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        port = re.search(r":(\d+)/", process.stdout.readline())
        assert port
        try:
            yield process, ("127.0.0.1", int(port[1]))
        finally:
            process.send_signal(signal.SIGINT)


# ---- connections


@pytest.mark.slow
def test_half_heads_of_one_address_keep_no_page_away(web_database: str, tmp_path: Path) -> None:
    with web_process(web_database, tmp_path) as (process, address):
        with clients(address, HALF_HEAD, STRANGERS):
            assert status(address) == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == ""


def test_half_head_is_ended_in_time(web_database: str) -> None:
    with served(make_app(web_database, "default"), request_s=0.2) as address, client(address, HALF_HEAD) as stranger:
        assert b"408 Request Timeout" in said(stranger)


def test_silent_connection_is_ended_in_time(web_database: str) -> None:
    with served(make_app(web_database, "default"), request_s=0.2) as address, client(address, b"") as stranger:
        assert said(stranger) == b""


def test_half_body_is_ended_in_time(web_database: str) -> None:
    with served(make_app(web_database, "default"), request_s=0.2) as address, client(address, HALF_BODY) as stranger:
        assert b"408 Request Timeout" in said(stranger)


def test_half_head_behind_a_whole_request_is_ended_in_time(web_database: str) -> None:
    app = make_app(web_database, "default")
    with served(app, request_s=0.2) as address, client(address, PAGE + HALF_HEAD) as stranger:
        assert said(stranger).startswith(b"HTTP/1.1 200")


def test_a_head_that_comes_byte_by_byte_is_ended_in_time(web_database: str) -> None:
    with served(make_app(web_database, "default"), request_s=0.5) as address, client(address, HALF_HEAD) as stranger:
        for _ in range(6000):  # a minute
            stranger.send(b"x")
            if select.select([stranger], [], [], 0.01)[0]:
                break
        assert b"408 Request Timeout" in said(stranger)


def test_client_that_reads_no_answers_is_ended_in_time(web_database: str) -> None:
    request = b"GET /static/uPlot.iife.min.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
    app = make_app(web_database, "default")
    with served(app, read_s=0.2, request_s=60.0) as address, client(address, request * 1000) as stranger:
        poll = select.poll()
        poll.register(stranger, select.POLLHUP | select.POLLERR)
        assert poll.poll(1000 * LONG_PATIENCE_S)


def test_client_that_reads_slowly_gets_all_of_an_answer() -> None:
    body = b"x" * (8 << 20)  # more than the buffers of both sockets hold
    app = Starlette(routes=[Route("/", lambda _: Response(body))])
    app.state.changes = Changes("")
    with served(app, request_s=0.1) as address, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(PATIENCE_S)
        reader.connect(address)
        reader.sendall(PAGE)
        parts = [slow_read(reader) for _ in range(20)]
        assert len(b"".join(parts) + said(reader)) > len(body)


def slow_read(reader: socket.socket) -> bytes:
    Event().wait(0.05)
    return reader.recv(4096)


def test_of_too_many_half_heads_of_one_address_the_oldest_is_closed(web_database: str) -> None:
    with served(make_app(web_database, "default"), waiting=5) as address, clients(address, HALF_HEAD, 5) as strangers:
        assert status(address) == 200
        assert b"200 OK" not in said(strangers[0])  # an answer, or none if its head was not read yet
        strangers[1].sendall(b"\r\n")
        assert status_of(strangers[1]) == 200


def test_of_too_many_connections_one_that_waits_is_closed(web_database: str) -> None:
    app = make_app(web_database, "default")
    with served(app, connections=5) as address, clients(address, HALF_HEAD, 5) as strangers:
        assert status(address) == 200
        assert b"200 OK" not in said(strangers[0])  # an answer, or none if its head was not read yet


def test_connections_that_are_served_do_not_count_as_waiting(web_database: str) -> None:
    with served(make_app(web_database, "default"), waiting=1) as address, _streams(address, 10) as browsers:
        assert status(address) == 200
        assert [b"event: begin" in browser.recv(1000) for browser in browsers] == [True] * 10


def changes(cookie: str = "") -> bytes:
    return f"GET /changes HTTP/1.1\r\nhost: localhost\r\ncookie: drover={cookie}\r\n\r\n".encode()


def test_one_visitor_does_not_take_all_places_of_live_updates(web_database: str) -> None:
    app = make_app(web_database, "default", KEY)
    cookie = app.state.people.sign_in("", KEY)
    with served(app) as address:
        with _streams(address, MOST_OF_VISITOR):
            assert status(address, changes()) == 503
            assert status(address, changes(cookie)) == 200
        assert status(address, changes(cookie)) == 200


@contextmanager
def _streams(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Keep this number of streams of changes open."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(client(address, changes())))
            assert opened[-1].recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
        yield opened


# ---- forms


def test_form_of_too_many_fields_is_a_400(visitor: TestClient) -> None:
    answer = visitor.post("/sign-in", content="&".join(["a=1"] * 8000))
    assert answer.status_code == 400
    assert "more than 5000 fields" in answer.text


@pytest.mark.slow
def test_form_that_is_cut_short_is_a_400_and_no_traceback(web_database: str, tmp_path: Path) -> None:
    with web_process(web_database, tmp_path) as (process, address):
        with client(address, HALF_BODY) as half_closed:
            half_closed.shutdown(1)
            assert status_of(half_closed) == 400
        with client(address, HALF_BODY):
            pass
        assert status(address) == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == ""


# ---- passwords


def form(role: str, password: str) -> bytes:
    body = urlencode({"role": role, "password": password})
    head = f"POST /sign-in HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return f"{head}{body}".encode()


@pytest.mark.slow
def test_eight_clients_with_a_wrong_password_keep_nobody_out(asking: AskingServer) -> None:
    is_over = Event()
    with psycopg.connect(asking.by_socket, autocommit=True) as admin:
        admin.execute(f"create role stranger login password '{PASSWORD}'".encode())

    def try_wrong(address: Address) -> None:
        while not is_over.is_set():
            status(address, form("stranger", "wrong"))

    with served(make_app(asking.by_socket, "default")) as address:
        assert status(address, form("stranger", "wrong")) == 403
        strangers = [Thread(target=try_wrong, args=[address]) for _ in range(8)]
        for stranger in strangers:
            stranger.start()
        try:
            answers = [status(address, form(ROLE, PASSWORD)) for _ in range(20)]
        finally:
            is_over.set()
            for stranger in strangers:
                stranger.join()
        assert answers == [303] * 20


# ---- people


def test_people_of_one_role_are_limited_and_the_longest_idle_goes(web_database: str) -> None:
    clock = [0.0]
    people = People(web_database, KEY, lambda: clock[0])

    def signed_in() -> str:
        clock[0] += 1
        return people.sign_in("", KEY)

    secrets = [signed_in() for _ in range(MOST_OF_ROLE)]
    clock[0] += 1
    people.find(secrets[0])
    newest = signed_in()
    found = [secret for secret in (*secrets, newest) if people.find(secret)]
    assert found == [secrets[0], *secrets[2:], newest]


def test_a_login_that_signs_in_a_thousand_times_keeps_nobody_out(asking: AskingServer) -> None:
    people = People(asking.by_socket, KEY)
    other = people.sign_in(ROLE, PASSWORD)
    for _ in range(1001):
        people.sign_in("", KEY)
    assert people.find(other)
    assert people.find(people.sign_in(ROLE, PASSWORD))


def test_people_of_one_role_share_its_sessions(asking: AskingServer) -> None:
    people = People(asking.by_socket, KEY)
    first, second = (people.find(people.sign_in(ROLE, PASSWORD)) for _ in range(2))
    assert first is not second
    assert first
    assert second
    assert first.login is second.login
