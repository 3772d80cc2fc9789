"""What the agent for deliveries connects to, what it sends, and what it makes of answers."""

import ipaddress
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from tests.agent_tools import module
from tests.patience import PATIENCE_S

addresses = module("lib/drover_addresses.py")
sending = module("notify/sending.py")
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fd00::1", "ff02::1",
        "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:7f00:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_no_delivery_goes_to_a_private_address_t98(address: str) -> None:
    with pytest.raises(addresses.RefusedError):
        addresses.check(ipaddress.ip_address(address), [])


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_delivery_goes_to_a_public_address_t98(address: str) -> None:
    addresses.check(ipaddress.ip_address(address), [])


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_private_network_is_permitted_by_name_t98(address: str) -> None:
    addresses.check(ipaddress.ip_address(address), [ipaddress.ip_network("10.1.0.0/16")])
    with pytest.raises(addresses.RefusedError):
        addresses.check(ipaddress.ip_address(address), [ipaddress.ip_network("10.2.0.0/16")])


def test_name_with_one_private_address_is_refused_t98(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(None, None, None, None, (each, 80)) for each in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    with pytest.raises(addresses.RefusedError, match=r"10\.0\.0\.1 is no public address"):
        addresses.addresses("example.org", 80, [])


def test_name_that_changes_its_address_is_looked_up_once_t98(
    monkeypatch: pytest.MonkeyPatch, receiver: "Receiver"
) -> None:
    looks = []
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *words: Any, **more: Any) -> list[Any]:
        if host != "example.org":
            return list(real(host, port, *words, **more))
        looks.append(host)
        return [(None, None, None, None, ("127.0.0.1" if len(looks) == 1 else "127.0.0.2", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    connected = addresses.connect("example.org", receiver.port, LOOPBACK, monotonic() + PATIENCE_S)
    with closing(connected):
        assert connected.getpeername()[0] == "127.0.0.1"
    assert looks == ["example.org"]


class Receiver:
    """A server that answers each connection with the same bytes, and keeps what it got."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.got = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected:
                while b"}" not in self.got:
                    data = connected.recv(65536)
                    if not data:
                        break
                    self.got += data
                try:
                    connected.sendall(self.answer)
                except OSError:
                    pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver(b"HTTP/1.1 204 No Content\r\n\r\n")) as one:
        yield one


def send(port: int, **settings: Any) -> str:
    delivery = sending.Delivery(
        f"http://127.0.0.1:{port}/hook?a=b",
        '{"type":"job.user"}',
        {"webhook-id": "evt_1", "webhook-timestamp": "7", "webhook-signature": "v1,abc="},
    )
    told = sending.send(delivery, sending.Settings(allow=LOOPBACK, **settings), monotonic() + PATIENCE_S)
    return str(told)


def test_delivery_is_a_post_with_the_signature_t98(receiver: Receiver) -> None:
    assert send(receiver.port) == "status 204"
    head, _, body = receiver.got.partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /hook?a=b HTTP/1.1"
    assert {"webhook-id: evt_1", "webhook-signature: v1,abc=", f"Host: 127.0.0.1:{receiver.port}"} <= set(headers)
    assert json.loads(body) == {"type": "job.user"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "status 302: redirects are not followed"),
        (b"HTTP/1.1 410 Gone\r\n\r\n", "gone: status 410"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 x\r\n\r\n", "status 503"),
        (b"", "no answer of HTTP"),
        (b"hello\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 2000 x\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, "longer than 65536 bytes"),
    ],
    ids=["500", "redirect", "gone", "continue", "nothing", "no http", "no status", "endless head"],
)
def test_answer_that_is_no_success_fails_the_delivery_t98(answer: bytes, why: str) -> None:
    with closing(Receiver(answer)) as receiver, pytest.raises(sending.FailedError, match=why):
        send(receiver.port)


@pytest.mark.parametrize(
    "url", ["http://a@example.org/", "ftp://example.org/", "http:///x", "http://example.org:99999/"]
)
def test_url_that_is_none_is_refused_t98(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        sending.post(url, b"", {}, sending.Settings(), monotonic() + PATIENCE_S)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/ü"])
def test_nothing_in_a_url_becomes_another_header_c53(path: str) -> None:
    with pytest.raises(ValueError, match="must be escaped"):
        sending.request(path, "example.org", b"", {})


def test_mail_needs_a_relay_t98() -> None:
    with pytest.raises(sending.FailedError, match="--smtp"):
        sending.mail("a@example.org", "{}", sending.Settings(), monotonic() + PATIENCE_S)


def test_subject_of_a_mail_is_one_short_line_c52() -> None:
    told = {"data": {"job": 7, "kind": "user", "text": "half\r\nBcc: x" + "y" * 300}}
    subject = sending.subject(told)
    assert subject.startswith("drover: job 7: user half Bcc: x")
    assert len(subject) == 200


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://example.org", ("http", "example.org", 80, "example.org", "/")),
        ("https://Example.org/a?b=c", ("https", "example.org", 443, "Example.org", "/a?b=c")),
        ("https://example.org:1?b", ("https", "example.org", 1, "example.org:1", "/?b")),
        ("http://[2001:db8::1]:8080/", ("http", "2001:db8::1", 8080, "[2001:db8::1]:8080", "/")),
    ],
)
def test_the_host_that_is_looked_up_is_that_of_the_url_t98(url: str, parts: tuple[str, str, int, str, str]) -> None:
    hook = sending.webhook(url)
    assert (hook.scheme, hook.host, hook.port, hook.netloc, hook.path) == parts


@pytest.mark.parametrize(
    "url",
    [
        "http://a:b@example.org/", "http://@example.org/", "http://example.org:0/", "http://a..b/", "http://ex ample/",
        f"http://{'a' * 64}.org/", "http://ex\nample.org/", "//example.org/", "file:///etc/passwd",
        "http://ex\u00e4mple.org/",
    ],
)  # fmt: skip
def test_url_of_another_user_scheme_or_host_is_refused_t98(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|label|empty"):
        sending.webhook(url)


@pytest.mark.parametrize("headers", [{"x": "a\r\nY: b"}, {"x\r\nY": "b"}, {"x": "\u00e4"}, {"x": "a\0"}])
def test_nothing_in_a_header_becomes_another_c53(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be escaped"):
        sending.request("/", "example.org", b"", headers)


def test_request_says_how_long_its_body_is_t98() -> None:
    head, _, body = sending.request("/", "example.org", "\u00e4".encode(), {}).partition(b"\r\n\r\n")
    assert (body, b"Content-Length: 2" in head.split(b"\r\n")) == ("\u00e4".encode(), True)


@pytest.mark.parametrize("status", [200, 204, 299])
def test_answers_of_200_to_299_are_a_success_t98(status: int) -> None:
    assert sending.judged(status) == f"status {status}"


@pytest.mark.parametrize(("status", "why"), [
    (199, "status 199"), (300, "status 300: redirects are not followed"),
    (399, "status 399: redirects are not followed"),
    (400, "status 400"), (409, "status 409"), (411, "status 411"),
])  # fmt: skip
def test_other_answers_are_tried_again_t98(status: int, why: str) -> None:
    with pytest.raises(sending.FailedError) as failed:
        sending.judged(status)
    assert (str(failed.value), type(failed.value)) == (why, sending.FailedError)


def test_receiver_that_is_gone_gets_no_more_t98() -> None:
    with pytest.raises(sending.GoneError):
        sending.judged(410)


@pytest.mark.parametrize(
    "line",
    [
        "[]", "{}", '{"to": "x", "body": "y"}', '{"to": 1, "body": "y", "headers": {}}',
        '{"to": "x", "body": null, "headers": {}}', '{"to": "x", "body": "y", "headers": []}',
        '{"to": "x", "body": "y", "headers": {"a": "1", "b": 2}}',
    ],
)  # fmt: skip
def test_line_that_is_no_delivery_is_refused_t98(line: str) -> None:
    with pytest.raises(ValueError, match=r"required|texts|a text"):
        sending.read(line)


def test_delivery_is_read_from_its_line_t98() -> None:
    told = sending.read('{"to": "x", "body": "y", "headers": {"a": "1"}, "more": 1}')
    assert (told.to, told.body, told.headers) == ("x", "y", {"a": "1"})


@pytest.mark.parametrize(
    "address", ["a@example.org", "a.b+c@x", f"{'a' * 64}@example.org", f"a@{'b' * 63}.{'c' * 63}.{'d' * 63}.{'e' * 60}"]
)
def test_mail_goes_to_a_plain_address_t98(address: str) -> None:
    mail = sending.message("drover@site", address, {"data": {"job": 7, "kind": "end", "new": "done"}})
    assert (mail["From"], mail["To"], mail["Subject"]) == ("drover@site", address, "drover: job 7: end done")
    assert json.loads(mail.get_content()) == {"data": {"job": 7, "kind": "end", "new": "done"}}


@pytest.mark.parametrize(
    "address",
    [
        "a", "a@", "@b", "a b@c", "a@b, c@d", "a@b\nBcc: c@d", '"a"@b', "a@-b", "a@b..c", "\u00e4@b", "=?utf-8?q?a?=@b",
        f"{'a' * 65}@example.org", f"a@{'b' * 63}.{'c' * 63}.{'d' * 63}.{'e' * 61}",
    ],
)  # fmt: skip
def test_other_address_of_mail_is_refused_c53(address: str) -> None:
    with pytest.raises(ValueError, match="not an address of mail"):
        sending.message("drover@site", address, {})


@pytest.mark.parametrize(("told", "subject"), [
    ({}, "drover: site: event"),
    ({"data": []}, "drover: site: event"),
    ({"data": {"kind": "host", "text": "alpha is down"}}, "drover: site: host alpha is down"),
    ({"data": {"job": 0, "kind": "end", "new": "failed", "text": "x"}}, "drover: job 0: end failed"),
])  # fmt: skip
def test_subject_names_the_job_and_what_is_new_c52(told: dict[str, Any], subject: str) -> None:
    assert sending.subject(told) == subject


@pytest.mark.parametrize("body", ["[]", "1", "x"])
def test_mail_needs_a_body_that_is_an_object_t98(body: str) -> None:
    settings = sending.Settings(relay=("127.0.0.1", 1), sender="drover@site")
    with pytest.raises(ValueError, match=r"no object|Expecting"):
        sending.send(sending.Delivery("mailto:a@example.org", body, {}), settings, monotonic() + PATIENCE_S)


def test_delivery_that_is_out_of_time_is_not_begun_t98(receiver: Receiver) -> None:
    delivery = sending.Delivery(f"http://127.0.0.1:{receiver.port}/", "{}", {})
    with pytest.raises(TimeoutError):
        sending.send(delivery, sending.Settings(allow=LOOPBACK), monotonic())
    assert receiver.got == b""


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 103 y\r\n\r\nHTTP/1.1 200 z\r\n\r\n",
                                    b"HTTP/1.0 200\r\n\r\n", b"HTTP/1.1 299 x\r\n"])  # fmt: skip
def test_the_last_answer_counts_t98(answer: bytes) -> None:
    with closing(Receiver(answer)) as receiver:
        assert send(receiver.port) in ("status 200", "status 299")


@pytest.mark.parametrize("answer", [b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 20 x\r\n\r\n", b"XHTTP/1.1 200 x\r\n\r\n",
                                    b"HTTP/1.1 +20 x\r\n\r\n", b"HTTP/1.1 100 x\r\n\r\n"])  # fmt: skip
def test_half_an_answer_is_none_t98(answer: bytes) -> None:
    with closing(Receiver(answer)) as receiver, pytest.raises(sending.FailedError, match="no answer of HTTP"):
        send(receiver.port)
