"""Claims about requests to the queue: halves and unions have every row once, and a row is read as it was written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.queue_requests import (
    ClaimRequest,
    End,
    EndAndClaim,
    FindLocked,
    ItemFailure,
    LogRow,
    Mark,
    MarkRow,
    OutputRow,
    ReadContents,
    RecordInHand,
    Request,
    Rules,
    Save,
    SaveRow,
    Settle,
    WriteLog,
    WriteOutput,
    about_rows,
    careful,
    halves_of,
    in_words,
    joined,
    read_claim,
    read_contents,
)

WANTED = ClaimRequest("md5", "night", "", False, 10)


def end(pk: int) -> End:
    return End(pk, 1, 2, 3, "alpha", 4, None)


def log(pk: int | None) -> LogRow:
    return LogRow(pk, "md5", None, None, None, "x")


def failure(pk: int) -> ItemFailure:
    return ItemFailure(pk, 1, None, "a", "alpha", "md5", 4, "b")


def output(pk: int) -> OutputRow:
    return OutputRow(pk, 1, 1, "out", "x")


def requests(pks: list[int]) -> list[Request]:
    return [
        EndAndClaim([end(pk) for pk in pks], ()),
        Save([SaveRow(pk, 1, "done") for pk in pks], [failure(pk) for pk in pks]),
        Mark([MarkRow(pk, 1, "running", 5) for pk in pks]),
        WriteLog([log(pk) for pk in pks]),
        Settle(pks),
    ]


@given(st.lists(st.integers(1, 99), unique=True, min_size=2, max_size=9))
def test_halves_have_every_row_once_and_are_the_request_when_joined(pks: list[int]) -> None:
    for request in requests(pks):
        one, other = halves_of(request)
        assert joined(one, other) == request
        assert {_size(one), _size(other)} <= {len(pks) // 2, len(pks) - len(pks) // 2}


def _size(request: Any) -> int:
    return len(request.parents if isinstance(request, Settle) else getattr(request, "rows", None) or request.ends)


def test_what_cannot_be_joined_again_is_halved_too() -> None:
    assert halves_of(ReadContents([(1, 2), (3, 4)])) == [ReadContents([(1, 2)]), ReadContents([(3, 4)])]
    assert halves_of(WriteOutput([output(1), output(2)], [2])) == [
        WriteOutput([output(1)], [2]), WriteOutput([output(2)], [2]),
    ]  # fmt: skip


def test_a_request_of_one_row_has_no_halves() -> None:
    one: list[Request] = [*requests([1]), ReadContents([(1, 1)]), WriteOutput([output(1)])]
    none: list[Request] = [RecordInHand([1, 2]), FindLocked(Mark([MarkRow(pk, 1, "running", 5) for pk in (1, 2)]))]
    assert [halves_of(request) for request in (*one, *none)] == [[]] * len(one + none)


def test_only_the_first_half_of_settling_goes_on_beyond_a_child() -> None:
    assert halves_of(Settle([1, 2], 7)) == [Settle([1], 7), Settle([2])]


def test_a_parent_is_settled_once() -> None:
    assert joined(Settle([1, 2]), Settle([2, 3])) == Settle([1, 2, 3])


@pytest.mark.parametrize(("one", "other"), [
    (Settle([1], 7), Settle([2])), (Settle([1]), Settle([2], 7)), (Mark([]), Save([])), (Save([]), EndAndClaim([], ())),
    (WriteOutput([output(1)]), WriteOutput([output(2)])), (ReadContents([]), ReadContents([])),
])  # fmt: skip
def test_requests_of_other_kinds_are_not_joined(one: Request, other: Request) -> None:
    assert joined(one, other) is None


def test_a_part_has_the_rows_that_are_named_and_claims_nothing() -> None:
    asked = EndAndClaim([end(1), end(2)], [WANTED], unread=True)
    assert asked.part({2}) == EndAndClaim([end(2)], ())
    saved = Save([SaveRow(1, 1, "done"), SaveRow(2, 1, "done")], [failure(1), failure(2)])
    assert saved.part({2}) == Save([SaveRow(2, 1, "done")], [failure(2)])


def test_a_careful_request_asks_first_which_rows_are_locked() -> None:
    mark, nothing = Mark([MarkRow(1, 1, "running", 5)]), Mark([])
    assert (careful(mark), careful(nothing), careful(Settle([1]))) == (FindLocked(mark), nothing, Settle([1]))
    assert (about_rows(FindLocked(mark)), about_rows(mark), about_rows(Settle([1]))) == (mark, mark, None)


@pytest.mark.parametrize(("request_", "words"), [
    (WriteLog([log(7)]), "to save a log line of job 7"),
    (WriteLog([log(None)]), "to save a log line"),
    (WriteOutput([output(7)]), "to save output of job 7"),
    (ReadContents([(7, 1)]), "to read job 7"),
    (Settle([7]), "to let go what waits for job 7"),
    *[(request, "to save job 7") for request in requests([7])[:3]],
    (EndAndClaim([], [WANTED]), "a request"),
    (RecordInHand([7]), "a request"),
])  # fmt: skip
def test_a_request_of_one_row_is_told_in_words(request_: Request, words: str) -> None:
    assert in_words(request_) == words


def test_a_row_is_saved_with_what_it_says() -> None:
    row = SaveRow(1, 2, "queued", failures=0, back=True, text="")
    assert row.as_dict() == {"pk": 1, "attempt": 2, "state": "queued", "failures": 0, "back": True, "text": ""}


@pytest.mark.parametrize(("urgent", "letters", "start", "below"), [
    (False, None, "", "2"), (True, None, "", "1"), (False, ("a", "g"), "1a", "1g"), (True, ("a", "g"), "0a", "0g"),
])  # fmt: skip
def test_a_place_begins_and_ends_at_ranks(urgent: bool, letters: Any, start: str, below: str) -> None:
    wanted = WANTED._replace(urgent=urgent, letters=letters)
    assert (wanted.start.rank, wanted.below) == (start, below)


def test_a_claimed_row_is_read_with_the_request_that_it_answers() -> None:
    other = WANTED._replace(type="sha")
    claim = read_claim((b"7", b"2", b"2", b"arg", b"1n", None, b"t"), [WANTED, other])
    assert (claim.pk, claim.attempt, claim.args, claim.rank, claim.request, claim.rules, claim.is_marked) == (
        7, 2, b"arg", b"1n", other, Rules(), True,
    )  # fmt: skip
    assert not read_claim((b"7", b"1", b"1", None, None, None, b"f"), [WANTED]).is_marked


def test_the_round_of_a_fair_type_is_no_part_of_the_rank() -> None:
    longest, round_ = b"1" + b"n" * 16, b"0" * 16
    claims = [read_claim((b"7", b"1", b"1", b"", rank, None, b"f"), [WANTED]) for rank in (longest, b"1n" + round_)]
    assert [claim.rank for claim in claims] == [longest, b"1n"]


def rules(more: bytes) -> Rules:
    return read_claim((b"7", b"1", b"1", b"", b"1n", more, b"f"), [WANTED]).rules


def test_rules_of_a_row_are_an_object_or_the_submitter_alone() -> None:
    assert rules(b'"ann"') == Rules(submitter="ann")
    assert rules(b'{"retries": 3, "timeout": null}') == Rules(retries=3)


def test_a_slice_without_a_key_begins_anew_and_with_one_goes_on_from_its_checkpoint() -> None:
    checkpoint = b'"checkpoint": {"itemsprocessed": 5, "itemsfailed": 1}'
    assert rules(b'{"itemsprocessed": 8, %s}' % checkpoint) == Rules(itemsprocessed=5, itemsfailed=1)
    with_key = rules(b'{"key": "k", "itemsprocessed": 8, %s}' % checkpoint)
    assert (with_key.itemsprocessed, with_key.itemsfailed) == (5, 0)
    assert with_key.checkpoint == {"itemsprocessed": 5, "itemsfailed": 1}
    assert rules(b'{"key": "k", "itemsprocessed": 8, "checkpoint": {}}').itemsprocessed == 8


def test_contents_that_are_read_later_complete_the_rules() -> None:
    read = read_contents(Rules(unread=True, retries=2), b'{"checkpoint": {"itemsprocessed": 5}, "variables": null}')
    assert read == Rules(retries=2, itemsprocessed=5)
    with_key = read_contents(Rules(unread=True, key="k"), b'{"checkpoint": {"itemsprocessed": 5}}')
    assert with_key == Rules(key="k", checkpoint={"itemsprocessed": 5})
