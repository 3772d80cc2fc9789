"""Rate limits of a queue: so many jobs are started in any interval, in all and for each value of an attribute.

A start is the instant at which a job is given to an agent; a job that is tried again starts again. What was claimed and
has not started counts as if it started now, so no interval ever has more starts than it may, whenever agents are free.
A job whose value is at its limit goes back to the queue until the instant promised to it: the first that has room
beside the starts there were and those promised to others. A promise keeps no room; who comes first starts.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from scheduler.model.states import NEVER
from scheduler.policy.handover_values import Snapshot

MARGIN_S: Final = 0.01  # after an instant that the clock of the database decides
LONGEST: Final = 64  # characters of a value that is kept as it is


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many starts an interval may have, in all and for each value of the attribute `by`; 0 is no limit."""

    rate: int = 0
    each: int = 0
    by: str = ""
    interval: float = 60.0


def over_rate(queue: str, limit: RateLimit) -> str:
    """Return how the text of a job begins that a limit for each value of an attribute puts off."""
    return f"rate limit of queue {queue}: {limit.each} starts in {limit.interval:g} s with {limit.by} "


def short_value(value: str) -> str:
    """Return a value of an attribute as it is counted and written down; a long one by its beginning and its hash.

    Front-ends give the values: drover.queue_start has an index of them, and each is in memory for an interval.
    """
    if len(value) <= LONGEST:
        return value
    return f"{value[:24]}...{sha256(value.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}"


class Window:
    """The starts of the last interval, and what is about to start."""

    __slots__ = ("promised", "starts", "unstarted")

    def __init__(self, starts: Sequence[float] = (), promised: Sequence[float] = (), unstarted: int = 0) -> None:
        self.starts, self.promised = deque(starts), deque(promised)
        self.unstarted = unstarted

    def snapshot(self) -> dict[str, Any]:
        return {"starts": list(self.starts), "promised": list(self.promised), "unstarted": self.unstarted}

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "Window":
        """Return the window of a snapshot; keys of another version are ignored."""
        return cls(snapshot.get("starts", ()), snapshot.get("promised", ()), int(snapshot.get("unstarted", 0)))

    def took_over(self, ages: Iterable[float], now: float) -> None:
        """Add starts of earlier owners of the group, by their ages in seconds."""
        self.starts = deque(sorted([*self.starts, *(now - age for age in ages)]))

    def admitted(self) -> None:
        """Count one that is about to start."""
        self.unstarted += 1

    def left(self) -> None:
        """Count one less that is about to start."""
        self.unstarted -= 1

    def set_unstarted(self, count: int) -> None:
        """Note how many are about to start."""
        self.unstarted = count

    def began(self, now: float) -> None:
        """Count a start."""
        self.starts.append(now)

    def room(self, most: int, interval: float, now: float) -> int:
        """Return how many more may start now."""
        self._expire(interval, now)
        return max(0, most - len(self.starts) - self.unstarted)

    def next_at(self, interval: float) -> float:
        """Return when the first start of the interval is over, so that another may come."""
        return self.starts[0] + interval if self.starts else NEVER

    def promise(self, most: int, interval: float, now: float) -> float:
        """Return the first instant that has room beside all starts and promises, and promise it."""
        self._expire(interval, now)
        at = max(self._last(most, now) + interval, now) + MARGIN_S
        self.promised.append(at)
        return at

    def _last(self, number: int, now: float) -> float:
        """Return the instant of the last start but so many, with those to come; none of 10,000 is copied for that."""
        if number <= len(self.promised):
            return self.promised[-number]
        number -= len(self.promised)
        if number <= self.unstarted:
            return now
        number -= self.unstarted
        return self.starts[-number] if number <= len(self.starts) else -NEVER

    def forget_promises(self) -> None:
        """Forget what was promised: by another limit those jobs come sooner or later."""
        self.promised = deque()

    def is_over(self, interval: float, now: float) -> bool:
        """Return whether nothing of it counts any more."""
        self._expire(interval, now)
        return not (self.starts or self.unstarted or self.promised)

    def _expire(self, interval: float, now: float) -> None:
        while self.starts and self.starts[0] + interval <= now:
            self.starts.popleft()
        while self.promised and self.promised[0] <= now:
            self.promised.popleft()


