"""Claims that fail on the data of a row, and rows that daemons died with: what they hold is read of each alone."""

from typing import Any

import pytest

from scheduler.model.events_and_effects import ContentsRead, NotSaved, Stop
from scheduler.model.queue_requests import (
    SUSPECT_AFTER,
    Claim,
    ClaimRequest,
    End,
    EndAndClaim,
    ReadContents,
    Request,
    Save,
    SaveRow,
)
from scheduler.policy.core import Core
from scheduler.policy.deadlines import Deadlines
from scheduler.policy.job import TRIED_ALONE
from scheduler.policy.outbox import Outbox
from scheduler.policy.query_progress import IN_PROGRESS
from tests.core_tools import answer_to, claim, make_core, saved, settle, turn, turned

WANT = ClaimRequest("sha", "default", "", False, 1)
REFUSED = NotSaved("data", "54000: string too long")


def request(core: Core, kind: type[Any]) -> Any:
    """Answer what the core wants otherwise, until it asks for this."""
    while not isinstance(found := core.next_request(0.0), kind):
        assert found is not None
        core.handle(answer_to(found), 0.0)
    return found


def unread(pk: int, **rules: Any) -> Claim:
    return claim(pk, unread=True, **rules)._replace(args=b"")


def read(core: Core, *pks: int) -> None:
    core.handle(ContentsRead({pk: (b"item %d" % pk, b"{}") for pk in pks}), 0.0)


def rows_of(asked: Request) -> list[SaveRow]:
    assert isinstance(asked, Save)
    return list(asked.rows)


@pytest.fixture
def core() -> Core:
    """Return a core whose last claim failed on data and was made again, without the data, for three rows."""
    core = make_core()
    request(core, EndAndClaim)
    core.handle(REFUSED, 0.0)
    assert request(core, EndAndClaim).unread
    core.handle(turned(unread(1), unread(2), unread(3)), 0.0)
    return core


def test_end_sent_with_a_failed_claim_is_saved_later() -> None:
    ledger, end = Outbox(Deadlines()), End(7, 1, 200_000, 100_000, "here", 99, None)
    ledger.ends.append(end)
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([end], [WANT])
    assert "a claim failed on the data of a row" in str(ledger.failed(REFUSED, 0.0))
    assert ledger.next_request([WANT], 0.0) == EndAndClaim([end], ())


def test_suspect_rows_are_read_before_other_claims(core: Core) -> None:
    assert core.next_request(0.0) == ReadContents([(1, 1), (2, 1), (3, 1)])


def test_row_that_cannot_be_read_fails_alone_with_the_reason(core: Core) -> None:
    for part in [[(1, 1), (2, 1), (3, 1)], [(1, 1)]]:
        assert core.next_request(0.0) == ReadContents(part)
        core.handle(REFUSED, 0.0)
    assert core.next_request(0.0) == ReadContents([(2, 1), (3, 1)])
    read(core, 2, 3)
    (end,) = saved(settle(core))
    assert (end.pk, end.state, "cannot be read: 54000: string too long" in end.text) == (1, "failed", True)
    assert [(job.pk, job.args) for job in core.state.jobs.values()] == [(2, b"item 2"), (3, b"item 3")]


def test_claims_are_normal_again_after_one_success(core: Core) -> None:
    request(core, ReadContents)
    read(core, 1, 2, 3)
    core.state.claims.wake()
    core.state.pools["sha"].rate = 1e6
    core.state.may_want_more = True
    assert not request(core, EndAndClaim).unread


def test_claim_that_fails_without_data_too_is_made_row_by_row() -> None:
    core = make_core()
    for _ in range(2):
        request(core, EndAndClaim)
        core.handle(REFUSED, 0.0)
    asked = request(core, EndAndClaim)
    assert (len(asked.wanted), asked.wanted[0].most, asked.unread) == (1, 1, True)


def test_row_given_back_unread_keeps_its_counts_and_checkpoint(core: Core) -> None:
    core.handle(Stop(), 0.0)
    backs = saved(settle(core))
    assert [(row.pk, row.state) for row in backs] == [(1, "queued"), (2, "queued"), (3, "queued")]
    assert {(row.processed, row.failed, row.total, row.checkpoint) for row in backs} == {(None, None, None, None)}


def test_suspect_rows_are_marked_and_read_one_by_one() -> None:
    core = make_core()
    turn(core, unread(1, rescued=SUSPECT_AFTER), unread(2, rescued=SUSPECT_AFTER))
    (row,) = rows_of(core.next_request(0.0))
    assert (row.pk, row.state, row.text) == (1, "running", TRIED_ALONE)
    core.handle(answer_to(Save([row])), 0.0)
    assert request(core, ReadContents).rows == [(1, 1)]
    read(core, 1)
    (first,) = rows_of(request(core, Save))
    assert (first.pk, first.text) == (1, IN_PROGRESS)
    core.handle(answer_to(Save([first])), 0.0)
    (second,) = rows_of(core.next_request(0.0))
    assert (second.pk, second.text) == (2, TRIED_ALONE)
    core.handle(answer_to(Save([second])), 0.0)
    assert request(core, ReadContents).rows == [(2, 1)]


def test_suspect_row_starts_when_its_mark_is_cleared() -> None:
    core = make_core()
    turn(core, unread(1, rescued=SUSPECT_AFTER))
    core.handle(answer_to(core.next_request(0.0)), 0.0)
    request(core, ReadContents)
    read(core, 1)
    save = request(core, Save)
    assert core.state.pools["sha"].singles == 0
    core.handle(answer_to(save), 0.0)
    assert core.state.pools["sha"].singles == 1 or any(slot.job for slot in core.state.slots.all)


def test_cancelled_suspect_row_lets_the_next_one_be_tried() -> None:
    core = make_core()
    turn(core, unread(1, rescued=SUSPECT_AFTER), unread(2, rescued=SUSPECT_AFTER))
    core.handle(answer_to(core.next_request(0.0)), 0.0)
    core.cancel(1, "not wanted", 0.0)
    texts = [(row.pk, row.text) for row in saved(settle(core))]
    assert texts == [(1, "not wanted"), (2, TRIED_ALONE), (2, IN_PROGRESS)]
