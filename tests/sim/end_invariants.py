"""What must hold of the output, the items and the end of a job, in a simulation (invariants.py)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scheduler.model.queue_requests import OutputRow, Save
from scheduler.model.states import DONE, FAILED, ST_READY, ST_RUNNING
from scheduler.policy.state import State
from tests.sim.broken import broken
from tests.sim.rows import IN_HAND, Row

if TYPE_CHECKING:
    from tests.sim.world import Sim


def failures_were_tried_twice(sim: "Sim", save: Save) -> None:
    """An item that is recorded as failed because its agent died was tried twice."""
    for failure in save.failures:
        row = sim.database.rows[failure.pk]
        is_death = failure.reason.startswith("agent terminated") and row.key is not None and not row.was_lied_about
        item = failure.pk, failure.attempt, int(failure.key or 0)
        if is_death and sim.tries.get(item, 0) - sim.losses[item] != 2:
            broken("failures_were_tried_twice", f"job {failure.pk} item {failure.key}")


class Written:
    """What one daemon has written of the output of jobs, and which of them it has ended."""

    def __init__(self) -> None:
        self._last: Counter[tuple[int, int]] = Counter()
        self._ended: set[tuple[int, int]] = set()

    def write(self, rows: Sequence[OutputRow]) -> None:
        """All output of an attempt comes in order, before its end; some may come again."""
        for row in rows:
            name = row.job, row.attempt
            if name in self._ended or row.part > self._last[name] + 1:
                broken("output_comes_in_order", f"part {row.part} of attempt {row.attempt} of job {row.job}")
            self._last[name] = max(self._last[name], row.part)

    def end(self, attempts: Iterable[tuple[int, int]]) -> None:
        """These attempts are over."""
        self._ended.update(attempts)


def owners_keep_their_rows(row: Row, owner: str) -> None:
    """A daemon that owns the group finds its rows as it left them."""
    if row.holder != owner or not (row.taken_by or row.state in IN_HAND):
        broken("owners_keep_their_rows", f"job {row.pk} of {owner} is {row.state} of {row.holder}")


def no_item_is_done_too_often(sim: "Sim", row: Row, item: int) -> None:
    """An item is done once, and once more for each time that work on its job was cut short or not storable."""
    if row.was_lied_about:
        return
    attempts = 1 if row.key is not None else row.attempt_in_hand
    if row.done[item] > attempts + row.disruptions + row.failures and not row.unstorable:
        broken("no_item_is_done_too_often", f"job {row.pk} item {item}: {row.done[item]} times")


def job_ends_rightly(sim: "Sim", row: Row) -> None:
    """I3: a job ends once; done means that its work was done, or failed within what is tolerated."""
    if row.ends != 1:
        broken("one_end_a_job", f"job {row.pk} ends {row.ends} times")
    if row.wanted not in (None, row.state) and not row.unstorable:
        broken("commands_are_kept", f"job {row.pk} was to be {row.wanted} and is {row.state}")
    if row.was_lied_about:
        return
    if row.state == DONE and (row.pk, row.attempt) in sim.database.detached:
        ends_are_those_of_commands(sim, row)
    if row.state == DONE and not row.msq and not row.done:
        broken("done_means_worked", f"job {row.pk} is done, and no agent did it")
    if row.state == DONE and row.msq:
        query_ends_rightly(sim, row)
    if row.state == FAILED and row.text is None:
        broken("failed_says_why", f"job {row.pk}")


def ends_are_those_of_commands(sim: "Sim", row: Row) -> None:
    """A detached job is done if the command of its attempt exited with 0, and that was collected."""
    host = sim.database.detached[row.pk, row.attempt].host
    entry = sim.spools.entries.get((host, row.pk), {}).get(row.attempt)
    if entry is None or entry.end != (0, None):
        broken("ends_are_those_of_commands", f"job {row.pk} is done, its command has ended with {entry and entry.end}")


def query_ends_rightly(sim: "Sim", row: Row) -> None:
    """A query that is done has every item done or recorded as failed, and counts them."""
    failed = {int(key) for key in row.item_failures if key is not None}
    missing = [n for n in range(row.items) if n not in row.done and n not in failed]
    if row.key is not None and missing:
        broken("done_means_worked", f"job {row.pk}: items {missing} were never worked")
    if row.key is None and len(missing) > len(row.item_failures):
        broken("done_means_worked", f"job {row.pk}: {len(missing)} items not done, {len(row.item_failures)} failed")
    if row.failed > row.tolerate:
        broken("tolerance_holds", f"job {row.pk}: {row.failed} items failed, {row.tolerate} tolerated, and it is done")
    is_plain = not sim.has("voices")  # else agents say ItemsProcessed
    exact = is_plain and sim.natures[row.type].counts == 0 and not row.disruptions and not row.repeat
    if exact and row.processed + row.failed != row.items:
        broken("counts_are_right", f"job {row.pk}: {row.processed} + {row.failed} of {row.items}")


def every_wait_has_a_wake_up(late: object) -> None:
    """What a rescan finds was found before, by an event or a deadline: no job or dependency waits for it."""
    broken("every_wait_has_a_wake_up", f"only a rescan found {late}")


def what_is_wanted_is_on_its_way(world: State, row: Row) -> None:
    """A job that is killed or cancelled has no agent that is left in peace, and no item that waits."""
    job = world.jobs.get(row.pk)
    if row.wanted is None or job is None:
        return
    for slot in world.slots.all:
        if slot.job is job and slot.state in (ST_READY, ST_RUNNING):
            broken("commands_are_kept", f"job {row.pk} was to be {row.wanted}, and slot {slot.number} works on")
    if any(lane.items for lane in job.lanes.values()):
        broken("commands_are_kept", f"job {row.pk} was to be {row.wanted}, and items of it wait")
