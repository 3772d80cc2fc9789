"""Edges between jobs: counted, met and settled by the schema, with its notifications."""

import json
from itertools import pairwise, takewhile

import pytest
from psycopg.errors import CheckViolation, ForeignKeyViolation, UniqueViolation

from tests.patience import LONG_PATIENCE_S
from tests.schema_tools import (
    BEGUN,
    ENDED,
    Connection,
    add_job,
    claim_job,
    end_job,
    fetch_all,
    fetch_one,
    read_column,
    set_columns,
)


def _edge(queue: Connection, child: int, parent: int, mask: int = 1, on_unmet: str = "wait") -> None:
    queue.execute("insert into drover.jobdepends values (%s, %s, %s, %s)", (child, parent, mask, on_unmet))


def _settle(queue: Connection, *parents: int) -> int:
    """Settle what is little enough for one statement; return how many children got nearer."""
    released: int = fetch_one(
        queue, "select released from drover.settle(%s::bigint[], 0, 1000, waits => true)", list(parents)
    )
    return released


def _heard(queue: Connection, channel: str) -> list[str]:
    """Return what a listening connection has heard on a channel; a last word of our own ends the wait."""
    queue.execute(f"notify {channel}, 'end'".encode())
    notes = takewhile(lambda note: note.payload != "end", queue.notifies(timeout=LONG_PATIENCE_S))
    return [note.payload for note in notes if note.channel == channel]


# ---- edges


def test_edge_to_a_live_parent_is_counted(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue)
    _edge(queue, child, parent)
    assert read_column(queue, child, "jq_unmet") == 1
    assert read_column(queue, parent, "jq_has_children")


@pytest.mark.parametrize("mask", [1, 2, 3, 5])
@pytest.mark.parametrize(("state", "bits"), [("done", 1), ("done", 5), ("failed", 2), ("failed", 6)])
def test_edge_to_an_ended_parent_is_met_according_to_its_mask_f160(
    queue: Connection, state: str, bits: int, mask: int
) -> None:
    parent, child = add_job(queue), add_job(queue)
    end_job(queue, parent, state, bits)
    _edge(queue, child, parent, mask)
    assert read_column(queue, child, "jq_unmet = 0") is bool(bits & mask)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_cycle_is_refused(queue: Connection, length: int) -> None:
    jobs = [add_job(queue) for _ in range(length)]
    queue.cursor().executemany(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)",
        list(pairwise(jobs)),
    )
    with pytest.raises(CheckViolation):
        _edge(queue, jobs[-1], jobs[0])


@pytest.mark.parametrize(
    ("state", "move"),
    [("claimed", BEGUN), ("running", "jq_state = 'running'"), ("done", f"jq_state = 'done', {ENDED}, jq_end_bits = 1")],
)
def test_job_in_hand_or_ended_takes_no_edge(queue: Connection, state: str, move: str) -> None:
    parent, child = add_job(queue), add_job(queue)
    claim_job(queue, child)
    set_columns(queue, child, move)
    with pytest.raises(CheckViolation, match=f"job {child} is {state} already"):
        _edge(queue, child, parent)


def test_edge_to_a_missing_job_is_refused_r37(queue: Connection) -> None:
    child = add_job(queue)
    with pytest.raises(ForeignKeyViolation, match=r"\(jdep_jq_depends_fk\)=\(999\) is not present in table"):
        _edge(queue, child, 999)


def test_repeated_edge_is_refused_or_ignored_and_never_counted_twice(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue)
    _edge(queue, child, parent)
    with pytest.raises(UniqueViolation):
        _edge(queue, child, parent)
    again = "insert into drover.jobdepends values (%s, %s), (%s, %s) on conflict do nothing"
    queue.execute(again.encode(), (child, parent, child, parent))
    assert read_column(queue, child, "jq_unmet") == 1


