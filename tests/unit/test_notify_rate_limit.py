"""Wake-ups: at once while they are few, gathered in a flood, and never lost."""

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from scheduler.daemon.wakeups import BURST, NotifyRateLimit
from scheduler.model.config import Scheduler

GAP_S = Scheduler().wake_interval


class Clock:
    """A loop that has timers and nothing else."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def at(self, instant: float, call: Callable[[], None]) -> "Timer":
        timer = Timer(call)
        heapq.heappush(self._timers, (instant, next(self._numbers), timer))
        return timer

    def go(self, until: float) -> None:
        """Let time pass."""
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                timer.call()
        self.now = until


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self.is_cancelled = call, False

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def bell(clock: Clock, woken: list[str]) -> NotifyRateLimit:
    return NotifyRateLimit(clock, woken.append, GAP_S)  # type: ignore[arg-type]


def flood(bell: NotifyRateLimit, clock: Clock, seconds: float, channel: str = "q", every: float = 0.001) -> None:
    for step in range(round(seconds / every)):
        clock.go(100.0 + step * every)
        bell.notified(channel)


def test_first_wake_ups_pass_at_once(bell: NotifyRateLimit, woken: list[str]) -> None:
    for _ in range(BURST):
        bell.notified("q")
    assert len(woken) == BURST


def test_flood_wakes_once_in_a_gap(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(bell, clock, 10.0)
    assert BURST + 10 / GAP_S - 2 <= len(woken) <= BURST + 10 / GAP_S


@pytest.mark.parametrize("gap_s", [0.02, 0.5])
def test_the_gap_is_a_setting_j113(clock: Clock, woken: list[str], gap_s: float) -> None:
    flood(NotifyRateLimit(clock, woken.append, gap_s), clock, 10.0)  # type: ignore[arg-type]
    assert BURST + 10 / gap_s - 2 <= len(woken) <= BURST + 10 / gap_s


def test_last_of_a_flood_is_not_lost(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(bell, clock, 1.0)
    before = len(woken)
    clock.go(102.0)
    assert len(woken) == before + 1


def test_channels_do_not_hold_each_other_up(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(bell, clock, 1.0)
    bell.notified("other")
    assert woken[-1] == "other"


def test_wake_ups_that_were_worth_it_are_never_held_up(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    for step in range(1000):
        clock.go(100.0 + step / 1000)
        bell.notified("q")
        bell.was_worthwhile("q")
    assert len(woken) == 1000


def test_one_that_waits_is_told_once_a_look_was_worth_it(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(bell, clock, 0.05)
    assert len(woken) == BURST
    bell.was_worthwhile("q")
    assert len(woken) == BURST + 1
    clock.go(200.0)
    assert len(woken) == BURST + 1


def test_a_quiet_time_gives_no_more_than_a_burst(bell: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    for _ in range(100):
        bell.was_worthwhile("q")
    clock.go(1000.0)
    for _ in range(100):
        bell.notified("q")
    assert len(woken) == BURST
