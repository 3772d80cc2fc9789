"""Commands from the pages: who may give which, and what becomes of them."""

import re
from collections.abc import Iterator
from html import unescape
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

import scheduler.web.actions as actions
import scheduler.web.offered_verbs as verbs
from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import VERBS, parse
from scheduler.web.server import make_app
from tests.cli_tools import finish, insert
from tests.web.conftest import KEY, ORIGIN
from tests.web.test_sign_in import token_of


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler answers in these tests."""
    monkeypatch.setattr(actions, "WAIT_S", 0.0)


@pytest.fixture(scope="module")
def owner(web_database: str) -> Iterator[TestClient]:
    """Yield a browser in which drover_frontend has signed in."""
    app = make_app(make_conninfo(web_database, user="drover_frontend"), "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        client.post("/sign-in", data={"password": KEY})
        yield client


def commands(rows: psycopg.Connection, after: int = 0) -> list[tuple[str, str]]:
    query = "select jq_args, jq_submitter from drover.jobqueue where jq_type = 'command' and jq_pk > %s order by jq_pk"
    return rows.execute(query, (after,)).fetchall()


def newest(rows: psycopg.Connection) -> int:
    found = rows.execute("select coalesce(max(jq_pk), 0) from drover.jobqueue").fetchone()
    assert found
    return int(found[0])


def buttons(page: str) -> set[str]:
    return set(re.findall(r'<button name="verb" value="([a-z-]+)"', page))


def send(client: TestClient, about: str, verb: str, *words: object, back: str = "/jobs") -> str:
    """Press a button of a page; return where it leads."""
    token = token_of(client.get("/jobs").text)
    form = {"token": token, "about": about, "verb": verb, "word": [str(word) for word in words], "back": back}
    answer = client.post("/act", data=form)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


@pytest.mark.parametrize("what", verbs.OFFERED)
def test_every_offered_verb_is_one_of_the_registry_and_needs_no_more_words(what: str) -> None:
    assert verbs.OFFERED[what]
    for verb in verbs.OFFERED[what]:
        assert VERBS[verb.name] is verb
        assert parse(f"{verb.name} 1").verb == verb.name


def test_verbs_about_jobs_say_in_which_states_they_are_possible() -> None:
    assert set(verbs.POSSIBLE) == {verb.name for verb in verbs.OFFERED[verbs.JOBS]}
    assert all(set(states) <= set(JOB_STATES) for states in verbs.POSSIBLE.values())


@pytest.mark.slow
def test_command_is_inserted_as_by_the_command_line(operator: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows)
    before = newest(rows)
    assert send(operator, "job", "hold", job, back=f"/jobs/{job}") == f"/jobs/{job}"
    assert commands(rows, before) == [(f"hold {job}", "drover_operator")]
    page = operator.get(f"/jobs/{job}").text
    assert "one command waits for the scheduler" in page
    assert "one command waits for the scheduler" not in operator.get(f"/jobs/{job}").text


@pytest.mark.slow
def test_answer_of_the_scheduler_is_shown(
    operator: TestClient, rows: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = insert(rows)
    before = newest(rows)
    answered = [{"words": f"hold {job}", "ok": False, "text": "job <i>is</i> running", "result": None}]
    monkeypatch.setattr(actions, "_answers", lambda session, sent: answered[: len(sent)])
    send(operator, "job", "hold", job)
    assert "job &lt;i&gt;is&lt;/i&gt; running" in operator.get("/jobs").text
    assert len(commands(rows, before)) == 1


def test_page_offers_what_a_job_in_its_state_takes(operator: TestClient, rows: psycopg.Connection) -> None:
    queued, failed, done = insert(rows), insert(rows), insert(rows)
    finish(rows, failed, "failed", 2, "no")
    finish(rows, done)
    found = [buttons(operator.get(f"/jobs/{job}").text) for job in (queued, failed, done)]
    assert found == [{"hold", "ice", "cancel"}, {"retry"}, set()]


def test_visitor_is_offered_nothing_and_may_do_nothing(visitor: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows)
    before = newest(rows)
    pages = [visitor.get(path).text for path in ("/", "/jobs", f"/jobs/{job}", "/schedules", "/conditions")]
    assert [page for page in pages if buttons(page)] == []
    form = {"token": "", "about": "job", "verb": "cancel", "word": str(job), "back": "/"}
    assert visitor.post("/act", data=form).status_code == 403
    assert visitor.get("/jobs/all").status_code == 403
    assert visitor.post("/jobs/all", data={"verb": "cancel", "count": "9"}).status_code == 403
    assert commands(rows, before) == []


@pytest.mark.parametrize("token", ["", "forged", "\xe9"])
def test_command_without_the_token_of_the_person_is_refused(
    operator: TestClient, rows: psycopg.Connection, token: str
) -> None:
    job = insert(rows)
    before = newest(rows)
    form = {"token": token, "about": "job", "verb": "cancel", "word": str(job), "back": "/"}
    assert operator.post("/act", data=form).status_code == 403
    assert operator.post("/jobs/all", data={"token": token, "verb": "cancel", "count": "9"}).status_code == 403
    assert commands(rows, before) == []


def test_form_of_another_site_is_refused_though_the_cookie_is_there(
    operator: TestClient, rows: psycopg.Connection
) -> None:
    token = token_of(operator.get("/jobs").text)
    before = newest(rows)
    form = {"token": token, "about": "queue", "verb": "pause", "word": "default", "back": "/"}
    assert operator.post("/act", data=form, headers={"origin": "http://evil.example"}).status_code == 403
    assert commands(rows, before) == []


def test_owner_commands_its_own_jobs_alone(owner: TestClient, web_database: str, rows: psycopg.Connection) -> None:
    other = insert(rows)
    with psycopg.connect(make_conninfo(web_database, user="drover_frontend"), autocommit=True) as login:
        own = login.execute("insert into drover.jobqueue (jq_type) values ('noop') returning jq_pk").fetchone()
    assert own
    before = newest(rows)
    assert buttons(owner.get(f"/jobs/{own[0]}").text) == {"hold", "ice", "cancel"}
    assert buttons(owner.get("/").text) == set()
    send(owner, "job", "cancel", own[0])
    send(owner, "job", "cancel", other)
    assert f"job {other} is not yours: sign in as a role that has the right; no command was sent" in text_of_notes(
        owner
    )
    send(owner, "queue", "pause", "default")
    assert "only drover_operator may command pause" in text_of_notes(owner)
    assert commands(rows, before) == [(f"cancel {own[0]}", "drover_frontend")]


def text_of_notes(client: TestClient) -> str:
    return " ".join(unescape(note) for note in re.findall(r'<p class="note[^>]*>([^<]*)</p>', client.get("/jobs").text))


def test_marked_jobs_are_commanded_each_once(operator: TestClient, rows: psycopg.Connection) -> None:
    jobs = [insert(rows) for _ in range(3)]
    before = newest(rows)
    send(operator, "job", "cancel", *jobs, jobs[0])
    assert [words for words, _ in commands(rows, before)] == [f"cancel {job}" for job in jobs]


def test_nothing_is_sent_when_nothing_is_marked(operator: TestClient, rows: psycopg.Connection) -> None:
    before = newest(rows)
    send(operator, "job", "cancel")
    assert "nothing was marked" in text_of_notes(operator)
    assert commands(rows, before) == []


@pytest.mark.parametrize("words", ["1 2", "x", "0", "-1", "1; drop table x", "12\n13"])
def test_word_that_is_no_job_sends_nothing(operator: TestClient, rows: psycopg.Connection, words: str) -> None:
    before = newest(rows)
    send(operator, "job", "hold", 1, words)
    assert "no command was sent" in text_of_notes(operator)
    assert commands(rows, before) == []


@pytest.mark.parametrize(("about", "verb"), [("job", "shutdown"), ("queue", "shutdown"), ("nosuch", "hold"), ("", "")])
def test_verb_that_no_page_offers_is_refused(operator: TestClient, about: str, verb: str) -> None:
    token = token_of(operator.get("/jobs").text)
    form = {"token": token, "about": about, "verb": verb, "word": "now", "back": "/"}
    assert operator.post("/act", data=form).status_code == 400


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/a\r\nb"]
)
def test_answer_leads_to_no_other_site(operator: TestClient, back: str) -> None:
    assert send(operator, "job", "cancel", back=back) == "/"


def test_all_jobs_of_a_filter_are_commanded_after_their_number_was_shown(
    operator: TestClient, rows: psycopg.Connection
) -> None:
    kind = f"bulk{uuid4().hex[:6]}"
    jobs = [insert(rows, kind) for _ in range(4)]
    finish(rows, jobs[0])
    page = operator.get(f"/jobs/all?type={kind}").text
    assert "3 jobs: end a job that has not ended" in page
    before = newest(rows)
    form = {"token": token_of(page), "verb": "cancel", "count": "3", "type": kind}
    assert operator.post("/jobs/all", data=form).headers["location"] == f"/jobs?type={kind}"
    assert [words for words, _ in commands(rows, before)] == ["cancel all"]
    found = rows.execute("select jq_variables from drover.jobqueue where jq_pk > %s", (before,)).fetchall()
    assert found == [({"type": kind, "state": ["blocked", "claimed", "held", "queued", "running"], "hidden": False},)]


def test_nothing_is_sent_if_a_filter_finds_more_than_was_shown(operator: TestClient, rows: psycopg.Connection) -> None:
    kind = f"bulk{uuid4().hex[:6]}"
    jobs = [insert(rows, kind) for _ in range(2)]
    before = newest(rows)
    form = {"token": token_of(operator.get("/jobs").text), "verb": "cancel", "count": "1", "type": kind}
    assert operator.post("/jobs/all", data=form).headers["location"] == f"/jobs/all?type={kind}"
    assert f"there are more such jobs by now, {len(jobs)}" in text_of_notes(operator)
    assert commands(rows, before) == []


def test_queues_hosts_types_and_schedules_have_their_commands(operator: TestClient, rows: psycopg.Connection) -> None:
    rows.execute(
        "insert into drover.host (host_name, host_group, host_transport, host_max, host_max_file)"
        " values ('alpha', 'default', 'local', 2, 2)"
    )
    rows.execute(
        "insert into drover.schedule (schedule_name, schedule_every, schedule_job)"
        """ values ('hourly', '1 hour', '{"jq_type": "noop"}')"""
    )
    rows.execute("update drover.queue set queue_paused = true where queue_name = 'default'")
    assert buttons(operator.get("/").text) == {"continue", "agent-disable", "host-disable"}
    assert buttons(operator.get("/schedules").text) == {"schedule-run", "schedule-disable"}
    before = newest(rows)
    send(operator, "queue", "continue", "default")
    send(operator, "host", "host-disable", "alpha")
    send(operator, "schedule", "schedule-run", "hourly")
    send(operator, "condition", "unblock", "disk full?")
    assert [words for words, _ in commands(rows, before)] == [
        "continue default", "host-disable alpha", "schedule-run hourly"
    ]  # fmt: skip
