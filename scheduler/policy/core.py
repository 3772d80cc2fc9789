"""The brain: what happened and what time it is come in, what to do comes out.

    core.handle(event, now)         facts, answers of drivers, signals
    core.hear(slot, data, now)      the hot door: what an agent printed -> the line it gets next
    core.tick(now)                  deadlines that have come; `next_deadline` says when to call again
    core.take()                     the commands since the last call
    core.next_request(now)          what the queue connection is to do next, one at a time

It is pure: it knows no bytes but lines, no clock but `now`, no chance. Here stands what starts and ends serving, and
what each event leads to; the decisions themselves are in the modules named in the table at the end.
"""

from collections.abc import Callable
from typing import Any, Final

from scheduler.model import events as e
from scheduler.model.config import Config
from scheduler.model.states import NEVER
from scheduler.policy import answers, completion, intake, processes, reload, replies, report, serving
from scheduler.policy.dispatch import dispatch
from scheduler.policy.state import World

GATHER: Final = 0.005  # seconds that ends wait for others, while nothing is wanted and more is in hand


class Core:
    """One supervisor's decisions."""

    def __init__(self, config: Config, now: float = 0.0) -> None:
        self.world = World(config, now)
        self._slots = self.world.slots.all
        self._heard_at = now

    # ---- doors

    def handle(self, event: e.Event, now: float) -> None:
        """Take in a fact."""
        self.unpack()
        self.world.may_want = True
        _HANDLERS[type(event)](self.world, event, now)
        if self.world.stirred:
            self.look_again(now)

    def hear(self, number: int, data: bytes, now: float) -> bytes | None:
        """Take in what an agent printed; give the line to send it next, or None.

        Pools that this stirs are looked at once for all that is heard in a turn, by `take`.
        """
        self._heard_at = now
        return replies.hear(self.world, self._slots[number], data, now)

    def hear_err(self, number: int, data: bytes, now: float) -> None:
        """Take in what a line agent printed on stderr."""
        replies.hear_err(self.world, self._slots[number], data, now)

    def captured(self, number: int, stream: str, data: bytes, now: float) -> None:
        """Take in what an exec agent printed on "out" or "err"."""
        processes.capture(self.world, self._slots[number], stream, data, now)

    def take(self) -> list[e.Command]:
        """Give the commands since the last call."""
        self.unpack()
        self.look()
        taken = self.world.commands[:]
        self.world.commands.clear()
        for command in taken:
            if type(command) is e.Send:
                self._slots[command.slot].is_unsent = False
        return taken

    def look(self) -> None:
        """Look at the pools that agents have stirred; `take` does so by itself."""
        if self.world.stirred:
            self.look_again(self._heard_at)

    def look_again(self, now: float) -> None:
        """Look at every pool that was stirred."""
        world = self.world
        world.may_want = True
        while world.stirred:
            pools, world.stirred = world.stirred | world.starving, set()
            world.starving = set()
            for pool in sorted(pools, key=lambda pool: (pool.starving_since, pool.name)):
                if world.feeding and pool.may_begin:
                    intake.mark_rescued(world, pool)
                    if pool.unread:
                        intake.try_alone(world, pool, now)
                    waiting = intake.open_expansions(world, pool)
                    dispatch(world, pool, waiting, now)
        if world.draining:
            serving.wind_down(world, now)

    @property
    def has_work(self) -> bool:
        """Say whether `take` would give something, or has something to unpack or to look at."""
        return bool(self.world.commands or self.world.arrivals or self.world.stirred)

    # ---- the queue

    def next_request(self, now: float) -> e.Request | None:
        """Give what the queue connection is to do next; None while the last request has no answer yet."""
        world = self.world
        if world.ledger.in_flight is not None:
            return None
        if not world.may_want and world.ledger.is_empty:
            return None
        if not world.may_want and self._gathers(now):
            return None
        if world.ledger.is_stock_due:
            return world.ledger.take_stock(self.live_rows())
        wants = []
        if world.feeding and not world.draining:
            measure(world, now)
            books, queues = list(world.hosts.values()), list(world.queues.values())
            if [queue for queue in queues if queue.reserved]:
                self.unpack()  # what is in hand counts
            pools, jobs = world.pools.values(), world.jobs.values()
            wants = world.claims.wants(pools, queues, books, jobs, world.timers, now)
        world.may_want = bool(wants)
        if not wants and self._gathers(now):
            return None
        request = world.ledger.next_request(wants, now)
        world.ledger.gather_until = now + GATHER
        if isinstance(request, e.EndAndClaim):
            world.claims.asked(request, now)
        return request

    def _gathers(self, now: float) -> bool:
        """Say whether what waits to be saved may wait for more: others are in hand and will end soon."""
        return bool(self.world.jobs) and self.world.ledger.may_gather(now)

    def live_rows(self) -> list[int]:
        """Give the rows that are ours in memory, or whose end is on its way to the database."""
        self.unpack()
        return [*self.world.jobs, *self.world.ledger.pending()]

    def in_hand(self) -> list[tuple[int, int]]:
        """Give pk and attempt of the jobs that have not ended."""
        self.unpack()
        return [(job.pk, job.attempt) for job in self.world.jobs.values()]

    def unpack(self) -> None:
        """Take in hand what has arrived; the other doors do so by themselves."""
        if self.world.arrivals:
            intake.unpack(self.world)
            self.look_again(self.world.arrived_at)

    def settle(self, parents: list[int]) -> None:
        """Rows that others ended have children that wait."""
        self.world.ledger.parents.extend(parents)

    # ---- commands

    def kill(self, pk: int, now: float) -> bool:
        """Kill a job in hand as a failure; False when it is not in hand any more."""
        self.unpack()
        self.world.may_want = True
        return completion.kill_by_command(self.world, pk, now)

    def cancel(self, pk: int, text: str, now: float) -> bool:
        """Cancel a job in hand, with a word on why; False when it is not in hand any more."""
        self.unpack()
        self.world.may_want = True
        return completion.cancel_by_command(self.world, pk, text, now)

    def signal(self, pk: int, number: int) -> int:
        """Send a signal to all agents that work on a job; give how many there are."""
        return completion.signal(self.world, pk, number)

    def step_down(self, now: float) -> bool:
        """Give the group up when the children are dead and their rows given back; False when we are ending anyway."""
        self.unpack()
        self.world.may_want = True
        return serving.step_down(self.world, now)

    def thaw(self, name: str | None, now: float) -> int:
        """Try the slots of a type, or of all, again that have failed; give how many there are."""
        pools = [pool for pool in self.world.pools.values() if name in (None, pool.name)]
        return processes.thaw(self.world, pools, now)

    # ---- time

    def next_deadline(self) -> float:
        """Give the instant `tick` is to be called; a lower bound, inf when nothing waits."""
        world = self.world
        return min(
            world.slots.soonest, world.mark_at, world.progress_at, world.room_at, world.stock_at, world.start_at,
            world.output_at, world.uncap_at,
            world.ledger.gather_until if world.ledger.ends and world.ledger.gather_until else NEVER,
            world.ledger.locked_until if world.ledger.locked and world.ledger.locked_until else NEVER,
            world.serving_until if world.feeding else NEVER,
            world.limits[0][0] if world.limits else NEVER,
        )  # fmt: skip

    def tick(self, now: float) -> None:
        """Act on the deadlines that have come."""
        world = self.world
        self.unpack()
        if now >= world.serving_until:
            serving.judge_lease(world, now)
        for slot in world.slots.overdue(now):
            processes.late(world, slot, now)
        if now >= world.mark_at:
            report.mark_running(world, now)
        if now >= world.output_at:
            processes.store_output(world)
        if now >= world.ledger.gather_until:
            world.ledger.gather_until = 0.0
        if now >= world.ledger.locked_until:
            world.ledger.locked_until = 0.0
        if now >= world.stock_at:
            world.stock_at, world.ledger.is_stock_due = NEVER, True
        if now >= world.progress_at:
            report.show_progress(world, now)
        if now >= world.room_at:
            world.room_at = NEVER
            world.stirred |= world.starving
        if now >= world.uncap_at:
            processes.uncap(world, now)
        world.starting, world.start_at = 0, NEVER
        world.stirred |= world.unstarted
        world.unstarted.clear()
        completion.end_late_jobs(world, now)
        self.look_again(now)
        self._exit_when_over()

    def resume(self, pause: float, now: float) -> None:
        """Go on after a pause, before anything is heard: agents get that time back, while the lease ran on."""
        serving.judge_lease(self.world, now)
        self.world.slots.extend_deadlines(pause)
        completion.extend_limits(self.world, pause)

    def _exit_when_over(self) -> None:
        world = self.world
        if world.over or not (world.draining or world.stopping):
            return
        if not (world.jobs or world.arrivals or world.has_processes()) and world.ledger.is_empty:
            world.over = True
            world.commands.append(e.ReleaseGroup() if world.steps_down else e.Exit())

    def is_over(self) -> bool:
        """Say whether nothing is left to do after a drain or a stop."""
        self._exit_when_over()
        return self.world.over