def test_settling_releases_a_child_and_wakes_every_scheduler(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue)
    _edge(queue, child, parent)
    end_job(queue, parent)
    queue.execute("listen drover_queue")
    assert _settle(queue, parent) == 1
    assert read_column(queue, child, "jq_unmet") == 0
    assert _heard(queue, "drover_queue") == [""]


def test_edge_is_met_once(queue: Connection) -> None:
    first, second, child = add_job(queue), add_job(queue), add_job(queue)
    _edge(queue, child, first)
    _edge(queue, child, second)
    end_job(queue, first)
    assert [_settle(queue, first), _settle(queue, first)] == [1, 0]
    assert read_column(queue, child, "jq_unmet") == 1


def test_failure_skips_the_whole_chain_below_and_notifies(queue: Connection) -> None:
    jobs = [add_job(queue) for _ in range(4)]
    _edge(queue, jobs[1], jobs[0], 1, "skip")
    _edge(queue, jobs[2], jobs[1], 1, "skip")
    _edge(queue, jobs[3], jobs[2], 2)
    end_job(queue, jobs[0], "failed", 2)
    queue.execute("listen drover_event")
    _settle(queue, jobs[0])
    states = fetch_all(queue, "select jq_state, jq_unmet from drover.jobqueue order by jq_pk")[1:]
    assert states == [("skipped", 1), ("skipped", 1), ("queued", 0)]
    told = [event for text in _heard(queue, "drover_event") for event in json.loads(text)]
    assert [(event["jq_pk"], event["state"]) for event in told] == [(jobs[1], "skipped"), (jobs[2], "skipped")]


def test_a_skipped_job_has_no_waiting_time(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue, jq_not_before="9999-01-01")
    _edge(queue, child, parent, 1, "skip")
    end_job(queue, parent, "failed", 2)
    _settle(queue, parent)
    assert read_column(queue, child, "(jq_state::text, jq_wait_until)") == ("skipped", None)


def test_child_with_on_unmet_wait_stays_queued_after_a_failure(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue)
    _edge(queue, child, parent)
    end_job(queue, parent, "failed", 2)
    _settle(queue, parent)
    assert read_column(queue, child, "(jq_state::text, jq_unmet)") == ("queued", "1")


def test_child_of_two_failures_is_skipped_and_the_insert_goes_on(queue: Connection) -> None:
    first, second = add_job(queue), add_job(queue)
    end_job(queue, first, "failed", 2)
    with queue.transaction():
        child, grandchild = add_job(queue), add_job(queue)
        _edge(queue, grandchild, child, 2)
        _edge(queue, child, first, 1, "skip")
        _edge(queue, child, second)
    assert read_column(queue, child, "jq_state") == "skipped"
    assert read_column(queue, grandchild, "(jq_state::text, jq_unmet)") == ("queued", "0")


def test_removing_an_edge_releases_its_child(queue: Connection) -> None:
    parent, child = add_job(queue), add_job(queue)
    _edge(queue, child, parent)
    queue.execute("delete from drover.jobdepends")
    assert read_column(queue, child, "jq_unmet") == 0


# ---- notifications


def test_transaction_wakes_schedulers_once(queue: Connection) -> None:
    queue.execute("listen drover_queue")
    with queue.transaction():
        add_job(queue)
        add_job(queue)
    assert _heard(queue, "drover_queue") == [""]


def test_notifications_fit_the_channel_however_large_the_numbers(queue: Connection) -> None:
    queue.execute("listen drover_event")
    queue.execute("insert into drover.job (job_pk) overriding system value values (9223372036854775807)")
    queue.execute("""
        insert into drover.jobqueue (jq_pk, jq_type, jq_job_fk) overriding system value
        select 9223372036854775807 - n, 'noop', 9223372036854775807 from generate_series(0, 249) n""")
    queue.execute("select drover.announce(array_agg(jq_pk), array_agg('cancelled'::text)) from drover.jobqueue")
    heard = _heard(queue, "drover_event")
    assert sum(len(json.loads(text)) for text in heard) == 250
    assert max(map(len, heard)) < 8000
