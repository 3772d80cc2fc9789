"""Count what a rescan alone found: a notification, an event or a timer of the daemon was lost before.

A rescan looks at everything, so a lost wake-up costs a job some time and is seen nowhere else. A task that only a
rescan made due counts what it finds, if no timer of the daemon would have found it by now, and if nothing tells of it
within MOMENT_S, for a notification may still be on its way. The first rescan after a connection or the group was lost
counts nothing: it is made to find what was missed. Jobs in queues and dependencies are compared in the core.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.queue_requests import Cells

MOMENT_S: Final = 2.0  # in which the notification of what was found arrives, if there is one
# What a task is to find, by its name in periodic_tasks.py, as drover metrics names it.
KINDS: Final[Mapping[str, str]] = {
    "due": "due rows", "recovery": "conditions", "schedules": "schedules", "deliveries": "deliveries",
    "read commands": "commands", "tables": "tables",
}  # fmt: skip


class LateFinds:
    """Counts what each task found because of a rescan, once it is sure that no notification of it arrives."""

    def __init__(self, now: Callable[[], float], timers: Callable[[], Scheduler]) -> None:
        self._now, self._timers = now, timers
        self._looking: dict[str, float] = {}  # tasks that the rescan made due, and when they were due without it
        self._found: dict[str, tuple[float, int]] = {}  # when, and how much
        self._tables: list[object] = []  # as they were read last

    @property
    def moment_s(self) -> float:
        """Return in how many seconds a notification arrives, which may be delayed by its rate."""
        return MOMENT_S + self._timers().wake_interval

    @property
    def until(self) -> float:
        """Return the instant until which all notifications have arrived."""
        return self._now() - self.moment_s

    def begin(self, due: Mapping[str, float]) -> None:
        """Begin a rescan, at which the tasks are `due`."""
        self._looking = {task: due[task] for task in KINDS if task not in self._found}

    def told(self, task: str) -> None:
        """Note that something made a task due, as it is to be: what it finds is not late."""
        for each in (task, "schedules") if task == "tables" else (task,):
            self._looking.pop(each, None)
            self._found.pop(each, None)

    def forget(self) -> None:
        """Count nothing of this rescan: the connection or the group is lost."""
        self._looking, self._found = {}, {}

    def answered(self, query: str, rows: Sequence[Cells]) -> None:
        """Look at what a statement of a task found."""
        if query == "read_shared_settings":
            count, self._tables = self._changes(rows), _tables(rows)
            self._count("tables", count)
        elif (each := _COUNTS.get(query)) is not None:
            self._count(each[0], each[1](rows))

    def take(self) -> dict[str, int]:
        """Return how much was found, until that instant, of which nothing has told since, by kind; count it once."""
        late = {task: count for task, (at, count) in self._found.items() if at <= self.until}
        self._found = {task: found for task, found in self._found.items() if task not in late}
        return {KINDS[task]: count for task, count in late.items()}

    def _count(self, task: str, count: int) -> None:
        """Add what a task found that only the rescan made due; it is not looked at twice."""
        if self._looking.pop(task, 0.0) > self._now() and count:
            self._found[task] = self._now(), count

    def _changes(self, rows: Sequence[Cells]) -> int:
        return sum(before != after for before, after in zip(self._tables, _tables(rows), strict=False))


def _tables(rows: Sequence[Cells]) -> list[object]:
    """Return the tables in the answer of `read_shared_settings`, without what the daemon itself writes into them."""
    queues, hosts, types, placements, quotas = ([*json.loads(cell or b"[]")] for cell in rows[0][:5])
    for row in queues:
        row.pop("starts", None)
    for row in types:
        row.pop("trial", None)
    return [sorted(map(str, table)) for table in (queues, hosts, types, placements, quotas)]


def _first(rows: Sequence[Cells]) -> int:
    return int(rows[0][0] or 0) if rows else 0


# Which task runs a query, and how much its answer has.
_COUNTS: Final[Mapping[str, tuple[str, Callable[[Sequence[Cells]], int]]]] = {
    "due": ("due", _first),
    "read_recovery": ("recovery", lambda rows: sum(row[0] is not None for row in rows)),
    "start_schedules": ("schedules", lambda rows: sum(row[1] == b"t" for row in rows)),
    "queue_deliveries": ("deliveries", lambda rows: sum(int(cell or 0) for row in rows for cell in row[:2])),
    "read_commands": ("read commands", len),
}
