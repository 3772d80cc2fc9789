"""A digest of all that goes into the core and comes out of it, a line a seed: equal lines are equal runs.

`python -m tests.sim.digest` proves that a change, or another build, has not changed any decision: events, effects,
requests, replies and deadlines are those of before, in the same order and at the same instants.
"""

import hashlib
import sys
from typing import Any, Final

from scheduler.model.config import Config
from scheduler.policy.core import Core
from tests.sim import harness
from tests.sim.world import Sim

SEEDS: Final = 60
STEPS: Final = 1000


class Recorded:
    """A core with every call of it, its arguments and its result written down."""

    def __init__(self, core: Core, record: "hashlib._Hash") -> None:
        self._core, self._record = core, record

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        return self._recorded(name, found) if callable(found) else found

    def _recorded(self, name: str, method: Any) -> Any:
        def call(*args: Any) -> Any:
            result = method(*args)
            self._record.update(repr((name, args, result)).encode())
            return result

        return call


def digest(seed: int) -> str:
    """Run a seed and return its digest."""
    record = hashlib.sha256()

    def make(config: Config, now: float) -> Recorded:
        return Recorded(Core(config, now), record)

    harness.Core = make  # type: ignore[misc, assignment]
    try:
        Sim(seed).run(STEPS)
    finally:
        harness.Core = Core  # type: ignore[misc]
    return record.hexdigest()


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]) if sys.argv[1:] else SEEDS):
        print(seed, digest(seed), flush=True)
