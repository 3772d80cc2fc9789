"""When an agent may not be started again: a window over the births of processes that died on their own.

A pure function of (births, now, interval, count); the slot keeps the births, policy/agents.py acts on the verdict.
"""

from collections.abc import Sequence


def recent(births: Sequence[float], now: float, interval: float) -> list[float]:
    """Give the births that still count: those of the last `interval` seconds."""
    return [born for born in births if now - born < interval]


def is_too_fast(births: Sequence[float], now: float, interval: float, count: int) -> bool:
    """Say whether one more start would be the respawn too many: the first start and `count` respawns are allowed.

    **source**: F71, F72 (six starts in five minutes, then no more).
    """
    return len(recent(births, now, interval)) > count
