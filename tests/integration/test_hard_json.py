"""Rows whose JSON no program could write again, of the time before such values were refused, are shown as text."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.web.server import make_app
from tests.cli_tools import run_as

HARD = {
    "3,000 levels": '{"a": ' + "[" * 3000 + "]" * 3000 + "}",
    "as deep as Python reads": '{"a": ' + "[" * 900 + "]" * 900 + "}",
    "5,000 digits": '{"a": 1' + "0" * 4999 + "}",
    "more than a double holds": '{"a": 1' + "0" * 400 + ".5}",
}


def old_row(connection: psycopg.Connection, text: str) -> int:
    """Insert a job with such variables and such a result, past the trigger that refuses it."""
    connection.execute("alter table drover.jobqueue disable trigger jobqueue_limit")
    row = connection.execute(
        "insert into drover.jobqueue (jq_type, jq_variables, jq_result) values ('noop', %s, %s) returning jq_pk",
        (text, text),
    ).fetchone()
    connection.execute("alter table drover.jobqueue enable trigger jobqueue_limit")
    assert row
    return int(row[0])


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_hard_variables_are_shown_as_text_by_commands_and_the_page(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, text: str
) -> None:
    job = old_row(active_for_roles, text)
    plain = run_as(database_with_roles, config, "operator", f"show {job}")
    assert (plain.status, plain.err) == (0, "")
    assert text[6:200] in plain.out
    seen = json.loads(run_as(database_with_roles, config, "operator", f"show {job} --json").out)
    assert (seen["job"]["variables"], seen["job"]["result"]) == (text, text)
    app = make_app(make_conninfo(database_with_roles, user="drover_operator"), "default", "key")
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        client.post("/sign-in", data={"password": "key"})
        page = client.get(f"/jobs/{job}")
    assert page.status_code == 200
    assert text[6:200] in page.text


def test_json_of_a_schedule_that_was_too_hard_is_listed(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    active_for_roles.execute("alter table drover.schedule disable trigger schedule_prepare")
    active_for_roles.execute(
        "insert into drover.schedule (schedule_name, schedule_every, schedule_due, schedule_job)"
        " values ('daily', '1 day', now() + interval '1 day', %s)",
        ('{"jq_type": "noop", "jq_variables": ' + HARD["3,000 levels"] + "}",),
    )
    active_for_roles.execute("alter table drover.schedule enable trigger schedule_prepare")
    listed = run_as(database_with_roles, config, "operator", "schedule --json")
    assert (listed.status, json.loads(listed.out)["schedule"]) == (0, "daily")
