"""Hosts that have to be reached: what changes when one can be, and when it cannot.

Work for any host goes elsewhere meanwhile. What is bound to a host that is down waits, in the queue as far as it can,
so that everybody sees why.
"""

from scheduler.model import events as e
from scheduler.policy import endings
from scheduler.policy.pools import HostBook
from scheduler.policy.world import World


def up(world: World, event: e.HostUp, now: float) -> None:
    """Agents may be started there."""
    host = world.hosts[event.host]
    host.is_up, host.reason = True, None
    world.say("info", f"host {host.name}: reached")
    _look_anew(world, host)


def down(world: World, event: e.HostDown, now: float) -> None:
    """Nothing can be started there; what ran there is told lost by itself."""
    host = world.hosts[event.host]
    host.is_up, host.reason, host.down_until = False, event.reason, now + event.seconds
    world.say("warning", f"host {host.name} cannot be reached: {event.reason}; next attempt in {event.seconds:.1f} s")
    endings.give_back_all(
        world, f"host {host.name} is down", now, lambda job: job.host == host.name and endings.is_untouched(job)
    )
    _look_anew(world, host)


def _look_anew(world: World, host: HostBook) -> None:
    host.note()
    world.hosts_changed.add(host)
    world.claims.wake()
    world.stirred.update(pool for pool in world.pools.values() if host.name in pool.free)
