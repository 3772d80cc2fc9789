"""drover.in_hand names every row in hand: a rescue looks nowhere else, and finds what nobody works any more."""

import pytest

from scheduler.model.events_and_effects import EndedAndClaimed, Written
from scheduler.model.queue_requests import Claim, EndAndClaim, RecordInHand, Save, SaveRow
from tests.connection_tools import OTHER, OWNER, QUERIES, ask, fetch, rows_of, take_group
from tests.queue_tools import WANT, Desk, end, insert, locked, many, mark, states

NOBODY = "00000000-0000-0000-0000-000000000000"


def _named(conninfo: str, owner: str = OWNER) -> list[int]:
    """Return the rows that are noted for an owner."""
    query = "select unnest(hand_jobs) from drover.in_hand where hand_owner = %s order by 1"
    return [pk for (pk,) in fetch(conninfo, query, owner)]


def _rescue(desk: Desk, *live: int, age: float = 0.0) -> int:
    """Give back what is lost, `live` being in memory; return how many rows that was."""
    owner = desk.courier.owner
    answer = ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=owner, live=list(live), age=age)
    return int(rows_of(answer)[0][0] or b"")


def _claimed_by_other(conninfo: str) -> list[Claim]:
    """Let a daemon that dies then claim; the group is ours afterwards."""
    take_group(conninfo, OTHER)
    with Desk(conninfo, OTHER) as other:
        claims = other.claim_and_mark()
    take_group(conninfo)
    return claims


# ---- what is noted


def test_claimed_row_is_noted_in_in_hand_f45_t69(desk: Desk, database: str) -> None:
    many(database, 3)
    claims = [desk.claim(WANT._replace(most=2)), desk.claim()]
    assert _named(database) == [claim.pk for each in claims for claim in each] == [1, 2, 3]


def test_claim_that_finds_nothing_notes_nothing_t69(desk: Desk, database: str) -> None:
    desk.claim()
    assert fetch(database, "select * from drover.in_hand") == []


@pytest.mark.parametrize(
    "after",
    [
        lambda claim: EndAndClaim([end(claim)], ()),
        lambda claim: Save([SaveRow(claim.pk, 1, "queued", outcome="given back")]),
        lambda claim: mark([claim]),
    ],
)
def test_only_a_claim_and_stock_taking_write_in_hand_t3(desk: Desk, database: str, after: object) -> None:
    insert(database)
    (claim,) = desk.claim()
    before = fetch(database, "select xmin::text, * from drover.in_hand")
    assert callable(after)
    desk.ask(after(claim))
    assert fetch(database, "select xmin::text, * from drover.in_hand") == before


def test_stock_taking_forgets_what_ended_and_keeps_what_is_in_hand_f45_t69(desk: Desk, database: str) -> None:
    many(database, 3)
    first, *others = desk.claim()
    event = desk.ask(EndAndClaim([end(first)], ()))
    assert isinstance(event, EndedAndClaimed)
    assert desk.ask(RecordInHand([claim.pk for claim in others])) == Written()
    assert _named(database) == [claim.pk for claim in others]


def test_stock_taking_merges_many_notes_into_one_and_none_into_none_t69(desk: Desk, database: str) -> None:
    many(database, 5)
    pks = [desk.claim(WANT._replace(most=1))[0].pk for _ in range(5)]
    desk.ask(RecordInHand(pks))
    assert fetch(database, "select hand_owner::text, hand_jobs from drover.in_hand") == [(OWNER, pks)]
    desk.ask(RecordInHand([]))
    assert fetch(database, "select * from drover.in_hand") == []


