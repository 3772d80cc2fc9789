"""Which requests the dashboard refuses before any page."""

import pytest
from starlette.datastructures import Headers

from scheduler.web.server import Guard, host_name

GUARD = Guard(None, ["drover.example.org"])  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["localhost", "localhost:8300", "127.0.0.1:1", "[::1]:8300", "Drover.Example.Org"])
def test_own_names_are_served(host: str) -> None:
    assert GUARD.refusal("GET", Headers({"host": host})) == ""


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "[::1", "127.0.0.1.evil", "a@localhost"]
)
def test_other_names_are_refused_since_dns_may_lead_here(host: str) -> None:
    assert GUARD.refusal("GET", Headers({"host": host})) != "" or host_name(host) == "localhost"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    assert GUARD.refusal("POST", Headers({"host": "localhost", **headers})) == "this form came from another site"


def test_own_forms_are_taken() -> None:
    own = {"host": "localhost:8300", "origin": "http://localhost:8300", "sec-fetch-site": "same-origin"}
    assert GUARD.refusal("POST", Headers(own)) == ""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_pages_may_be_led_to_from_other_sites(method: str) -> None:
    from_there = {"host": "localhost", "origin": "http://other.example", "sec-fetch-site": "cross-site"}
    assert GUARD.refusal(method, Headers(from_there)) == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_form_of_another_port_of_this_host_is_refused(method: str) -> None:
    other = {"host": "localhost:8300", "origin": "http://localhost:8301"}
    assert GUARD.refusal(method, Headers(other)) == "this form came from another site"


def test_request_that_names_no_host_is_refused() -> None:
    assert "not ours" in GUARD.refusal("GET", Headers({}))
