"""Which requests are refused before any page, and the headers of every answer."""

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

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


@pytest.mark.parametrize("path", ["/", "/static/drover.js", "/nosuch", "/sign-in"])
def test_every_answer_forbids_inline_scripts_and_frames(visitor: TestClient, path: str) -> None:
    headers = visitor.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")


@pytest.mark.parametrize("path", ["/", "/jobs", "/log", "/sign-in", "/schedules", "/conditions"])
def test_no_page_has_inline_scripts_or_styles(operator: TestClient, path: str) -> None:
    page = operator.get(path).text
    assert "<style" not in page
    assert " style=" not in page
    assert " on" + "click" not in page
    assert page.count("<script") == page.count('<script src="/static/')


def test_another_host_sees_nothing(visitor: TestClient) -> None:
    answer = visitor.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "Drover" not in answer.text
