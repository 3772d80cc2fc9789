"""Claims about the query of a job in hand: its rows, its batches, its second tries, and what the next program knows."""

import json
from dataclasses import replace

import pytest

from scheduler.model.protocol import Item, Row
from scheduler.model.queue_requests import ItemFailure, Rules
from scheduler.model.states import QueryEvent, QueryState
from scheduler.policy.query_progress import FIRST_BATCH, ROW_BYTES, JobQuery

PLAIN = Rules(msq=True)
KEYED = replace(PLAIN, key="n")
LINE = 10  # bytes


def line(row: Row) -> bytes:
    return b"%9s\n" % row[0]


def rows(first: int, last: int) -> list[Row]:
    return [(b"%d" % number,) for number in range(first, last + 1)]


def opened(total: int, rules: Rules = PLAIN, now: float = 1.0) -> JobQuery:
    """Return a query that ran and has so many rows."""
    query = JobQuery(rules)
    query.fire(QueryEvent.ASKED)
    query.opened(total, now)
    query.read_as(line, 0 if rules.key else None, None, is_raw=False)
    return query


def fetch(query: JobQuery, first: int, last: int) -> list[Item]:
    """Fetch these rows, of which more are to come."""
    query.fire(QueryEvent.FETCH)
    query.fire(QueryEvent.FETCHED)
    items = query.items_of(rows(first, last), keep_rows=False)
    query.size_batch(items, 1000, 1000 * LINE)
    return items


def keep(query: JobQuery, count: int, *, stays: bool = False) -> None:
    query.fire(QueryEvent.KEEP)
    query.keep(count, stays=stays)


# ---- rows


def test_a_new_query_has_nothing_yet() -> None:
    query = JobQuery(PLAIN)
    assert (query.bytes_left, query.batch, query.stays, query.is_raw) == (0, FIRST_BATCH, False, False)
    assert (query.has_connection, query.has_run, query.left) == (False, False, (None, [], []))


@pytest.mark.parametrize(("total", "state"), [(3, QueryState.OPEN), (0, QueryState.EXHAUSTED)])
def test_a_query_without_rows_has_all_of_them(total: int, state: QueryState) -> None:
    query = opened(total)
    assert (query.state, query.total, query.has_connection, query.has_run) == (state, total, True, True)


def test_items_are_numbered_on_over_all_batches() -> None:
    query = opened(5)
    first, second = fetch(query, 1, 3), fetch(query, 4, 5)
    assert [(item.number, item.line, item.key, item.row) for item in first + second] == [
        (number, b"%9d\n" % (number + 1), None, ()) for number in range(5)
    ]


def test_items_of_a_command_have_their_row_and_of_a_query_with_a_key_that() -> None:
    query = opened(2, KEYED)
    (item, _) = query.items_of(rows(1, 2), keep_rows=True)
    assert (item.key, item.row, query.last_key) == (b"1", (b"1",), b"2")


def test_rows_in_a_file_and_rows_that_were_fetched_are_counted_once() -> None:
    query = opened(30)
    left = []
    fetch(query, 1, 10)
    left.append(query.bytes_left)
    keep(query, 15)
    left.append(query.bytes_left)
    fetch(query, 11, 20)
    left.append(query.kept)
    fetch(query, 21, 25)
    left.append(query.kept)
    fetch(query, 26, 28)
    assert left == [20 * (LINE + ROW_BYTES), 5 * (LINE + ROW_BYTES), 5, 0]
    assert (query.kept, query.bytes_left) == (0, 2 * (LINE + ROW_BYTES))


def test_a_file_that_takes_no_more_rows_stays_so_until_the_query_is_run_again() -> None:
    query = opened(30)
    fetch(query, 1, 10)
    keep(query, 5, stays=True)
    assert query.stays
    query.begin_anew()
    assert (query.stays, query.fetched, query.kept, query.total, query.state) == (False, 0, 0, 0, QueryState.WAITING)
    assert query.needs_bytes == 30 * (LINE + ROW_BYTES)


def test_a_query_that_is_run_again_goes_on_counting_and_began_when_it_first_ran() -> None:
    query = opened(30, KEYED, now=1.0)
    fetch(query, 1, 10)
    query.fire(QueryEvent.CLOSED)
    assert (query.has_connection, query.has_run) == (False, True)
    query.fire(QueryEvent.ASKED)
    query.opened(20, 5.0)
    assert (query.opened_at, query.total, query.fetched) == (1.0, 30, 10)


