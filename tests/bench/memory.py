"""A soak: `python -m tests.bench.memory [MINUTES]` prints the memory of a daemon that works at an even pace.

It gets jobs of all kinds, some of which fail, and ends with status 1 if it has grown by more than 1 MB since the end of
its first tenth.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from tests.bench.__main__ import place_of_bench
from tests.bench.place import Daemon, Place

ALLOWED_KB: Final = 1024
MINUTE_S: Final = 60.0
BEAT_S: Final = 1.0  # between two batches
AGENTS: Final = """
[agents.true]
command = ["true"]
kind = "exec"
slots = 2
[agents.false]
command = ["sh", "-c", "echo no >&2; exit 1"]
kind = "exec"
slots = 2
"""
BATCH: Final = (
    "insert into drover.jobqueue (jq_type, jq_args) select 'noop', 'argument ' || i from generate_series(1, 300) i",
    "insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key)"
    " values ('noop', 'select i as id from generate_series(1, 300) i', true, 'id')",
    "insert into drover.jobqueue (jq_type, jq_args, jq_retries)"
    " values ('true', '', 0), ('false', '', 0), ('false', '', 1)",
)
ENDED: Final = "select count(*) from drover.jobqueue where jq_endtime is not null"
OPEN: Final = "select count(*) from drover.jobqueue where jq_endtime is null and jq_retry_at is null"


def main(words: Sequence[str]) -> int:
    """Print the memory each minute, for an hour or as many minutes as named; return 1 if it grows."""
    minutes = int(words[0]) if words else 60
    samples = []
    with place_of_bench() as place:
        for jobs, waiting, kb in _minutes(place, minutes):
            samples.append(kb)
            print(f"{len(samples):4} min  {jobs:9,} jobs ended  {waiting:5} open  {kb / 1024:7.2f} MB", flush=True)
    tenth = max(1, minutes // 10)
    grown = median(samples[-tenth:]) - median(samples[tenth : 2 * tenth] or samples[:1])
    print(f"grown by {grown / 1024:.2f} MB after the first {tenth} min; allowed are {ALLOWED_KB / 1024:.2f} MB")
    return int(grown > ALLOWED_KB)


def _minutes(place: Place, minutes: int) -> Iterator[tuple[int, int, int]]:
    """Yield after each minute how many jobs have ended and how many are open, and the daemon's memory in kB."""
    with place.daemon(place.line_agents(4) + AGENTS) as daemon:
        begun = time.monotonic()
        for minute in range(1, minutes + 1):
            while time.monotonic() < begun + minute * MINUTE_S:
                _work(daemon)
            yield daemon.value(ENDED), daemon.value(OPEN), daemon.status("VmRSS")


def _work(daemon: Daemon) -> None:
    for statement in BATCH:
        daemon.database.execute(statement.encode())
    time.sleep(BEAT_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
