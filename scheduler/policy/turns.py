"""Whose turn is next: lanes of waiting items, taken in turn among equal rank (urgency, then letter).

A lane is a job's items for one host, or for any. A slot takes from the lanes of its host and from those for any host;
between the two the better rank goes first, then the lane that has waited longer since its last turn.

Of a fair type it is the turn of a submitter, and then of one of its lanes.
"""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from scheduler.model.expand import Item

JobT = TypeVar("JobT")

_MOST_RANKS: Final = 32  # empty ranks are kept up to here


class One(list[Item]):
    """What a lane needs of a deque, for the one item of a one-parameter job: a deque has room for 64 from the start."""

    __slots__ = ()
    popleft = list.pop
    appendleft = list.append


class Lane(Generic[JobT]):
    """The items of one job that wait for agents of one host (None: any)."""

    __slots__ = ("host", "items", "job", "rank", "seen", "seen_at", "submitter", "turn")

    def __init__(self, job: JobT, rank: bytes, submitter: str, host: str | None, *, is_single: bool) -> None:
        self.job = job
        self.rank = rank
        self.submitter = submitter
        self.host = host
        self.items: deque[Item] | One = One() if is_single else deque()
        self.turn = 0  # when it was last served, or began to wait
        self.seen, self.seen_at = 0, 0.0  # the turn that it had at an earlier look, and when that look was


class Turns(Generic[JobT]):
    """Lanes in rank order, round robin within a rank. `first` is the deque to serve next, empty when none waits."""

    __slots__ = ("_lanes", "_ranks", "first", "hosts")

    def __init__(self, hosts: frozenset[str] | None = None) -> None:
        self.hosts = hosts  # whose agents take from here; None: any
        self._lanes: dict[bytes, deque[Lane[JobT]]] = {}
        self._ranks: list[bytes] = []
        self.first: deque[Lane[JobT]] = deque()

    def add(self, lane: Lane[JobT]) -> None:
        """Put a lane that has begun to wait at the end of its rank."""
        rank = lane.rank
        lanes = self._lanes.get(rank)
        if lanes is None:
            lanes = self._lanes[rank] = deque()
            insort(self._ranks, rank)
        lanes.append(lane)
        if not self.first or rank < self.first[0].rank:
            self.first = lanes

    def served(self, turn: int) -> None:
        """The first lane had this turn: it goes to the end of its rank, or leaves when it is empty."""
        lanes = self.first
        lane = lanes[0]
        lane.turn = turn
        if not lane.items:
            lanes.popleft()
            if not lanes:
                self._next_rank()
        elif len(lanes) > 1:
            lanes.rotate(-1)

    def drop(self, lane: Lane[JobT]) -> None:
        """Take a lane out, wherever it stands."""
        lanes = self._lanes.get(lane.rank, ())
        if lane in lanes:
            self._lanes[lane.rank].remove(lane)
            self._next_rank()

    def suits(self, host: str) -> bool:
        """Say whether agents on this host take from here."""
        return self.hosts is None or host in self.hosts

    def _next_rank(self) -> None:
        if len(self._ranks) > _MOST_RANKS:
            self._ranks = [rank for rank in self._ranks if self._lanes[rank]]
            self._lanes = {rank: self._lanes[rank] for rank in self._ranks}
        waiting = (self._lanes[rank] for rank in self._ranks if self._lanes[rank])
        self.first = next(waiting, deque())

    def count(self) -> int:
        """Give how many lanes wait."""
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Lane[JobT]]:
        return (lane for rank in self._ranks for lane in self._lanes[rank])


class FairTurns(Turns[JobT]):
    """The same of a fair type: within a rank submitters take turns, and so do the lanes of each."""

    __slots__ = ("_lines",)

    def __init__(self, hosts: frozenset[str] | None = None) -> None:
        super().__init__(hosts)
        self._lines: dict[
            bytes, OrderedDict[str, deque[Lane[JobT]]]
        ] = {}  # by submitter, the next one first; none is empty

    def add(self, lane: Lane[JobT]) -> None:
        """Put a lane that has begun to wait behind its submitter's others, and who did not wait behind all others."""
        rank = lane.rank
        lines = self._lines.get(rank)
        if lines is None:
            lines = self._lines[rank] = OrderedDict()
            insort(self._ranks, rank)
        lanes = lines.get(lane.submitter)
        if lanes is None:
            lanes = lines[lane.submitter] = deque()
        lanes.append(lane)
        if not self.first or rank < self.first[0].rank:
            self.first = lanes

    def served(self, turn: int) -> None:
        """The first lane had this turn: it and its submitter go to the end, or leave when nothing of theirs waits."""
        lanes = self.first
        lane = lanes[0]
        lane.turn = turn
        self._lines[lane.rank].move_to_end(lane.submitter)
        if lane.items:
            lanes.rotate(-1)
        else:
            lanes.popleft()
        self._tidy(lane)

    def drop(self, lane: Lane[JobT]) -> None:
        """Take a lane out, wherever it stands."""
        if lane in self:
            self._lines[lane.rank][lane.submitter].remove(lane)
            self._tidy(lane)

    def _tidy(self, lane: Lane[JobT]) -> None:
        """A lane has moved, or left: find who is first."""
        rank, submitter = lane.rank, lane.submitter
        lines = self._lines[rank]
        if not lines[submitter]:
            del lines[submitter]
        if not lines:
            del self._lines[rank]
            self._ranks.remove(rank)
        self.first = next(iter(self._lines[self._ranks[0]].values())) if self._ranks else deque()

    def count(self) -> int:
        """Give how many lanes wait."""
        return sum(len(lanes) for lines in self._lines.values() for lanes in lines.values())

    def __iter__(self) -> Iterator[Lane[JobT]]:
        return (lane for rank in self._ranks for lanes in self._lines[rank].values() for lane in lanes)
