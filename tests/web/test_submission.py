"""The form that queues a job: by whose rights, and what it says beside which field."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.web.server import make_app
from tests.web.conftest import KEY, ORIGIN
from tests.web.test_sign_in import token_of

FORM = {"type": "noop", "kind": "parameter", "args": "x", "queue": "", "priority": "", "not_before": ""}


@pytest.fixture(scope="module", params=["frontend", "frontend_sql", "operator"])
def person(web_database: str, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """Yield a browser in which a member of a role that may insert jobs has signed in."""
    with signed_in(web_database, f"drover_{request.param}") as client:
        yield client


def signed_in(database: str, role: str) -> TestClient:
    client = TestClient(
        make_app(make_conninfo(database, user=role), "default", KEY), base_url=ORIGIN, follow_redirects=False
    )
    client.post("/sign-in", data={"role": "", "password": KEY})
    return client


def send(client: TestClient, **fields: str) -> Any:
    token = token_of(client.get("/submit").text)
    return client.post("/submit", data={"token": token, **FORM, **fields})


def mistakes(page: str) -> dict[str, str]:
    """Return what is said beside the fields; each field names it."""
    found = dict(re.findall(r'<p class="mistake" id="mistake-([a-z_]+)">([^<]*)</p>', page))
    assert all(f'aria-describedby="mistake-{name} hint-{name}" aria-invalid="true"' in page for name in found)
    return {name: unescape(text) for name, text in found.items()}


def newest(rows: psycopg.Connection, *columns: str) -> tuple[Any, ...]:
    query = f"select {', '.join(columns)} from drover.jobqueue order by jq_pk desc limit 1"
    found = rows.execute(query.encode()).fetchone()
    assert found
    return found


def count(rows: psycopg.Connection) -> int:
    return int(rows.execute("select count(*) from drover.jobqueue").fetchone()[0])  # type: ignore[index]


def test_job_is_queued_by_the_role_that_signed_in(person: TestClient, rows: psycopg.Connection) -> None:
    answer = send(person, args="one\r\ntwo", priority="b", not_before="2030-12-24 18:00")
    job, *found = newest(rows, "jq_pk", "jq_type", "jq_args", "jq_priority", "jq_not_before::date::text", "jq_msq")
    assert found == ["noop", "one\ntwo", "b", "2030-12-24", False]
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job}")
    page = person.get(f"/jobs/{job}").text
    assert f"job {job} was queued" in page
    role = newest(rows, "jq_submitter")[0]
    assert role in page


def test_query_is_queued_by_those_alone_who_may(web_database: str, rows: psycopg.Connection) -> None:
    before = count(rows)
    with signed_in(web_database, "drover_frontend") as client:
        assert 'value="sql" disabled' in client.get("/submit").text
        refused = send(client, kind="sql", args="select 1")
        assert refused.status_code == 422
        assert "role drover_frontend may not give jq_msq; members of drover_frontend_sql may" in refused.text
        assert count(rows) == before
    with signed_in(web_database, "drover_frontend_sql") as client:
        assert 'value="sql">' in client.get("/submit").text
        assert send(client, kind="sql", args="select 1", queue="default").status_code == 303
    assert newest(rows, "jq_args", "jq_msq", "jq_queue") == ("select 1", True, "default")


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"type": " "}, "type", "choose an agent type"),
        ({"type": "nop"}, "type", "no scheduler serves type nop (served: noop, sha256); correct it"),
        ({"type": "command"}, "type", "commands have buttons on the other pages"),
        ({"type": "cleanup"}, "type", "jobs of type cleanup are created by Drover alone"),
        ({"queue": "nosuch"}, "queue", "there is no queue nosuch; correct it"),
        ({"priority": "!"}, "priority", "a priority must be 1 to 16 letters and digits"),
        ({"not_before": "tomorrow"}, "not_before", "'tomorrow'"),
        ({"args": "a\0b"}, "args", "there is a NUL character in it"),
        ({"kind": "sql", "args": " \r\n"}, "args", "write a query, whose rows are the work items"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    operator: TestClient, rows: psycopg.Connection, fields: dict[str, str], field: str, said: str
) -> None:
    before = count(rows)
    answer = send(operator, **fields)
    assert answer.status_code == 422
    found = mistakes(answer.text)
    assert list(found) == [field]
    assert said in found[field]
    assert "--force" not in answer.text
    assert count(rows) == before


def test_what_was_given_comes_back_after_a_mistake(operator: TestClient) -> None:
    hostile = "</textarea><script>alert(1)</script>"
    page = send(operator, args=hostile, priority='"><b>', kind="sql").text
    assert "<script>alert" not in page
    assert unescape(page.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0]) == hostile
    assert 'value="sql" checked' in page
    assert 'id="priority"' in page
    assert "&#34;&gt;&lt;b&gt;" in page


def test_submission_needs_a_person_a_token_and_this_site(
    visitor: TestClient, operator: TestClient, rows: psycopg.Connection
) -> None:
    before = count(rows)
    assert visitor.get("/submit").status_code == 403
    assert "/submit" not in visitor.get("/").text
    assert visitor.post("/submit", data=FORM).status_code == 403
    for token in ("", "forged"):
        assert operator.post("/submit", data={"token": token, **FORM}).status_code == 403
    own = {"token": token_of(operator.get("/submit").text), **FORM}
    assert operator.post("/submit", data=own, headers={"origin": "http://evil.example"}).status_code == 403
    assert count(rows) == before


def test_role_that_may_not_queue_is_told_so(web_database: str, rows: psycopg.Connection) -> None:
    before = count(rows)
    with signed_in(web_database, "drover_readonly") as client:
        page = client.get("/submit").text
        assert "role drover_readonly may not queue jobs" in page
        assert "<textarea" not in page
        answer = client.post("/submit", data={"token": token_of(page), **FORM})
        assert answer.status_code == 403
    assert count(rows) == before


@pytest.mark.parametrize("kind", ["noop", "license version=2"])
def test_form_of_a_role_that_may_not_queue_names_the_right_and_who_has_it(web_database: str, kind: str) -> None:
    with signed_in(web_database, "drover_readonly") as client:
        token = token_of(client.get("/submit").text)
        answer = client.post("/submit", data={"token": token, **FORM, "type": kind})
    assert answer.status_code == 403
    assert "role drover_readonly may not queue jobs: members of drover_frontend, " in answer.text
    assert "find_agent_type" not in answer.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/act", {"about": "job", "verb": "cancel", "word": "1"}),
        ("/act", {"about": "queue", "verb": "pause", "word": "default"}),
        ("/act", {"about": "host", "verb": "host-disable", "word": "local"}),
        ("/act", {"about": "agent", "verb": "agent-disable", "word": "noop"}),
        ("/act", {"about": "schedule", "verb": "schedule-run", "word": "nightly"}),
        ("/act", {"about": "condition", "verb": "unblock", "word": "x"}),
        ("/jobs/all", {"verb": "cancel", "count": "9"}),
    ],
)
def test_command_of_a_role_that_may_give_none_names_the_right_and_who_has_it(
    web_database: str, rows: psycopg.Connection, path: str, fields: dict[str, str]
) -> None:
    before = count(rows)
    with signed_in(web_database, "drover_readonly") as client:
        answer = client.post(path, data={"token": token_of(client.get("/jobs").text), **fields})
    assert answer.status_code == 403
    assert "role drover_readonly may not give commands: members of drover_operator may, and those of" in answer.text
    assert count(rows) == before
