"""Claims about one turn: who is called, when, and who is not."""

import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from select import EPOLLHUP, EPOLLIN, EPOLLOUT

import pytest

from scheduler.drivers.loop import SLOW_S, Loop
from tests.loop_tools import turn_until

Pipe = tuple[int, int]


class Waits:
    """An epoll on which nothing happens: it waits as long as it is asked to, by the clock of a test."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock

    def poll(self, seconds: float, _most: int = 0) -> list[tuple[int, int]]:
        self._clock.now += seconds
        return []


@contextmanager
def waiting(loop: Loop, clock: "Clock") -> Iterator[None]:
    """Let a loop wait by the clock of a test, exactly as long as it means to."""
    epoll, loop._epoll = loop._epoll, Waits(clock)  # type: ignore[assignment]
    try:
        yield
    finally:
        loop._epoll = epoll


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(clock: Clock) -> Iterator[Loop]:
    """Yield a loop whose time the test tells."""
    loop = Loop(clock)
    yield loop
    loop.close()


@pytest.fixture
def pipe() -> Iterator[Callable[[], Pipe]]:
    """Make pipes; those still open are closed at the end."""
    made: list[int] = []

    def make() -> Pipe:
        made.extend(pair := os.pipe())
        return pair

    yield make
    for fd in made:
        os.close(fd)


def ready(pair: Pipe) -> int:
    """Return the reading end of a pipe that has something to read."""
    os.write(pair[1], b"x")
    return pair[0]


def test_callback_gets_the_events_of_its_descriptor(loop: Loop) -> None:
    reader, writer = os.pipe()
    masks: list[int] = []
    loop.register(reader, EPOLLIN, masks.append)
    os.write(writer, b"x")
    os.close(writer)
    loop.turn(inf)
    os.close(reader)
    assert masks == [EPOLLIN | EPOLLHUP]


def test_modify_waits_for_other_events(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    _, writer = pipe()
    masks: list[int] = []
    loop.register(writer, 0, masks.append)
    loop.turn(loop.now)
    loop.modify(writer, EPOLLOUT)
    loop.turn(inf)
    assert masks == [EPOLLOUT]


def test_a_descriptor_unregistered_in_this_turn_is_not_called(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    first, second = ready(pipe()), ready(pipe())
    called: list[int] = []

    def call(mine: int, other: int) -> None:
        called.append(mine)
        loop.unregister(other)

    loop.register(first, EPOLLIN, lambda _: call(first, second))
    loop.register(second, EPOLLIN, lambda _: call(second, first))
    loop.turn(inf)
    assert len(called) == 1


def test_a_reused_number_does_not_inherit_events(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    first, second, quiet = ready(pipe()), ready(pipe()), pipe()[0]
    called: list[str] = []

    def reuse(mine: int, other: int) -> None:
        loop.unregister(mine)
        loop.unregister(other)
        os.dup2(quiet, other)
        loop.register(other, EPOLLIN, lambda _: called.append("stranger"))
        called.append("reuse")

    loop.register(first, EPOLLIN, lambda _: reuse(first, second))
    loop.register(second, EPOLLIN, lambda _: reuse(second, first))
    loop.turn(inf)
    loop.turn(loop.now)
    assert called == ["reuse"]


def test_a_descriptor_registered_again_between_turns_is_called(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    reader = ready(pipe())
    masks: list[int] = []
    loop.register(reader, EPOLLIN, masks.append)
    loop.unregister(reader)
    loop.register(reader, EPOLLIN, masks.append)
    loop.turn(inf)
    assert masks == [EPOLLIN]


def test_unregistering_an_unknown_descriptor_is_harmless(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    fd = pipe()[0]
    loop.unregister(fd)
    loop.register(fd, EPOLLIN, lambda mask: None)
    with pytest.raises(FileExistsError):
        loop.register(fd, EPOLLIN, lambda mask: None)


def test_events_skipped_by_an_exception_are_delivered_next_turn(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    first, second = ready(pipe()), ready(pipe())
    called: list[int] = []

    def fail(fd: int) -> None:
        called.append(fd)
        loop.unregister(fd)
        raise ValueError("cut off")

    loop.register(first, EPOLLIN, lambda _: fail(first))
    loop.register(second, EPOLLIN, lambda _: fail(second))
    with pytest.raises(ValueError, match="cut off"):
        loop.turn(inf)
    with pytest.raises(ValueError, match="cut off"):
        loop.turn(inf)
    assert sorted(called) == sorted([first, second])


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_descriptors_above_1024_are_served(loop: Loop, pipe: Callable[[], Pipe]) -> None:
    reader = fcntl.fcntl(ready(pipe()), fcntl.F_DUPFD_CLOEXEC, 2000)
    masks: list[int] = []
    loop.register(reader, EPOLLIN, masks.append)
    loop.turn(inf)
    loop.unregister(reader)
    os.close(reader)
    assert masks == [EPOLLIN]


def test_timers_fire_in_order_when_due(timed: Loop, clock: Clock) -> None:
    rung: list[str] = []
    timed.at(103.0, lambda: rung.append("c"))
    timed.at(101.0, lambda: rung.append("a"))
    timed.at(101.0, lambda: rung.append("b"))
    clock.now = 102.0
    timed.turn(timed.now)
    assert rung == ["a", "b"]


def test_a_cancelled_timer_does_not_fire(timed: Loop, clock: Clock) -> None:
    rung: list[str] = []
    second = timed.at(101.0, lambda: rung.append("second"))
    timed.at(100.5, second.cancel)
    timed.at(101.0, lambda: rung.append("third"))
    clock.now = 102.0
    timed.turn(timed.now)
    assert rung == ["third"]


def test_cancelled_timers_are_forgotten_long_before_they_are_due_p4(timed: Loop, clock: Clock) -> None:
    called: list[int] = []
    for number in range(10_000):
        timed.at(600.0, partial(called.append, -number)).cancel()
        if number % 1000 == 0:
            timed.at(1.0 + number, partial(called.append, number))
    assert len(timed._timers) < 200
    clock.now = 9_500.0
    timed.turn(9_500.0)
    assert called == list(range(0, 10_000, 1000))


def test_a_timer_armed_for_now_by_a_timer_waits_for_the_next_turn(timed: Loop) -> None:
    rung: list[str] = []

    def again() -> None:
        rung.append("again")
        timed.at(0.0, again)

    timed.at(timed.now, again)
    timed.at(timed.now, lambda: rung.append("other"))
    timed.turn(inf)
    first = list(rung)
    timed.turn(inf)
    assert (first, rung) == (["again", "other"], ["again", "other", "again"])


def test_a_timer_ends_an_endless_wait(loop: Loop) -> None:
    rung: list[str] = []
    loop.at(loop.now + 0.005, lambda: rung.append("a"))
    turn_until(loop, lambda: rung)
    assert rung == ["a"]


def test_a_turn_ends_when_its_time_is_over(loop: Loop) -> None:
    loop.at(loop.now + 0.001, lambda: None).cancel()
    until = loop.now + 0.02
    loop.turn(until)
    assert loop.now >= until


def test_the_clock_is_read_before_the_wait_and_after_it(clock: Clock, pipe: Callable[[], Pipe]) -> None:
    reads: list[float] = []

    def counted() -> float:
        reads.append(clock())
        return reads[-1]

    loop = Loop(counted)
    loop.register(ready(pipe()), EPOLLIN, lambda _: None)
    loop.register(ready(pipe()), EPOLLIN, lambda _: None)
    reads.clear()
    loop.turn(loop.now)
    loop.close()
    assert len(reads) == 2


def test_the_longest_time_between_two_waits_is_kept(timed: Loop, clock: Clock) -> None:
    def pass_time(seconds: float) -> None:
        clock.now += seconds

    for seconds in (0.02, 0.07, 0.03):
        timed.at(timed.now, lambda seconds=seconds: pass_time(seconds))
        timed.turn(timed.now)
    timed.turn(timed.now)
    assert (round(timed.longest_turn, 6), timed.slow_turns) == (0.07, 0)


def test_a_wait_does_not_count_as_a_slow_turn(timed: Loop, clock: Clock) -> None:
    with waiting(timed, clock):
        timed.turn(timed.now + 2 * SLOW_S)
        timed.turn(timed.now)
    assert (timed.longest_turn < SLOW_S, timed.slow_turns) == (True, 0)


def test_turns_that_take_too_long_are_counted(timed: Loop, clock: Clock) -> None:
    clock.now += 1.01 * SLOW_S
    timed.turn(timed.now)
    clock.now += 0.99 * SLOW_S
    timed.turn(timed.now)
    clock.now += 5.0
    timed.turn(timed.now)
    assert (timed.slow_turns, round(timed.longest_turn, 6)) == (2, 5.0)


def test_time_since_the_last_turn_is_subtracted_from_a_wait(timed: Loop, clock: Clock) -> None:
    clock.now += 3600.0
    timed.turn(timed.now + 3600.0)
    assert timed.now == clock.now


def test_time_before_the_watchdog_is_set_is_no_turn(timed: Loop, clock: Clock) -> None:
    clock.now += 5.0
    timed.watch_with(None, lambda seconds, where: None)
    timed.turn(timed.now)
    assert (timed.slow_turns, timed.longest_turn) == (0, 0.0)


def test_after_a_pause_descriptors_are_handled_before_timers(pipe: Callable[[], Pipe]) -> None:
    pair, said = pipe(), list[str]()
    reads = iter([100.0, 100.5, 107.0])  # as the loop is made, before the wait and after it

    def thawed() -> float:
        """The end of the wait is late, and only then there is something to read, as when epoll was interrupted."""
        if (now := next(reads)) == 107.0:
            os.write(pair[1], b"x")
        return now

    loop = Loop(thawed)
    loop.on_pause = lambda seconds: said.append(f"paused {seconds}")
    loop.register(pair[0], EPOLLIN, lambda _: said.append("ready"))
    loop.at(102.0, lambda: said.append("timer"))
    loop.turn(101.0)
    loop.close()
    assert said == ["paused 7.0", "ready", "timer"]


def test_a_wait_of_the_requested_length_is_no_pause(timed: Loop, clock: Clock) -> None:
    said: list[float] = []
    timed.on_pause = said.append
    with waiting(timed, clock):
        timed.turn(timed.now + 0.6)
    assert said == []


def test_a_turn_in_which_the_process_was_stopped_is_a_pause(timed: Loop, clock: Clock) -> None:
    said: list[float] = []
    timed.on_pause = said.append
    timed.at(timed.now, lambda: setattr(clock, "now", clock.now + 7.0))
    timed.turn(timed.now)
    timed.turn(timed.now)
    assert said == [7.0]


def test_the_wanted_wait_behind_a_slow_turn_is_no_part_of_the_pause(timed: Loop, clock: Clock) -> None:
    said: list[float] = []
    timed.on_pause = said.append
    timed.at(timed.now, lambda: setattr(clock, "now", clock.now + 0.75))
    timed.turn(timed.now)
    with waiting(timed, clock):
        timed.turn(clock.now + 8.0)
    assert said == [0.75]
