"""A load over many executions of the program in place: `python -m tests.faults.reexecs [JOBS ROWS TIMES]`.

One-parameter jobs, and five long multi-SQL-queries with a key, are worked by agents that write down each line with the
instant at which they got it, while `drover reexec` is given again and again. From that ledger it follows what was done
twice, what was lost, which agents were started anew, and the longest time between two lines of one agent.
"""

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from scheduler.database import migrate
from tests.conftest import in_memory
from tests.integration.daemon import Daemon, agent, rec, records, start
from tests.integration.puppets import LOCAL, settings

QUERIES: Final = 5
AGENTS: Final = 2  # of one-parameter jobs
JOB_S, ROW_S = 0.004, 0.008  # that an agent works
LIMIT_S: Final = 600.0
JOBS: Final = """
insert into drover.jobqueue (jq_type, jq_args)
select 'one', 'nap:%s;job:' || n from generate_series(1, %s) n returning jq_pk
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a load."""

    twice: int  # items
    lost: int
    restarted: int  # agents that were started after the first execution began
    attempts: int  # more than one of a job
    gaps: Sequence[float]  # seconds, the longest of each agent, while the program was executed again and again
    times: int

    def __str__(self) -> str:
        longest = ", ".join(f"{gap:.2f}" for gap in sorted(self.gaps, reverse=True))
        return (
            f"{self.times} executions: done twice {self.twice}, lost {self.lost}, agents started anew "
            f"{self.restarted}, jobs tried again {self.attempts}; longest time between two items, by agent: {longest} s"
        )


def config(record: Path) -> str:
    """Return the configuration of the load."""
    kinds = agent("one", rec(record), slots=AGENTS) + agent("rows", rec(record), slots=QUERIES)
    return settings(expansions_per_type=QUERIES, expansions=QUERIES + 1, log_level="info") + LOCAL + kinds


def execute(daemon: Daemon, _number: int) -> str:
    """Let a daemon execute its program again; return what the command says."""
    pk = daemon.insert(role="drover_operator", jq_type="command", jq_args="reexec")
    return str(daemon.wait(pk, timeout=LIMIT_S)["jq_endtext"])


def load(
    daemon: Daemon, record: Path, jobs: int, rows: int, times: int, say: Callable[[str], None],
    again: Callable[[Daemon, int], str] = execute,
) -> Outcome:  # fmt: skip
    """Do so many jobs, and five queries of so many rows, over so many executions, or what else begins it again."""
    singles = [row["jq_pk"] for row in daemon.execute(JOBS % (JOB_S, jobs))]
    queries = [
        daemon.insert(
            jq_type="rows", jq_key="n", jq_runonpfile=None, jq_msq=True,
            jq_args=f"select n, {number} as q, 'nap:{ROW_S}' as act from generate_series(1, {rows}) n",
        )
        for number in range(QUERIES)
    ]  # fmt: skip
    daemon.until(lambda: len(_pids(record)) == AGENTS + QUERIES, what="not all agents are at work")
    agents, began = _pids(record), _last(record)
    for number in range(times):
        say(f"{number + 1}: {again(daemon, number)}")
    ended = _last(record)
    daemon.wait_all([*singles, *queries], timeout=LIMIT_S)
    notes = [note for note in records(record) if note["event"] == "line"]
    done = Counter(note["line"] for note in notes)
    by_agent: dict[int, list[float]] = defaultdict(list)
    for note in notes:
        if began <= note["time"] <= ended:
            by_agent[note["pid"]].append(note["time"])
    gaps = [max((b - a for a, b in pairwise(stamps)), default=0.0) for stamps in by_agent.values()]
    attempts = daemon.value("select count(*) from drover.jobqueue where jq_attempt > 1 and jq_type <> 'command'")
    return Outcome(
        sum(count - 1 for count in done.values()), jobs + QUERIES * rows - len(done), len(_pids(record) - agents),
        attempts, gaps, times,
    )  # fmt: skip


def _pids(record: Path) -> set[int]:
    return {note["pid"] for note in _notes(record) if note["event"] == "line"}


def _last(record: Path) -> float:
    return max(float(note["time"]) for note in _notes(record))


def _notes(record: Path) -> list[dict[str, Any]]:
    """Return what was written down so far; the last line may be half of one."""
    notes = []
    for line in record.read_text().splitlines() if record.exists() else ():
        with suppress(ValueError):
            notes.append(json.loads(line))
    return notes


def main(words: Sequence[str]) -> int:
    """Run the load on a database of its own, and print what became of it; 1 if anything was lost or done twice."""
    jobs, rows, times = map(int, words or ("20000", "10000", "20"))
    with in_memory() as conninfo, tempfile.TemporaryDirectory() as folder:
        migrate.update(conninfo)
        record = Path(folder) / "record"
        with start(config(record), conninfo) as daemon:
            outcome = load(daemon, record, jobs, rows, times, lambda text: print(text, flush=True))
            daemon.stop()
    print(outcome)
    return int(bool(outcome.twice or outcome.lost or outcome.restarted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
