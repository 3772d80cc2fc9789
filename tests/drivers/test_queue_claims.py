"""Which jobs a claim takes, and in which order, on a real Postgres."""

from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from scheduler.model.events_and_effects import EndedAndClaimed, NotSaved, Saved
from scheduler.model.queue_requests import PLAIN, Claim, ClaimRequest, EndAndClaim, Rules, Save, SaveRow
from tests.connection_tools import OTHER, OWNER, QUERIES, ask, fetch, rows_of, run, take_group
from tests.loop_tools import turn_until
from tests.queue_tools import WANT, Desk, end, insert, locked, many, user


def test_claim_returns_the_row_and_leaves_it_as_it_is(desk: Desk, database: str) -> None:
    (pk,) = insert(database, "('a', 'it''s ü')")
    (claim,) = desk.claim()
    assert claim == Claim(pk, 1, "it's ü".encode(), b"1n", WANT)
    assert fetch(database, "select jq_state, jq_owner, jq_attempt from drover.jobqueue") == [("queued", None, 0)]
    assert fetch(database, "select hand_owner::text, hand_jobs from drover.in_hand") == [(OWNER, [pk])]
    assert fetch(database, "select jq_state from drover.jobs") == [("claimed",)]


def test_claims_and_ends_are_planned_before_the_first_job_and_take_nothing_p8(desk: Desk, database: str) -> None:
    insert(database)
    desk.courier.prepare()
    turn_until(desk.loop, lambda: desk.connection.is_idle)
    planned = "select count(*), sum(generic_plans) from pg_prepared_statements where name like 'end_and_claim/%'"
    assert list(rows_of(run(desk.loop, desk.connection, planned))) == [(b"3", b"3")]
    assert fetch(database, "select jq_state, jq_attempt from drover.jobqueue") == [("queued", 0)]
    assert len(desk.claim()) == 1


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("jq_type, jq_args, jq_msq", "('a', 'select 1', true)"),
        ("jq_type, jq_unique_key", "('a', 'once')"),
        ("jq_type, jq_not_after", "('a', now() + '1 hour')"),
    ],
)
def test_claim_marks_the_row_of_a_job_that_its_row_must_show_j51(
    desk: Desk, database: str, columns: str, values: str
) -> None:
    insert(database, values, columns)
    (claim,) = desk.claim()
    assert claim.is_marked
    row = fetch(database, "select jq_state, jq_owner::text, jq_schedinfo, jq_attempt from drover.jobqueue")
    assert row == [("claimed", OWNER, "here.7", 1)]


def test_query_job_comes_with_its_rules_f17(desk: Desk, database: str) -> None:
    insert(
        database,
        "('a', 'select 1 as k', 'k', 'k', 5, '90 s', 2)",
        "jq_type, jq_args, jq_runonpfile, jq_key, jq_tolerate, jq_timeout, jq_retries",
    )
    (claim,) = desk.claim()
    expected = Rules(msq=True, runonpfile="k", key="k", tolerate=5, timeout=90.0, retries=2, submitter=user(database))
    assert claim.rules == expected


@pytest.mark.parametrize("guarded", [False, True])
def test_plain_job_comes_with_its_submitter_only_where_that_matters_f17(
    desk: Desk, database: str, guarded: bool
) -> None:
    insert(database)
    (claim,) = desk.claim(WANT._replace(guarded=guarded))
    name = user(database)
    assert claim.rules == (Rules(submitter=name, roles=claim.rules.roles) if guarded else PLAIN)
    assert (name in claim.rules.roles) == guarded


def test_claims_come_in_order_of_urgency_letter_and_age_r76(desk: Desk, database: str) -> None:
    columns = "jq_type, jq_args, jq_urgent, jq_priority, jq_queued"
    insert(
        database,
        "('a', '4', false, 'n', '2020-01-02'), ('a', '3', false, 'n', '2020-01-01'), ('a', '2', false, 'a', now()),"
        " ('a', '5', false, 'z', '2019-01-01'), ('a', '1', true, 'z', now())",
        columns,
    )
    assert [claim.args for claim in desk.claim()] == [b"1", b"2", b"3", b"4", b"5"]


def test_time_of_queueing_may_be_given_and_is_now_otherwise_j23(database: str) -> None:
    insert(database, "('a', '2020-01-01 UTC'), ('a', default)", "jq_type, jq_queued")
    times = "select jq_queued = '2020-01-01 UTC', now() - jq_queued < '1 minute' from drover.jobqueue order by jq_pk"
    assert fetch(database, times) == [(True, False), (False, True)]


def test_claim_takes_no_more_than_wanted_and_the_rest_next_time_j47_j48(desk: Desk, database: str) -> None:
    many(database, 25)
    want = ClaimRequest("a", "default", "", False, 10)
    assert [len(desk.claim(want)) for _ in range(4)] == [10, 10, 5, 0]


def test_several_claim_requests_are_met_by_one_statement_j47(desk: Desk, database: str) -> None:
    insert(
        database, "('a', '', null), ('b', '', null), ('a', '', 'alpha'), ('c', '', null)", "jq_type, jq_args, jq_host"
    )
    wants = [WANT, ClaimRequest("b", "default", "", False, 5), ClaimRequest("a", "default", "alpha", False, 5)]
    assert sorted(claim.request[:3] for claim in desk.claim(*wants)) == [
        ("a", "default", ""),
        ("a", "default", "alpha"),
        ("b", "default", ""),
    ]


