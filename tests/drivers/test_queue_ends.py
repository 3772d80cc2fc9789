"""Ends of jobs are saved for the owner of the attempt only and settle its children, on a real Postgres."""

from itertools import pairwise

import psycopg
import pytest

from scheduler.model.events_and_effects import EndedAndClaimed, Saved, Settled
from scheduler.model.queue_requests import ClaimRequest, EndAndClaim, Save, SaveRow, Settle
from tests.connection_tools import OTHER, fetch
from tests.queue_tools import Desk, end, insert, many, states

B_ONLY = ClaimRequest("b", "default", "", False, 9)


# ---- ends


def test_end_is_saved_with_its_attempt_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    assert desk.ask(EndAndClaim([end(claim)], ())) == EndedAndClaimed([])
    job = fetch(
        database,
        "select jq_state, jq_end_bits, jq_owner, jq_itemsprocessed, jq_itemstotal, jq_processedtime = '1.5 s',"
        " jq_endtime is not null from drover.jobqueue",
    )
    assert job == [("done", 1, None, 1, 1, True, True)]
    attempt = fetch(
        database, "select att_jq_fk, att_attempt, att_host, att_agent, att_pid, att_outcome from drover.attempt"
    )
    assert attempt == [(claim.pk, 1, "alpha", "a", 42, "done")]


def test_ends_and_claims_share_one_statement_t3(desk: Desk, database: str) -> None:
    many(database, 6)
    three = ClaimRequest("a", "default", "", False, 3)
    claims = desk.claim(three)
    event = desk.ask(EndAndClaim([end(claim) for claim in claims], (three,)))
    assert isinstance(event, EndedAndClaimed)
    assert [claim.args for claim in event.claims] == [b"4", b"5", b"6"]
    assert states(database) == ["done"] * 3 + ["claimed"] * 3


def test_thousand_ends_are_saved_by_one_statement_t3(desk: Desk, database: str) -> None:
    many(database, 1000)
    claims = desk.claim(ClaimRequest("a", "default", "", False, 1000))
    assert desk.ask(EndAndClaim([end(claim) for claim in claims], ())) == EndedAndClaimed([])
    assert fetch(database, "select count(*) from drover.jobqueue where jq_state = 'done'") == [(1000,)]
    assert desk.connection.stats["end_and_claim"].count == 2


@pytest.mark.parametrize("stale", ["owner", "attempt", "state"])
def test_stale_end_changes_nothing_and_is_reported_t2_r88_c7(desk: Desk, database: str, stale: str) -> None:
    many(database, 2)
    good, bad = desk.claim_and_mark()
    changes = {
        "owner": f"jq_owner = '{OTHER}'",
        "attempt": "jq_attempt = 2",
        "state": "jq_state = 'queued', jq_owner = null, jq_starttime = null",
    }
    fetch(database, f"update drover.jobqueue set {changes[stale]} where jq_pk = {bad.pk}")
    before = fetch(database, "select * from drover.jobqueue where jq_pk = %s", bad.pk)
    assert desk.ask(EndAndClaim([end(good), end(bad)], ())) == EndedAndClaimed([], fenced=(bad.pk,))
    assert fetch(database, "select * from drover.jobqueue where jq_pk = %s", bad.pk) == before
    assert fetch(database, "select att_jq_fk from drover.attempt") == [(good.pk,)]


def test_repeating_the_same_save_changes_nothing_t2(desk: Desk, database: str) -> None:
    """A turn whose answer was lost is sent again."""
    insert(database)
    (claim,) = desk.claim()
    desk.ask(EndAndClaim([end(claim)], ()))
    before = fetch(database, "select * from drover.jobqueue"), fetch(database, "select * from drover.attempt")
    assert desk.ask(EndAndClaim([end(claim)], ())) == EndedAndClaimed([], fenced=(claim.pk,))
    assert (fetch(database, "select * from drover.jobqueue"), fetch(database, "select * from drover.attempt")) == before


# ---- dependencies


