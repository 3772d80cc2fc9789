"""Lists and warnings have an end, however many types and queues people invent: the worst, and how many more."""

import json

import psycopg
import pytest

from scheduler.model.list_bounds import LISTED, WORST
from tests.cli_tools import Drover

MANY = 500
INVENTED = f"""
insert into drover.jobqueue (jq_type, jq_queue) select 'type' || i, 'default' from generate_series(1, {MANY}) i;
insert into drover.jobqueue (jq_type, jq_queue) select 'noop', 'queue' || i from generate_series(1, {MANY}) i;
insert into drover.jobqueue (jq_type, jq_queue) select 'type77', 'default' from generate_series(1, 9);
insert into drover.jobqueue (jq_type, jq_queue) select 'noop', 'queue88' from generate_series(1, 9);
"""
TOGETHER = 4 * WORST + 2 * LISTED + 60  # lines


@pytest.fixture
def invented(active: psycopg.Connection) -> psycopg.Connection:
    """Return a database with jobs of many types that nobody serves, and in many queues that do not exist."""
    active.execute(INVENTED)
    return active


@pytest.mark.parametrize("words", [["status"], ["health"], ["queue", "list"], ["stats"]])
def test_list_has_an_end(drover: Drover, invented: psycopg.Connection, words: list[str]) -> None:
    done = drover(*words)
    assert len((done.out + done.err).splitlines()) <= TOGETHER


def test_health_shows_the_worst_and_how_many_more(drover: Drover, invented: psycopg.Connection) -> None:
    lines = [line for line in drover("health").out.splitlines() if line.startswith("warning: unserved")]
    assert "type type77, " in lines[0].replace(":", ",")
    assert "queue queue88" in lines[WORST + 1]
    more, how = f"warning: unserved: and {MANY - WORST} more", "next: drover health --all shows them"
    assert [line for line in lines if ": and " in line] == [
        f"{more} types that no scheduler serves; {how}", f"{more} queues that no scheduler has; {how}"
    ]  # fmt: skip
    assert drover("health", "--all").out.count("warning: unserved: ") == 2 * MANY


def test_json_of_status_has_the_same_bounds_and_says_what_is_left_out(
    drover: Drover, invented: psycopg.Connection
) -> None:
    short, whole = json.loads(drover("status", "--json").out), json.loads(drover("status", "-v", "--json").out)
    assert short["left_out"] == {
        "jobs": MANY + 1 - LISTED, "unserved": MANY - WORST, "unknown_queues": MANY - WORST
    }  # fmt: skip
    assert "type77" in [row["type"] for row in short["jobs"]]
    assert (len(whole["jobs"]), len(whole["unserved"]), whole["left_out"]) == (MANY + 1, MANY, {})


def test_queue_that_many_types_name_is_told_with_some_of_them(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(
        f"insert into drover.jobqueue (jq_type, jq_queue) select 't' || i, 'far' from generate_series(1, {MANY}) i"
    )
    (row,) = json.loads(drover("status", "--json").out)["unknown_queues"]
    assert row["types"].endswith(f" and {MANY - 10} more")
