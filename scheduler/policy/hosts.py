"""Hosts that have to be reached, or cannot start more agents: what changes when one can, and when it cannot.

Work for any host goes elsewhere meanwhile. What is bound to a host that is down waits, in the queue as far as it can,
so that everybody sees why.

A machine that has no descriptor, process or memory for one more agent keeps those that it has; items are put back at
no cost. More are tried after a pause, which doubles each time that it fails at once.
"""

from typing import Final

from scheduler.model import events as e
from scheduler.model.states import NEVER
from scheduler.policy import endings
from scheduler.policy.pools import HostBook
from scheduler.policy.world import World

SHORTEST_PAUSE: Final = 1.0  # seconds in which no more agents are tried on a machine that could not start one
LONGEST_PAUSE: Final = 30.0


def host_up(world: World, event: e.HostUp, now: float) -> None:
    """Agents may be started there."""
    host = world.hosts[event.host]
    host.is_up, host.reason = True, None
    world.say("info", f"host {host.name}: reached")
    _look_anew(world, host)


def host_down(world: World, event: e.HostDown, now: float) -> None:
    """Nothing can be started there; what ran there is told lost by itself."""
    host = world.hosts[event.host]
    host.is_up, host.reason, host.down_until = False, event.reason, now + event.seconds
    world.say("warning", f"host {host.name} cannot be reached: {event.reason}; next attempt in {event.seconds:.1f} s")
    endings.give_back_all(
        world, f"host {host.name} is down", now, lambda job: job.host == host.name and endings.is_untouched(job)
    )
    _look_anew(world, host)


def run_short(world: World, host: HostBook, reason: str, now: float) -> None:
    """Let a host have no more agents than it has: its machine could not start one more. It is tried again later."""
    host.most = host.used
    host.shortage = reason
    if now >= host.tried_again_at or host.tried_again_at == NEVER:
        host.pause = min(max(2 * host.pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        host.tried_again_at = now + host.pause
        world.say("warning", f"host {host.name}: no more agents are started for {host.pause:g} s: {reason}")
    world.uncap_at = min(world.uncap_at, host.tried_again_at)


def uncap(world: World, now: float) -> None:
    """Try again to start more agents where the machine could not."""
    for host in world.hosts.values():
        if host.tried_again_at <= now:
            host.most = NEVER
    world.uncap_at = min((h.tried_again_at for h in world.hosts.values() if h.most < NEVER), default=NEVER)
    world.stirred |= world.starving


def recovered(world: World, host: HostBook) -> None:
    """One more agent could be started than before."""
    host.shortage, host.pause, host.tried_again_at = None, 0.0, NEVER
    world.say("info", f"host {host.name}: more agents can be started again")


def _look_anew(world: World, host: HostBook) -> None:
    host.note()
    world.hosts_changed.add(host)
    world.claims.wake()
    world.stirred.update(pool for pool in world.pools.values() if host.name in pool.free)