def test_parents_are_named_and_settling_releases_children_r31(desk: Desk, database: str) -> None:
    parent, child = insert(database, "('a', 'parent'), ('b', 'child')")
    fetch(database, "insert into drover.jobdepends values (%s, %s)", child, parent)
    (claim,) = desk.claim()
    event = desk.ask(EndAndClaim([end(claim)], ()))
    assert event == EndedAndClaimed([], (parent,))
    assert desk.ask(Settle([parent])) == Settled(1)
    assert [each.pk for each in desk.claim(ClaimRequest("b", "default", "", False, 1))] == [child]


@pytest.mark.parametrize(("mask", "state", "released"), [
    (1, "done", 1), (1, "failed", 0), (2, "done", 0), (2, "failed", 1), (3, "done", 1), (3, "failed", 1),
    (5, "done", 1), (5, "failed", 0),
])  # fmt: skip
def test_mask_decides_which_children_may_start_f160(
    desk: Desk, database: str, mask: int, state: str, released: int
) -> None:
    parent, child = insert(database, "('a', 'parent'), ('b', 'child')")
    fetch(
        database,
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits) values (%s, %s, %s)",
        child, parent, mask,
    )  # fmt: skip
    (claim,) = desk.claim()
    bits = {"done": 1, "failed": 2}[state]
    event = desk.ask(Save([SaveRow(claim.pk, claim.attempt, state, bits, "over", state)]))
    assert event == Saved(frozenset([parent]), (parent,))
    assert desk.ask(Settle([parent])) == Settled(released)
    assert len(desk.claim(ClaimRequest("b", "default", "", False, 1))) == released


def test_nonfatal_errors_alone_do_not_meet_a_mask_of_four_f160(desk: Desk, database: str) -> None:
    parent, child = insert(database, "('a', 'parent'), ('b', 'child')")
    fetch(
        database,
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits) values (%s, %s, 4)",
        child, parent,
    )  # fmt: skip
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(claim.pk, claim.attempt, "done", 1, "over", "done")]))
    assert desk.ask(Settle([parent])) == Settled(0)


def test_locked_child_does_not_delay_its_siblings_and_is_reported_t2(desk: Desk, database: str) -> None:
    one, two, *kids = insert(database, "('a', 'one'), ('a', 'two'), ('b', ''), ('b', ''), ('b', '')")
    edges = [(kid, one) for kid in kids] + [(kids[2], two)]
    fetch(database, "insert into drover.jobdepends values " + ", ".join(f"({kid}, {top})" for kid, top in edges))
    desk.ask(EndAndClaim([end(claim) for claim in desk.claim()], ()))
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", [kids[0]])
        assert desk.ask(Settle([one, two])) == Settled(2, None, (one,))
        assert [each.pk for each in desk.claim(B_ONLY)] == kids[1:]
        assert desk.ask(Settle([one])) == Settled(0, None, (one,))
    assert desk.ask(Settle([one])) == Settled(1)
    assert [each.pk for each in desk.claim(B_ONLY)] == kids[:1]


def test_a_locked_child_that_can_never_start_is_skipped_after_the_lock_c35(desk: Desk, database: str) -> None:
    top, kid = insert(database, "('a', ''), ('b', '')")
    fetch(
        database,
        """insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)
           values (%s, %s, 2, 'skip')""",
        kid, top,
    )  # fmt: skip
    desk.ask(EndAndClaim([end(claim) for claim in desk.claim()], ()))
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", [kid])
        assert desk.ask(Settle([top])) == Settled(0, None, (top,))
    desk.ask(Settle([top]))
    assert fetch(database, "select jq_state from drover.jobqueue where jq_pk = %s", kid) == [("skipped",)]


def test_long_chain_of_children_runs_in_order_r31(desk: Desk, database: str) -> None:
    pks = insert(database, ", ".join("('a', '')" for _ in range(20)))
    edges = ", ".join(f"({child}, {parent})" for parent, child in pairwise(pks))
    fetch(database, f"insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values {edges}")
    order = [_work_one(desk) for _ in pks]
    assert order == pks


def _work_one(desk: Desk) -> int:
    (claim,) = desk.claim()
    event = desk.ask(EndAndClaim([end(claim)], ()))
    assert isinstance(event, EndedAndClaimed)
    desk.ask(Settle(event.parents))
    return claim.pk
