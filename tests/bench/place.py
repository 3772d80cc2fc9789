"""Where ours runs: a database of the bench's own server, and a `drover run` as a child that serves it.

Only what anybody can see is used: the command line, SQL, /proc. The process that is started may be the guardian of the
one that serves; drover.scheduler tells who that is.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.bench.rates import Cost, Role
from tests.bench.usage import Meter, Workers, metered

PROJECT: Final = Path(__file__).parents[2]
RUN: Final = (sys.executable, "-m", "scheduler.cli.main", "run", "--allow-root")
PATIENCE_S: Final = 600.0  # for one drain
SSH: Final = "-m scheduler.ssh"  # in the command line of a process that holds an SSH host
SERIAL: Final = "-c max_parallel_workers_per_gather=0"  # the bench's own statements start no processes to be counted
START_S: Final = 60.0  # for a daemon to serve or to end, for an agent to hold a line
LOOK_S: Final = 0.02  # between two looks at a row, which cost the server little
SERVING_S: Final = 0.005  # between two looks whether a daemon serves, from when on its CPU time counts
REST_S: Final = 1.0  # progress is shown once more, rates are forgotten
LIVE: Final = ("queued", "claimed", "running")

EMPTY: Final = """
truncate drover.jobqueue, drover.claimable, drover.in_hand, drover.attempt_kept, drover.log, drover.output,
         drover.item_failure cascade
"""
JOBS: Final = "insert into drover.jobqueue (jq_type, jq_args) select %s, %s || i from generate_series(1, %s) i"
ONE: Final = "insert into drover.jobqueue (jq_type, jq_args) values (%s, %s) returning jq_pk"
LAST: Final = "select coalesce(max(jq_pk), 0) from drover.jobqueue"
ENDED: Final = "select jq_state::text, jq_endtext from drover.jobqueue where jq_pk = %s"
SERVING: Final = """
select scheduler_pid from drover.scheduler join drover.scheduler_group on group_owner = scheduler_uuid
 where group_lease_until > now()
"""


class Daemon:
    """A `drover run`, a connection that owns its database, and what its agents tell."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", database: psycopg.Connection[Any], pipe: int, meter: Meter
    ) -> None:
        self.process = process
        self.database = database
        self.pid = self._serving()
        self._pipe, self._told = pipe, b""
        self._meter = meter

    # ---- work

    def row(self, query: str, *values: Any) -> tuple[Any, ...]:
        """Return the one row that a statement gives."""
        row = self.database.execute(query.encode(), values or None).fetchone()
        assert row is not None
        return tuple(row)

    def value(self, query: str, *values: Any) -> int:
        """Return the one number that a statement gives, like the jq_pk of an insert."""
        return int(self.row(query, *values)[0])

    def wait(self, pk: int) -> None:
        """Wait for the end of a job, which must be a good one."""
        deadline = time.monotonic() + PATIENCE_S
        while (row := self.row(ENDED, pk))[0] in LIVE:
            assert time.monotonic() < deadline, f"job {pk} did not end within {PATIENCE_S:.0f} s"
            assert self.process.poll() is None, "the daemon is gone"
            time.sleep(LOOK_S)
        assert row[0] == "done", f"job {pk} is {row[0]}: {row[1]}"

    def stamps(self, count: int) -> list[int]:
        """Wait until agents have told that they hold so many lines; the instants, in monotonic nanoseconds."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while (told := self._told.count(b"\n")) < count:
            assert poll.poll(START_S * 1000), f"{told} of {count} agents hold a line"
            self._told += os.read(self._pipe, 65_536)
        *instants, self._told = self._told.split(b"\n", count)
        return [int(instant) for instant in instants]

    def start_all(self, gate: Path, agents: int) -> None:
        """Let every slot have its agent: each gets a line that ends only when all hold one. Then come to rest."""
        gate.unlink(missing_ok=True)
        os.mkfifo(gate)
        self.database.execute(
            b"insert into drover.jobqueue (jq_type, jq_args) select 'noop', %s from generate_series(1, %s)",
            (f"gate {gate}", agents),
        )
        self.stamps(agents)
        with gate.open("w"):
            self.wait(self.value(LAST))
        time.sleep(REST_S)

    # ---- what it costs

    def begin(self) -> None:
        """Count CPU time and WAL from now on."""
        self._meter.begin(Workers(self.process.pid, self._role), {self.database.info.backend_pid})

    def cost(self, jobs: int) -> Cost:
        """Return what each of so many jobs has cost since `begin`, the bench's own statements left out."""
        return self._meter.cost(jobs)

    def _role(self, pid: int, title: str) -> Role:
        return "driver" if pid in self._pids or SSH in title else "agents"

    # ---- the processes, as /proc has them

    def status(self, name: str) -> int:
        """Return a number of /proc/PID/status of the one that serves; memory in kB."""
        return _status(self.pid, name)

    def cpu_ns(self) -> int:
        """Time on a CPU so far, with the guardian's."""
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in self._pids)

    def wakeups(self) -> int:
        """Return how often one of the processes began to wait, the guardian included."""
        return sum(_status(pid, "voluntary_ctxt_switches") for pid in self._pids)

    def pss_kb(self) -> int:
        """Memory of all of them, what they share counted once."""
        texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self._pids)
        return sum(int(text.split("\nPss:", 1)[1].split(maxsplit=1)[0]) for text in texts)

    @property
    def _pids(self) -> set[int]:
        return {self.process.pid, self.pid}

    def _serving(self) -> int:
        """Wait until a daemon serves; its pid."""
        deadline = time.monotonic() + START_S
        while (row := self.database.execute(SERVING.encode()).fetchone()) is None:
            assert self.process.poll() is None, "the daemon ended at once"
            assert time.monotonic() < deadline, f"the daemon does not serve within {START_S:.0f} s"
            time.sleep(SERVING_S)
        return int(row[0])


