"""Filters: which hosts take which jobs of a type, by the queue and by the first character of the priority.

Jobs that the same hosts take wait behind one door: in the same lanes, counted and claimed by themselves, so that what
waits for a busy host holds up nobody else. A type none of whose hosts has such a filter has no doors, only lanes for
any host.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from typing import Any, Final, Generic

from scheduler.model.config import LETTERS, Host
from scheduler.model.jobs import Letters
from scheduler.policy.turns import JobT, Lane, Turns

_NOTHING: Final[deque[Lane[Any]]] = deque()
_END: Final = {letter: chr(ord(letter) + 1) for letter in LETTERS}


class Doors(Generic[JobT]):
    """The doors of one type; each is made when a job or a claim first needs it."""

    __slots__ = ("_by_hosts", "_found", "_queues", "_runs", "_taken", "_turns_type", "every", "ways")

    def __init__(self, hosts: Mapping[str, Host], turns_type: type[Turns[JobT]] = Turns) -> None:
        self._turns_type = turns_type
        self._queues = {name: host.queues for name, host in hosts.items()}
        self._taken = {name: host.letters for name, host in hosts.items()}
        self._by_hosts: dict[frozenset[str], Turns[JobT]] = {}
        self._found: dict[tuple[str, str], Turns[JobT]] = {}
        self._runs: dict[str, list[tuple[Letters, Turns[JobT]]]] = {}
        self.every: Ways[JobT] = Ways()
        self.ways: dict[str, Ways[JobT]] = {name: Ways() for name in hosts}  # what an agent on a host takes from

    def at(self, queue: str, letter: str) -> Turns[JobT]:
        """Return the lanes in which jobs of a queue and a letter wait for any host that takes them."""
        turns = self._found.get((queue, letter))
        if turns is None:
            turns = self._found[queue, letter] = self._make(queue, letter)
        return turns

    def _make(self, queue: str, letter: str) -> Turns[JobT]:
        hosts = frozenset(
            name
            for name, queues in self._queues.items()
            if (not queues or queue in queues) and letter in self._taken[name]
        )
        turns = self._by_hosts.get(hosts)
        if turns is None:
            turns = self._by_hosts[hosts] = self._turns_type(hosts)
            for ways in (self.every, *(self.ways[name] for name in hosts)):
                ways.doors.append(turns)
        return turns

    def runs(self, queue: str) -> list[tuple[Letters, Turns[JobT]]]:
        """Give the doors of a queue that lead somewhere, each with letters that follow on each other."""
        runs = self._runs.get(queue)
        if runs is None:
            runs = self._runs[queue] = []
            for turns, run in groupby(LETTERS, lambda letter: self.at(queue, letter)):
                letters = list(run)
                if turns.hosts:
                    runs.append(((letters[0], _END[letters[-1]]), turns))
        return runs


class Ways(Turns[JobT]):
    """The doors of one host seen as one: the best lane of any is first, and what is served is served there."""

    __slots__ = ("doors",)

    def __init__(self) -> None:
        self.doors: list[Turns[JobT]] = []

    @property
    def first(self) -> deque[Lane[JobT]]:  # type: ignore[override]  # an attribute there, for speed
        """Give the deque to serve next, empty when none waits."""
        waiting = (turns.first for turns in self.doors if turns.first)
        return min(waiting, key=_standing, default=_NOTHING)

    def served(self, turn: int) -> None:
        """The first lane had this turn."""
        first = self.first
        next(turns for turns in self.doors if turns.first is first).served(turn)

    def __iter__(self) -> Iterator[Lane[JobT]]:
        return chain.from_iterable(self.doors)


def _standing(lanes: deque[Lane[Any]]) -> tuple[bytes, int]:
    return lanes[0].rank, lanes[0].turn
