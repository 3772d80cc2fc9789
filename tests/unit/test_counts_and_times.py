"""What the row of a job says of its items while they are worked, and of its time over all its attempts."""

from typing import Any

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.queue_requests import ClaimRequest, SaveRow, read_claim
from scheduler.policy.core import Core
from scheduler.policy.slots import Slot
from tests.core_tools import claim, logged, make_core, ready, saved, settle, spawned, turn


def query(core: Core, *keys: bytes, now: float = 0.0, **rules: Any) -> Slot:
    """Take a query with these keys in hand, and let an agent work its first row."""
    turn(core, claim(1, msq=True, key="k", **rules), now=now)
    core.take_effects(now)
    core.handle(e.Opened(1, (b"k",), len(keys)), now)
    core.handle(e.Fetched(1, [(key,) for key in keys], more=False), now)
    return start(core, now)


def start(core: Core, now: float = 0.0) -> Slot:
    """Start an agent that gets its first line."""
    (number,) = spawned(core, now)
    core.handle(e.Created(number, 100), now)
    core.agent_output(number, b"OK\n", now)
    core.take_effects(now)
    return core.state.slots.all[number]


def shown(core: Core, now: float) -> list[SaveRow]:
    """Let a second pass; return the rows that are saved then."""
    core.tick(now)
    return saved(settle(core, now))


def at_work(core: Core, **rules: Any) -> Slot:
    """Let an agent work the one line of job 1."""
    slot = ready(core, claim(1, **rules))
    core.take_effects(0.0)
    settle(core)
    return slot


# ---- ItemsProcessed


def test_item_count_of_a_running_line_is_saved_once_a_second_if_it_changed_f158() -> None:
    core = make_core()
    slot = at_work(core)
    core.agent_output(slot.number, b"ItemsProcessed 3\nItemsProcessed 4\n", 0.1)
    (row,) = shown(core, 1.1)
    assert (row.state, row.processed, row.outcome) == ("running", 7, None)
    assert shown(core, 2.2) == []


def test_item_count_that_was_saved_is_counted_once_at_ok_f158() -> None:
    core = make_core()
    slot = at_work(core)
    core.agent_output(slot.number, b"ItemsProcessed 1\n", 0.1)
    assert shown(core, 1.1)[0].processed == 1
    core.agent_output(slot.number, b"OK\n", 1.2)
    (row,) = saved(settle(core, 1.2))
    assert (row.state, row.processed) == ("done", 1)


def test_item_count_of_a_job_that_fails_for_good_is_kept_f158() -> None:
    core = make_core()
    slot = at_work(core)
    core.agent_output(slot.number, b"ItemsProcessed 5\nFAIL the rest\nOK\n", 0.1)
    (row,) = saved(settle(core, 0.1))
    assert (row.state, row.processed) == ("failed", 5)


def test_item_count_of_a_job_whose_agent_dies_or_is_killed_is_kept_f158() -> None:
    core = make_core()
    slot = at_work(core)
    core.agent_output(slot.number, b"ItemsProcessed 5\n", 0.1)
    core.kill(1, "killed", 0.2)
    core.handle(e.Gone(slot.number, None, "SIGHUP"), 0.3)
    (row,) = saved(settle(core, 0.3))
    assert (row.state, row.processed) == ("failed", 5)


def test_item_count_of_a_repeated_try_is_taken_back_f158() -> None:
    core = make_core()
    slot = at_work(core, retries=1)
    core.agent_output(slot.number, b"ItemsProcessed 5\nFAIL once\nOK\n", 0.1)
    (row,) = saved(settle(core, 0.1))
    assert (row.state, row.processed) == ("queued", 0)


def test_item_count_of_a_query_is_live_and_not_in_its_checkpoint_f158() -> None:
    core = make_core()
    slot = query(core, b"1", b"2", itemsprocessed=100)
    core.agent_output(slot.number, b"ItemsProcessed 10\nOK\n", 0.1)
    core.agent_output(slot.number, b"ItemsProcessed 7\n", 0.1)
    (row,) = shown(core, 1.1)
    assert (row.processed, row.checkpoint) == (117, {"watermark": "1", "beyond": [], "itemsprocessed": 110})
    core.agent_output(slot.number, b"ItemsProcessed 1\nOK\n", 1.2)
    (row,) = saved(settle(core, 1.2))
    assert (row.state, row.processed, row.checkpoint) == ("done", 118, {"watermark": "2", "beyond": []})


def test_keyed_query_that_was_cut_short_counts_on_from_its_checkpoint_f158() -> None:
    more = b'{"msq": true, "key": "k", "itemsprocessed": 117, "checkpoint": {"watermark": "1", "itemsprocessed": 110}}'
    claimed = read_claim((b"1", b"2", b"1", b"x", b"1n", more, b"t"), [ClaimRequest("sha", "default", "", False, 1)])
    assert claimed.rules.itemsprocessed == 110


def test_item_count_of_a_query_item_that_fails_for_good_is_kept_f158() -> None:
    core = make_core()
    slot = query(core, b"1", tolerate=1)
    core.agent_output(slot.number, b"ItemsProcessed 5\nFAIL the rest\nOK\n", 0.1)
    (row,) = saved(settle(core, 0.1))
    assert (row.state, row.processed, row.failed) == ("done", 5, 1)


def test_item_count_of_the_first_try_of_an_item_is_taken_back_f158() -> None:
    core = make_core()
    slot = query(core, b"1")
    core.agent_output(slot.number, b"ItemsProcessed 5\n", 0.1)
    core.handle(e.Gone(slot.number, 1, None), 0.2)
    again = start(core, 0.3)
    core.agent_output(again.number, b"ItemsProcessed 8\nOK\n", 0.4)
    (row,) = saved(settle(core, 0.4))
    assert (row.state, row.processed, row.failed) == ("done", 8, 0)


def test_item_count_reported_without_an_item_is_a_warning_only_f158() -> None:
    core = make_core()
    slot = at_work(core)
    core.agent_output(slot.number, b"OK\nItemsProcessed 5\n", 0.1)
    assert [(job, kind) for job, kind, _ in logged(core)] == [(1, "WARNING")]
    turn(core, claim(2), now=0.2)
    core.take_effects(0.2)
    core.agent_output(slot.number, b"OK\n", 0.3)
    ((end,),) = [request.ends for request in settle(core, 0.3) if isinstance(request, r.EndAndClaim) and request.ends]
    assert end.pk == 2


# ---- times


def test_times_of_a_query_add_up_over_its_attempts_f159() -> None:
    core = make_core()
    slot = query(core, b"1", now=100.0, elapsed=10.0, busy=4.0)
    core.agent_output(slot.number, b"OK\n", 103.0)
    (row,) = saved(settle(core, 103.0))
    assert (row.elapsed, row.busy, row.took) == (13.0, 7.0, 3.0)


def test_times_of_a_one_parameter_job_are_those_of_its_last_attempt_f159() -> None:
    core = make_core()
    slot = at_work(core, retries=1)
    core.agent_output(slot.number, b"FAIL once\nOK\n", 3.0)
    (row,) = saved(settle(core, 3.0))
    assert (row.elapsed, row.busy, row.took) == (3.0, 3.0, 3.0)
