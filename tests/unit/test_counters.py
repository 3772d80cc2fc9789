"""What the core counts for `drover metrics`, and that it is counted once."""

from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import counters as c
from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from tests.core_tools import claim, make_core, ready, sent, settle, spawned, turn

EXEC = {"sha": AgentType(command=("agent",), kind="exec")}


def test_plain_end_is_counted_with_its_time_once() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert sent(core)
    core.agent_output(slot.number, b"OK\n", 0.3)
    counted = core.report.take_counted()
    assert counted[c.ENDED, "sha", "done", "normal"] == 1
    assert (counted[c.RAN, "sha", "0.5"], round(counted["ran_seconds", "sha"], 6)) == (1, 0.3)
    assert round(counted[c.WORKED, "sha"], 6) == 0.3
    assert core.report.take_counted() == {}


def test_time_of_a_plain_end_begins_when_an_agent_gets_the_line() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 50.0)
    core.schedule(50.0)
    assert sent(core, 50.0)
    core.agent_output(number, b"OK\n", 50.3)
    ((_, _, _, bin),) = [key for key in core.report.take_counted() if key[0] == c.ENDED_PLAINLY]
    assert c.BIN_BOUNDS[int(bin) - 1] < 0.3 <= c.BIN_BOUNDS[int(bin)]


def test_failed_end_is_left_to_the_database_but_for_its_time() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert sent(core)
    core.agent_output(slot.number, b"FAIL no\nOK\n", 2.0)
    settle(core, 2.0)
    counted = core.report.take_counted()
    assert not [key for key in counted if key[0] == c.ENDED]
    assert counted[c.RAN, "sha", "5"] == 1


def test_run_time_of_a_job_in_slices_is_that_of_all_slices() -> None:
    core = make_core()
    turn(core, claim(1, msq=True, elapsed=100.0))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 0), 3.0)
    counted = core.report.take_counted()
    assert (counted["ran_seconds", "sha"], counted[c.RAN, "sha", "300"]) == (103.0, 1)


def test_job_that_goes_back_to_the_queue_has_not_run() -> None:
    core = make_core()
    turn(core, claim(1))
    core.handle(e.Stop(), 1.0)
    settle(core, 1.0)
    assert not [key for key in core.report.take_counted() if key[0] in (c.ENDED, c.RAN)]


def test_start_and_death_of_an_agent_are_counted_by_host() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.handle(e.Gone(slot.number, signal="SIGSEGV"), 1.0)
    counted = core.report.take_counted()
    assert (counted[c.SPAWNED, "sha", "alpha"], counted[c.DIED, "sha", "alpha", "died"]) == (1, 1)


def test_agent_that_was_asked_to_end_has_not_died_by_itself() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert sent(core)
    core.agent_output(slot.number, b"OK\n", 0.1)
    core.tick(10_000.0)
    core.handle(e.Gone(slot.number, code=0), 10_000.0)
    assert core.report.take_counted()[c.DIED, "sha", "alpha", "asked"] == 1


def test_end_of_a_command_is_no_death() -> None:
    core = make_core(EXEC)
    turn(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Created(0, 100), 0.0)
    core.handle(e.Gone(0, code=3), 1.0)
    assert core.report.take_counted()[c.DIED, "sha", "alpha", "exited"] == 1


def test_process_that_was_not_made_is_counted() -> None:
    core = make_core()
    turn(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.NotCreated(0, "no such file"), 0.0)
    counted = core.report.take_counted()
    assert (counted[c.DIED, "sha", "alpha", "not started"], (c.SPAWNED, "sha", "alpha") in counted) == (1, False)


def test_every_time_has_a_bucket() -> None:
    assert len(c.BUCKETS) == len(c.BOUNDS) + 1
    assert [float(bucket) for bucket in c.BUCKETS[:-1]] == list(c.BOUNDS)
    assert sorted(c.BOUNDS) == list(c.BOUNDS)


def test_rows_have_name_labels_and_value() -> None:
    counted: c.Counted = {}
    c.add(counted, (c.DIED, "sha", "alpha", "died"), 2)
    c.add(counted, (c.DIED, "sha", "alpha", "died"), 1)
    assert c.as_rows(counted) == [{"name": "died", "labels": ["sha", "alpha", "died"], "value": 3}]


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_its_error_of_the_time_that_it_stands_for(times: list[float], part: float) -> None:
    bins = Counter(bisect_left(c.BIN_BOUNDS, seconds) for seconds in times)
    wanted = sorted(times)[int(part * (len(times) - 1))]
    assert abs(c.quantile(bins, part) - wanted) <= c.BIN_ERROR * wanted


def test_times_beyond_the_last_bin_are_as_long_as_the_last() -> None:
    assert c.quantile({len(c.BIN_BOUNDS): 1}, 0.5) == pytest.approx(c.BIN_BOUNDS[-1] * c.TO_MIDDLE)


def test_times_are_taken_with_their_sum_and_begin_anew() -> None:
    times = c.Times()
    times.add(0.1, 2)
    times.add(0.11, 1)
    times.add(1e9, 1)
    taken = {(c.RAN, "md5", "0.1"): 2, (c.RAN, "md5", "0.5"): 1, (c.RAN, "md5", "+Inf"): 1}
    assert dict(times.take(c.RAN, "md5")) == taken | {("ran_seconds", "md5"): pytest.approx(1e9 + 0.31)}
    assert dict(times.take(c.RAN, "md5")) == {}
