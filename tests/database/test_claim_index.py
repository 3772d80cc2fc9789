"""A claim reads as many index entries as it takes jobs."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.daemon.connections import PLANS
from scheduler.drivers.statements import load
from scheduler.model.queue_requests import SUSPECT_AFTER
from scheduler.package_data import schema_dir
from tests.conftest import _database
from tests.schema_tools import Connection, read_column

MANY = 100_000
OWNER = "00000000-0000-0000-0000-000000000001"
END_AND_CLAIM = load((schema_dir() / "queries.sql").read_text())["end_and_claim"]


def _claims(queue: Connection, mode: str, beyond: int = 0) -> dict[str, Any]:
    """Claim 100 jobs of a number `beyond`, as the daemon does, take it back, and return the plan that was run."""
    values = {
        "group": "default", "owner": OWNER, "schedinfo": "here.1", "want_types": ["noop"], "want_queues": ["default"],
        "want_hosts": [""], "want_below": ["2"], "want_ranks": ["1n" if beyond else ""],
        "want_queued": [read_column(queue, beyond, "jq_queued::text") if beyond else "-infinity"], "want_pks": [beyond],
        "want_counts": [100], "unread": SUSPECT_AFTER,
    }  # fmt: skip
    cursor = psycopg.ClientCursor(queue)
    with queue.transaction(force_rollback=True):
        for setting in PLANS:
            cursor.execute(setting.replace("set ", "set local ", 1).encode())
        cursor.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
        cursor.execute(f"prepare end_and_claim as {END_AND_CLAIM.sql}".encode())
        marks = ", ".join("%s" for _ in END_AND_CLAIM.names)
        given = [values.get(name, []) for name in END_AND_CLAIM.names]
        cursor.execute(f"explain (analyze, buffers, format json) execute end_and_claim ({marks})".encode(), given)
        plan: dict[str, Any] = cursor.fetchall()[0][0][0]["Plan"]
        cursor.execute("deallocate end_and_claim")
    return plan


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield index, rows and pages of every index scan in a plan."""
    if "Index Name" in plan:
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        yield plan["Index Name"], plan["Actual Rows"] * plan["Actual Loops"], pages
    for part in plan.get("Plans", []):
        yield from _scans(part)


def _pages(plan: dict[str, Any]) -> int:
    return sum(pages for index, _, pages in _scans(plan) if index == "claimable_order")


def _fill(queue: Connection, rows: int, unmet: int = 0) -> None:
    queue.execute(
        """insert into drover.jobqueue (jq_type, jq_args, jq_unmet, jq_queued)
           select 'noop', n::text, %s, now() - %s * interval '1 day' from generate_series(1, %s) n""",
        (unmet, unmet, rows),
    )
    queue.execute("vacuum analyze drover.jobqueue")


@pytest.fixture(scope="module")
def active(postgres: str, migrated: str) -> Iterator[Connection]:
    """Yield the queue of a group that has an active daemon and 100,000 jobs; tests that claim undo it."""
    with _database(postgres, migrated) as (_, conninfo), psycopg.connect(conninfo, autocommit=True) as queue:
        _activate(queue)
        _fill(queue, MANY)
        yield queue


def _activate(queue: Connection) -> None:
    queue.execute(
        "insert into drover.scheduler_group values ('default', %s, now() + interval '1 hour', now())", (OWNER,)
    )


@pytest.mark.parametrize("beyond", [0, 50_000])
@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_claim_reads_what_it_takes_from_the_index_j36_t3(active: Connection, mode: str, beyond: int) -> None:
    plan = _claims(active, mode, beyond)
    assert [rows for index, rows, _ in _scans(plan) if index == "claimable_order"] == [4]  # tokens
    assert _pages(plan) < 20


@pytest.mark.slow
def test_claim_costs_the_same_with_many_waiting_jobs_j36(queue: Connection) -> None:
    _activate(queue)
    _fill(queue, 1000)
    before = _pages(_claims(queue, "custom"))
    _fill(queue, MANY, unmet=1)
    assert _pages(_claims(queue, "custom")) <= before + 8
