"""Requests to the queue and the events that answer them, on a real Postgres."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.drivers.sql import Failure
from scheduler.drivers.statements import cause_of
from scheduler.model.events import EndedAndClaimed, LockedFound, NotSaved, Saved, Settled, Written
from scheduler.model.jobs import PLAIN, Claim, ClaimRequest, ItemFailure, LogRow, OutputRow, Rules, SaveRow
from scheduler.model.requests import EndAndClaim, FindLocked, Mark, Save, Settle, WriteLog, WriteOutput
from scheduler.model.states import COMMAND_MOVES, JOB_MOVES, JOB_STATES, TERMINAL
from tests.connection_tools import OTHER, OWNER, QUERIES, ask, end_backends, fetch, rows_of, take_group
from tests.loop_tools import turn_until
from tests.queue_tools import WANT, Desk, end, insert, locked, many, states, user

B_ONLY = ClaimRequest("b", "default", "", False, 9)

# ---- claims


def test_claim_returns_the_row_and_marks_it_with_the_owner_j51(desk: Desk, database: str) -> None:
    (pk,) = insert(database, "('a', 'it''s ü')")
    (claim,) = desk.claim()
    assert claim == Claim(pk, 1, "it's ü".encode(), b"1n", WANT)
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


def test_row_that_is_locked_elsewhere_is_skipped_j51(desk: Desk, database: str) -> None:
    first, _ = insert(database, "('a', '1'), ('a', '2')")
    with locked(database, first):
        assert [claim.args for claim in desk.claim()] == [b"2"]


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
    assert fetch(database, "select jq_state, jq_attempt, count(*) from drover.jobqueue group by 1, 2") == [
        ("claimed", 1, 1000)
    ]


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
    good, bad = desk.claim()
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


# ---- saves


def test_save_writes_the_outcome_of_a_row_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    row = SaveRow(
        claim.pk, 1, "failed", bits=2, text="agent said: no\0ü", outcome="failed", code=3, result={"why": ["\0", 1]},
        processed=4, failed=1, total=5, elapsed=2.5, busy=1.5, failures=1, host="alpha", agent="a", pid=9,
    )  # fmt: skip
    failure = ItemFailure(claim.pk, 1, "k", 'x="1"', "alpha", "a", 9, "it died")
    assert desk.ask(Save([row], [failure])) == Saved(frozenset([claim.pk]))
    saved = fetch(
        database,
        "select jq_state, jq_endtext, jq_exitcode, jq_result, jq_itemsprocessed, jq_itemsfailed, jq_itemstotal,"
        " jq_elapsedtime = '2.5 s' from drover.jobqueue",
    )
    assert saved == [("failed", "agent said: no\\x00ü", 3, {"why": ["\\x00", 1]}, 4, 1, 5, True)]
    attempts = fetch(database, "select att_outcome, att_exitcode, att_pid, att_reason from drover.attempt")
    assert attempts == [("failed", 3, 9, "agent said: no\\x00ü")]
    items = fetch(database, "select item_key, item_line, item_reason from drover.item_failure")
    assert items == [("k", 'x="1"', "it died")]


def test_row_goes_back_with_a_delay_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    row = SaveRow(
        claim.pk, 1, "queued", text="again", outcome="retry", failures=1, retry_in=60.0, jitter=True, back=True
    )
    assert desk.ask(Save([row])) == Saved(frozenset([claim.pk]))
    saved = fetch(
        database,
        "select jq_state, jq_owner, jq_starttime, jq_failures, jq_wait_until - now() between '25 s' and '60 s',"
        " jq_retry_at = jq_wait_until from drover.jobqueue",
    )
    assert saved == [("queued", None, None, 1, True, True)]
    assert desk.claim() == []


@pytest.mark.parametrize(("jitter", "delays"), [(False, 1), (True, 50)])
def test_jobs_that_fail_together_do_not_all_come_back_together(
    desk: Desk, database: str, jitter: bool, delays: int
) -> None:
    many(database, 50)
    rows = [SaveRow(each.pk, 1, "queued", outcome="retry", retry_in=60.0, jitter=jitter) for each in desk.claim()]
    desk.ask(Save(rows))
    query = "select count(distinct jq_retry_at), bool_and(jq_retry_at - now() <= '60 s') from drover.jobqueue"
    assert fetch(database, query) == [(delays, True)]


@pytest.mark.parametrize("back", [False, True])
def test_row_given_back_keeps_its_position_unless_it_did_a_slice(desk: Desk, database: str, back: bool) -> None:
    insert(database, "('a', '2000-01-01')", "jq_type, jq_queued")
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(claim.pk, 1, "queued", outcome="slice", back=back)]))
    assert fetch(database, "select jq_queued > '2000-01-01' from drover.jobqueue") == [(back,)]


def test_row_given_back_at_once_is_claimed_as_a_new_attempt_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    desk.ask(Save([SaveRow(claim.pk, 1, "queued", outcome="given back")]))
    assert [each.attempt for each in desk.claim()] == [2]


def test_progress_keeps_the_row_in_hand_and_writes_no_attempt_t2(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    row = SaveRow(claim.pk, 1, "running", processed=7, total=9, checkpoint={"watermark": "7"})
    assert desk.ask(Save([row])) == Saved(frozenset([claim.pk]))
    saved = fetch(database, "select jq_state, jq_itemsprocessed, jq_checkpoint, jq_endtext from drover.jobqueue")
    assert saved == [("running", 7, {"watermark": "7"}, "in progress")]
    assert fetch(database, "select count(*) from drover.attempt") == [(0,)]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda pk: Save([SaveRow(pk, 1, "done", 1, "", "done")], [ItemFailure(pk, 1, None, "", "", "", 1, "")]),
        lambda pk: Mark([(pk, 1)]),
    ],
)
@pytest.mark.parametrize("stale", [f"jq_owner = '{OTHER}'", "jq_attempt = 2"])
def test_stale_save_or_mark_changes_nothing_t2(desk: Desk, database: str, request_of: object, stale: str) -> None:
    (pk,) = insert(database)
    desk.claim()
    fetch(database, f"update drover.jobqueue set {stale}")
    before = fetch(database, "select * from drover.jobqueue")
    assert callable(request_of)
    assert desk.ask(request_of(pk)) == Saved(frozenset())
    assert fetch(database, "select * from drover.jobqueue") == before
    assert fetch(database, "select count(*) from drover.attempt, drover.item_failure") == [(0,)]


def test_mark_shows_rows_as_running_t2(desk: Desk, database: str) -> None:
    many(database, 3)
    first, second, _ = desk.claim()
    assert desk.ask(Mark([(first.pk, 1), (second.pk, 1)])) == Saved(frozenset([first.pk, second.pk]))
    assert states(database) == ["running", "running", "claimed"]


def test_state_and_notification_agree_t2(desk: Desk, database: str) -> None:
    insert(database)
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("listen drover_event")
        (claim,) = desk.claim()
        desk.ask(EndAndClaim([end(claim)], ()))
        news = next(listener.notifies(timeout=10))
    assert json.loads(news.payload) == [{"jq_pk": claim.pk, "state": "done", "job_pk": None}]


# ---- log and output


def test_log_and_output_take_any_text_t2(desk: Desk, database: str) -> None:
    rows = [LogRow(7, "ERROR", "alpha", "a", 9, 'a\0"\\{},ü\udc80'), LogRow(None, "LOG", None, None, None, "")]
    assert desk.ask(WriteLog(rows)) == Written()
    assert desk.ask(WriteOutput([OutputRow(7, 1, 1, "out", "a\nb")])) == Written()
    logged = fetch(
        database, "select log_jq_fk, log_type, log_host, log_pid, log_message from drover.log order by log_pk"
    )
    assert logged == [(7, "ERROR", "alpha", 9, 'a\\x00"\\{},ü\\udc80'), (None, "LOG", None, None, "")]
    assert fetch(database, "select out_stream, out_data from drover.output") == [("out", "a\nb")]


def test_output_that_is_sent_again_is_there_once(desk: Desk, database: str) -> None:
    rows = [OutputRow(7, 1, part, "out", f"{part} ") for part in (1, 2, 3)]
    assert [desk.ask(WriteOutput(rows[:2])), desk.ask(WriteOutput(rows))] == [Written()] * 2
    query = (
        "select string_agg(out_data, '' order by out_part), string_agg(out_data, '' order by out_pk) from drover.output"
    )
    assert fetch(database, query) == [("1 2 3 ", "1 2 3 ")]


def test_followers_of_output_are_notified_of_any_number_of_jobs_r69(desk: Desk, database: str) -> None:
    row, jobs = OutputRow(7, 1, 1, "out", "x"), [2**62 + number for number in range(1000)]
    with psycopg.connect(database, autocommit=True) as follower:
        follower.execute("listen drover_output")
        desk.ask(WriteOutput([row], jobs))
        told = [json.loads(notify.payload) for notify in follower.notifies(timeout=20, stop_after=4)]
    assert sorted(job for jobs in told for job in jobs) == jobs


# ---- failures


@pytest.mark.parametrize(
    ("sqlstate", "lost", "fault"),
    [
        (None, True, "lost"),
        ("57P01", False, "lost"),
        ("57014", False, "lost"),
        ("08006", False, "lost"),
        ("53100", False, "lost"),
        ("XX000", False, "lost"),
        ("25006", False, "lost"),
        ("42501", False, "lost"),
        ("42P01", False, "lost"),
        ("55P03", False, "lock"),
        ("40P01", False, "lock"),
        ("40001", False, "lock"),
        ("22P02", False, "lost"),
        ("22P05", False, "data"),
        ("23514", False, "data"),
        ("P0001", False, "data"),
        ("42804", False, "lost"),
        ("54000", False, "data"),
        ("22P02", True, "lost"),
    ],
)
def test_every_database_error_maps_to_a_cause_t2(sqlstate: str | None, lost: bool, fault: str) -> None:
    assert cause_of(Failure(sqlstate, "", lost)) == fault


def test_a_full_notify_queue_is_not_blamed_on_a_row_in_any_language() -> None:
    assert cause_of(Failure("54000", "too many notifications in the NOTIFY queue")) == "lost"
    assert cause_of(Failure("54000", "zu viele Benachrichtigungen", source="async.c")) == "lost"
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
            event = desk.ask(Mark([(claim.pk, 1)]))
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
    assert (first.why, first.reason[-7:]) == ("lost", "(25006)")
    assert second == first
    assert desk.loop.now - began >= 0.3


def test_lost_connection_is_reported_and_repeated_requests_wait_for_it_t2(desk: Desk, database: str) -> None:
    insert(database)
    with psycopg.connect(database) as other:
        other.execute("lock table drover.scheduler_group in access exclusive mode")
        desk.courier.send(EndAndClaim((), (WANT,)))
        desk.loop.turn(desk.loop.now)
        _end_backend(desk, database)
    assert [event.why for event in desk.events if isinstance(event, NotSaved)] == ["lost"]
    assert [claim.attempt for claim in desk.claim()] == [1]


def _name(conninfo: str) -> str:
    return str(conninfo_to_dict(conninfo)["dbname"])


def _end_backend(desk: Desk, conninfo: str) -> None:
    end_backends(conninfo, "drover test")
    turn_until(desk.loop, lambda: not desk.connection.is_up)


# ---- moves


ROW = {
    "held": "null, null, null, 0",
    "queued": "null, null, null, 0",
    "blocked": "null, null, null, 0",
    "claimed": f"'{OWNER}', now(), null, 0",
    "running": f"'{OWNER}', now(), null, 0",
} | dict.fromkeys(TERMINAL, "null, now(), now(), 2") | {"done": "null, now(), now(), 1"}  # fmt: skip
PATHS = {
    "held": ("held",), "queued": ("queued",), "claimed": ("queued", "claimed"),
    "running": ("queued", "claimed", "running"),
    "blocked": ("queued", "blocked"), "done": ("queued", "claimed", "done"), "failed": ("queued", "failed"),
    "cancelled": ("cancelled",), "ignored": ("held", "ignored"), "skipped": ("skipped",),
}  # fmt: skip
MOVE = "update drover.jobqueue set jq_state = '{0}', (jq_owner, jq_starttime, jq_endtime, jq_end_bits) = row({1})"


@pytest.fixture(scope="module")
def rows(postgres: str, migrated: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """One database for a hundred moves, each in a transaction that is rolled back."""
    fetch(postgres, f"create database moves template {migrated}")
    with psycopg.connect(postgres, dbname="moves") as connection:
        yield connection
    fetch(postgres, "drop database moves with (force)")


@pytest.mark.parametrize(("kind", "moves"), [("a", JOB_MOVES), ("command", COMMAND_MOVES)], ids=["job", "command"])
@pytest.mark.parametrize("after", JOB_STATES)
@pytest.mark.parametrize("before", JOB_STATES)
def test_guard_allows_exactly_the_transitions_of_the_table_t6(
    rows: psycopg.Connection[tuple[object, ...]], before: str, after: str, kind: str, moves: dict[str, frozenset[str]]
) -> None:
    refusal: AbstractContextManager[object] = nullcontext()
    if after != before and after not in moves[before]:
        refusal = pytest.raises(psycopg.errors.CheckViolation, match="may not move")
    with rows.transaction(force_rollback=True):
        rows.execute("insert into drover.jobqueue (jq_type, jq_args) values (%s, 'reload')", (kind,))
        for state in PATHS[before]:
            rows.execute(MOVE.format(state, ROW[state]).encode())
        with refusal:
            rows.execute(MOVE.format(after, ROW[after]).encode())
