"""An hour of real faults: daemons of both versions, a Postgres that fails over, a network that is cut, and a ledger.

The daemons run a copy of the program that is replaced now and then (`reexec`), or the previous version. They and the
site reach the database through a relay each, so that a promoted replica takes over behind it. `Chaos.result` looks at
what audit.sql has, at the ledger of the agents, and at the logs of daemons that have ended.
"""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.faults.server import server as running_server
from tests.faults.site import RETRIED, Site, Tally
from tests.faults.soak import OPEN, Soak
from tests.faults.versions import Copy, Version
from tests.integration.daemon import Daemon
from tests.replica_tools import NAME, STREAMING, socket_of, synchronise, until
from tests.schema_tools import walk_suspects

OLD: Final = 0.2  # of the daemons that are started, those of the previous version
LEASE_S: Final = 1.0
OPEN_MOST: Final = 300  # jobs that have not ended
BATCH: Final = 40  # plain jobs, among others
LONG_QUERY: Final = 200  # rows
PATIENCE_S: Final = 180.0
BUG: Final = re.compile(r"bug:|Traceback")
KEPT: Final = 20_000  # characters of the log of a daemon that has ended
LEDGER: Final = """
create table faults.ended (kind text, token text, daemon text, pid integer, job bigint, attempt integer);
create index ended_of_token on faults.ended (token);
"""
LOST: Final = """
with items as (
  select jq_pk, substring(jq_args from '''(\\w+)\\.''') || '.' || n as token
    from drover.jobqueue,
         lateral generate_series(1, substring(jq_args from 'generate_series\\(1, (\\d+)\\)')::integer) n
   where jq_msq and jq_state = 'done'
   union all
  select jq_pk, split_part(jq_args, ' ', 1) from drover.jobqueue
   where not jq_msq and jq_state = 'done' and jq_type in ('line', 'exec', 'free', 'kept'))
select 'a job is done, and the ledger lacks the end of', jq_pk, token
  from items i where not exists (select from faults.ended e where e.token = i.token) order by jq_pk
"""
STATES: Final = (
    "select jq_state::text, count(*) from drover.jobqueue where jq_type <> 'command' group by 1 order by 2 desc"
)
AGAIN: Final = """
select count(*) filter (where jq_attempt > 1), sum(jq_rescued), sum(jq_interruptions)
  from drover.jobqueue where jq_type <> 'command'
"""
ADOPTED: Final = "select count(*) from drover.log where log_message like 'adopted by %'"
TWICE: Final = "select count(*) from faults.begun where attempt is not null and times > 1"


Row = tuple[str, int]


