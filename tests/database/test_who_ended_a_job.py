"""Who ended a job by a command, and when: the text in its row, and what drover.why makes of it."""

import psycopg
import pytest

from tests.schema_tools import add_job, end_job, fetch_one

NAMES = ["ops", "o'ps", "Night Shift", 'a "b": c', "ops at 00:00"]
WHY = "select reason from drover.why where jq_pk = %s"
MASKED = "select reason from drover.why_masked where jq_pk = %s"
AT = """
select to_char(jq_endtime, case when jq_endtime::date = current_date then '' else 'YYYY-MM-DD ' end || 'HH24:MI')
  from drover.jobqueue where jq_pk = %s
"""


def ended(queue: psycopg.Connection, state: str, text: str) -> int:
    """Return a job that ended with this text."""
    job = add_job(queue)
    end_job(queue, job, state, 2)
    queue.execute("update drover.jobqueue set jq_endtext = %s where jq_pk = %s", (text, job))
    return job


def text_of(queue: psycopg.Connection, command: str, name: str) -> str:
    return str(fetch_one(queue, "select drover.ended_by(%s, %s)", command, name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("command", "state", "words", "more"),
    [
        ("cancel 5", "cancelled", "cancelled by {}", ""),
        (" cancel  5\twrong: at 12:00 ", "cancelled", "cancelled by {}", ": wrong: at 12:00"),
        ("killjob 5", "failed", "failed (killed): killed by command of {}", ""),
    ],
)
def test_job_that_a_command_ended_says_who_and_when_g11(
    queue: psycopg.Connection, name: str, command: str, state: str, words: str, more: str
) -> None:
    job = ended(queue, state, text_of(queue, command, name))
    quoted = fetch_one(queue, "select quote_ident(%s)", name)
    at = fetch_one(queue, AT, job)
    assert fetch_one(queue, WHY, job) == f"{words.format(quoted)} at {at}{more}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cancelled", "cancelled at {}"),
        ("", "cancelled at {}"),
        ("because", "cancelled at {}: because"),
        ("cancelledness", "cancelled at {}: cancelledness"),
    ],
)
def test_job_that_was_cancelled_by_an_earlier_version_says_when_g11(
    queue: psycopg.Connection, text: str, said: str
) -> None:
    job = ended(queue, "cancelled", text)
    assert fetch_one(queue, WHY, job) == said.format(fetch_one(queue, AT, job))


def test_time_of_another_day_has_its_date_g11(queue: psycopg.Connection) -> None:
    job = ended(queue, "cancelled", "cancelled by ops")
    queue.execute(
        "update drover.jobqueue set jq_queued = '2026-01-02 03:00', jq_starttime = '2026-01-02 03:00',"
        " jq_endtime = '2026-01-02 05:02' where jq_pk = %s",
        (job,),
    )
    assert fetch_one(queue, WHY, job) == "cancelled by ops at 2026-01-02 05:02"


def test_role_that_sees_no_texts_sees_when_and_not_who_g11(queue: psycopg.Connection) -> None:
    job = ended(queue, "cancelled", "cancelled by ops: a secret")
    assert fetch_one(queue, MASKED, job) == f"cancelled at {fetch_one(queue, AT, job)}"


def test_text_that_only_looks_like_a_command_gets_no_time(queue: psycopg.Connection) -> None:
    job = ended(queue, "failed", "killed by SIGKILL")
    assert fetch_one(queue, WHY, job) == "failed (agent_died): killed by SIGKILL"
