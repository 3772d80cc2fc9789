"""Claims that go on where the last one ended, and what comes in before that place, on a real Postgres."""

from datetime import datetime

import pytest

from scheduler.model.events_and_effects import EndedAndClaimed
from tests.connection_tools import fetch
from tests.queue_tools import WANT, Desk, insert, locked, many

PLACES = "('a', '3', 'n', false), ('a', '4', 'n', false), ('a', '2', 'b', false), ('a', '1', 'n', true)"


def test_claim_reports_its_position_j47_r76(desk: Desk, database: str) -> None:
    pks = insert(database, PLACES, "jq_type, jq_args, jq_priority, jq_urgent")
    ((queued,),) = fetch(database, "select jq_queued from drover.jobqueue where jq_pk = %s", pks[0])
    event = desk.turn(WANT._replace(most=3), WANT._replace(type="b"))
    ((want, (rank, reached, pk)),) = event.reached.items()
    assert (want.type, rank, datetime.fromisoformat(reached), pk) == ("a", "1n", queued, pks[0])


def test_claim_continues_at_the_position_of_the_last_one_j47_j48_r76(desk: Desk, database: str) -> None:
    insert(database, PLACES, "jq_type, jq_args, jq_priority, jq_urgent")
    want, found = WANT._replace(most=1), []
    for _ in range(4):
        event = desk.turn(want)
        found += [claim.args for claim in event.claims]
        want = want._replace(after=event.reached[want])
    assert found == [b"1", b"2", b"3", b"4"]
    assert desk.turn(want) == EndedAndClaimed([])


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("jq_urgent", "true"),
        ("jq_priority", "'a'"),
        ("jq_queued", "now() - interval '1 hour'"),
    ],
)
def test_job_inserted_before_the_position_is_found_by_a_claim_from_the_start_j46_j47_r76(
    desk: Desk, database: str, columns: str, values: str
) -> None:
    many(database, 4)
    two = WANT._replace(most=2)
    event = desk.turn(two)
    insert(database, f"('a', 'late', {values})", f"jq_type, jq_args, {columns}")
    beyond = two._replace(after=event.reached[two])
    assert [claim.args for claim in desk.claim(beyond)] == [b"3", b"4"]
    assert [claim.args for claim in desk.claim(beyond)] == []
    assert [claim.args for claim in desk.claim(two)] == [b"late"]


def test_row_that_was_locked_is_found_by_a_claim_from_the_start_j46_j51(desk: Desk, database: str) -> None:
    first, _ = insert(database, "('a', '1'), ('a', '2')")
    with locked(database, first):
        event = desk.turn(WANT._replace(most=1))
    (after,) = event.reached.values()
    assert desk.claim(WANT._replace(after=after)) == []
    assert [claim.args for claim in desk.claim()] == [b"1"]


def test_each_claim_request_continues_at_its_own_position_j47(desk: Desk, database: str) -> None:
    insert(database, "('a', '1'), ('b', '2'), ('a', '3'), ('b', '4'), ('a', '5')")
    wants = [WANT._replace(type=kind, most=1) for kind in "ab"]
    event = desk.turn(*wants)
    assert {want.type: after.pk for want, after in event.reached.items()} == {"a": 1, "b": 2}
    again = [want._replace(after=event.reached[want], most=9) for want in wants]
    assert [claim.args for claim in desk.claim(*again)] == [b"3", b"4", b"5"]
