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
def rate_limit(clock: Clock, woken: list[str]) -> NotifyRateLimit:
    return NotifyRateLimit(clock, woken.append, GAP_S)


def flood(rate_limit: NotifyRateLimit, clock: Clock, seconds: float, channel: str = "q", every: float = 0.001) -> None:
    for step in range(round(seconds / every)):
        clock.go(100.0 + step * every)
        rate_limit.notified(channel)


def test_first_wake_ups_pass_at_once(rate_limit: NotifyRateLimit, woken: list[str]) -> None:
    for _ in range(BURST):
        rate_limit.notified("q")
    assert len(woken) == BURST


def test_flood_of_notifications_wakes_once_per_interval(
    rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]
) -> None:
    flood(rate_limit, clock, 10.0)
    assert BURST + 10 / GAP_S - 2 <= len(woken) <= BURST + 10 / GAP_S


@pytest.mark.parametrize("gap_s", [0.02, 0.5])
def test_the_interval_between_wake_ups_is_a_setting_j113(clock: Clock, woken: list[str], gap_s: float) -> None:
    flood(NotifyRateLimit(clock, woken.append, gap_s), clock, 10.0)  # type: ignore[arg-type]
    assert BURST + 10 / gap_s - 2 <= len(woken) <= BURST + 10 / gap_s


def test_last_notification_of_a_flood_is_not_lost(rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(rate_limit, clock, 1.0)
    before = len(woken)
    clock.go(102.0)
    assert len(woken) == before + 1


def test_channels_do_not_delay_each_other(rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(rate_limit, clock, 1.0)
    rate_limit.notified("other")
    assert woken[-1] == "other"


def test_useful_wake_ups_are_never_delayed(rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    for step in range(1000):
        clock.go(100.0 + step / 1000)
        rate_limit.notified("q")
        rate_limit.was_worthwhile("q")
    assert len(woken) == 1000


def test_delayed_wake_up_passes_after_a_useful_one(rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    flood(rate_limit, clock, 0.05)
    assert len(woken) == BURST
    rate_limit.was_worthwhile("q")
    assert len(woken) == BURST + 1
    clock.go(200.0)
    assert len(woken) == BURST + 1


def test_quiet_time_allows_no_more_than_a_burst(rate_limit: NotifyRateLimit, clock: Clock, woken: list[str]) -> None:
    for _ in range(100):
        rate_limit.was_worthwhile("q")
    clock.go(1000.0)
    for _ in range(100):
        rate_limit.notified("q")
    assert len(woken) == BURST