def test_urgent_claim_request_takes_urgent_rows_only_j47(desk: Desk, database: str) -> None:
    insert(database, "('a', 'slow', false), ('a', 'fast', true)", "jq_type, jq_args, jq_urgent")
    assert [claim.args for claim in desk.claim(ClaimRequest("a", "default", "", True, 9))] == [b"fast"]


@pytest.mark.parametrize("key", ["null", "jq_args"], ids=["claimed by record", "claimed in its row"])
def test_row_that_is_locked_elsewhere_is_skipped_j51(desk: Desk, database: str, key: str) -> None:
    values = f"select 'a', jq_args, {key} from (values ('1'), ('2')) v(jq_args)"
    columns = "jq_type, jq_args, jq_unique_key"
    fetch(database, f"insert into drover.jobqueue ({columns}) {values}")
    with locked(database, 1):
        assert [claim.args for claim in desk.claim(WANT._replace(most=1))] == [b"2"]
    assert [claim.args for claim in desk.claim()] == [b"1"]


def test_token_that_is_locked_elsewhere_is_skipped_j51(desk: Desk, database: str) -> None:
    first, _ = insert(database, "('a', '1'), ('a', '2')")
    with psycopg.connect(database) as other:
        other.execute("select from drover.claimable where claim_jq_fk = %s for update", (first,))
        assert [claim.args for claim in desk.claim()] == [b"2"]


def test_end_of_a_job_that_only_a_record_has_in_hand_waits_for_a_lock_on_its_row(desk: Desk, database: str) -> None:
    (pk,) = insert(database)
    (claim,) = desk.claim()
    with locked(database, pk):
        answer = desk.ask(EndAndClaim([end(claim)], ()))
    assert (type(answer), answer.why) == (NotSaved, "lock")
    assert desk.ask(EndAndClaim([end(claim)], ())) == EndedAndClaimed([])


def test_row_with_a_new_child_can_be_claimed_j51(desk: Desk, database: str) -> None:
    """A foreign key reference locks the parent's key, which must not hide it."""
    (group,) = [pk for (pk,) in fetch(database, "insert into drover.job default values returning job_pk")]
    (pk,) = insert(database, f"('a', {group})", "jq_type, jq_job_fk")
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for key share", (pk,))
        assert [claim.pk for claim in desk.claim()] == [pk]


def test_eight_concurrent_claimers_get_disjoint_rows_r4(database: str) -> None:
    take_group(database)
    many(database, 1000)
    got: list[Claim] = []
    with ExitStack() as stack:
        desks = [stack.enter_context(Desk(database)) for _ in range(8)]

        def claims_of_all() -> list[Claim]:
            for desk in desks:  # all are asked before any is heard
                desk.events.clear()
                desk.courier.send(EndAndClaim((), (WANT._replace(most=25),)))
            for desk in desks:
                turn_until(desk.loop, lambda desk=desk: desk.events)
            return [claim for desk in desks for event in desk.events for claim in event.claims]

        while found := claims_of_all():
            got += found
    assert len(got) == 1000
    assert sorted(claim.args for claim in got) == sorted(b"%d" % n for n in range(1, 1001))
    assert {claim.attempt for claim in got} == {1}
    assert fetch(database, "select jq_state, count(*) from drover.jobs group by 1") == [("claimed", 1000)]
    assert fetch(database, "select count(*) from drover.claimable") == [(0,)]


@pytest.mark.parametrize("lease", ["1 hour", "-1 second"])
def test_daemon_without_the_lease_claims_nothing_j51_c7(database: str, lease: str) -> None:
    take_group(database, OTHER if lease == "1 hour" else OWNER, lease)
    insert(database)
    with Desk(database) as desk:
        assert desk.claim() == []


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("jq_type, jq_state", "('a', 'held')"),
        ("jq_type, jq_not_before", "('a', now() + '1 hour')"),
        ("jq_type, jq_not_after", "('a', now() - interval '1 hour')"),
        ("jq_type, jq_mode", "('a', 'manual')"),
    ],
)
def test_row_that_must_wait_is_not_claimed_j51(desk: Desk, database: str, columns: str, values: str) -> None:
    insert(database, values, columns)
    assert desk.claim() == []


@pytest.mark.parametrize("back", [{"failures": 1}, {}], ids=["retry", "slice"])
def test_a_job_begun_in_its_start_window_continues_after_it(desk: Desk, database: str, back: dict[str, Any]) -> None:
    insert(database, "('a', now() + interval '1 hour')", "jq_type, jq_not_after")
    (claim,) = desk.claim()
    fetch(database, "update drover.jobqueue set jq_not_after = '2000-01-01'")  # the hour is over
    assert desk.ask(Save([SaveRow(claim.pk, 1, "queued", 0, "to go on", "failed", **back)])) == Saved(
        frozenset([claim.pk]), ()
    )
    rows_of(ask(desk.loop, desk.connection, QUERIES["due"], group="default"))

    assert [(each.pk, each.attempt) for each in desk.claim()] == [(claim.pk, 2)]
