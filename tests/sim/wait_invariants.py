"""What must hold of everything that waits, and of all that is counted while it is in hand, in a simulation.

Nothing waits for what is no longer so; what was admitted is counted once and let go once; every wait has a wake-up.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from scheduler.model.states import NEVER, ST_FREE
from scheduler.policy.deadlines import ITEM_RATES, SHORTAGE
from scheduler.policy.group_lease import missing_for_type
from scheduler.policy.item_rate import BURST_S
from scheduler.policy.slots import Slot
from scheduler.policy.state import State
from tests.sim.broken import broken

if TYPE_CHECKING:
    from tests.sim.world import Sim

SECOND: Final = 1.0
TOLERANCE: Final = 1e-6


def check(world: State) -> None:
    """All of these that hold between any two steps."""
    admitted_jobs_are_counted_once(world)
    types_wait_for_what_is_so(world)
    hosts_wait_for_what_is_so(world)
    jobs_wait_for_what_is_so(world)


def admitted_jobs_are_counted_once(world: State) -> None:
    """A job counts for the rate limits of its queue while it is in hand, as one that is about to start or has begun."""
    for name, rates in world.rated.items():
        in_hand = {job.pk for job in world.jobs.values() if job.queue == name}
        begun, values = rates._begun, rates._values  # nothing shows them
        if gone := (begun | values.keys()) - in_hand:
            broken("admitted_jobs_are_counted_once", f"jobs {gone} of queue {name} are not in hand, and count")
        unstarted = Counter(value for pk, value in values.items() if pk not in begun)
        for value, window in rates._each.items():
            if window.unstarted != unstarted[value]:
                counted = f"{window.unstarted} about to start, there are {unstarted[value]}"
                broken("admitted_jobs_are_counted_once", f"queue {name}, {value!r}: {counted}")


def types_wait_for_what_is_so(world: State) -> None:
    """A type that waits for a token, a connection or a start is woken when that is there."""
    for pool in world.pools.values():
        lacks = missing_for_type(world, pool) is not None
        if pool.name in world.config.agents and pool.lacks_connection != lacks:
            broken("types_wait_for_what_is_so", f"type {pool.name} waits for a connection: {pool.lacks_connection}")
        if pool.waits_for_token and (pool.bucket is None or world.deadlines.at[ITEM_RATES] == NEVER):
            broken("types_wait_for_what_is_so", f"type {pool.name} waits for a token, and nothing wakes it")
        if pool.may_begin is (pool.is_stopped or pool.waits_for_token):
            broken("types_wait_for_what_is_so", f"type {pool.name} may begin: {pool.may_begin}")


def hosts_wait_for_what_is_so(world: State) -> None:
    """A host keeps a place for a type that starves, and no other; it is tried again where it could start no more."""
    for host in world.hosts.values():
        for pool in (host.yields_to, host.kept_for):
            if pool is not None and pool.starving_since == NEVER:  # type: ignore[attr-defined]
                broken("hosts_wait_for_what_is_so", f"host {host.name} keeps a place for a type that does not starve")
        if host.most < NEVER and world.deadlines.at[SHORTAGE] == NEVER:
            broken("hosts_wait_for_what_is_so", f"host {host.name} has {host.shortage}, and is not tried again")
        if isinstance(host.probe, Slot) and host.probe.state <= ST_FREE:
            broken("hosts_wait_for_what_is_so", f"host {host.name} waits for the start in slot {host.probe.number}")


def jobs_wait_for_what_is_so(world: State) -> None:
    """What is kept of jobs beside them is of jobs in hand: that which is tried alone, rows in files, adopted ones."""
    if world.suspect is not None and world.suspect.pk not in {*world.jobs, *world.outbox.pending()}:
        broken("jobs_wait_for_what_is_so", f"job {world.suspect.pk} is tried alone, and is not in hand")
    if gone := [pk for pk in (*world.kept, *world.expanding, *world.attachments.waiting) if pk not in world.jobs]:
        broken("jobs_wait_for_what_is_so", f"jobs {gone} have rows or connections, and are not in hand")


def item_rates_are_kept(sim: "Sim", slot: Slot) -> None:
    """In any second agents of a type get no more items than its rate, and what may come at once."""
    rate = slot.pool.kind.item_rate
    key = sim.daemon.owner, slot.pool.name, rate, slot.pool.bucket
    items = sim.memory.items.setdefault(key, [])
    if not rate:
        return
    items.append(sim.now)
    while items[0] <= sim.now - SECOND:
        items.pop(0)
    if len(items) > rate * SECOND + max(1.0, BURST_S * rate) + TOLERANCE:
        broken("item_rates_are_kept", f"type {slot.pool.name} of {rate} a second: {len(items)} in one")


def rescans_find_nothing(sim: "Sim") -> None:
    """When all is over there is nothing that a rescan would give back or settle."""
    database, daemon = sim.database, sim.daemon
    if unsettled := database.unsettled():
        broken("every_wait_has_a_wake_up", f"the children of {unsettled} wait, and all have ended")
    lost = [row.pk for row in database.hand.values() if row.holder == daemon.owner]
    if daemon.is_alive and (left := set(lost) - set(daemon.core.live_rows())):
        broken("every_wait_has_a_wake_up", f"rows {left} are in hand, and nobody knows them")
