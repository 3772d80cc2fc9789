"""What a claim reads after a bulk command, before any vacuum: the tokens of cancelled jobs do not make it dear."""

import re
from typing import Any, Final

import psycopg
import pytest
from psycopg.types.json import Jsonb

from scheduler.daemon.connections import PLANS, SAFE_PATH
from tests.connection_tools import OWNER, take_group
from tests.database.test_lease_locks import WANTED, parameters

JOBS: Final = 5000
AT_ONCE: Final = f"insert into drover.jobqueue (jq_type, jq_args) select 'a', 'x' from generate_series(1, {JOBS})"
ONE_BY_ONE: Final = f"""
do $$ begin
  for i in 1..{JOBS} loop insert into drover.jobqueue (jq_type, jq_args) values ('a', 'x'); end loop;
end $$
"""
BEHIND: Final = """
insert into drover.jobqueue (jq_type, jq_args, jq_priority) select 'a', 'keep', 'z' from generate_series(1, 1000)
"""
Session = psycopg.Connection[Any]


@pytest.fixture
def session(database: str) -> Any:
    """Yield a session like that of the queue connection, in a database where no vacuum comes by itself."""
    take_group(database)
    with psycopg.connect(database, autocommit=True) as session:
        for table in ("claimable", "jobqueue"):
            session.execute(f"alter table drover.{table} set (autovacuum_enabled = off)".encode())
        for setting in (SAFE_PATH, *PLANS, "set plan_cache_mode = force_generic_plan"):
            session.execute(setting.encode())
        yield session


def pages(session: Session) -> int:
    """Return how many pages a claim of 100 jobs reads; it is undone."""
    text, chosen = parameters("only_claim", WANTED | {"want_counts": "{100}"})
    with session.transaction(force_rollback=True):
        explained = psycopg.RawCursor(session).execute(b"explain (analyze, buffers, timing off) " + text, chosen)
        plan = "\n".join(row[0] for row in explained)
    assert "actual rows=101" in plan.splitlines()[0]
    found = re.search(r"Buffers: shared hit=(\d+)(?: read=(\d+))?", plan)
    assert found
    return int(found[1]) + int(found[2] or 0)


def cancel(session: Session) -> None:
    """Cancel all jobs but those behind, in the batches of a daemon."""
    row = session.execute("select drover.command('cancel', %s)", (Jsonb({"type": "a", "text": "x"}),)).fetchone()
    assert row
    while batch := session.execute(
        "select done, is_over from drover.change_jobs(%s, %s, 1000)", (*row, OWNER)
    ).fetchone():
        if batch[1]:
            assert batch[0] == JOBS
            return


@pytest.mark.slow
@pytest.mark.parametrize("insert", [AT_ONCE, ONE_BY_ONE], ids=["shared tokens", "own tokens"])
def test_claim_reads_few_more_pages_after_a_bulk_cancel(session: Session, insert: str) -> None:
    session.execute(insert.encode())
    session.execute(BEHIND)
    before = [pages(session) for _ in range(2)][-1]
    cancel(session)
    assert pages(session) <= 2 * before
    assert pages(session) <= 1.5 * before


def test_claim_reads_few_more_pages_beside_a_snapshot_from_before_the_cancel(session: Session, database: str) -> None:
    session.execute(AT_ONCE.encode())
    session.execute(BEHIND)
    before = [pages(session) for _ in range(2)][-1]
    with psycopg.connect(database) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select from drover.queue")
        cancel(session)
        assert pages(session) <= 2 * before
