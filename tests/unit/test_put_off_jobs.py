"""Jobs that a rate limit put off are freed when the limit changes: those too that were on their way to the database."""

from typing import Any

import pytest

from scheduler.daemon.put_off_jobs import SAVED_S, PutOffJobs
from scheduler.drivers.loop import Steps
from scheduler.model.events_and_effects import Event
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER


class Site:
    """A database whose queues have so many jobs that are put off, and the daemon around PutOffJobs."""

    def __init__(self) -> None:
        self.time, self.due, self.woken = 0.0, NEVER, 0
        self.waiting: dict[str, int] = {}
        self.over: list[str] = []
        self.core = self
        self.jobs = PutOffJobs(self, self.due_in)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.time

    def rate_text(self, queue: str) -> str | None:
        return None

    def handle(self, event: Event, now: float) -> None:
        self.woken += 1

    def due_in(self, seconds: float) -> None:
        self.due = min(self.due, self.time + seconds)

    def ask(self, query: str, *, queue: str, **values: Any) -> Steps[list[Cells]]:
        yield from ()
        if query == "put_off_is_free":
            self.over.append(queue)
            return []
        count = b"%d" % self.waiting.pop(queue, 0)
        return [(count, count, None)]

    def run(self, until: float) -> None:
        """Run the task whenever it is due, until then."""
        while self.due <= until:
            self.time, self.due = max(self.time, self.due), NEVER
            for _ in self.jobs.free():
                raise AssertionError("the fake waits for nothing")
        self.time = until


@pytest.mark.parametrize("reads", [1, 5])
def test_a_job_that_is_put_off_after_the_change_was_read_is_freed_too(reads: int) -> None:
    site = Site()
    for number in range(reads):  # of the tables, which anything may cause
        site.jobs.changed({"q": "monday"})
        site.run(until=number / 10)
    site.waiting["q"] = 1
    site.run(until=2 * SAVED_S)
    assert (site.waiting, site.woken, site.over) == ({}, 1, ["q"])


def test_jobs_of_several_queues_are_freed_at_once() -> None:
    site = Site()
    site.waiting = {"a": 1, "b": 1, "c": 1}
    site.jobs.changed(dict.fromkeys("abc", "monday"))
    site.run(until=SAVED_S / 5)
    assert (site.waiting, site.woken) == ({}, 3)