class Chaos(Soak):
    """One database that fails over, and the daemons that go through it all."""

    def __init__(self, place: Path, folder: Path, server: Server, seed: int) -> None:
        self._place = place
        self._near, self._far = Proxy(socket_of(server.conninfo)), Proxy(socket_of(server.conninfo))
        version = Version(folder / "version")
        site = Site(_through(server, self._near), folder, Tally())
        super().__init__(site, server, seed)
        assert version.run("init", database=server.conninfo).returncode == 0
        self._program = Copy(folder / "program")
        self._version = version
        self._servers = 0
        self._later: list[tuple[float, str]] = []
        # Daemons of the previous version would begin detached jobs anew: every second seed has these, or those.
        site.has_detached = seed % 2 == 0
        self.started: Counter[str] = Counter()
        self.reexecuted = 0
        self.wrong: list[object] = []
        site.lasting = RETRIED
        site.rows(LEDGER)
        site.rows("alter system set wal_keep_size = '512MB'")
        site.rows("select pg_reload_conf()")

    def endure(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Do faults for so long, then let all end."""
        kinds = list(self.kinds())
        weights = [weight for _, weight in kinds]
        until_ = time.monotonic() + seconds
        first = [fault for fault, _ in kinds]  # each of them at least once
        self.chance.shuffle(first)
        while time.monotonic() < until_:
            fault = first.pop() if first else self.chance.choices([each for each, _ in kinds], weights)[0]
            self._between(self.chance.uniform(0.2, 2.0))
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            fault()
            tell(f"{sum(self.faults.values())} faults, {self._insist(self._counts)}, last {fault.__name__}")
        self._calm()

    def kinds(self) -> list[tuple[Callable[[], Any], int]]:
        """Return the faults, and how often each is done."""
        return [
            (self.kill_daemon, 12), (self.stop_past_lease, 6), (self.stop_daemon, 4), (self.cut, 8),
            (self.cut_network, 5), (self.freeze_network, 3), (self.swallow_answer, 6), (self.kill_agent, 8),
            (self.crash, 2), (self.kill_backend, 2), (self.fail_over, 1), (self.step_down, 6),
            (self.replace_program, 5), (self.terminate, 4), (self.drain, 3), (self.pause, 3), (self.reload, 3),
            (self.limit_jobs, 1), (self.order, 4), (self.reexec, 5),
        ]  # fmt: skip

    # ---- between faults

    def _between(self, seconds: float) -> None:
        """Let daemons work for a while, with jobs in the queue."""
        ends = time.monotonic() + seconds
        while True:
            self._man()
            self._wake()
            self._insist(self.site.end_victims)
            if self._insist(lambda: self.site.value(OPEN)) < OPEN_MOST:
                self._insist(self._submit)
            left = ends - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))

    def _submit(self) -> None:
        self.site.submit(plain=BATCH)
        self.site.add_query(LONG_QUERY)

    def _man(self) -> None:
        """See that there are enough daemons; those that have ended had no bug."""
        for daemon in [each for each in self._alive if each.process.poll() is not None]:
            self._alive.remove(daemon)
            self._bury(daemon)
        while len(self._alive) < 3:
            old = self.chance.random() < OLD and not self.site.has_detached
            kind = "previous version" if old else "this version"
            version = self._version if old else self._program
            through = _through(self.server, self._far)
            self._alive.append(self.site.start(metered=False, version=version, conninfo=through))
            self.started[kind] += 1

    def _bury(self, daemon: Daemon) -> None:
        """Read the log of a daemon that has ended, and keep its end only."""
        daemon.close()
        said = daemon.stderr()
        if BUG.search(said):
            self.wrong.append(("a daemon had a bug", self.site.name(daemon), said[-KEPT:]))
        self.reexecuted += max(0, said.count(" group=default: hosts ") - 1)
        daemon.forget(KEPT)

    def _wake(self) -> None:
        super()._wake()
        now = time.monotonic()
        due = [words for at, words in self._later if at <= now]
        self._later = [each for each in self._later if each[0] > now]
        for words in due:
            self._command(words)

    def _command(self, words: str) -> None:
        self._insist(lambda: self.site.command(words))

    def _counts(self) -> str:
        ((jobs, ended),) = self.site.rows("select count(*), count(jq_endtime) from drover.jobqueue")
        return f"{jobs} jobs, {ended} ended"

    def _calm(self) -> None:
        """No more faults: all that waits may go on."""
        for _, daemon in self._asleep:
            daemon.signal(SIGCONT)
        self._asleep.clear()
        self._insist(lambda: self.site.rows("delete from drover.quota"))
        self._command("continue")
        self._man()

    # ---- faults

    def stop_past_lease(self) -> None:
        daemon = self._chosen()
        daemon.signal(SIGSTOP)
        self._asleep.append((time.monotonic() + self.chance.uniform(1.5, 5.0) * LEASE_S, daemon))

    def cut_network(self) -> None:
        self._far.cut()

    def freeze_network(self) -> None:
        self._far.freeze(self.chance.uniform(0.5, 3.0))

    def swallow_answer(self) -> None:
        name = self.chance.choice(["end_and_claim", "save", "mark", "settle", "rescue", "take_lease", "renew_lease"])
        self._far.swallow(f"{name}/".encode())

    def step_down(self) -> None:
        self._insist(self.site.step_down)

    def terminate(self) -> None:
        self._chosen().signal(SIGTERM)

    def drain(self) -> None:
        self._chosen().signal(SIGINT)

    def replace_program(self) -> None:
        """All daemons of this version see it, and go on as the new one."""
        self._program.replace()

    def reexec(self) -> None:
        """The daemon that serves executes its program anew, with its agents alive."""
        self._command("reexec")

    def pause(self) -> None:
        self._command("pause")
        self._later.append((time.monotonic() + self.chance.uniform(0.5, 2.0), "continue"))

    def reload(self) -> None:
        self._command("reload")

    def limit_jobs(self) -> None:
        self._insist(self.site.limit_jobs)

    def order(self) -> None:
        self._insist(self.site.order)

    def fail_over(self) -> None:
        """Promote a synchronous replica, and lose the primary."""
        self._servers += 1
        former = self.server
        folder = self._place / f"pg{self._servers}"
        folder.mkdir()
        spare = Server(folder, primary=make_conninfo(former.conninfo, application_name=NAME, dbname=None))
        spare.start()
        until(former.conninfo, STREAMING, NAME)
        synchronise(former.conninfo)
        self._between(1.0)
        former.stop("immediate")
        with psycopg.connect(spare.conninfo, autocommit=True) as connection:
            connection.execute("select pg_promote()")
        self._near.target = self._far.target = socket_of(spare.conninfo)
        self.server = spare
        self.site.reconnect()
        shutil.rmtree(former.folder)

    # ---- the end

    def result(self) -> list[object]:
        """Wait until all has ended; return all that is wrong."""
        self.wrong += self.site.settle(patience=PATIENCE_S)
        with (
            psycopg.connect(self.server.conninfo) as connection,
            connection.cursor() as cursor,
            cursor.copy("copy faults.ended from stdin") as copy,
        ):
            for line in self.site.ended.read_text().splitlines():
                copy.write_row([None if word == "-" else word for word in line.split()])
        self.site.rows("analyze faults.ended")
        self.wrong += self.site.rows(LOST)
        walk_suspects(self.site.rows)
        self.wrong += self.site.rows("select rule, jq_pk, what from drover.impossible")
        for daemon in self._alive:
            daemon.stop()
            self._bury(daemon)
        return self.wrong

    def table(self) -> list[Row]:
        """Return what was done how often, and what came of it."""
        again, rescued, interrupted = self.site.rows(AGAIN)[0]
        begun = sum(1 for _ in self.site.record.open())
        ended = sum(1 for _ in self.site.ended.open())
        return [
            *((name.replace("_", " "), count) for name, count in sorted(self.faults.items())),
            *((f"daemons started, {kind}", count) for kind, count in sorted(self.started.items())),
            ("programs executed anew", self.reexecuted),
            ("jobs", sum(count for _, count in self.site.rows(STATES))),
            *((f"jobs {state}", count) for state, count in self.site.rows(STATES)),
            ("jobs begun again", again),
            ("detached jobs", self.site.value("select count(*) from drover.jobqueue where jq_type = 'kept'")),
            ("adoptions", self.site.value(ADOPTED)),
            ("rescues", rescued),
            ("interruptions", interrupted),
            ("items begun", begun),
            ("items ended", ended),
            ("commands twice within an attempt", self.site.value(TWICE)),
            ("jobs and items lost", len(self.site.rows(LOST))),
        ]

    def close(self) -> None:
        """End everything."""
        for each in (self._near, self._far):
            each.cut()
        self.site.close()
        if self.server.is_running():
            self.server.stop()


def _through(server: Server, proxy: Proxy) -> str:
    """Return the conninfo of a relay before a server."""
    return make_conninfo(server.conninfo, host="127.0.0.1", port=proxy.port)


@contextmanager
def chaos(place: Path, seed: int) -> Iterator[Chaos]:
    """Make a server with the schema, relays and versions in a folder, and end all in the end."""
    (place / "site").mkdir()
    with running_server(place / "pg") as first:
        made = Chaos(place, place / "site", first, seed)
        try:
            yield made
        finally:
            made.close()


def yield_processor() -> None:
    """Leave the processor to others."""
    os.nice(10)
