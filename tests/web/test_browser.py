"""The pages in a real browser, Debian's chromium: what scripts do, what is announced, what can be read by all.

playwright drives it, without its pytest plugin, which would be loaded by every run of tests. One browser serves all.
"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import uvicorn
from psycopg.conninfo import make_conninfo

from scheduler.web.server import listening, make_app
from scheduler.web.templating import raw
from tests.cli_tools import CLAIM, OWNER, finish, insert, write_log
from tests.needs import CHROMIUM, need
from tests.web.conftest import KEY
from tests.web.test_pages import HOSTILE, SHOWN

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
AXE = (Path(__file__).parent / "axe/axe.min.js").read_text()
PATHS = [
    "/",
    "/jobs",
    "/job",
    "/jobs?state=failed",
    "/jobs/all",
    "/schedules",
    "/conditions",
    "/log",
    "/sign-in",
    "/submit",
    "/nosuch",
]
EXPECTED = ("404 (Not Found)", "422 (Unprocessable Entity)")  # ends of what a browser says of our answers
PHONE = {"width": 360, "height": 740}
IS_CUT = "(each) => each.scrollWidth > each.clientWidth"
IS_EMPTY = "(cell) => cell.offsetParent && !cell.innerText.trim() && !cell.querySelector('input, button')"
OUTPUT = (
    "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) values (%s, 1, %s, 'out', %s)"
)


@pytest.fixture(scope="module")
def site(web_database: str) -> Iterator[str]:
    """Serve the dashboard by the login of an operator; yield its address."""
    app = make_app(make_conninfo(web_database, user="drover_operator"), "default", KEY)
    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        app.state.changes.end()
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    need("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def scheme() -> str:
    return "light"


@pytest.fixture
def page(browser: "Browser", site: str, scheme: str) -> Iterator["Page"]:
    """Yield a page of somebody who has signed in; nothing may be complained of on its console, and nothing asked."""
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light", base_url=site)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    context.request.post("/sign-in", form={"role": "", "password": KEY})
    yield page
    context.close()
    assert [each for each in complaints if not each.endswith(EXPECTED)] == []


@pytest.fixture(scope="module")
def job(rows: psycopg.Connection) -> int:
    """Return a running job with hostile texts, output, log and a child; there are an ended one, a schedule, a host."""
    ended, job, child = (insert(rows, args=HOSTILE) for _ in range(3))
    finish(rows, ended)
    rows.execute("select drover.recount_ends()")
    rows.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, job))
    write_log(rows, job, HOSTILE, "ERROR")
    rows.execute(OUTPUT, (job, 1, HOSTILE + "\n"))
    rows.execute(CLAIM, (OWNER, job))
    rows.execute(
        "update drover.jobqueue set jq_state = 'running', jq_itemstotal = 9, jq_itemsprocessed = 4 where jq_pk = %s",
        (job,),
    )
    rows.execute("insert into drover.agent (agent_group, agent_type) values ('default', %s)", (HOSTILE,))
    rows.execute(
        "insert into drover.host (host_name, host_group, host_transport, host_max, host_max_file)"
        " values ('alpha', 'default', 'local', 2, 2)"
    )
    rows.execute(
        "insert into drover.schedule (schedule_name, schedule_every, schedule_job)"
        """ values ('hourly', '1 hour', '{"jq_type": "noop"}')"""
    )
    rows.execute(
        "insert into drover.scheduler_status (status_scheduler, status_slot, status_host, status_agent, status_state,"
        " status_state_name, status_since, status_jq_fk) values (%s, 0, 'alpha', 'noop', 6, 'ST_RUNNING', now(), %s)",
        (OWNER, job),
    )
    return job


def ready(page: "Page") -> None:
    """Wait until the page hears of changes."""
    page.wait_for_selector("#link:text-is('live')")


def serious_findings(page: "Page") -> list[Any]:
    page.evaluate(AXE)
    findings = page.evaluate("axe.run().then(found => found.violations)")
    return [each for each in findings if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_page_has_no_serious_finding_of_axe_and_no_error(page: "Page", job: int, path: str) -> None:
    page.goto(f"/jobs/{job}" if path == "/job" else path)
    serious = serious_findings(page)
    assert serious == [], json.dumps(serious, indent=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_form_with_mistakes_has_no_serious_finding_of_axe(page: "Page") -> None:
    page.goto("/submit")
    page.fill("#not_before", "tomorrow")
    page.click("button:text('Submit the job')")
    page.wait_for_selector("#mistake-not_before")
    assert serious_findings(page) == []


@pytest.mark.parametrize("path", PATHS)
def test_page_fits_a_phone(page: "Page", job: int, path: str) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"/jobs/{job}" if path == "/job" else path)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_link_with_the_key_signs_in_and_leaves_no_key_behind(page: "Page") -> None:
    page.context.clear_cookies()
    page.goto(f"/sign-in#{KEY}")
    page.wait_for_selector("text=Sign out")
    assert KEY not in page.url
    page.go_back()
    assert KEY not in page.url


def test_link_that_is_pasted_into_the_same_tab_signs_in(page: "Page") -> None:
    page.context.clear_cookies()
    page.goto("/sign-in")
    page.evaluate(f"location.hash = '#{KEY}'")  # what a browser does with such a link: it loads nothing
    page.wait_for_selector("text=Sign out")
    assert KEY not in page.url


@pytest.mark.parametrize("path", PATHS)
def test_tables_show_all_on_a_phone_and_no_empty_cell(page: "Page", job: int, path: str) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"/jobs/{job}" if path == "/job" else path)
    assert page.evaluate(f"[...document.querySelectorAll('.wide:not(:has(svg))')].filter({IS_CUT}).length") == 0
    assert page.evaluate(f"[...document.querySelectorAll('tbody td')].filter({IS_EMPTY}).length") == 0


def test_rows_of_a_phone_are_as_high_as_their_text(page: "Page", job: int, rows: psycopg.Connection) -> None:
    rows.execute("update drover.agent set agent_reason = repeat('it has no program; ', 12) where agent_type = 'noop'")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/")
    heights = page.evaluate(
        "[...document.querySelectorAll('tbody tr')].map((row) => [row.clientHeight, row.innerText])"
    )
    line = page.evaluate("parseFloat(getComputedStyle(document.body).lineHeight)")
    assert [text for height, text in heights if height > line * (len(text) / 25 + 3)] == []
    rows.execute("update drover.agent set agent_reason = null where agent_type = 'noop'")


def test_job_is_submitted_by_keys_alone_and_once(page: "Page", rows: psycopg.Connection) -> None:
    page.goto("/submit")
    page.focus("#type")
    page.keyboard.type("noop")
    for _ in range(2):  # the choice of a parameter or a query is one stop
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "args"
    page.keyboard.type("by keys")
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.type("tomorrow")
    page.keyboard.press("Enter")
    page.wait_for_selector("#mistake-not_before")
    page.wait_for_selector("#not_before:focus")
    page.fill("#not_before", "")
    page.evaluate("const form = document.querySelector('form.submit'); form.requestSubmit(); form.requestSubmit()")
    page.wait_for_selector(".note.good")
    assert rows.execute("select count(*) from drover.jobqueue where jq_args = 'by keys'").fetchone() == (1,)


@pytest.mark.parametrize("path", ["/", "/jobs", "/job", "/log", "/jobs/all"])
def test_hostile_texts_run_nothing(page: "Page", job: int, path: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.goto(f"/jobs/{job}" if path == "/job" else path)
    assert page.locator("#main script, #main img").count() == 0
    assert path == "/jobs/all" or SHOWN[:20] in page.inner_text("body")


def test_a_value_of_a_form_comes_back_as_it_was_and_shows_no_control_character(page: "Page") -> None:
    text = "".join(map(chr, (*range(1, 128), 0xE9, 0x20AC))) + '"&#27;&amp;<b>'
    written = f'<select><option value="{raw(text)}"></select>'
    assert written.isprintable()
    page.set_content(written)
    assert page.eval_on_selector("option", "option => option.value") == text


def test_new_job_appears_without_reloading(page: "Page", rows: psycopg.Connection) -> None:
    page.goto("/jobs")
    ready(page)
    new = insert(rows)
    page.wait_for_selector(f'a.row[href="/jobs/{new}"]')


@pytest.mark.alone
def test_change_is_shown_within_200_ms_of_its_commit(page: "Page", rows: psycopg.Connection) -> None:
    page.goto("/jobs")
    ready(page)
    times = [_shown_after_s(page, rows) for _ in range(7)]
    assert sorted(times)[3] < 0.2, times


def _shown_after_s(page: "Page", rows: psycopg.Connection) -> float:
    """Insert a job; return how long after its commit the page has it. The page keeps the instant itself."""
    page.wait_for_timeout(1000)  # a page draws at most so often: this measures one change, not a flood
    found = rows.execute("select last_value + is_called::int from drover.jobqueue_jq_pk_seq").fetchone()
    assert found
    page.evaluate(
        """(job) => { window.seen = new Promise((done) => new MutationObserver(() => {
             if (document.querySelector(`a.row[href="/jobs/${job}"]`)) done(Date.now());
           }).observe(document.getElementById("live"), { childList: true })); }""",
        found[0],
    )
    assert insert(rows) == found[0]
    committed = time.time()
    return float(page.evaluate("window.seen")) / 1000 - committed


def test_output_is_followed_to_its_end(page: "Page", rows: psycopg.Connection, job: int) -> None:
    page.goto(f"/jobs/{job}")
    ready(page)
    rows.execute(OUTPUT, (job, 2, "".join(f"line {n}\n" for n in range(500))))
    rows.execute("select drover.notify('drover_output', %s)", (f"[{job}]",))
    page.wait_for_selector("#output-out:has-text('line 499')")
    place = "(e => e.scrollTop + e.clientHeight >= e.scrollHeight - 4)(document.getElementById('output-out'))"
    assert page.evaluate(place)


def test_marks_and_focus_survive_a_change(page: "Page", rows: psycopg.Connection, job: int) -> None:
    page.goto("/jobs")
    ready(page)
    page.check(f'input[name=word][value="{job}"]')
    page.focus(f'a.row[href="/jobs/{job}"]')
    new = insert(rows)
    page.wait_for_selector(f'a.row[href="/jobs/{new}"]')
    assert page.is_checked(f'input[name=word][value="{job}"]')
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{job}"


def test_command_is_asked_about_and_sent(page: "Page", rows: psycopg.Connection) -> None:
    job = insert(rows)
    page.goto(f"/jobs/{job}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.click("button[value=cancel]")
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("button[value=cancel]")
    page.wait_for_selector(".note")
    sent = rows.execute("select count(*) from drover.jobqueue where jq_args = %s", (f"cancel {job}",)).fetchone()
    assert sent == (1,)


def test_keys_go_from_job_to_job_and_to_the_search(page: "Page", rows: psycopg.Connection) -> None:
    older, newer = insert(rows), insert(rows)
    page.goto("/jobs")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{newer}"
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{older}"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{newer}")
    page.goto("/jobs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "text"


def test_plots_are_drawn_from_what_ended(page: "Page", job: int) -> None:
    assert job
    page.goto("/")
    page.wait_for_selector(".plots > :nth-child(3) canvas")
