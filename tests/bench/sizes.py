"""How much is measured: what PERFORMANCE asks for, or a part of it."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

LEAST: Final = 4  # of everything that is counted: percentiles need more than one


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of what; `_s` in seconds."""

    jobs: int = 100_000  # P1, P6
    rows: int = 1_000_000  # P2, P5
    keyed: int = 200_000
    samples: int = 200  # P3, in each round
    idle_s: float = 60.0  # P4
    finished: int = 2_000_000  # P6: beside
    queued: int = 1_000_000  # P6: beside
    snapshot_s: float = 60.0  # P6
    flushed: int = 500_000  # R52
    flush_s: float = 20.0  # R52
    agents: int = 1000  # P7
    few: int = 16  # P7: compared with
    items: int = 20_000  # P7
    watch_s: float = 10.0  # P7: idle
    commands: int = 500  # P8
    far_starts: int = 40  # P9
    far_lines: int = 20_000  # P9
    copied: int = 100_000  # P10
    past: int = 10_000_000  # P11: have ended
    pending: int = 1_000_000  # P11: wait
    naps: int = 400  # T10
    waited: int = 50_000  # C38
    crowd: int = 100_000  # C45, C46, C55
    urgent: int = 20  # C45, C55
    listed: int = 100_000  # C43
    bundled: int = 5000  # J129

    def scaled(self, factor: float) -> "Sizes":
        """Return a part of it, to see whether all works."""
        return replace(self, **{name: _part(value, factor) for name, value in asdict(self).items()})


# For `--quick`: what gives a figure at all in two minutes.
QUICK: Final = Sizes(
    jobs=20_000,
    rows=200_000,
    samples=40,
    finished=200_000,
    queued=100_000,
    snapshot_s=3.0,
    commands=200,
    copied=30_000,
    past=100_000,
    pending=10_000,
)


def _part(value: float, factor: float) -> Any:
    return max(LEAST, round(value * factor)) if isinstance(value, int) else value * factor
