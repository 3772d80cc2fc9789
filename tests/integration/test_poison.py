"""Rows that no claim can read, or that kill the daemon that has them in hand: they fail alone, others are worked."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, rec, records, start

# As it was let in before there were limits.
BEFORE = "alter table drover.jobqueue disable trigger jobqueue_limit"
HUGE = "insert into drover.jobqueue (jq_type, jq_variables) select 'rec', jsonb_build_object('a', repeat(chr(1), %s))"


@pytest.fixture
def site(tmp_path: Path) -> str:
    return "[hosts.alpha]\n" + agent("rec", rec(tmp_path / "record"), slots=2)


@pytest.fixture
def win1252(postgres: str, database_with_roles: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a database that was made when any encoding was taken. The roles are there already."""
    name = "test_win1252"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"create database {name} template template0 encoding 'WIN1252' lc_collate 'C' lc_ctype 'C'")
        conninfo = make_conninfo(postgres, dbname=name)
        with monkeypatch.context() as before:
            before.setattr(migrate, "ENCODINGS", ("WIN1252",))
            migrate.update(conninfo)
        yield conninfo
        connection.execute(f"drop database {name} with (force)")


def _ended(daemon: Daemon, pk: int, timeout: float = 20.0) -> tuple[str, str]:
    """Wait for the end of a job without reading what it holds; its state and text."""
    query = "select jq_state::text, jq_endtext from drover.jobqueue where jq_pk = %s and jq_endtime is not null"
    ((row,),) = [daemon.until(lambda: daemon.execute(query, pk), timeout, f"job {pk} does not end")]
    return row["jq_state"], row["jq_endtext"]


@pytest.mark.slow
def test_invalid_byte_fails_its_job_and_no_other(win1252: str, site: str) -> None:
    with start(site, win1252) as daemon:
        daemon.execute("set client_encoding = 'WIN1252'")
        daemon.execute(r"""
            insert into drover.jobqueue (jq_type, jq_args)
            select 'rec', case n when 4 then convert_from('\x81', 'WIN1252') else 'fine ' || n end
              from generate_series(1, 9) n""")
        daemon.wait_all([1, 2, 3, 5, 6, 7, 8, 9])
        state, reason = _ended(daemon, 4)
        daemon.wait(daemon.insert(jq_type="rec", jq_args="later"))
        assert daemon.stderr().count("a claim failed on the data of a row") == 1
    assert (state, "its parameter or variables cannot be read" in reason) == ("failed", True)
    assert 'byte sequence 0x81 in encoding "WIN1252" has no equivalent' in reason


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("size", "reason"),
    [(40_000_000, "its variables or its SQL have over 16777216 bytes"), (200_000_000, "variables cannot be read")],
)
def test_oversized_variables_from_before_the_limits_fail_their_job_and_no_other(
    launch: Launch, site: str, size: int, reason: str
) -> None:
    daemon = launch(site + "[scheduler]\nlease = 30\n")
    daemon.execute(BEFORE)
    daemon.execute(f"{HUGE}; insert into drover.jobqueue (jq_type, jq_args) values ('rec', 'x')" % size)
    state, text = _ended(daemon, 1, 280.0)
    assert (state, reason in text) == ("failed", True)
    assert _ended(daemon, 2)[0] == "done"


@pytest.mark.slow
def test_job_during_which_daemons_died_is_tried_alone_and_failed(launch: Launch, site: str, tmp_path: Path) -> None:
    """Beside it is another with which as many have died, and which is not to blame: it is worked."""
    daemon = launch(site, points="read_claimed:after=kill")
    daemon.execute("""
        insert into drover.jobqueue (jq_type, jq_args, jq_state)
        values ('rec', 'bad', 'held'), ('rec', 'good', 'held')""")
    daemon.execute("update drover.jobqueue set jq_rescued = 3, jq_state = 'queued'")
    assert daemon.wait_exit() == -signal.SIGKILL
    assert (daemon.row(1)["jq_state"], daemon.row(1)["jq_endtext"]) == ("running", "tried alone")
    again = launch(site)
    row = again.wait(1, "failed")
    again.wait(2)
    reason = "its scheduler died 4 times with this job in hand, the last time as it was tried alone"
    assert (row["jq_endtext"], row["jq_rescued"], row["jq_interruptions"]) == (reason, 4, 1)
    assert [note["line"] for note in records(tmp_path / "record") if note["event"] == "line"] == ["good"]


@pytest.mark.slow
def test_innocent_job_in_hand_at_as_many_deaths_is_done(launch: Launch, site: str) -> None:
    daemon = launch(site)
    daemon.execute("""
        insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key, jq_state)
        select 'rec', 'select k from generate_series(1, 20) k', true, 'k', 'held' from generate_series(1, 20)""")
    checkpoint = '{"watermark": "15", "beyond": []}'
    daemon.execute(
        """
        update drover.jobqueue set jq_rescued = 3, jq_state = 'queued', jq_itemsprocessed = 15, jq_checkpoint = %s
         where jq_state = 'held'""",
        checkpoint,
    )
    rows = daemon.wait_all(range(1, 21))
    assert {(row["jq_itemsprocessed"], row["jq_endtext"], row["jq_interruptions"]) for row in rows} == {
        (20, "all data processed", 0)
    }
