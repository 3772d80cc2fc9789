"""Claims about checkpoints: what is kept says exactly what was done, however the items end."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.sql_text import cursor_query
from scheduler.policy.query_progress import KeyProgress

ORDERS = st.integers(0, 30).flatmap(lambda count: st.tuples(st.permutations(range(count)), st.integers(0, count)))


def key(number: int) -> str:
    return f"{number:03d}"


def kept(progress: KeyProgress, count: int) -> set[int]:
    """Return the items that a later attempt would not see."""
    below = "" if progress.watermark is None else progress.watermark
    return {
        n for n in range(count) if key(n) <= below or any(first <= key(n) <= last for first, last in progress.beyond)
    }


@given(ORDERS)
def test_a_checkpoint_holds_exactly_the_finished_keys(case: tuple[list[int], int]) -> None:
    order, ended = case
    progress = KeyProgress(None)
    for number in order[:ended]:
        progress.finish(number, key(number))
    assert kept(progress, len(order)) == set(order[:ended])


@given(ORDERS)
def test_a_checkpoint_has_no_more_ranges_than_gaps(case: tuple[list[int], int]) -> None:
    order, ended = case
    progress = KeyProgress(None)
    for number in order[:ended]:
        progress.finish(number, key(number))
    assert len(progress.beyond) <= len(order) - ended


@given(ORDERS)
def test_a_finished_query_leaves_a_watermark_only(case: tuple[list[int], int]) -> None:
    order, _ = case
    progress = KeyProgress(None)
    for number in order:
        progress.finish(number, key(number))
    assert progress.checkpoint() == {"watermark": key(len(order) - 1) if order else None, "beyond": []}


def test_a_later_attempt_goes_on_from_the_checkpoint() -> None:
    first = KeyProgress(None)
    for number in (0, 2, 3):
        first.finish(number, key(number))
    later = KeyProgress(first.checkpoint())
    assert cursor_query("x", "k", later.watermark, later.beyond).count("not between E'002' and E'003'") == 1
    later.finish(0, key(1))
    assert (later.watermark, later.beyond) == (key(1), [(key(2), key(3))])


@given(st.integers(2, 12).flatmap(lambda count: st.tuples(st.permutations(range(count)), st.integers(0, count))))
def test_retried_items_do_not_move_the_watermark_back_r7(case: tuple[list[int], int]) -> None:
    order, ended = case
    count = len(order) // 2  # the first half failed before, each second of ten that were done; the rest is new
    failed, new = [2 * n for n in range(count)], [100 + n for n in range(len(order) - count)]
    keys = [key(n) for n in failed + new]
    progress = KeyProgress({"watermark": key(99), "beyond": [], "again": keys[:count]})
    for number in order[:ended]:
        progress.finish(number, keys[number])
    later = KeyProgress(progress.checkpoint())
    done = {keys[number] for number in order[:ended]}
    assert later.again == sorted(set(keys[:count]) - done)
    assert kept(later, 200) == set(range(100)) | {n for n in new if key(n) in done}


def test_a_query_returns_items_to_retry_r7() -> None:
    where = " where q.\"k\" is null or (q.\"k\" > E'b') or q.\"k\" in ( E'a', E'''')"
    assert cursor_query("x", "k", "b", [], ["a", "'"]).startswith(f"select * from (x\n) q{where} order by ")
    assert " in " not in cursor_query("x", "k", None, [], ["a"])