class Rates:
    """The rate limits of a queue, and what counts for them."""

    __slots__ = ("_begun", "_changed", "_each", "_values", "_whole", "has_changes", "is_known", "limit")

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self._whole = Window()
        self._each: dict[str, Window] = {}  # by value, that of the last start at the end
        self._changed: set[str] = set()  # values with starts that are not written down
        self._values: dict[int, str] = {}  # of jobs in hand that count for one
        self._begun: set[int] = set()  # jobs in hand that have started
        self.is_known = False  # what former owners of the group started
        self.has_changes = False  # since it was written down

    def snapshot(self) -> dict[str, Any]:
        return {
            "limit": asdict(self.limit), "whole": self._whole.snapshot(), "begun": sorted(self._begun),
            "each": {value: window.snapshot() for value, window in self._each.items()},
            "values": [[pk, value] for pk, value in self._values.items()],
        }  # fmt: skip

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "Rates":
        """Return the limits and starts of a snapshot."""
        rates = cls(RateLimit(**snapshot["limit"]))
        rates._restore(snapshot)
        return rates

    def _restore(self, snapshot: Snapshot) -> None:
        self._whole = Window.restored(snapshot.get("whole", {}))
        self._each = {value: Window.restored(window) for value, window in snapshot.get("each", {}).items()}
        self._values = {int(pk): str(value) for pk, value in snapshot.get("values", ())}
        self._begun = set(snapshot.get("begun", ()))
        self.is_known = self.has_changes = True

    def set_limit(self, limit: RateLimit) -> None:
        """Go by another limit; starts for the values of another attribute are forgotten."""
        if limit.by != self.limit.by:
            self._each.clear()
            self._changed.clear()
            self._values.clear()
        if limit != self.limit:
            for window in self._each.values():
                window.forget_promises()
        self.limit = limit

    def took_over(self, starts: Mapping[str, Sequence[float]], now: float) -> None:
        """Learn what was started before we served the group: ages in seconds, by value, "" in all."""
        self.is_known = True
        for value, ages in starts.items():
            window = self._each.setdefault(value[1:], Window()) if value else self._whole
            window.took_over(ages, now)

    def forget(self) -> None:
        """Forget all starts: another daemon serves the group."""
        self._whole, self.is_known, self.has_changes = Window(), False, False
        self._each.clear()
        self._changed.clear()
        self._values.clear()
        self._begun.clear()

    def room(self, in_hand: int, now: float) -> int | None:
        """Return how many jobs may be claimed beside those in hand; None for any number."""
        if not self.limit.rate:
            return None
        self._whole.set_unstarted(in_hand - len(self._begun))
        return self._whole.room(self.limit.rate, self.limit.interval, now)

    def next_at(self, now: float) -> float:
        """Return when there is room again, NEVER if there is some, or if that is not a matter of time."""
        if not self.limit.rate or self._whole.room(self.limit.rate, self.limit.interval, now):
            return NEVER
        return self._whole.next_at(self.limit.interval)

    def admit(self, pk: int, value: str, now: float) -> float | None:
        """Count a job that was claimed for its value; if that is at its limit, return when to try again."""
        most, interval = self.limit.each, self.limit.interval
        window = self._each.setdefault(value, Window())
        if not window.room(most, interval, now):
            return window.promise(most, interval, now)
        window.admitted()
        self._values[pk] = value
        return None

    def began(self, pk: int, now: float) -> None:
        """Count the start of a job; not a second time while its agent has it."""
        if pk in self._begun:
            return
        self.has_changes = True
        self._begun.add(pk)
        self._whole.began(now)
        value = self._values.get(pk)
        if value is not None and value in self._each:
            window = self._each[value] = self._each.pop(value)
            window.left()
            window.began(now)
            self._changed.add(value)

    def put_back(self, pk: int) -> None:
        """Note that a job that was given to an agent waits for another: it starts once more.

        If its interval is over, others may have got its room by now, and it starts beside them.
        """
        if pk in self._begun:
            self._begun.remove(pk)
            if (value := self._values.get(pk)) is not None:
                self._each.setdefault(value, Window()).admitted()

    def ended(self, pk: int) -> None:
        """Note that a job is in hand no more."""
        window = self._window(pk)
        if pk in self._begun:
            self._begun.remove(pk)
        elif window is not None:
            window.left()
        self._values.pop(pk, None)

    def show_again(self) -> None:
        """Note that what `shown` returned last was not saved."""
        self.has_changes = True
        self._changed.update(self._each)

    def shown(self, now: float) -> Iterator[dict[str, Any]]:
        """Yield what changed and is to be written down: the ages of starts, in all and by value, and when there is
        room again. Values without starts are forgotten.
        """
        self.has_changes = False
        yield self._row("", self._whole, self.limit.rate, now)
        for value in self._pop_over(now):
            yield {"value": f"={value}", "ages": [], "next": None}
        for value in self._changed & self._each.keys():
            yield self._row(f"={value}", self._each[value], self.limit.each, now)
        self._changed.clear()

    def _row(self, value: str, window: Window, most: int, now: float) -> dict[str, Any]:
        interval = self.limit.interval
        room = window.room(most, interval, now)
        ages = [round(now - at, 3) for at in window.starts]
        return {"value": value, "ages": ages, "next": None if room or not ages else interval - ages[0]}

    def _pop_over(self, now: float) -> list[str]:
        """Forget the first values as long as nothing counts for them any more; return them."""
        over: list[str] = []
        for value, window in self._each.items():
            if not window.is_over(self.limit.interval, now):
                break
            over.append(value)
        for value in over:
            del self._each[value]
        return over

    def _window(self, pk: int) -> Window | None:
        value = self._values.get(pk)
        return None if value is None else self._each.get(value)
