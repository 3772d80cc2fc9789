"""Ourselves: a daemon as a child on the bench's own server, and what can be seen of it from outside.

Rates come from the database's timestamps, instants from the agents, memory and CPU from /proc; that every item was
worked is checked before anything is reported.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

PROJECT: Final = Path(__file__).parents[2]
RUN: Final = (sys.executable, "-m", "scheduler.cli.main", "run", "--allow-root")
AGENTS: Final = 4
PATIENCE_S: Final = 300.0  # for one job or one drain
START_S: Final = 30.0
LOOK_S: Final = 0.05  # between two looks at a row, which cost the server little
REST_S: Final = 1.0  # progress is shown once more, rates are forgotten
WARMING: Final = 200  # items, so that every slot gets an agent
MB: Final = 1024  # kB

EMPTY: Final = "truncate drover.jobqueue, drover.attempt, drover.log, drover.output, drover.item_failure cascade"
ROWS_TABLE: Final = """
drop table if exists work;
create table work as select i::bigint as id, 'some/path/of/file_' || i as path from generate_series(1, {}) i;
grant select on work to public;
"""
QUERY: Final = "select id, path from work"
ONE: Final = "insert into drover.jobqueue (jq_type, jq_args) values ('noop', %s) returning jq_pk"
MSQ: Final = (
    "insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key) values ('noop', %s, true, %s) returning jq_pk"
)
MANY: Final = """
insert into drover.jobqueue (jq_type, jq_args) select 'noop', 'argument number ' || i from generate_series(1, {}) i
"""
ENDED: Final = """
select jq_state::text, jq_itemsprocessed, extract(epoch from jq_endtime - jq_queued)::float8, jq_endtext
  from drover.jobqueue where jq_pk = %s
"""
DRAINED: Final = """
select count(*) filter (where jq_state = 'done'), (select count(*) from drover.attempt where att_outcome = 'done'),
       extract(epoch from max(jq_endtime) - min(jq_starttime))::float8
  from drover.jobqueue
"""


@dataclass(frozen=True, slots=True)
class Expanded:
    """What a multi-SQL-query took: items a second from insert to end, seconds to the first item, growth in MB."""

    rate: float
    first_s: float
    growth_mb: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What waiting costs: percent of a CPU, voluntary context switches a second, resident MB."""

    cpu_percent: float
    wakeups: float
    rss_mb: float


class Daemon:
    """A `drover run` with AGENTS slots of one type, and a connection to look at its rows."""

    def __init__(self, process: "subprocess.Popen[bytes]", database: psycopg.Connection[Any], stamps: int) -> None:
        self.process = process
        self.database = database
        self._stamps = stamps

    # ---- work

    def row(self, query: str, *values: Any) -> tuple[Any, ...]:
        """The one row that a statement gives."""
        row = self.database.execute(query.encode(), values or None).fetchone()
        assert row is not None
        return tuple(row)

    def value(self, query: str, *values: Any) -> int:
        """The one number that a statement gives, like the jq_pk of an insert."""
        return int(self.row(query, *values)[0])

    def wait(self, pk: int) -> tuple[Any, ...]:
        """Give the row ENDED of a job that must end well."""
        deadline = time.monotonic() + PATIENCE_S
        while (row := self.row(ENDED, pk))[0] in ("queued", "claimed", "running"):
            assert time.monotonic() < deadline, f"job {pk} did not end within {PATIENCE_S:.0f} s"
            assert self.process.poll() is None, "the daemon is gone"
            time.sleep(LOOK_S)
        assert row[0] == "done", f"job {pk} is {row[0]}: {row[3]}"
        return row

    def held_at(self) -> int:
        """Wait until an agent holds a line; the instant, in monotonic nanoseconds."""
        poll = select.poll()
        poll.register(self._stamps, select.POLLIN)
        assert poll.poll(START_S * 1000), "no agent got a line"
        return int(os.read(self._stamps, 4096).split(b"\n")[0])

    def forget_stamps(self) -> None:
        """Forget what agents told so far."""
        poll = select.poll()
        poll.register(self._stamps, select.POLLIN)
        while poll.poll(0):
            os.read(self._stamps, 65_536)

    # ---- the process, as /proc has it

    def status(self, name: str) -> int:
        """A number of /proc/PID/status; memory in kB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split(f"\n{name}:", 1)[1].split(maxsplit=1)[0])

    def cpu_ns(self) -> int:
        """Time on a CPU so far."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])


