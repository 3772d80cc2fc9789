"""Jobs that are queued in a transaction which is prepared, as a transaction manager of several databases does."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.errors import FeatureNotSupported

from scheduler.database import migrate
from tests.faults.server import Server
from tests.needs import need
from tests.patience import LONG_PATIENCE_S

INSERT = """
with made as (insert into drover.job (job_name) values ('both') returning job_pk),
first as (insert into drover.jobqueue (jq_job_fk, jq_type, jq_unique_key) select job_pk, 'noop', 'k' from made
          returning jq_pk, jq_job_fk)
insert into drover.jobqueue (jq_job_fk, jq_type, jq_args) select jq_job_fk, 'noop', 'of a group' from first
"""
QUEUED = "select count(*) from drover.jobqueue"
TOKENS = "select count(*) from drover.claimable"


@pytest.fixture
def preparing() -> Iterator[str]:
    """Yield a database of a server that prepares transactions, which is off by default."""
    need("postgres account")
    with TemporaryDirectory(prefix="drover-preparing-") as folder:
        os.chmod(folder, 0o755)
        server = Server(Path(folder))
        server.start("-c max_prepared_transactions=3")
        try:
            migrate.update(server.conninfo)
            yield server.conninfo
        finally:
            server.stop()


def test_a_transaction_with_jobs_cannot_be_prepared_while_it_notifies(preparing: str) -> None:
    with psycopg.connect(preparing, autocommit=True) as session:
        session.execute("begin")
        session.execute(INSERT)
        with pytest.raises(FeatureNotSupported, match=r"cannot PREPARE a transaction that has executed .* NOTIFY"):
            session.execute("prepare transaction 'refused'")
        assert session.execute(QUEUED).fetchone() == (0,)


def test_jobs_of_a_prepared_transaction_are_queued_by_its_commit_if_notifications_are_off(preparing: str) -> None:
    with psycopg.connect(preparing, autocommit=True) as session, psycopg.connect(preparing, autocommit=True) as daemon:
        daemon.execute("listen drover_queue")
        session.execute("begin")
        session.execute("set local drover.notify = off")
        session.execute(INSERT)
        session.execute("prepare transaction 'two'")
        before = [session.execute(each).fetchone() for each in (QUEUED, TOKENS)]
        session.execute("commit prepared 'two'")
        after = [session.execute(each).fetchone() for each in (QUEUED, TOKENS)]
        session.execute("notify drover_queue")
        assert (before, after) == ([(0,), (0,)], [(2,), (2,)])
        assert [note.channel for note in daemon.notifies(timeout=LONG_PATIENCE_S, stop_after=1)] == ["drover_queue"]
