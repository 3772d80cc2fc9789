"""The watch connection of the simulated daemon (harness.py): its lease, and what is asked from time to time.

It does what daemon/watch_connection.py and daemon/periodic_tasks.py do, each statement in one instant of the fake
database, whose answer comes a little later. It decides nothing about jobs.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import Config
from scheduler.model.counters import FOUND_LATE
from scheduler.model.host_filters import FILTERS
from scheduler.model.states import NEVER, LeaseState
from scheduler.policy.conditions import Answer, Condition
from scheduler.policy.group_lease import Lease, LeaseStatement, Owner
from tests.sim import end_invariants, invariants
from tests.sim.configs import has_detached

if TYPE_CHECKING:
    from tests.sim.harness import Daemon

STARTS_S: Final = 5.0  # between two looks for jobs that cannot start
AGAIN_S: Final = 15.0  # until a host is asked again to release what it keeps
SITE: Final = "site"
MOMENT_S: Final = 2.0  # in which what a rescan made due is found
OWN_AGE: Final = 10.0  # a row of ours that is this old and not in memory was lost on its way


def filtered(config: Config, filters: Mapping[str, dict[str, Any]]) -> Config:
    """Return a configuration with these filters of its hosts."""
    hosts = {name: attrs.evolve(host, **filters.get(name, {})) for name, host in config.hosts.items()}
    return attrs.evolve(config, hosts=hosts)


class Watch:
    """The watch connection of one daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon, self._sim = daemon, daemon.sim
        self.lease = Lease(daemon.config.scheduler)
        self.is_up = True
        self._recovers = True  # the next rescan is the first one after a loss, which is made to find what was missed
        self.sees_since = daemon.sim.now  # that it serves, and is up
        self.losses = 0
        self.woken_in_flight = 0  # wake-ups on their way
        self.due_at = self.rescan_at = self.check_at = self.starts_at = self.find_at = NEVER
        self.removed: list[tuple[int, int]] = []  # what hosts have released, and the database does not know yet
        self.lease.connected(daemon.sim.now)
        if daemon.sim.has("lease"):
            daemon.later(0.1, self.poke)

    @property
    def is_serving(self) -> bool:
        """Return whether the group is ours."""
        return self.lease.state is LeaseState.SERVING

    def next_deadline(self) -> float:
        """Return the instant of the next statement."""
        if self._daemon.core.state.quotas.has_room:
            self.check_at = min(self.check_at, self._sim.now + 0.2)
        if self.is_serving and self._daemon.core.has_start_policies and self.starts_at == NEVER:
            self.starts_at = self._sim.now
        if not self.is_up:
            return NEVER
        return min(self.lease.next_deadline(), self.due_at, self.rescan_at, self.check_at, self.starts_at, self.find_at)

    def lose(self) -> None:
        """The connection is away."""
        self.is_up = False
        self.losses += 1
        self.lease.disconnected()

    def come_back(self) -> None:
        """The connection is up again."""
        self.is_up = self._recovers = True
        self.sees_since = self._sim.now
        self.lease.connected(self._sim.now)
        if self._daemon.is_alive:
            self.woken()

    def take_over(self) -> None:
        """Go on for a core that was made of another's document."""
        self._recovers = True
        if self._sim.features and self.lease.state is LeaseState.SERVING:
            given = json.loads(json.dumps(self.lease.snapshot()))
            self.lease = Lease(self._daemon.config.scheduler)
            self.losses += 1
            self.lease.restore(given)
            self.lease.connected(self._sim.now)
        self.look_around()
        self._daemon.core.know_start_conditions(self._sim.database.start_conditions())
        self.starts_at = self._sim.now
        self._daemon.tell(e.Serve(self.lease.until))

    def poke(self) -> None:
        """The lease hears of something: from another daemon, an operator or the core; or the connection is lost."""
        sim, now, lease = self._sim, self._sim.now, self.lease
        if sim.is_calm:
            return
        self._daemon.later(0.3 * sim.rng.random(), self.poke)
        match sim.rng.randrange(8):
            case 0 | 1:
                lease.owner_changed(now)
            case 2 | 3:
                lease.renew(now)
            case 4 if lease.state is not LeaseState.SERVING:
                lease.step_down(now)
            case 5 if self.is_up and sim.chance(0.5):
                sim.cut_watch(sim.rng.random())
            case 6 if sim.chance(0.1):
                self._daemon.tell(e.Stop())
            case _:
                pass

    def leave(self) -> None:
        """The daemon ends; what comes after that changes nothing any more."""
        lease, now = self.lease, self._sim.now
        lease.leave()
        calls: list[Callable[[], None]] = [
            lambda: lease.connected(now), lease.disconnected, lambda: lease.registered(now), lambda: lease.rescued(now),
            lambda: lease.looked(Owner(None, True, False), now), lambda: lease.taken("now", now),
            lambda: lease.taken(None, now), lambda: lease.renewed(True, now), lambda: lease.renewed(False, now),
            lambda: lease.refused(now), lambda: lease.step_down(now), lambda: lease.renew(now),
            lambda: lease.owner_changed(now), lease.leave,
        ]  # fmt: skip
        self._sim.rng.choice(calls)()
        self._sim.rng.choice(calls)()
        if lease.state is not LeaseState.LEAVING:
            end_invariants.broken("who_leaves_takes_no_lease", f"the lease is {lease.state} after its daemon has left")

    def woken(self) -> None:
        """Somebody rings."""
        if not self.woken_in_flight:
            self.woken_in_flight += 1
            self._daemon.later(0.01 * self._sim.rng.random(), self._ring)

    def _ring(self) -> None:
        self.woken_in_flight -= 1
        self._daemon.tell(e.Woken())
        self.look_due()
        self.check_at = min(self.check_at, self._sim.now + 0.2)

    def look_due(self) -> None:
        """Look for due rows soon."""
        self.due_at = min(self.due_at, self._sim.now + 0.2)

    def look_around(self) -> None:
        """Read the tables that others may change."""
        looked = self._sim.looked()
        filters = {row["name"]: {key: row[key] for key in FILTERS} for row in looked.hosts}
        before, self._daemon.config = self._daemon.config, filtered(self._daemon.config, filters)
        if self._daemon.config != before:
            self._sim.memory.filtered = self._sim.steps, self._sim.now
        invariants.limits_change(self._sim, self._daemon.core.state)
        self._daemon.tell(looked)

    def step(self, now: float) -> None:
        """Ask what is due: the lease first, and if the group is ours what periodic tasks ask."""
        if (statement := self.lease.step(now)) is not None:
            live, losses = self._daemon.core.live_rows(), self.losses
            self._daemon.later(self._sim.watch_delay(), self._lease_effect, statement, self._daemon.owner, live, losses)
        if not self.is_serving:
            self.due_at = self.rescan_at = self.check_at = self.starts_at = self.find_at = NEVER
            return
        self._daemon.write_trials()
        if self.starts_at <= now:
            self._stop_unstartable(now)
        if self.check_at <= now:
            self._check_conditions(now)
        if self.find_at <= now:
            self._find_detached(now)
        if self.due_at <= now:
            self._look_due(now)
        if self.rescan_at <= now:
            self._rescan(now)

    def find_detached_in(self, seconds: float) -> None:
        """Look for detached jobs in so many seconds, at the latest."""
        if self.is_serving:
            self.find_at = min(self.find_at, self._sim.now + seconds)

    def _find_detached(self, now: float) -> None:
        """Adopt detached jobs that are not in hand, and have hosts release what no job is for."""
        database = self._sim.database
        self.find_at = NEVER
        self._daemon.later(self._sim.watch_delay(), self._adopted, self._adoptions(), self._daemon.owner, self.losses)
        removed, self.removed = self.removed, []
        database.forget_kept(removed, ())
        kept = database.read_kept()
        for host, _, pk, attempt in kept:
            if host in self._daemon.config.hosts and self._daemon.links.get(host, True):
                self._daemon.later(self._sim.rng.random(), self._release, host, pk, attempt)
        if kept:
            self.find_at = min(self.find_at, now + AGAIN_S)

    def _adoptions(self) -> list[r.Adoption]:
        now, daemon = self._sim.now, self._daemon
        if not (types := [name for name, kind in daemon.config.agents.items() if kind.detached]):
            return []
        return self._sim.database.adopt(daemon.owner, daemon.core.live_rows(), now, types, now)

    def _adopted(self, jobs: list[r.Adoption], owner: str, losses: int) -> None:
        if (owner, losses) == (self._daemon.owner, self.losses):
            self._daemon.tell(e.Adopted(SITE, "/spool", jobs))

    def _release(self, host: str, pk: int, attempt: int) -> None:
        if self._daemon.links.get(host, True):
            self._sim.spools.release(host, pk, attempt)
            self.removed.append((pk, attempt))
            self.find_at = min(self.find_at, self._sim.now + 0.2)

    def _look_due(self, now: float) -> None:
        released, parents, seconds = self._sim.database.due(now)
        self._daemon.core.settle(parents)
        self.due_at = now + max(0.2, seconds) if seconds is not None else NEVER
        if released:
            self._daemon.tell(e.Woken())

    def _check_conditions(self, now: float) -> None:
        """Check the condition that is due longest, if one is."""
        if self._daemon.core.state.quotas.has_room:
            self._sim.database.check_now(self._daemon.core.cleared_conditions(), now)
        seen = self._sim.database.read_recovery(now)
        if not isinstance(seen, Condition):
            self.check_at = NEVER if seen is None else now + max(0.2, seen)
            return
        step = self._daemon.core.next_step(seen)
        self._sim.note((seen, step))
        is_asked = seen.policy.tester and not self._sim.is_calm
        answer = self._sim.rng.choice(list(Answer)[1:]) if is_asked else Answer.CLEARED
        moved, parents = self._sim.database.check_condition(self._daemon.owner, seen, step, now, answer)
        self._daemon.core.settle(parents)
        self.check_at = now + 0.2
        if moved:
            self._daemon.tell(e.Woken())

    def _stop_unstartable(self, now: float) -> None:
        """Block or fail jobs that cannot start, and let those be looked at that can again."""
        self.starts_at = now + STARTS_S
        for each in self._daemon.core.start_failures(now):
            self._sim.note(each)
            count, parents = self._sim.database.stop_unstartable(self._daemon.owner, each, now)
            self._daemon.core.settle(parents)
            if count:
                self.starts_at = now + 0.2
        if names := self._daemon.core.cleared_conditions():
            self._sim.note(f"over: {names}")
            self._sim.database.check_now(names, now)
            self.check_at = now

    def _rescan(self, now: float) -> None:
        self.rescan_at = now + self._daemon.config.scheduler.rescan
        recovers, self._recovers = self._recovers, False
        if self._sim.features and self._sim.is_calm and not recovers:
            return  # the end of each world is to come without the safety net
        self.find_at = now if has_detached(self._sim.seed) else NEVER
        is_counted = bool(self._sim.features) and not recovers
        if is_counted:
            self._daemon.core.settle_late(self._sim.database.unsettled())
            self._daemon.later(MOMENT_S, self._count_late, self._daemon.owner, self.losses, now)
        else:
            self._daemon.core.settle(self._sim.database.unsettled())
        self.look_due()
        count, parents = self._sim.database.rescue(self._daemon.owner, self._daemon.core.live_rows(), OWN_AGE, now)
        if count:
            self._sim.note(f"rescan gave back {count}")
        self._daemon.core.settle(parents)
        self._daemon.tell(e.Woken(by_rescan=is_counted))
        self.look_around()

    def _count_late(self, owner: str, losses: int, until: float) -> None:
        """Count what the last rescan alone has found; after a loss of the connection it may have found much."""
        core = self._daemon.core
        core.found_late({"tables": 0}, until + MOMENT_S)
        late = {key: count for key, count in core.report.take_counted().items() if key[0] == FOUND_LATE}
        if late and (owner, losses) == (self._daemon.owner, self.losses):
            end_invariants.every_wait_has_a_wake_up(late)

    def _lease_effect(self, statement: LeaseStatement, owner: str, live: list[int], losses: int) -> None:
        database, now, lease = self._sim.database, self._sim.now, self._daemon.config.scheduler.lease
        result: Any = None
        match statement:
            case LeaseStatement.LOOK:
                uuid = database.group_owner
                result = Owner(uuid, database.lease_until <= now, self._sim.is_known_dead(uuid), database.taken)
            case LeaseStatement.TAKE if self._sim.has("lease") and self._sim.chance(0.2):
                pass  # another daemon was faster, and is gone again
            case LeaseStatement.TAKE:
                dead = self.lease.owner.uuid if self.lease.owner.is_dead else None
                result = database.take_lease(owner, dead, self.lease.has_waited_a_lease, lease, now)
            case LeaseStatement.RESCUE:
                result = database.rescue(owner, live, 0.0, now)
            case LeaseStatement.RENEW:
                result = database.renew_lease(owner, lease, now)
            case LeaseStatement.LEAVE:
                database.leave(owner)
                result = False
        is_odd = (self._sim.has("refusals") or self._sim.has("lease")) and not self._sim.is_calm
        is_refused = is_odd and self._sim.chance(0.1)
        answer = self._lease_refused if is_refused else self._lease_answer
        self._daemon.later(self._sim.watch_delay(), answer, statement, result, losses)

    def _lease_refused(self, statement: LeaseStatement, _: Any, losses: int) -> None:
        """The statement was carried out, and a time-out of the database came before its answer."""
        if losses == self.losses:
            self._sim.note(f"{statement.value} refused")
            self.lease.refused(self._sim.now)

    def _lease_answer(self, statement: LeaseStatement, result: Any, losses: int) -> None:
        if losses != self.losses:
            return  # the connection that was asked is gone
        now, lease = self._sim.now, self.lease
        self._sim.note((statement.value, result))
        match statement:
            case LeaseStatement.REGISTER:
                lease.registered(now)
            case LeaseStatement.LOOK:
                lease.looked(result, now)
            case LeaseStatement.TAKE:
                lease.taken(result, now)
            case LeaseStatement.RESCUE:
                self._rescued(result[1])
            case LeaseStatement.RENEW | LeaseStatement.LEAVE:
                self._renewed(result)

    def _rescued(self, parents: list[int]) -> None:
        self._daemon.core.settle(parents)
        if has_detached(self._sim.seed):
            self._daemon.tell(e.Adopted(SITE, "/spool", self._adoptions()))
            self.find_at = self._sim.now
        self.lease.rescued(self._sim.now)
        self._daemon.tell(e.Serve(self.lease.until))
        self._daemon.tell(e.Woken())
        self.look_around()
        self.sees_since = self._sim.now
        self._daemon.core.know_start_conditions(self._sim.database.start_conditions())
        self._recovers = True
        self.due_at = self.check_at = self._sim.now
        self.rescan_at = self._sim.now + self._daemon.config.scheduler.rescan

    def _renewed(self, is_ours: bool) -> None:
        self.lease.renewed(is_ours, self._sim.now)
        if is_ours:
            self._daemon.tell(e.Serve(self.lease.until))
        else:
            self._daemon.tell(e.LeaseLost())
            self._daemon.owner = self._sim.new_owner()
