"""What SIGUSR2 prints: a line for each multi-SQL-query in hand, and one for each of its rows, up to a number.

Of a row it prints the place in the slice, from 0, the key and who has it. What else is in a row is not for a log.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from scheduler.model.list_bounds import and_more
from scheduler.model.protocol import Item, printable
from scheduler.model.states import STATE_NAMES
from scheduler.policy.job import Job
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

MOST_ROWS: Final = 100  # of one query
KEY_BYTES: Final = 60


def lines(state: State) -> Iterator[str]:
    """Yield the line of each query in hand, followed by those of its rows: first what agents have, then what waits."""
    for job in state.jobs.values():
        if (query := job.query) is not None:
            yield (
                f"job={job.pk} agent={job.pool.name} total={query.total} fetched={query.fetched} "
                f"waiting={job.waiting} in_flight={job.in_flight} done={job.done} failed={job.failed}"
            )
            yield from islice(_rows(job), MOST_ROWS)
            if (more := job.in_flight + job.waiting - MOST_ROWS) > 0:
                yield f"job={job.pk}: {and_more(more, 'rows')}"


def _rows(job: Job) -> Iterator[str]:
    found = [(slot.item, STATE_NAMES[slot.state], slot) for slot in job.pool.slots if slot.job is job and slot.item]
    for slot in job.pool.slots:
        found += [(item, "prefetched,", slot) for owner, item, _ in slot.prefetched or () if owner is job]
    for item, state, slot in sorted(found, key=lambda each: each[0].number):
        yield f"{_row(item)} {state} {_place(slot, job)}"
    for host, lane in job.lanes.items():
        where = "waits" if host is None else f"waits for host {host}"
        for item in lane.items:
            yield f"{_row(item)} {where}, job={job.pk}"


def _row(item: Item) -> str:
    key = f" key '{printable(item.key[:KEY_BYTES])}'" if item.key is not None else ""
    return f"row {item.number}{key}:"


def _place(slot: Slot, job: Job) -> str:
    return f"slot={slot.number} agent={slot.pool.name} host={slot.host.name} pid={slot.pid} job={job.pk}"
