"""A daemon in lockstep: the real core between simulated agents and a queue that answers at once, on a clock of its own.

What is counted here is the same in every run: an agent takes LINE_S for a line, the database TRIP_S for a request,
and nothing else takes time. The order of a turn is that of scheduler/daemon/wiring.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from scheduler.drivers.queue import FEW
from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Host
from scheduler.policy.core import Core
from tests.core_tools import make_core

LINE_S: Final = 0.0001  # 4 agents eat 40,000 lines a second: about what drains reach
TRIP_S: Final = 0.002
SPAWN_S: Final = 0.001
TYPE: Final = "noop"
HOST: Final = "alpha"


class Queue(Protocol):
    """Where jobs and the rows of queries come from; every call answers at once."""

    def send(self, request: r.Request) -> e.Event:
        """Carry out a request of the core."""

    def expand(self, job: int, query: str) -> e.Event:
        """Run the query of a job."""

    def fetch(self, job: int, count: int) -> e.Event:
        """Return more rows of it."""

    def close(self, job: int) -> None:
        """Forget them."""


class Lockstep:
    """A core that serves, with `slots` agents of one type."""

    def __init__(self, queue: Queue, *, slots: int = 4, make: Callable[..., Core] = make_core, **timers: Any) -> None:
        hosts = {HOST: Host(max=slots)}
        self.core = make({TYPE: AgentType(command=("agent",), slots=slots)}, hosts=hosts, **timers)
        self.now = 0.0
        self.lines = 0  # that agents have finished
        self._queue = queue
        self._is_asking = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._noted = 0
        self._waiting: Counter[int] = Counter()  # by slot: lines that its agent has not finished
        self._acts: dict[type, Callable[[Any], None]] = {
            e.Spawn: self._spawn,
            e.Send: lambda c: self._receive(c.slot, c.data),
            e.Expand: lambda c: self._tell_later(queue.expand(c.job, c.query)),
            e.Fetch: lambda c: self._tell_later(queue.fetch(c.job, c.count)),
            e.CloseQuery: lambda c: queue.close(c.job),
            e.LogMessage: lambda c: None,
            e.FindNextDue: lambda c: None,
        }

    def work(self, lines: int) -> None:
        """Wake it and let it work until this many more lines are finished and nothing is in hand or unsaved."""
        goal = self.lines + lines
        self.core.handle(e.Woken(), self.now)
        self.act()
        while self.lines < goal or self.core.state.jobs or self._is_asking:
            self._wait()
            self.act()
        assert self.lines == goal, f"{self.lines - goal} lines too many"

    def act(self) -> None:
        """Do what a turn of the daemon does before it waits."""
        while True:
            if self.core.has_effects:
                self._carry_out()
            self._request()
            self._carry_out()
            self._request()
            if not self.core.has_work:
                return

    def _wait(self) -> None:
        """Let the next thing happen, and all that happens at the same instant."""
        deadline = self.core.next_deadline()
        self.now = min(deadline, self._events[0][0] if self._events else deadline)
        assert self.now < 1000.0, "it hangs: nothing is under way, and yet not all is done"
        while self._events and self._events[0][0] <= self.now:
            heappop(self._events)[2]()
        if self.now >= deadline:
            self.core.tick(self.now)

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._noted += 1
        heappush(self._events, (self.now + delay, self._noted, call))

    def _tell_later(self, event: e.Event) -> None:
        self._later(TRIP_S, lambda: self.core.handle(event, self.now))

    # ---- the queue

    def _request(self) -> None:
        if self._is_asking or (request := self.core.next_request(self.now)) is None:
            return
        event = self._queue.send(request)
        self._is_asking = True
        self._later(TRIP_S, lambda: self._answered(event))

    def _answered(self, event: e.Event) -> None:
        self._is_asking = False
        if isinstance(event, e.EndedAndClaimed) and len(event.claims) > FEW:  # as drivers/queue.py does
            self.core.handle(replace(event, claims=()), self.now)
            self._request()
            event = e.Claimed(event.claims)
        self.core.handle(event, self.now)

    # ---- agents

    def _carry_out(self) -> None:
        while self.core.has_work:
            for effect in self.core.take_effects(self.now):
                self._acts[type(effect)](effect)

    def _spawn(self, spawn: e.Spawn) -> None:
        self.core.handle(e.Created(spawn.slot, 1000 + spawn.slot), self.now)
        self._later(SPAWN_S, lambda: self._say_ok(spawn.slot))

    def _receive(self, slot: int, lines: bytes) -> None:
        if not self._waiting[slot]:
            self._later(LINE_S, lambda: self._hear(slot))
        self._waiting[slot] += lines.count(b"\n")

    def _hear(self, slot: int) -> None:
        self.lines += 1
        self._waiting[slot] -= 1
        if self._waiting[slot]:
            self._later(LINE_S, lambda: self._hear(slot))
        self._say_ok(slot)

    def _say_ok(self, slot: int) -> None:
        if (lines := self.core.agent_output(slot, b"OK\n", self.now)) is not None:
            self._receive(slot, lines)
