"""The headers of every answer, and what a request for another host is shown."""

import pytest
from starlette.testclient import TestClient


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
