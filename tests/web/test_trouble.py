"""What is wrong stands first on the overview, in the words of `drover health`, and nothing does if all is well."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.cli.health import Row
from scheduler.web import trouble
from scheduler.web.server import make_app
from tests.cli_tools import ACTIVE, CONFIG, insert, run_as
from tests.web.busy_site import fill
from tests.web.conftest import KEY, ORIGIN
from tests.web.test_pages import text_of

GROUP = {"name": "default", "active": True}
LEVELS = ["critical", "warning", "unknown"]
HOST_DOWN = """
update drover.host set host_down_until = now() + interval '1 h', host_reason = 'no route' where host_name = 'down'"""
TYPE_FAILED = """
update drover.agent set agent_blocked_until = now() + interval '1 h', agent_reason = 'exit status 127'
 where agent_type = 'convert'"""
SLOTS_FAILED = """
update drover.scheduler_status set status_state = 0, status_state_name = 'ST_FAIL', status_reason = 'exit status 127'
 where status_agent = 'ocr'"""
Shown = list[tuple[str, str]]


def overview(conninfo: str, login: str = "drover_operator") -> str:
    app = make_app(make_conninfo(conninfo, user=login), "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        client.post("/sign-in", data={"role": "", "password": KEY})
        return client.get("/").text


def troubles(page: str) -> Shown:
    """Return the level and the words of each trouble, in the order of the page."""
    found = re.findall(r'<li class="note ([a-z]+)">(.*?)</li>', page, re.DOTALL)
    return [(level, " ".join(text_of(html).split()).removeprefix(f"{level} ")) for level, html in found]


def of_health(conninfo: str, folder: Path) -> Shown:
    (folder / "drover.toml").write_text(CONFIG)
    reasons = json.loads(run_as(conninfo, folder / "drover.toml", "operator", "health --json").out)["reasons"]
    whose = [": ".join(filter(None, (row["who"], row["what"]))) for row in reasons]
    return [
        (row["level"], f"{row['warning']} {what} next: {row['next']}") for row, what in zip(reasons, whose, strict=True)
    ]


@pytest.fixture
def site(database_with_roles: str) -> str:
    with psycopg.connect(database_with_roles, autocommit=True) as rows:
        rows.execute(ACTIVE.encode())
        fill(rows, 200)
    return database_with_roles


@pytest.fixture
def rows(site: str) -> Any:
    with psycopg.connect(site, autocommit=True) as rows:
        yield rows


def test_overview_names_first_all_that_health_names_in_its_order(
    site: str, rows: psycopg.Connection, tmp_path: Path
) -> None:
    insert(rows, "unheardof")
    rows.execute("alter table drover.jobqueue disable trigger jobqueue_wake_due")
    rows.execute("alter table drover.jobdepends set (autovacuum_enabled = off)")
    rows.execute(HOST_DOWN)
    rows.execute("insert into drover.jobqueue (jq_type, jq_host) values ('noop', 'down')")
    page = overview(site)
    shown, wanted = troubles(page), of_health(site, tmp_path)
    assert shown == wanted
    kinds = {" ".join(words.split()[:2]) for _, words in shown}
    assert kinds >= {"stopped by", "no autovacuum", "unserved type", "host down"}
    levels = [level for level, _ in shown]
    assert levels == sorted(levels, key=LEVELS.index)
    assert page.index('class="troubles"') < page.index('class="headline"') < page.index('class="counts')


def test_failed_type_is_told_with_what_to_do_next(site: str, rows: psycopg.Connection) -> None:
    rows.execute(TYPE_FAILED)
    level, words = troubles(overview(site))[0]
    assert (level, words.partition(":")[0]) == ("critical", "agents failed type convert")
    assert words.endswith("next: look at drover log and the agent; try it at once: drover agent enable convert")


def test_dead_host_is_told_though_no_job_waits_for_it(site: str, rows: psycopg.Connection) -> None:
    rows.execute("delete from drover.jobqueue where jq_host = 'down'")
    rows.execute(HOST_DOWN)
    (words,) = [words for _, words in troubles(overview(site)) if words.startswith("host down")]
    assert "no route" in words
    assert words.endswith("next: look at the host and the network; it is tried again by itself")


def test_slots_in_trouble_are_told_once_for_their_type_and_reason(site: str, rows: psycopg.Connection) -> None:
    rows.execute(SLOTS_FAILED)
    page = overview(site)
    (words,) = [words for _, words in troubles(page) if words.startswith("slots")]
    assert re.fullmatch(
        r"slots type ocr, for [0-9:]+: 8 slots failed on .*: exit status 127 "
        r"next: look at drover log and the agent; try it at once: drover agent enable ocr", words
    )  # fmt: skip
    assert "Slots in trouble" not in page


def test_role_that_is_not_shown_all_reads_of_it_below_the_trouble(site: str, rows: psycopg.Connection) -> None:
    insert(rows, "unheardof")
    page = overview(site, "drover_readonly")
    assert page.index('class="troubles"') < page.index("role drover_readonly does not see")


def test_nothing_is_told_of_a_healthy_site(site: str, rows: psycopg.Connection) -> None:
    rows.execute("update drover.suspect_walk set walk_at = now()")
    settings_of_the_test = ("setting off setting fsync", "setting off setting full_page", "setting off setting synchr")
    assert [words for _, words in troubles(overview(site)) if not words.startswith(settings_of_the_test)] == []


def test_band_is_left_out_where_nothing_is_wrong() -> None:
    assert trouble.found(GROUP, [], [slot("ocr", "a"), slot("ocr", "a", "ST_FREE")]) == []


def slot(agent: str, host: str, state: str = "ST_READY", reason: str | None = None) -> dict[str, Any]:
    return {"agent": agent, "host": host, "state": state, "reason": reason, "since": timedelta(seconds=90)}


def test_slots_of_a_type_that_is_told_of_are_not_told_again() -> None:
    failed: Row = ("agents failed", "type ocr", None, "exit status 127", "look")
    slots = [slot("ocr", "a", "ST_FAIL", "exit status 127"), slot("mail", "a", "ST_FAIL")]
    found = trouble.found(GROUP, [failed], slots)
    assert [row[:2] for row in found] == [("agents failed", "type ocr"), ("slots", "type mail")]


def test_slots_on_many_hosts_name_a_few() -> None:
    (row,) = trouble.found(GROUP, [], [slot("ocr", f"h{n}", "ST_FAIL") for n in range(9)])
    assert row[3] == "9 slots failed on h0, h1, h2, h3, h4, 4 more"
