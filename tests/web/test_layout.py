"""The pages of a busy site and of an empty one, at the widths of a phone, a tablet, a laptop and a large screen.

A name of a queue and of a host has 64 letters, the longest that there may be.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
import uvicorn
from psycopg.conninfo import make_conninfo

from scheduler.web.server import listening, make_app
from tests.cli_tools import ACTIVE
from tests.conftest import _database
from tests.needs import CHROMIUM, need
from tests.web.busy_site import LONG, fill
from tests.web.conftest import KEY
from tests.web.test_browser import AXE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
JOBS = 2000
LAST = f"/jobs/{JOBS}"  # which depends on four others
PAGES = ["/", "/jobs", LAST, "/jobs/all", "/schedules", "/conditions", "/log", "/submit", "/nosuch"]
WIDTHS = [390, 820, 1280, 1920]
SITES = {"empty": 0, "busy": JOBS}
BEYOND = """(width) => [...document.querySelectorAll("body *:not(.skip)")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && !each.closest("svg") && box.right > width + 1;
}).map((each) => each.outerHTML.slice(0, 120))"""
CUT = "[...document.querySelectorAll('.wide')].filter((each) => each.scrollWidth > each.clientWidth).length"
COVERING = """[...document.querySelectorAll(".slots > div")].filter((row) => [...row.querySelectorAll("dt, dd")].some(
    (part) => part.getBoundingClientRect().bottom > row.getBoundingClientRect().bottom + 1)).length"""
OUTSIDE_BOX = """[...document.querySelectorAll(".graph .box text")].filter((text) => {
    const box = text.parentNode.querySelector("rect").getBoundingClientRect(), own = text.getBoundingClientRect();
    return own.right > box.right || own.left < box.left;
}).map((text) => text.textContent)"""
SPILLED = """[...document.querySelectorAll(".wide td")].filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => each.outerHTML.slice(0, 120))"""
RAGGED = "[...document.querySelectorAll('td.n')].filter((each) => getComputedStyle(each).textAlign != 'right').length"
HIGHEST = """Math.max(0, ...[...document.querySelectorAll("tbody tr")].map((row) => row.clientHeight))
    / parseFloat(getComputedStyle(document.body).lineHeight)"""
CONTRAST = "axe.run({ runOnly: ['color-contrast'] }).then((found) => found.violations.flatMap((each) => each.nodes))"


@contextmanager
def served(conninfo: str) -> Iterator[str]:
    app = make_app(make_conninfo(conninfo, user="drover_operator"), "default", KEY)
    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.state.changes.end()
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def sites(postgres: str, migrated_with_roles: str) -> Iterator[dict[str, str]]:
    """Yield the addresses of a site without jobs, types and hosts, and of a busy one that is in trouble."""
    with ExitStack() as stack:
        addresses = {}
        for name, jobs in SITES.items():
            _, conninfo = stack.enter_context(_database(postgres, migrated_with_roles))
            with psycopg.connect(conninfo, autocommit=True) as rows:
                rows.execute(ACTIVE.encode())
                if jobs:
                    fill(rows, jobs, in_trouble=True)
            addresses[name] = stack.enter_context(served(conninfo))
        yield addresses


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    need("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=["busy"])
def site(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["light"])
def page(browser: "Browser", sites: dict[str, str], site: str, request: pytest.FixtureRequest) -> Iterator["Page"]:
    context = browser.new_context(color_scheme=request.param, base_url=sites[site])
    context.request.post("/sign-in", form={"role": "", "password": KEY})
    yield context.new_page()
    context.close()


def look(page: "Page", path: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(path)


@pytest.mark.parametrize("site", SITES, indirect=True)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_wider_than_the_window_and_no_table_is_cut(page: "Page", path: str, width: int) -> None:
    look(page, path, width)
    assert page.evaluate(BEYOND, width) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == 0


@pytest.mark.parametrize("width", [1024, 1366, 1600])
def test_list_of_jobs_is_cut_at_no_width_between(page: "Page", width: int) -> None:
    look(page, "/jobs", width)
    assert page.evaluate(CUT) == 0


@pytest.mark.parametrize("path", ["/", "/jobs", LAST, "/schedules", "/conditions", "/log"])
def test_text_of_a_cell_is_within_the_cell_on_a_phone(page: "Page", path: str) -> None:
    look(page, path, 390)
    assert page.locator(".wide td").count() > 0
    assert page.evaluate(SPILLED) == []


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("path", PAGES)
def test_every_text_has_the_contrast_that_it_needs(page: "Page", path: str) -> None:
    look(page, path, 1280)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.evaluate(AXE)
    assert [(each["html"], each["failureSummary"]) for each in page.evaluate(CONTRAST)] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_long_name_of_a_host_covers_no_slot_of_the_next_one(page: "Page", width: int) -> None:
    look(page, "/", width)
    assert LONG in page.inner_text(".slots")
    assert page.evaluate(COVERING) == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_texts_of_the_picture_of_dependencies_are_within_their_boxes(page: "Page", width: int) -> None:
    look(page, LAST, width)
    assert page.locator(".graph:visible .box").count() == 5
    assert page.evaluate(OUTSIDE_BOX) == []


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("path", ["/", "/jobs", "/conditions"])
def test_numbers_stand_below_each_other(page: "Page", path: str, width: int) -> None:
    look(page, path, width)
    assert page.locator("td.n").count() > 0
    assert page.evaluate(RAGGED) == 0


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("path", ["/", "/jobs", "/schedules", "/conditions"])
def test_row_of_a_table_has_at_most_five_lines(page: "Page", path: str, width: int) -> None:
    look(page, path, width)
    assert 0 < page.evaluate(HIGHEST) <= 5.5


def test_zeros_are_quiet_and_what_matters_is_large(page: "Page") -> None:
    look(page, "/", 1280)
    size = "(each) => parseFloat(getComputedStyle(each).fontSize)"
    sizes = {name: page.eval_on_selector(f".counts li:has(.s-{name}) b", size) for name in ("failed", "held")}
    assert sizes["failed"] > 1.5 * sizes["held"]
    assert page.locator(".even td.zero").count() > 0


def test_plots_fit_the_window_again_when_it_is_turned(page: "Page") -> None:
    look(page, "/", 900)
    page.wait_for_selector(".plots > :nth-child(3) canvas")
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function("[...document.querySelectorAll('.plot canvas')].every((each) => each.clientWidth < 390)")
