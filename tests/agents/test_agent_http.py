"""Claims about drover-agent-http: what it fetches and sends, and what it leaves alone."""

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.agent_tools import Agent, bundled, record

LOOPBACK = ("--allow", "127.0.0.0/8", "--timeout", "60")
BIG = b"x" * 200_000


class Site(BaseHTTPRequestHandler):
    """Answers by the path, and keeps what it was asked."""

    asked: ClassVar[list[tuple[str, str, dict[str, str], bytes]]] = []
    BODIES: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {
        "/hello": (200, {"Content-Type": "text/plain; charset=utf-8"}, "grüß dich\n".encode()),
        "/image": (200, {"Content-Type": "image/png"}, b"\x89PNG\xff"),
        "/nothing": (204, {}, b""),
        "/missing": (404, {}, b"no"),
        "/big": (200, {}, BIG),
        "/short": (200, {"Content-Length": "50"}, b"only"),
        "/there": (302, {"Location": "/hello"}, b""),
        "/round": (301, {"Location": "/round"}, b""),
        "/inside": (302, {"Location": "http://10.0.0.1/admin"}, b""),
        "/file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/elsewhere": (302, {}, b""),
    }

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        status, headers, body = self.BODIES[self.path.partition("?")[0]]
        if self.path == "/elsewhere":
            headers = {"Location": f"http://127.1:{self.server.server_address[1]}/hello"}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def shared() -> Iterator[Agent]:
    with bundled("http", *LOOPBACK, "--limit", "100000", "--header", "Authorization: Bearer s3cret") as agent:
        yield agent


def found(agent: Agent, line: str | bytes) -> Any:
    (said,) = agent.work(line.encode() if isinstance(line, str) else line)
    assert said.startswith(b"RESULT "), said
    return json.loads(said.removeprefix(b"RESULT "))


def failure(agent: Agent, line: str | bytes) -> str:
    (said,) = agent.work(line.encode() if isinstance(line, str) else line)
    assert said.startswith((b"FAIL ", b"FAIL! ")), said
    return said.partition(b" ")[2].decode()


def test_a_url_is_fetched(shared: Agent, site: str) -> None:
    body = Site.BODIES["/hello"][2]
    assert found(shared, f"{site}/hello?a=b") == {
        "url": f"{site}/hello?a=b", "status": 200, "type": "text/plain", "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(), "body": "grüß dich\n",
    }  # fmt: skip
    assert Site.asked[-1][:2] == ("GET", "/hello?a=b")


def test_what_is_no_text_is_told_by_its_hash(shared: Agent, site: str) -> None:
    assert "body" not in found(shared, f"{site}/image")
    assert found(shared, f"{site}/nothing")["status"] == 204


def test_a_row_with_a_body_calls_a_webhook(shared: Agent, site: str) -> None:
    body = '{"text": "done, \\"well\\" $5"}'
    assert found(shared, record({"url": f"{site}/nothing".encode(), "body": body.encode()}))["status"] == 204
    method, _, headers, got = Site.asked[-1]
    assert (method, headers["Content-Type"], got.decode()) == ("POST", "application/json", body)
    put = {"method": b"PUT", "type": b"text/csv", "body": b"a,b\n"}
    found(shared, record({"url": f"{site}/nothing".encode(), **put}))
    method, _, headers, got = Site.asked[-1]
    assert (method, headers["Content-Type"], got) == ("PUT", "text/csv", b"a,b\n")


def test_a_redirect_is_followed_and_the_last_url_told(shared: Agent, site: str) -> None:
    assert found(shared, f"{site}/there")["url"] == f"{site}/hello"


def test_headers_of_the_site_go_to_the_named_host_only_c53(shared: Agent, site: str) -> None:
    found(shared, f"{site}/elsewhere")
    (_, _, first, _), (_, _, second, _) = Site.asked[-2:]
    assert (first["Authorization"], second.get("Authorization")) == ("Bearer s3cret", None)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/missing", "status 404"),
        ("/round", "more than 5 redirects; the last is to "),
        ("/inside", "refused: 10.0.0.1 is no public address, and not in a network of --allow"),
        ("/file", "not a URL of http or https, without user and password: file:///etc/passwd"),
        ("/big", "the answer is longer than 100000 bytes; see --limit"),
        ("/short", "the answer ends 46 bytes too early"),
    ],
)
def test_an_answer_that_does_not_count_fails_the_item_t16(shared: Agent, site: str, path: str, why: str) -> None:
    assert failure(shared, site + path).startswith(why)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("http://169.254.169.254/latest", "refused: 169.254.169.254 is no public address"),
        ("http://[::1]/", "refused: ::1 is no public address"),
        ("ftp://127.0.0.1/", "not a URL of http or https"),
        ("http://user:pass@127.0.0.1/", "not a URL of http or https, without user and password"),
        ("http://127.0.0.1/a b", "a URL has characters that must be escaped"),
        ("http://127.0.0.1:99999/", "Port out of range"),
        ("http://127.0.0.1:1/", "not reached: "),
        ("hello", "not a URL of http or https"),
        ('method="GET"', "the item has no column url, or it is NULL"),
        ('url="http://127.0.0.1/" method="GET /"', "the method is one of GET, HEAD, POST"),
        (b'url="http://127.0.0.1/\\r\\nX: y"', "a URL has characters that must be escaped"),
    ],
)
def test_what_is_no_request_is_refused_t16(shared: Agent, line: str, why: str) -> None:
    assert failure(shared, line).startswith(why)


def test_a_redirect_of_a_post_is_not_followed(shared: Agent, site: str) -> None:
    line = record({"url": f"{site}/there".encode(), "body": b"{}"})
    assert failure(shared, line) == "status 302: redirects of a POST are not followed"


def test_an_answer_is_kept_in_a_folder_and_saved_by_a_statement(site: str, tmp_path: Path) -> None:
    with bundled("http", *LOOPBACK, "--folder", str(tmp_path), "--save", "save") as agent:
        agent.say(record({"page_pk": b"7", "url": f"{site}/big".encode()}))
        head, _, values = agent.hear().partition(b"{")
        saved = json.loads(b"{" + values)
        assert (head, saved["page_pk"], saved["size"]) == (b"DB: save ", "7", len(BIG))
        assert Path(saved["path"]).read_bytes() == BIG
        assert agent.work(b"OK") == []
    assert [path.name for path in tmp_path.iterdir()] == [hashlib.sha256(BIG).hexdigest()]


def test_an_answer_that_never_ends_fails_at_the_time_limit() -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Site) as deaf,
        bundled("http", *LOOPBACK[:2], "--timeout", "0.2") as agent,
    ):
        port = deaf.server_address[1]  # it is never served: the connection is made, and nothing comes
        assert failure(agent, f"http://127.0.0.1:{port}/hello").startswith("no answer within 0.2 s")


def test_a_call_is_left_at_once_when_stdin_closes_f83() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as deaf, bundled("http", *LOOPBACK) as agent:
        agent.say(f"http://127.0.0.1:{deaf.server_address[1]}/hello".encode())
        connected, _ = deaf.socket.accept()  # it is at work
        with connected:
            agent.hang_up()
            assert agent.end() == 0
