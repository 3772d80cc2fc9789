"""When an agent may not be started again.

Deaths of agents that had said OK count per slot, in a window over their births. A start that ended before the first
OK tells something of the program, and not of the slot: those count for all slots of a type on a host, in a row,
however far apart they are, since an agent that never says OK is killed by `start_limit` only, and one of these after
the other fills no window. One first OK forgets them. After the last that is allowed all slots of the type on the host
rest; then one start after each rest is allowed, until one says OK.

A type whose last start on a host failed so is on probation there: of all such types one agent at a time is started on
a host, and after one that failed none for as long as it held its place. So agents that do not come up hold one place
of a host, half of the time, once their first starts are over.

Pure functions; the slot keeps the births, policy/agents.py acts on the verdict.
"""

from collections.abc import Sequence

from scheduler.model.states import NEVER
from scheduler.policy.entities import HostBook, Pool


def recent(births: Sequence[float], now: float, interval: float) -> list[float]:
    """Give the births that still count: those of the last `interval` seconds."""
    return [born for born in births if now - born < interval]


def is_too_fast(births: Sequence[float], now: float, interval: float, count: int) -> bool:
    """Say whether one more start would be the respawn too many: the first start and `count` respawns are allowed.

    **source**: F71, F72 (six starts in five minutes, then no more).
    """
    return len(recent(births, now, interval)) > count


def start_from(pool: Pool, host: HostBook) -> float:
    """Return the instant from which an agent of a type may be started on a host; one that is to end first: NEVER."""
    if host.name not in pool.failed_starts:
        return -NEVER
    return host.probe_at if host.probe is None else NEVER
