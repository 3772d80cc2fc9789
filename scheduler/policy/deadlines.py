"""The timers of the core by name: when `Core.tick` must run next for each, or NEVER.

What is done when one has come stands in one table of core.py. The deadline of a slot or of a job is its own; here is
the soonest of all slots and of all jobs.
"""

from typing import Final

from scheduler.model.states import NEVER

LEASE: Final = "lease"  # it ends: no work is assigned until it is renewed
SLOTS: Final = "slots"  # the soonest of all slots; a lower bound: a deadline that moved later costs one search
MARK: Final = "mark"  # jobs that began of late are shown as running
OUTPUT: Final = "output"  # what commands have printed is stored
GATHER: Final = "gather"  # ends that waited for others are saved
LOCKS: Final = "locks"  # what met a lock is tried again
RECORD: Final = "record"  # which rows are in hand is recorded anew
PROGRESS: Final = "progress"  # of jobs in hand is shown
ROOM: Final = "room"  # a starving type may find room, or take it
SHORTAGE: Final = "shortage"  # more agents are tried on a host that could start no more
STARTS: Final = "starts"  # agents beyond those that one tick may start
RATES: Final = "rates"  # a queue may start more jobs
ITEM_RATES: Final = "item rates"  # a type may give out more items
TIME_LIMITS: Final = "time limits"  # the soonest of all jobs


class Deadlines:
    """Instants by name, NEVER where nothing waits."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        names = (
            LEASE, SLOTS, MARK, OUTPUT, GATHER, LOCKS, RECORD, PROGRESS, ROOM, SHORTAGE, STARTS, RATES, ITEM_RATES,
            TIME_LIMITS,
        )  # fmt: skip
        self.at = dict.fromkeys(names, NEVER)

    def set(self, name: str, instant: float) -> None:
        """Set a deadline, or with NEVER clear it."""
        self.at[name] = instant

    def bring_forward(self, name: str, instant: float) -> None:
        """Set a deadline, unless it comes before that anyway."""
        if instant < self.at[name]:
            self.at[name] = instant
