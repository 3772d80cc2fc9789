"""What the database answered: rows claimed, saved or lost, and what others changed in the tables we follow."""

from collections.abc import Sequence
from typing import Final

from scheduler.model import events as e
from scheduler.model.states import NEVER
from scheduler.policy import completion, intake, serving
from scheduler.policy.entities import Job
from scheduler.policy.query import TRIED_ALONE
from scheduler.policy.state import World

STOCK_AFTER: Final = 1.0  # seconds of claims after which is said anew what is in hand


def woken(world: World, event: e.Woken, now: float) -> None:
    """There may be something to claim anywhere."""
    world.claims.wake()


def turned(world: World, event: e.EndedAndClaimed, now: float) -> None:
    """Rows are claimed and ends are saved, but for those that another owner had."""
    world.ledger.parents.extend(event.parents)
    if world.ledger.was_foreign():
        return
    request = world.ledger.answered()
    assert isinstance(request, e.EndAndClaim)
    if event.has_lapsed:
        serving.lapsed(world)
    else:
        world.claims.turned(request, event.found, event.reached, now)
    world.stock_at = min(world.stock_at, now + STOCK_AFTER if event.found else NEVER)
    if event.fenced and not world.ledger.resent:
        world.say("warning", f"rows that had another owner when they ended: {sorted(event.fenced)}")
    intake.arrived(world, event, now)
    if (event.found or world.jobs) and world.progress_at == NEVER:
        world.progress_at = now + world.timers.progress_interval


def saved(world: World, event: e.Saved, now: float) -> None:
    """Rows are saved or marked; one that was no longer ours is forgotten."""
    world.ledger.parents.extend(event.parents)
    if world.ledger.was_foreign():
        return
    request = world.ledger.answered()
    if isinstance(request, e.Mark):
        _marked(world, request.rows, event.pks, now)
        return
    assert isinstance(request, e.Save)
    serving.go_on(world, now)
    for row in request.rows:
        if row.pk not in event.pks and not (world.ledger.resent and row.outcome is not None):
            _fenced(world, row.pk, row.attempt, now)
    if world.trial is not None:
        _saved_of_trial(world, world.trial, [row.text for row in request.rows if row.pk == world.trial.pk])
    if any(completion.is_back(row) for row in request.rows if row.outcome is not None):
        world.claims.wake()
    if any(row.retry_in is not None for row in request.rows):
        world.commands.append(e.FindNextDue())


def _saved_of_trial(world: World, job: Job, texts: Sequence[str | None]) -> None:
    """A row that says that it is tried alone is read; one that does not any more lets the next one be tried."""
    if TRIED_ALONE in texts:
        world.ledger.reads[job.pk] = (job.pk, job.attempt)
    elif any(text is not None for text in texts):
        intake.trial_is_over(world)


def _marked(world: World, asked: Sequence[tuple[int, int]], pks: frozenset[int], now: float) -> None:
    """Rows that are shown as running; a rescued one may begin only now."""
    for pk, attempt in asked:
        job = world.jobs.get(pk)
        if job is None or job.attempt != attempt:
            continue
        if pk not in pks:
            _fenced(world, pk, attempt, now)
            continue
        job.marked = True
        job.pool.marking.discard(pk)
        if job.rules.rescued and not job.started and job.verdict is None and not job.lanes:
            intake.admit(world, job)


def have_read(world: World, event: e.ContentsRead, now: float) -> None:
    """What rows hold is known; one that is no longer ours is forgotten."""
    if world.ledger.was_foreign():
        return
    request = world.ledger.answered()
    assert isinstance(request, e.ReadContents)
    for pk, attempt in request.rows:
        job = world.jobs.get(pk)
        if job is None or job.attempt != attempt or not job.rules.unread:
            continue
        if pk in event.contents:
            intake.take_contents(world, job, *event.contents[pk], now)
        else:
            _fenced(world, pk, attempt, now)


def strayed(world: World, event: e.RowsLost, now: float) -> None:
    """The database that has come back knows these rows otherwise: nothing of them is to be saved."""
    for pk, attempt in event.rows:
        _fenced(world, pk, attempt, now)


def _fenced(world: World, pk: int, attempt: int, now: float) -> None:
    """A row of ours has another owner or is gone: forget it, and end what works on it."""
    world.say("warning", f"job={pk}: the row is no longer ours")
    job = world.jobs.get(pk)
    if job is not None and job.attempt == attempt:
        completion.forget(world, job, now)


def not_saved(world: World, event: e.NotSaved, now: float) -> None:
    """A request failed: it goes in parts, later, or one row of it is given up."""
    if world.ledger.was_foreign():
        return
    request = world.ledger.in_flight
    complaint = world.ledger.failed(event, now)
    if complaint is not None and isinstance(request, e.ReadContents):
        intake.refuse_unreadable(world, request.rows[0][0], event.reason, now)
    world.say("error" if complaint else "debug", complaint or f"not saved ({event.why}): {event.reason}")
    if world.trial is not None and world.trial.pk not in {*world.jobs, *world.ledger.pending()}:
        completion.end_trial(world)  # its end was given up


def settled(world: World, event: e.Settled, now: float) -> None:
    """Some dependencies are settled; whoever owns the group may settle the others."""
    if not world.ledger.was_foreign():
        world.ledger.answered()
    if event.left is not None:
        first, *others = event.left.parents
        world.ledger.unsettled.append(e.Settle([first], event.left.beyond))
        world.ledger.parents.extend(others)  # they do not wait for all of the first one's children
    if event.locked:
        world.ledger.wait_for_lock(e.Settle(event.locked), now)
    if event.released:
        world.claims.wake()
    serving.go_on(world, now)


def found_locked(world: World, event: e.LockedFound, now: float) -> None:
    """Some rows are locked: they are saved later, and the others now."""
    if not world.ledger.was_foreign():
        world.ledger.found_locked(event.pks, now)


def written(world: World, event: e.Written, now: float) -> None:
    """Log or output is written."""
    if not world.ledger.was_foreign():
        world.ledger.answered()
    serving.go_on(world, now)