def test_stock_taking_keeps_notes_of_other_owners_f45(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = _claimed_by_other(database)
    desk.ask(RecordInHand([]))
    assert _named(database, OTHER) == [claim.pk]


# ---- what a rescue finds there


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_rescue_finds_the_rows_of_a_dead_owner_f45_t70(desk: Desk, database: str, state: str) -> None:
    many(database, 2)
    _claimed_by_other(database)
    fetch(database, f"update drover.jobqueue set jq_state = '{state}'")
    assert (_rescue(desk), states(database)) == (2, ["queued", "queued"])
    assert [claim.attempt for claim in desk.claim()] == [2, 2]


@pytest.mark.parametrize(
    ("columns", "interruptions", "end"),
    [
        ("jq_state = 'claimed', jq_interruptions = 3", 3, ("queued", "released for restart")),
        ("jq_state = 'running', jq_interruptions = 2", 3, ("queued", "released for restart")),
        ("jq_state = 'running', jq_interruptions = 3", 4, ("failed", "interrupted more than 3 times")),
        ("jq_state = 'claimed', jq_wanted = 'kill'", 0, ("failed", "killed")),
        ("jq_state = 'running', jq_wanted = 'cancel why'", 1, ("cancelled", "why")),
    ],
)
def test_rescue_ends_jobs_being_killed_or_interrupted_too_often_f126(
    desk: Desk, database: str, columns: str, interruptions: int, end: tuple[str, str]
) -> None:
    insert(database)
    _claimed_by_other(database)
    fetch(database, f"update drover.jobqueue set {columns}, jq_expected_end = now()")
    assert _rescue(desk) == 1
    counts = "jq_interruptions, jq_rescued, jq_wanted, jq_expected_end, jq_owner"
    saved = fetch(database, f"select jq_state::text, jq_endtext, {counts} from drover.jobqueue")
    assert saved == [(*end, interruptions, 1, None, None, None)]


@pytest.mark.parametrize(("attempt", "state"), [(1, "running"), (2, "queued")])
def test_a_running_job_is_given_back_unless_a_host_keeps_this_attempt_of_it(
    desk: Desk, database: str, attempt: int, state: str
) -> None:
    insert(database)
    _claimed_by_other(database)
    fetch(database, f"update drover.jobqueue set jq_state = 'running', jq_attempt = {attempt}")
    fetch(database, "insert into drover.detached values (1, 1, 'default', 'far', '/spool')")
    _rescue(desk)
    assert states(database) == [state]


def test_rescue_finds_notes_that_a_dead_owner_merged_f45_t69(desk: Desk, database: str) -> None:
    many(database, 3)
    take_group(database, OTHER)
    with Desk(database, OTHER) as other:
        first, *left = other.claim()
        other.ask(EndAndClaim([end(first)], ()))
        other.ask(RecordInHand([claim.pk for claim in left]))
    take_group(database)
    assert (_rescue(desk), states(database)) == (2, ["done", "queued", "queued"])


def test_rescue_leaves_jobs_in_memory_and_new_claims_t69(desk: Desk, database: str) -> None:
    many(database, 3)
    first, second, _ = desk.claim_and_mark()
    fetch(database, "update drover.jobqueue set jq_starttime = now() - interval '1 hour' where jq_pk <> 3")
    assert _rescue(desk, first.pk, age=10.0) == 1
    assert states(database) == ["claimed", "queued", "claimed"]
    assert [claim.pk for claim in desk.claim()] == [second.pk]


def test_rescue_leaves_a_fresh_slice_of_a_job_that_began_long_ago_t69(desk: Desk, database: str) -> None:
    insert(database, "('a', 'select 1', true)", "jq_type, jq_args, jq_msq")
    fetch(database, "update drover.jobqueue set jq_first_start = now() - interval '1 hour'")
    desk.claim()
    assert fetch(database, "select jq_starttime < now() - interval '1 minute' from drover.jobqueue") == [(True,)]
    assert _rescue(desk, age=10.0) == 0
    fetch(database, "update drover.jobqueue set jq_attempt_start = now() - interval '1 minute'")
    assert (_rescue(desk, age=10.0), states(database)) == (1, ["queued"])


def test_locked_row_of_ours_that_is_lost_is_rescued_next_time_although_stock_was_taken_f45_t69(
    desk: Desk, database: str
) -> None:
    insert(database)
    (claim,) = desk.claim()
    with locked(database, claim.pk):
        assert _rescue(desk) == 0
    desk.ask(RecordInHand([]))
    assert (_named(database), _named(database, NOBODY)) == ([], [claim.pk])
    assert (_rescue(desk), states(database)) == (1, ["queued"])


def test_locked_row_of_a_dead_owner_is_rescued_next_time_f45_t69(desk: Desk, database: str) -> None:
    many(database, 2)
    first, _ = _claimed_by_other(database)
    with locked(database, first.pk):
        assert (_rescue(desk), states(database)) == (1, ["claimed", "queued"])
    assert (_rescue(desk), states(database)) == (1, ["queued", "queued"])


def test_row_that_ended_is_not_rescued_t71(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    assert _named(database) == [claim.pk]
    assert (_rescue(desk), states(database)) == (0, ["done"])


def test_notes_of_a_dead_owner_are_removed_when_none_is_in_hand_t69(desk: Desk, database: str) -> None:
    many(database, 2)
    first, _ = _claimed_by_other(database)
    with locked(database, first.pk):
        _rescue(desk)
    assert [_rescue(desk), _rescue(desk)] == [1, 0]
    assert fetch(database, "select * from drover.in_hand") == []


def test_rescue_leaves_jobs_of_other_groups_f45(desk: Desk, database: str) -> None:
    fetch(database, "insert into drover.queue (queue_name, queue_group) values ('theirs', 'another')")
    (pk,) = insert(database, "('a', 'theirs')", "jq_type, jq_queue")
    fetch(database, f"update drover.jobqueue set jq_state = 'claimed', jq_owner = '{OTHER}', jq_starttime = now()")
    fetch(database, f"insert into drover.in_hand values ('{OTHER}', array[{pk}])")
    assert (_rescue(desk), states(database), _named(database, OTHER)) == (0, ["claimed"], [pk])


def test_queue_concurrency_counts_rows_in_hand_not_notes_t69(desk: Desk, database: str) -> None:
    fetch(database, "update drover.queue set queue_concurrency = 1")
    fetch(database, "insert into drover.host (host_name, host_group) values ('h', 'default')")
    fetch(database, "insert into drover.agent (agent_group, agent_type) values ('default', 'a')")
    many(database, 2)
    (claim,) = desk.claim(WANT._replace(most=1))
    why = "select reason from drover.why where jq_pk = 2"
    before = fetch(database, why)
    desk.ask(EndAndClaim([end(claim)], ()))
    assert (before, fetch(database, why)) == ([("queue default is full",)], [("waits its turn",)])
