"""What the pages show to whom, and that what others wrote stays text."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from time import monotonic
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.errors import WorldError
from scheduler.web.database_sessions import Login
from scheduler.web.pages import plots
from scheduler.web.server import make_app
from tests.cli_tools import CLAIM, END, OWNER, finish, insert, write_log
from tests.patience import PATIENCE_S

SQL_JOB = """
insert into drover.jobqueue (jq_type, jq_args, jq_msq) values (%s, 'select 1', true) returning jq_pk"""
SOME_FAILED = """
update drover.jobqueue set jq_itemsprocessed = 490, jq_itemsfailed = 10, jq_itemstotal = 500 where jq_pk = %s"""
START = datetime(2026, 1, 1, tzinfo=UTC)
PAGES = ["/", "/jobs", "/schedules", "/conditions", "/log"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x1b[31m\u202e"
SHOWN = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\\x1b[31m\\u202e"


def text_of(html: str) -> str:
    """Return what a reader sees of a page."""
    return unescape(re.sub(r"<[^>]*>", " ", html))


def listed(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'class="row" href="/jobs/(\d+)"', html)]


def test_visitor_sees_what_schedules_there_are_but_not_their_jobs(
    visitor: TestClient, rows: psycopg.Connection
) -> None:
    rows.execute(
        "insert into drover.schedule (schedule_name, schedule_every, schedule_job) values"
        """ ('nightly', '1 day', '{"jq_type": "noop", "jq_args": "very-secret"}')"""
    )
    page = visitor.get("/schedules").text
    assert "nightly" in page
    assert "very-secret" not in page


def test_next_start_of_a_schedule_is_in_its_own_zone(visitor: TestClient, rows: psycopg.Connection) -> None:
    rows.execute(
        "insert into drover.schedule (schedule_name, schedule_cron, schedule_zone, schedule_next, schedule_job) values"
        """ ('noon', '0 12 * * *', 'Asia/Kolkata', '2030-01-01 06:30+00', '{"jq_type": "noop"}')"""
    )
    page = visitor.get("/schedules").text
    assert re.findall(r'<time datetime="([^"]*)" title="([^"]*)">([^<]*)<', page) == [
        ("2030-01-01T12:00:00+05:30", "2030-01-01 06:30:00 UTC", "2030-01-01 12:00:00 +0530")
    ]
    assert "times are in the zone of each schedule" in page


@pytest.mark.parametrize("path", PAGES)
def test_operator_sees_every_page(operator: TestClient, path: str) -> None:
    answer = operator.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_visitor_sees_states_but_no_data_of_jobs(visitor: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows, args="very-secret")
    finish(rows, job, "failed", 2, "the very-secret is out")
    write_log(rows, job, "very-secret")
    seen = [visitor.get(path).text for path in ("/", "/jobs", f"/jobs/{job}", "/jobs?text=very-secret")]
    assert job in listed(seen[1])
    assert f"Job {job}" in text_of(seen[2])
    assert listed(seen[3]) == []
    assert [page for page in seen[:3] if "very-secret" in page] == []
    assert visitor.get("/log").status_code == 403


def test_visitor_is_asked_to_sign_in_where_the_login_would_show_data(web_database: str) -> None:
    app = make_app(make_conninfo(web_database, user="drover_operator"), "default")
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        answers = [client.get(path) for path in [*PAGES, "/jobs/1"]]
        assert {(each.status_code, each.headers["location"]) for each in answers} == {(303, "/sign-in")}
        assert client.get("/changes").status_code == 403
        assert client.get("/sign-in").status_code == 200


def test_jobs_of_others_are_hidden_from_a_front_end(web_database: str, rows: psycopg.Connection) -> None:
    other = insert(rows, args="of another")
    with psycopg.connect(make_conninfo(web_database, user="drover_frontend"), autocommit=True) as login:
        own = login.execute("insert into drover.jobqueue (jq_type) values ('noop') returning jq_pk").fetchone()
    assert own
    app = make_app(make_conninfo(web_database, user="drover_frontend"), "default", "key")
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        client.post("/sign-in", data={"password": "key"})
        assert listed(client.get("/jobs").text) == [own[0]]
        assert client.get(f"/jobs/{own[0]}").status_code == 200
        assert client.get(f"/jobs/{other}").status_code == 404
        assert client.get(f"/changes?job={other}").status_code == 404


def test_dependencies_are_drawn_as_a_picture_of_links(operator: TestClient, rows: psycopg.Connection) -> None:
    first, second, third = (insert(rows, args=HOSTILE) for _ in range(3))
    for child, parent in ((second, first), (third, second)):
        rows.execute(
            "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent)
        )  # fmt: skip
    picture = operator.get(f"/jobs/{third}").text.partition("<svg")[2].partition("</svg>")[0]
    assert re.findall(r'href="/jobs/(\d+)"', picture) == [str(first), str(second), str(third)]
    assert picture.count('class="edge"') == 2
    assert "<svg" not in operator.get(f"/jobs/{insert(rows)}").text


def test_page_of_a_detached_job_lists_what_hosts_keep_of_it_c41(operator: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows)
    assert "Kept on hosts" not in operator.get(f"/jobs/{job}").text
    rows.execute("insert into drover.detached values (%s, 7, 'default', %s, '/far')", (job, HOSTILE))
    page = operator.get(f"/jobs/{job}").text
    table = page.partition("<h2>Kept on hosts</h2>")[2].partition("</table>")[0]
    row = [text_of(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert (row[0], row[1], row[4], row[5]) == ("7", SHOWN, "no", "its entry is to be removed")
    assert row[6].startswith("/far/")
    rows.execute("delete from drover.detached where det_jq_fk = %s", (job,))


def test_hostile_texts_are_shown_and_not_obeyed(operator: TestClient, rows: psycopg.Connection) -> None:
    kind = f"evil<b>{uuid4().hex[:6]}"
    rows.execute("insert into drover.agent (agent_group, agent_type) values ('default', %s)", (kind + HOSTILE,))
    job = insert(rows, kind, HOSTILE)
    write_log(rows, job, HOSTILE, "ERROR")
    rows.execute("update drover.jobqueue set jq_endtext = %s where jq_pk = %s", (HOSTILE, job))
    rows.execute(
        "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)"
        " values (%s, 1, 1, 'out', %s)", (job, HOSTILE),
    )  # fmt: skip
    pages = [operator.get(path).text for path in ("/", "/jobs", f"/jobs/{job}", "/log")]
    assert [page for page in pages if "<script>alert" in page or "<img" in page or "\x1b" in page] == []
    assert SHOWN in text_of(pages[0])
    assert text_of(pages[2]).count(SHOWN) == 4  # text, parameter, output, log
    rows.execute("delete from drover.agent where agent_type = %s", (kind + HOSTILE,))


@pytest.mark.parametrize("query", ["text", "type", "queue", "host", "by", "kind"])
def test_hostile_filters_come_back_as_text(operator: TestClient, query: str) -> None:
    page = operator.get("/log" if query == "kind" else "/jobs", params={query: HOSTILE})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img" not in page.text


@pytest.mark.parametrize(
    "query",
    ["before=x", "before=99999999999999999999999", "group=-1", "state=nosuch", "since=forever", "text=%00", "text=%ff",
     "before=\u0662", "type=%ed%a0%80"],
)  # fmt: skip
def test_a_filter_that_is_none_is_left_out(operator: TestClient, query: str) -> None:
    assert operator.get(f"/jobs?{query}").status_code == 200


def test_overview_says_whom_a_warning_is_about_and_how_bad_it_is(
    visitor: TestClient, operator: TestClient, rows: psycopg.Connection
) -> None:
    insert(rows, "unheardof")
    for client in (visitor, operator):
        page = client.get("/").text
        told = "warning unserved type unheardof: no scheduler serves it, it is not configured;"
        assert told in " ".join(text_of(page).split())
        assert '<li class="note warning"><span class="level">warning</span> <strong>unserved</strong>' in page
    assert "role drover_readonly does not see" in visitor.get("/").text


def test_items_of_a_job_are_told_in_the_same_words_by_the_list_and_its_page(
    operator: TestClient, rows: psycopg.Connection
) -> None:
    kind = f"rows{uuid4().hex[:6]}"
    found = rows.execute(SQL_JOB, (kind,)).fetchone()
    assert found
    rows.execute(CLAIM, (OWNER, found[0]))
    rows.execute(SOME_FAILED, found)
    rows.execute(END, ("failed", 2, "too many failed", found[0]))
    for path in (f"/jobs?type={kind}", f"/jobs/{found[0]}"):
        page = text_of(operator.get(path).text)
        assert page.count("500 of 500 items, 10 failed") == 1
        assert "/500" not in page


def test_empty_parameter_is_left_out(operator: TestClient, rows: psycopg.Connection) -> None:
    titles = [operator.get(f"/jobs/{insert(rows, args=args)}").text.count("<h2>Parameter") for args in ("", "x")]
    assert titles == [0, 1]


@pytest.mark.parametrize("path", ["/jobs/0", "/jobs/99999999999999999999", "/nosuch", "/jobs/x", "/static/nosuch"])
def test_what_does_not_exist_is_a_page_too(operator: TestClient, path: str) -> None:
    assert operator.get(path).status_code == 404


def test_pages_of_the_list_follow_without_gap_or_doubling(operator: TestClient, rows: psycopg.Connection) -> None:
    kind = f"many{uuid4().hex[:6]}"
    jobs = [insert(rows, kind) for _ in range(120)]
    seen, path = [], f"/jobs?type={kind}"
    for _ in range(3):
        page = operator.get(path).text
        seen += listed(page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = unescape(found[1]) if found else ""
    assert seen == jobs[::-1]
    assert path == ""


def test_list_says_which_of_how_many_jobs_it_shows(operator: TestClient, rows: psycopg.Connection) -> None:
    kind = f"many{uuid4().hex[:6]}"
    for _ in range(120):
        insert(rows, kind)
    said, path = [], f"/jobs?type={kind}"
    for _ in range(3):
        page = operator.get(path).text
        said += re.findall(r"Jobs [0-9,]+ to [0-9,]+ of [0-9,]+ · page \d+ of \d+", page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = unescape(found[1]) if found else ""
    assert said == [
        f"Jobs {first} to {min(first + 49, 120)} of 120 · page {n} of 3" for n, first in ((1, 1), (2, 51), (3, 101))
    ]
    assert "Commands for all 120 jobs" in operator.get(f"/jobs?type={kind}").text
    assert "50 jobs on this page" in operator.get(f"/jobs?type={kind}&since=1h").text  # which are not counted


def test_filters_are_combined(operator: TestClient, rows: psycopg.Connection) -> None:
    kind = f"few{uuid4().hex[:6]}"
    wanted, other, done = (insert(rows, kind, args) for args in ("needle here", "hay", "Needle there"))
    finish(rows, done)
    assert listed(operator.get(f"/jobs?type={kind}&text=NEEDLE").text) == [done, wanted]
    assert listed(operator.get(f"/jobs?type={kind}&text=needle&state=queued&state=held").text) == [wanted]
    assert listed(operator.get(f"/jobs?type={kind}&text={other}").text) == [other]
    assert listed(operator.get(f"/jobs?type={kind}&by=nobody").text) == []


def minute(number: int, **more: Any) -> dict[str, Any]:
    return {
        "minute": START + timedelta(minutes=number),
        "done": 3,
        "failed": 1,
        "waited": [1, 2],
        "ran": [3, 4],
        **more,
    }


def test_plots_have_a_value_for_each_minute() -> None:
    rows = [minute(0), minute(6)]
    drawn = plots(rows, START + timedelta(minutes=7))
    times = [1767225600 + 60 * number for number in range(7)]
    assert drawn["rate"] == [times, [3, *[0] * 5, 3], [1, *[0] * 5, 1]]
    assert drawn["waited"] == [times, [1, *[None] * 5, 1], [2, *[None] * 5, 2]]
    assert plots(rows[1:], START + timedelta(minutes=7))["rate"] == [times[1:], [*[0] * 5, 3], [*[0] * 5, 1]]
    assert plots([], START) == {}


def test_plots_end_with_the_last_minute_that_is_over() -> None:
    def done(now: float) -> list[int]:
        drawn: list[int] = plots([minute(0, done=60), minute(6, done=1)], START + timedelta(minutes=now))["rate"][1]
        return drawn

    assert done(6.5) == [60, *[0] * 5]  # a part of a minute would look like a fall
    assert done(7) == [60, *[0] * 5, 1]
    assert done(9.9) == [60, *[0] * 5, 1, 0, 0]  # nothing ended since
    assert plots([minute(0, done=60)], START + timedelta(seconds=1))["rate"][1][-1] == 60  # there is no other one


def test_a_page_that_takes_too_long_advises_what_can_help(web_database: str) -> None:
    login = Login(make_conninfo(web_database, user="drover_readonly"), is_visitor=False)
    with login.session() as session:
        session.connection.execute("set statement_timeout = '50ms'")
    with pytest.raises(WorldError) as told, login.session() as session:
        session.connection.execute("select pg_sleep(60)")
    login.close_idle(0.0)
    assert str(told.value) == (
        "a statement was cancelled: canceling statement due to statement timeout; a statement of a page may take 10 s: "
        "choose fewer jobs, by type, queue or age, or ask by a command: drover ls, drover status"
    )


def test_overview_has_an_end_however_many_types_are_invented(operator: TestClient, rows: psycopg.Connection) -> None:
    rows.execute("insert into drover.jobqueue (jq_type) select 'type' || i from generate_series(1, 500) i")
    rows.execute("insert into drover.queue (queue_name, queue_group) select 'q' || i, 'default' from "
                 "generate_series(1, 300) i")  # fmt: skip
    deadline = monotonic() + PATIENCE_S
    while len(more := re.findall("and [0-9]{3} more", page := operator.get("/").text)) < 3:
        assert monotonic() < deadline, more  # counts are kept for a moment, and may be those of an earlier page
    assert (len(more), page.count("<tr>") < 300) == (3, True)


def test_job_list_shows_the_host_and_how_far_an_sql_job_is(operator: TestClient, rows: psycopg.Connection) -> None:
    (job,) = rows.execute(  # type: ignore[misc]
        "insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('noop', 'select 1', true) returning jq_pk"
    ).fetchone()
    finish(rows, job, "failed", 2, "50 items failed, 0 tolerated")
    rows.execute(
        "update drover.jobqueue set jq_done_host = 'far.example.org', jq_itemsprocessed = 1450,"
        " jq_itemsfailed = 50, jq_itemstotal = 2000 where jq_pk = %s",
        (job,),
    )
    row = next(row for row in operator.get("/jobs").text.split("<tr>") if f'href="/jobs/{job}"' in row)
    assert "1,500 of 2,000 items, 50 failed" in text_of(row)
    assert "far.example.org" in text_of(row)
    page = text_of(operator.get(f"/jobs/{job}").text)
    assert "1,500 of 2,000 items, 50 failed" in page
    assert "the reason of each" not in page


def test_page_of_a_job_shows_its_log_though_that_only_repeats_the_end(
    operator: TestClient, rows: psycopg.Connection
) -> None:
    job = insert(rows)
    finish(rows, job, "failed", 2, "no such file")
    assert "<h2>Log</h2>" not in operator.get(f"/jobs/{job}").text
    write_log(rows, job, "failed: no such file", "ERROR")
    page = operator.get(f"/jobs/{job}").text
    assert "failed: no such file" in text_of(page.partition("<h2>Log</h2>")[2])


@pytest.mark.parametrize(
    ("bits", "otherwise", "parent", "child"),
    [
        (1, "wait", "this job starts after it is done; if it ends otherwise, this job keeps waiting",
         "it starts after this job is done; if this job ends otherwise, it keeps waiting"),
        (2, "skip", "this job starts after it has failed; if it ends otherwise, this job is skipped",
         "it starts after this job has failed; if this job ends otherwise, it is skipped"),
        (3, "wait", "this job starts after it has ended", "it starts after this job has ended"),
    ],
)  # fmt: skip
def test_dependencies_are_sentences(
    operator: TestClient, rows: psycopg.Connection, bits: int, otherwise: str, parent: str, child: str
) -> None:
    above, below = insert(rows), insert(rows)
    rows.execute(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)"
        " values (%s, %s, %s, %s)", (below, above, bits, otherwise),
    )  # fmt: skip
    assert parent in text_of(operator.get(f"/jobs/{below}").text)
    assert child in text_of(operator.get(f"/jobs/{above}").text)
    rows.execute("update drover.jobdepends set jdep_met_at = now() where jdep_jq_fk = %s", (below,))
    assert re.search(r"it (is done|has failed|has ended) at  *\d\d:\d\d", text_of(operator.get(f"/jobs/{below}").text))


def test_page_of_a_cancelled_job_says_who_and_when_once_g11(operator: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows)
    rows.execute(
        "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,"
        " jq_endtext = 'cancelled by ops: wrong directory' where jq_pk = %s",
        (job,),
    )
    page = text_of(operator.get(f"/jobs/{job}").text)
    assert len(re.findall(r"cancelled by ops at \d\d:\d\d: wrong directory", page)) == 1
    assert page.count("wrong directory") == 1


def test_long_reason_is_cut_above_a_job_and_whole_below(operator: TestClient, rows: psycopg.Connection) -> None:
    job = insert(rows)
    finish(rows, job, "failed", 2, "no way " * 200 + "at all")
    page = text_of(operator.get(f"/jobs/{job}").text)
    assert page.count("at all") == 1
    assert page.count("no way") < 270


def test_many_items_that_failed_name_the_command_that_lists_all(operator: TestClient, rows: psycopg.Connection) -> None:
    few, many = failed_items(rows, 2), failed_items(rows, 500)
    assert f"drover items {few}" not in operator.get(f"/jobs/{few}").text
    page = operator.get(f"/jobs/{many}").text
    assert f"<code>drover items {many}</code>" in page
    assert page.partition("<h2>Items that failed</h2>")[2].partition("</table>")[0].count("<tr>") == 11


def failed_items(rows: psycopg.Connection, count: int) -> int:
    """Return an SQL job of which so many items failed."""
    query = "insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('noop', 'select 1', true) returning jq_pk"
    (job,) = rows.execute(query).fetchone()  # type: ignore[misc]
    rows.execute("update drover.jobqueue set jq_itemsfailed = %s where jq_pk = %s", (count, job))
    rows.execute(
        "insert into drover.item_failure (item_jq_fk, item_attempt, item_key, item_line, item_reason)"
        " select %s, 1, i::text, 'line', 'reason' from generate_series(1, %s) i",
        (job, count),
    )
    return int(job)


def test_json_of_a_job_is_shown_in_its_own_letters(operator: TestClient, rows: psycopg.Connection) -> None:
    (job,) = rows.execute(  # type: ignore[misc]
        "insert into drover.jobqueue (jq_type, jq_args, jq_variables) values ('noop', 'x', %s) returning jq_pk",
        ('{"note": "ملاحظة 说明", "raw": "\\u001b[31m"}',),
    ).fetchone()
    page = unescape(operator.get(f"/jobs/{job}").text)
    assert '"note": "ملاحظة 说明"' in page
    assert "\x1b" not in page