def _status(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"\n{name}:", 1)[1].split(maxsplit=1)[0])


@dataclass(frozen=True, slots=True)
class Place:
    """Where ours runs: its database, the agent's argv, a folder for configuration, log and pipes."""

    conninfo: str
    agent: Sequence[str]
    folder: Path

    @property
    def gate(self) -> Path:
        """Return the named pipe that agents wait at."""
        return self.folder / "gate"

    def in_database(self, name: str) -> "Place":
        """Return the same place in a database of that name, made and migrated."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        place = replace(self, conninfo=make_conninfo(self.conninfo, dbname=name))
        place.migrate()
        return place

    def migrate(self) -> None:
        """Make the schema and the roles."""
        migrate.update(self.conninfo)

    @contextmanager
    def database(self, **others: str) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection that owns the database, or that of another `user`."""
        with psycopg.connect(make_conninfo(self.conninfo, **others), autocommit=True) as connection:
            yield connection

    def login(self, user: str, role: str) -> None:
        """Make a login in that role, if there is none."""
        with self.database() as database:
            if database.execute("select from pg_roles where rolname = %s", (user,)).fetchone() is None:
                database.execute(f"create role {user} login in role {role}".encode())

    def empty(self) -> None:
        """Forget all jobs."""
        with self.database() as database:
            database.execute(EMPTY.encode())

    def rest(self) -> None:
        """Let the server come to rest."""
        with self.database() as database:
            for statement in (b"vacuum analyze", b"checkpoint"):
                database.execute(statement)

    def line_agents(self, slots: int, first: int = 0) -> str:
        """Return the table of a type `noop`, each of whose agents tells of its `first` first lines."""
        command = [*self.agent, str(self.folder / "stamps"), str(first)]
        return f"[agents.noop]\ncommand = {json.dumps(command)}\nslots = {slots}\n"

    @contextmanager
    def daemon(self, agents: str, hosts: str = "[hosts.local]\n") -> Iterator[Daemon]:
        """Run a daemon with that configuration; it must stop in order."""
        with self.database(options=SERIAL) as database, metered(self.conninfo) as meter, self._pipe() as pipe:
            process = self._launch(hosts + agents)
            try:
                yield Daemon(process, database, pipe, meter)
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

    def _launch(self, config: str) -> "subprocess.Popen[bytes]":
        path = self.folder / "drover.toml"
        path.write_text(config)
        environment = os.environ | {"DROVER_DATABASE_URL": make_conninfo(self.conninfo, user="drover_scheduler")}
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen([*RUN, "-c", str(path)], cwd=PROJECT, env=environment, stderr=log)
