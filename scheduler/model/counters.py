"""The counters of a daemon for `drover metrics` and `drover stats`: how much was added to each since it was last saved.

Query `count` adds it to drover.counter, whose sums outlive the daemon, and to drover.tally, which has them by time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Upper bounds of buckets, in seconds: from jobs that follow each other at once to those of days.
BOUNDS: Final[tuple[float, ...]] = (
    0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0,
)  # fmt: skip
BUCKETS: Final = (*[f"{bound:g}" for bound in BOUNDS], "+Inf")
# Counters by name, with the name of each label; those of times have a bucket, and a sum named with _seconds.
ENDED, WAITED, RAN = "ended", "waited", "ran"
# By bin, for the tally, which has the first in place of a state.
STARTED, ENDED_PLAINLY = "started", "ended_plainly"
SPAWNED, DIED, WORKED, SENT, RECEIVED = "spawned", "died", "worked", "sent", "received"
FOUND_LATE = "found_late"  # by a rescan alone
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    ENDED: ("type", "state", "code"),
    WAITED: ("type", "le"),
    RAN: ("type", "le"),
    STARTED: ("type", "host", "bin"),
    ENDED_PLAINLY: ("type", "host", "bin"),
    SPAWNED: ("type", "host"),
    DIED: ("type", "host", "how"),
    WORKED: ("type",),
    SENT: ("type",),
    RECEIVED: ("type",),
    FOUND_LATE: ("kind",),
}

# Upper bounds of the bins of times in drover.tally, in seconds, each 9 % above the one before. A last bin has all that
# is longer. Function drover.time_bin has the same.
BIN_BOUNDS: Final[tuple[float, ...]] = tuple(0.0001 * 2.0 ** (n / 8) for n in range(281))
TO_MIDDLE: Final = 2.0 ** (-1 / 16)  # times the upper bound: the middle of a bin
BIN_ERROR: Final = 0.05  # how far a time may be from the middle of its bin, as a part of itself

Counted = dict[tuple[str, ...], float]  # (name, *labels) -> how much


class Times:
    """How many times were in each bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin to count anew."""
        self.counts = [0] * len(BUCKETS)
        self.total = 0.0

    def add(self, seconds: float, count: int) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.total += seconds * count

    def take(self, name: str, label: str) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the counters of what was counted, and begin anew."""
        for bucket, count in zip(BUCKETS, self.counts, strict=True):
            if count:
                yield (name, label, bucket), count
        if self.total:
            yield (f"{name}_seconds", label), self.total
        self.clear()


def quantile(bins: Mapping[int, int], part: float) -> float:
    """Return the seconds that this part of the jobs in bins did not exceed, within BIN_ERROR."""
    rank = part * (sum(bins.values()) - 1)
    number = seen = 0
    for number in sorted(bins):
        seen += bins[number]
        if seen > rank:
            break
    return BIN_BOUNDS[min(number, len(BIN_BOUNDS) - 1)] * TO_MIDDLE


def add(counted: Counted, key: tuple[str, ...], value: float) -> None:
    counted[key] = counted.get(key, 0) + value


def as_rows(counted: Counted) -> list[dict[str, Any]]:
    """Return the rows that query `count` is given."""
    return [{"name": name, "labels": labels, "value": value} for (name, *labels), value in counted.items()]