_HANDLERS: Final[dict[type, Callable[[World, Any, float], None]]] = {
    e.Created: processes.created,
    e.NotCreated: processes.not_created,
    e.Gone: processes.gone,
    e.HostUp: processes.host_up,
    e.HostDown: processes.host_down,
    e.Clogged: processes.clogged,
    e.Unclogged: processes.unclogged,
    e.Replaced: processes.replaced,
    e.StatementAnswered: processes.answered,
    e.Opened: intake.opened,
    e.Fetched: intake.fetched,
    e.NotExpanded: intake.not_expanded,
    e.ConnectionsChanged: serving.connections_changed,
    e.Woken: answers.woken,
    e.RowsLost: answers.strayed,
    e.TablesRead: reload.tables_read,
    e.EndedAndClaimed: answers.turned,
    e.Saved: answers.saved,
    e.NotSaved: answers.not_saved,
    e.Settled: answers.settled,
    e.LockedFound: answers.found_locked,
    e.ContentsRead: answers.have_read,
    e.Written: answers.written,
    e.Serve: serving.serve,
    e.LeaseLost: serving.disowned,
    e.Drain: serving.drain,
    e.Stop: serving.stop,
    e.Reloaded: reload.reloaded,
}


def measure(world: World, now: float) -> None:
    """How many items a second each type eats: what to hold is measured in time."""
    for pool in world.pools.values():
        span = now - pool.rated_at
        if pool.finished and span > 0.001:
            pool.rate = (pool.rate + pool.finished / min(span, 1.0)) / 2
            pool.finished, pool.rated_at = 0, now
        elif span > 1.0:
            pool.rate, pool.rated_at = pool.rate / 2, now