@pytest.mark.parametrize(
    ("lines", "most", "most_bytes", "batch"),
    [([10, 30], 100, 1000, 50), ([10, 30], 40, 1000, 40), ([500], 100, 100, 1), ([], 100, 1000, FIRST_BATCH)],
)
def test_a_batch_has_as_many_rows_as_fit(lines: list[int], most: int, most_bytes: int, batch: int) -> None:
    query = JobQuery(PLAIN)
    query.size_batch([Item(b"x" * size, 0) for size in lines], most, most_bytes)
    assert (query.batch, query.low) == (batch, batch // 2 if lines else 0)


# ---- what a later run leaves out


def test_a_query_is_run_again_behind_the_last_row_that_was_fetched() -> None:
    checkpoint = {"watermark": "4", "beyond": [["6", "7"]], "again": ["2", "3"]}
    query = opened(9, replace(KEYED, checkpoint=checkpoint))
    assert query.left == ("4", [("6", "7")], ["2", "3"])
    fetch(query, 2, 2)
    assert query.left == ("2", [("6", "7")], ["3"])


def test_an_item_that_failed_is_not_repeated_by_the_next_attempt() -> None:
    query = opened(3, KEYED)
    items = fetch(query, 1, 3)
    failure = ItemFailure(7, 1, "1", "line", "", "sha", None, "no")
    query.item_failed(items[0], failure)
    query.item_failed(items[2], replace_key(failure, None))
    assert query.progress is not None
    assert query.progress.checkpoint() == {"watermark": "1", "beyond": []}
    assert (query.take_failures(), query.take_failures()) == ([failure, replace_key(failure, None)], [])


def replace_key(failure: ItemFailure, key: str | None) -> ItemFailure:
    return replace(failure, key=key)


# ---- second tries


def test_an_item_is_spared_until_its_second_try_ends() -> None:
    query, item = opened(2), Item(b"x\n", 4)
    query.try_again(item, spared=True)
    query.try_again(item, spared=True)
    query.end_second_try(item)
    assert (query.second_tries, query.spared) == ([item], {4})
    query.end_second_try(item)
    query.end_second_try(item)
    assert (query.second_tries, query.spared) == ([], set())


def test_an_item_whose_second_try_was_not_lost_is_not_spared_again() -> None:
    query, item = opened(2), Item(b"x\n", 4)
    query.try_again(item, spared=True)
    query.try_again(item, spared=False)
    assert query.spared == set()


def test_hosts_that_are_lost_with_second_tries_are_counted() -> None:
    query = JobQuery(PLAIN)
    assert [query.count_loss(is_second) for is_second in (False, True, False, True)] == [0, 1, 1, 2]


def test_a_query_that_is_stopped_tries_nothing_again() -> None:
    query = opened(2)
    query.try_again(Item(b"x\n", 0), spared=False)
    query.stop()
    assert query.second_tries == []


def test_what_a_row_says_is_new_once() -> None:
    query = JobQuery(PLAIN)
    assert [query.show(text) for text in ("in progress", "tried alone", "tried alone", "in progress")] == [
        False,
        True,
        False,
        True,
    ]


# ---- the next program


@pytest.mark.parametrize("rules", [PLAIN, KEYED], ids=["without a key", "with a key"])
def test_the_next_program_goes_on_with_a_query(rules: Rules) -> None:
    query, later = opened(9, rules), JobQuery(rules)
    items = fetch(query, 1, 4)
    query.try_again(items[1], spared=True)
    query.count_loss(is_second_try=True)
    query.show("tried alone")
    query.item_failed(items[2], ItemFailure(7, 1, "3" if rules.key else None, "line", "", "sha", None, "no"))
    later.restore(json.loads(json.dumps(query.snapshot())))
    assert later.snapshot() == query.snapshot()
    assert (later.second_tries, later.spared, later.failures) == (query.second_tries, {1}, query.failures)
    assert (later.state, later.left) == (QueryState.WAITING, query.left)


def test_a_query_whose_rows_are_all_fetched_is_not_run_again_by_the_next_program() -> None:
    query, later = opened(0), JobQuery(PLAIN)
    later.restore(json.loads(json.dumps(query.snapshot())))
    assert later.state is QueryState.EXHAUSTED
