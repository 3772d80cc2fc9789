"""The peers: installed into a cache of their own, and run on databases of their own on the bench's server.

The drivers beside this file do the work (common.mjs tells what they print). A peer that cannot be installed or run is
named as missing, with the reason; it never vanishes from the table.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.bench.peers import install
from tests.bench.rates import Rate
from tests.bench.usage import metered, one_program

HERE: Final = Path(__file__).parent
DRAIN_S: Final = 300.0
READY_S: Final = 60.0
SAMPLE_S: Final = 10.0

GRAPHILE, PG_BOSS, PGQUEUER, AWA, PROCRASTINATE = "graphile-worker", "pg-boss", "pgqueuer", "awa", "procrastinate"
DRIVERS: Final = {
    GRAPHILE: "graphile.mjs",
    PG_BOSS: "pgboss.mjs",
    PGQUEUER: "pgqueuer_driver.py",
    AWA: "awa_driver.py",
    PROCRASTINATE: "procrastinate_driver.py",
}
# A part of the jobs only: procrastinate would take all day, and the statement by which awa tells what is left, minutes.
SLOWER: Final = {PROCRASTINATE: 40, AWA: 20}
ADD_GRAPHILE: Final = "select from graphile_worker.add_job('noop', '{\"seq\": 1}')"


class PeerError(Exception):
    """A peer did not do what it should; says what."""


@dataclass(slots=True)
class Peers:
    """What can be measured, by which command; what cannot, and why."""

    conninfo: str
    cache: Path
    names: Sequence[str] = tuple(DRIVERS)
    missing: dict[str, str] = field(default_factory=dict)
    _programs: dict[str, str] | None = None

    def drain(self, name: str, jobs: int) -> Rate | None:
        """Return the rate of a fresh worker on jobs that wait; None if the peer is missing, from now on."""
        if not self.has(name):
            return None
        try:
            return self._drain(name, max(jobs // SLOWER.get(name, 1), 1))
        except (PeerError, ValueError) as error:
            self.missing[name] = f"{name} ({error})"
            return None

    def _drain(self, name: str, jobs: int) -> Rate:
        with metered(self.conninfo) as meter, self._started(name, "drain", str(jobs)) as process:
            _await(b"begin\n", process, DRAIN_S)
            meter.begin(one_program(process.pid))
            told = json.loads(_line(process, DRAIN_S))
            cost = meter.cost(jobs)
        return Rate(told["jobs"] / told["seconds"], replace(cost, agents_us=None))

    @contextmanager
    def graphile_serving(self) -> Iterator["Sampler"]:
        """Run a worker of graphile-worker that gives samples of its latency."""
        with self._started(GRAPHILE, "serve") as process:
            _await(b"ready\n", process, READY_S)
            with psycopg.connect(make_conninfo(self.conninfo, dbname=_database(GRAPHILE)), autocommit=True) as database:
                yield Sampler(process, database)

    def has(self, name: str) -> bool:
        """Return whether a peer can be measured; the first question installs all."""
        if self._programs is None:
            self._programs = self._install()
            for peer in self._programs:
                self._make_database(peer)
        return name not in self.missing

    def _install(self) -> dict[str, str]:
        programs: dict[str, str] = {}
        for group, get in install.GROUPS.items():
            names = [name for name in self.names if DRIVERS[name].endswith(group)]
            if not names:
                continue
            try:
                program = get(self.cache)
            except install.InstallError as error:
                self.missing |= {name: f"{name} ({error})" for name in names}
                continue
            programs |= dict.fromkeys(names, program)
        return programs

    def leave_out(self, why: str) -> None:
        """Do without all of them, and say why."""
        self.missing = {name: f"{name} ({why})" for name in self.names}
        self._programs = {}

    def _make_database(self, name: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"create database {_database(name)}".encode())

    @contextmanager
    def _started(self, name: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        assert self._programs is not None
        argv = [self._programs[name], str(HERE / DRIVERS[name]), *words]
        with (self.cache / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                env=self._environment(name),
                cwd=self.cache,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )
        try:
            yield process
        finally:
            _end(process)
            self._end_sessions(name)

    def _end_sessions(self, name: str) -> None:
        """End what the server still does for a driver that is gone: it would share the processors with what follows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (_database(name),)
            )

    def _environment(self, name: str) -> dict[str, str]:
        place = conninfo_to_dict(self.conninfo)
        own = {"PGHOST": place["host"], "PGPORT": place["port"], "PGUSER": place["user"], "PGDATABASE": _database(name)}
        return os.environ | {key: str(value) for key, value in own.items()} | {"PEERS_HOME": str(self.cache)}


@dataclass(frozen=True, slots=True)
class Sampler:
    """A worker that serves, and a connection to queue jobs for it."""

    process: "subprocess.Popen[bytes]"
    database: psycopg.Connection[Any]

    def latency_ms(self, pause_s: float) -> float:
        """Return milliseconds from the return of an insert to the call of the handler."""
        time.sleep(pause_s)
        self.database.execute(ADD_GRAPHILE.encode())
        returned = time.monotonic_ns()
        return (int(_line(self.process, SAMPLE_S)) - returned) / 1e6


def _database(name: str) -> str:
    return "peer_" + name.replace("-", "_")


def _await(said: bytes, process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    line = _line(process, patience_s)
    if line != said:
        raise PeerError(f"says {line!r} instead of {said!r}")


def _line(process: "subprocess.Popen[bytes]", patience_s: float) -> bytes:
    """Wait for a line of the driver's output."""
    output: IO[bytes] | None = process.stdout
    assert output is not None
    poll = select.poll()
    poll.register(output, select.POLLIN)
    if not poll.poll(patience_s * 1000):
        raise PeerError(f"says nothing for {patience_s:.0f} s")
    line = output.readline()
    if not line:
        raise PeerError(f"ended with status {process.wait()}; its log is in the cache")
    return line


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the driver and what it has started, in the session that was made for it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()
