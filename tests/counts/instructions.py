"""Machine instructions of the core, in lockstep, for a job and for an item, counted by callgrind.

Interpreters differ from build to build, so the unit is a *plain step*: what the same interpreter, in the same run,
takes to pop an item, remember it and return it. `python -m tests.counts.instructions` is what runs under callgrind;
it calls sched_yield, which nothing else here does, between its phases, and callgrind writes its count each time.
"""

import gc
import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final

from tests.counts.lockstep import Lockstep
from tests.counts.memory import Memory

COUNT: Final = 1000
TINY: Final = 20_000  # instructions: less is what lies between two marks of one call
ROOT: Final = Path(__file__).parents[2]


class Plain:
    """The least that anything could do with an item."""

    __slots__ = ("item", "items")

    def __init__(self, count: int) -> None:
        self.items = deque(b"item %d\n" % n for n in range(count))
        self.item = b""

    def step(self) -> bytes:
        """Take the next item."""
        item = self.item = self.items.popleft()
        return item


def main() -> None:
    """Run the phases, each ended by a mark: start-up, plain steps, jobs, items."""
    memory = Memory()
    daemon = Lockstep(memory)
    memory.put(COUNT)
    daemon.work(COUNT)
    memory.put_query(COUNT)
    daemon.work(COUNT)
    gc.disable()  # else a collection is counted in the phase in which it comes
    plain = Plain(COUNT)
    memory.put(COUNT)
    os.sched_yield()
    for _ in range(COUNT):
        plain.step()
    os.sched_yield()
    daemon.work(COUNT)
    os.sched_yield()
    memory.put_query(COUNT)
    daemon.work(COUNT)
    os.sched_yield()


def instructions(folder: Path) -> dict[str, float]:
    """Return the figures; `folder` takes callgrind's files."""
    out = folder / "callgrind"
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        "valgrind", "--tool=callgrind", "--dump-before=sched_yield", f"--callgrind-out-file={out}",
        sys.executable, "-m", "tests.counts.instructions",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stderr=subprocess.DEVNULL)
    _, plain, jobs, items, *_ = filter(lambda count: count > TINY, map(_count, _parts(folder)))
    return {"plain_steps_per_job": jobs / plain, "plain_steps_per_item": items / plain}


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("callgrind.*"), key=lambda path: int(path.suffix[1:]))


def _count(path: Path) -> int:
    found = re.search(r"^summary: (\d+)$", path.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
