"""What saves write of jobs in hand, of their log and their output, on a real Postgres."""

import json

import psycopg
import pytest

from scheduler.model.events_and_effects import Saved, Written
from scheduler.model.queue_requests import (
    EndAndClaim,
    ItemFailure,
    LogRow,
    Mark,
    MarkRow,
    OutputRow,
    Save,
    SaveRow,
    WriteLog,
    WriteOutput,
)
from tests.connection_tools import OTHER, fetch
from tests.patience import PATIENCE_S
from tests.queue_tools import Desk, end, insert, many, mark, states

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
    (claim,) = desk.claim_and_mark()
    row = SaveRow(claim.pk, 1, "running", processed=7, total=9, checkpoint={"watermark": "7"})
    assert desk.ask(Save([row])) == Saved(frozenset([claim.pk]))
    saved = fetch(database, "select jq_state, jq_itemsprocessed, jq_checkpoint, jq_endtext from drover.jobqueue")
    assert saved == [("running", 7, {"watermark": "7"}, "in progress")]
    assert fetch(database, "select count(*) from drover.attempt_kept") == [(0,)]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda pk: Save([SaveRow(pk, 1, "done", 1, "", "done")], [ItemFailure(pk, 1, None, "", "", "", 1, "")]),
        lambda pk: Mark([MarkRow(pk, 1, "running", 0)]),
    ],
)
@pytest.mark.parametrize("stale", [f"jq_owner = '{OTHER}'", "jq_attempt = 2"])
def test_stale_save_or_mark_changes_nothing_t2(desk: Desk, database: str, request_of: object, stale: str) -> None:
    (pk,) = insert(database)
    desk.claim_and_mark()
    fetch(database, f"update drover.jobqueue set {stale}")
    before = fetch(database, "select * from drover.jobqueue")
    assert callable(request_of)
    assert desk.ask(request_of(pk)) == Saved(frozenset())
    assert fetch(database, "select * from drover.jobqueue") == before
    assert fetch(database, "select count(*) from drover.attempt, drover.item_failure") == [(0,)]


def test_mark_shows_rows_as_running_t2(desk: Desk, database: str) -> None:
    many(database, 3)
    first, second, _ = desk.claim()
    assert desk.ask(mark([first, second])) == Saved(frozenset([first.pk, second.pk]))
    assert states(database) == ["running", "running", "claimed"]


def test_state_and_notification_agree_t2(desk: Desk, database: str) -> None:
    insert(database)
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("listen drover_event")
        (claim,) = desk.claim()
        desk.ask(EndAndClaim([end(claim)], ()))
        news = next(listener.notifies(timeout=PATIENCE_S))
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
        told = [json.loads(notify.payload) for notify in follower.notifies(timeout=PATIENCE_S, stop_after=4)]
    assert sorted(job for jobs in told for job in jobs) == jobs