@dataclass(frozen=True, slots=True)
class Place:
    """Where ours runs: the server's database, the agent's argv, a folder for configuration and log."""

    conninfo: str
    agent: Sequence[str]
    folder: Path

    @contextmanager
    def database(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection that owns the database."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            yield connection

    def settle(self, *statements: str) -> None:
        """Empty the queue, run these statements, and let the server come to rest."""
        with self.database() as database:
            for statement in (EMPTY, *statements, "vacuum analyze", "checkpoint"):
                database.execute(statement.encode())

    @contextmanager
    def daemon(self, stamps: int) -> Iterator[Daemon]:
        """Run a daemon whose agents tell when they held their first `stamps` lines; it must stop in order."""
        with self.database() as database, self._pipe() as pipe:
            process = self._launch(stamps)
            try:
                _wait_until_serving(process, database)
                yield Daemon(process, database, pipe)
            except BaseException:
                sys.stderr.write((self.folder / "log").read_text()[-2000:])
                raise
            finally:
                process.terminate()
                status = process.wait(START_S)
            assert status == 0, f"the daemon ended with status {status}"

    @contextmanager
    def _pipe(self) -> Iterator[int]:
        path = self.folder / "stamps"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)  # with a writer of our own it never ends
        try:
            yield pipe
        finally:
            os.close(pipe)

    def _launch(self, stamps: int) -> "subprocess.Popen[bytes]":
        command = [*self.agent, str(self.folder / "stamps"), str(stamps)]
        path = self.folder / "drover.toml"
        path.write_text(f"[hosts.local]\n[agents.noop]\ncommand = {json.dumps(command)}\nslots = {AGENTS}\n")
        environment = os.environ | {"DROVER_DATABASE_URL": make_conninfo(self.conninfo, user="drover_scheduler")}
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen([*RUN, "-c", str(path)], cwd=PROJECT, env=environment, stderr=log)


def _wait_until_serving(process: "subprocess.Popen[bytes]", database: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + START_S
    query = b"select count(*) from drover.scheduler_group where group_owner is not null"
    while database.execute(query).fetchone() == (0,):
        assert process.poll() is None, "the daemon ended at once"
        assert time.monotonic() < deadline, f"the daemon does not serve within {START_S:.0f} s"
        time.sleep(LOOK_S)


# ---- what is measured


def expand(place: Place, rows: int, key: str | None) -> Expanded:
    """Work one multi-SQL-query of so many rows, on a daemon that has done nothing yet."""
    place.settle(ROWS_TABLE.format(rows))
    with place.daemon(stamps=1) as daemon:
        before = daemon.status("VmRSS")
        begun = time.monotonic_ns()
        pk = daemon.value(MSQ, QUERY, key)
        first_s = (daemon.held_at() - begun) / 1e9
        _, worked, seconds, _ = daemon.wait(pk)
        growth = daemon.status("VmHWM") - before
    assert worked == rows, f"{worked} of {rows} items were worked"
    return Expanded(rows / seconds, first_s, growth / MB)


def drain(place: Place, jobs: int) -> float:
    """Give jobs a second of one-parameter jobs that wait when the daemon starts, from first claim to last end."""
    place.settle(MANY.format(jobs))
    with place.daemon(stamps=0) as daemon:
        daemon.wait(daemon.value("select max(jq_pk) from drover.jobqueue"))
        deadline = time.monotonic() + START_S
        while (row := daemon.row(DRAINED))[0] < jobs and time.monotonic() < deadline:
            time.sleep(LOOK_S)
    done, attempts, seconds = row
    assert (done, attempts) == (jobs, jobs), f"{done} of {jobs} jobs are done, with {attempts} attempts"
    return jobs / float(seconds)


def latencies(place: Place, samples: int) -> list[float]:
    """Give milliseconds from the return of an insert to an agent that holds its line, the rest being idle."""
    place.settle()
    with place.daemon(stamps=WARMING + samples) as daemon:
        _wake_agents(daemon)
        return [_latency_ms(daemon) for _ in range(samples)]


def idle(place: Place, seconds: float) -> Idle:
    """Watch a daemon that has nothing to do, with all its agents READY."""
    place.settle()
    with place.daemon(stamps=0) as daemon:
        _wake_agents(daemon)
        cpu, wakeups, begun = daemon.cpu_ns(), daemon.status("voluntary_ctxt_switches"), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        cpu, wakeups = daemon.cpu_ns() - cpu, daemon.status("voluntary_ctxt_switches") - wakeups
        return Idle(cpu / took / 1e7, wakeups / took, daemon.status("VmRSS") / MB)


def _wake_agents(daemon: Daemon) -> None:
    """Let every slot get its agent, and come to rest."""
    daemon.database.execute(ROWS_TABLE.format(WARMING).encode())
    daemon.wait(daemon.value(MSQ, QUERY, None))
    time.sleep(REST_S)
    daemon.forget_stamps()


def _latency_ms(daemon: Daemon) -> float:
    pk = daemon.value(ONE, "one")
    returned = time.monotonic_ns()
    held = daemon.held_at()
    daemon.wait(pk)
    return (held - returned) / 1e6
