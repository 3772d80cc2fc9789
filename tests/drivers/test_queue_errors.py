"""Errors of the database are reported with their cause, on a real Postgres."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.drivers.statement_runner import cause_of
from scheduler.drivers.statements import Failure
from scheduler.model.events_and_effects import EndedAndClaimed, LockedFound, NotSaved
from scheduler.model.queue_requests import EndAndClaim, FindLocked, Save, SaveRow
from tests.connection_tools import end_backends, fetch, take_group
from tests.loop_tools import turn_until
from tests.queue_tools import WANT, Desk, end, insert, locked, many, mark, states


@pytest.mark.parametrize(
    ("sqlstate", "lost", "fault"),
    [
        (None, True, "again"),
        ("57P01", False, "again"),
        ("57014", False, "again"),
        ("08006", False, "again"),
        ("53100", False, "again"),
        ("XX000", False, "again"),
        ("25006", False, "again"),
        ("42501", False, "again"),
        ("42P01", False, "again"),
        ("55P03", False, "lock"),
        ("40P01", False, "lock"),
        ("40001", False, "lock"),
        ("22P02", False, "again"),
        ("22P05", False, "data"),
        ("23514", False, "data"),
        ("P0001", False, "data"),
        ("42804", False, "again"),
        ("54000", False, "data"),
        ("22P02", True, "again"),
    ],
)
def test_every_database_error_maps_to_a_cause_t2(sqlstate: str | None, lost: bool, fault: str) -> None:
    assert cause_of(Failure(sqlstate, "", lost)) == fault


def test_a_full_notify_queue_is_not_blamed_on_a_row_in_any_language() -> None:
    assert cause_of(Failure("54000", "too many notifications in the NOTIFY queue")) == "again"
    assert cause_of(Failure("54000", "zu viele Benachrichtigungen", source="async.c")) == "again"
    assert cause_of(Failure("54000", "zu lang", source="stringinfo.c")) == "data"


def test_bad_data_are_reported_as_such_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    event = desk.ask(Save([SaveRow(claim.pk, 1, "done", bits=2, text="", outcome="done")]))
    assert isinstance(event, NotSaved)
    assert event.why == "data"
    assert "23514" in event.reason
    assert states(database) == ["claimed"]


def test_locked_row_is_reported_as_such_t2(database: str) -> None:
    take_group(database)
    insert(database)
    with Desk(database, lock_limit=0.02) as desk:
        (claim,) = desk.claim()
        with locked(database, claim.pk):
            event = desk.ask(mark([claim]))
    assert isinstance(event, NotSaved)
    assert event.why == "lock"


def test_locked_rows_are_found_without_waiting_and_a_missing_row_counts_as_free_t2(desk: Desk, database: str) -> None:
    many(database, 3)
    ends = [end(claim) for claim in desk.claim()]
    with locked(database, ends[1].pk):
        assert desk.ask(FindLocked(EndAndClaim(ends, ()))) == LockedFound(frozenset([ends[1].pk]))
        assert desk.ask(EndAndClaim([ends[0], ends[2]], ())) == EndedAndClaimed([])
    assert desk.ask(FindLocked(EndAndClaim(ends, ()))) == LockedFound(frozenset())
    assert desk.ask(FindLocked(EndAndClaim([ends[0]._replace(pk=999)], ()))) == LockedFound(frozenset())


def test_read_only_database_is_reported_after_a_growing_pause_t2(desk: Desk, database: str) -> None:
    fetch(database, f"alter database {_name(database)} set default_transaction_read_only = on")
    _end_backend(desk, database)
    turn_until(desk.loop, lambda: desk.connection.is_up)
    began = desk.loop.now
    first, second = desk.ask(EndAndClaim((), (WANT,))), desk.ask(EndAndClaim((), (WANT,)))
    assert isinstance(first, NotSaved)
    assert (first.why, first.reason[-7:]) == ("again", "(25006)")
    assert second == first
    assert desk.loop.now - began >= 0.3


def test_lost_connection_is_reported_and_repeated_requests_wait_for_it_t2(database: str) -> None:
    take_group(database)
    insert(database)
    with Desk(database, lock_limit=60) as desk:
        with psycopg.connect(database) as other:
            other.execute("lock table drover.scheduler_group in access exclusive mode")
            desk.courier.send(EndAndClaim((), (WANT,)))
            desk.loop.turn(desk.loop.now)
            _end_backend(desk, database)
        assert [event.why for event in desk.events if isinstance(event, NotSaved)] == ["again"]
        assert [claim.attempt for claim in desk.claim()] == [1]


def _name(conninfo: str) -> str:
    return str(conninfo_to_dict(conninfo)["dbname"])


def _end_backend(desk: Desk, conninfo: str) -> None:
    end_backends(conninfo, "drover test")
    turn_until(desk.loop, lambda: not desk.connection.is_up)
