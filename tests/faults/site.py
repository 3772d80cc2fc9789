"""A place where things go wrong: a database with an auditor, daemons that may be told to fail, agents that write down.

`Site.start` gives a daemon under a name that its database connections and its agents carry too. `Site.submit` queues
a handful of every kind of job that a daemon knows; `Site.settle` waits until all has ended and gives what `audit.sql`
has against it. A test ends with `assert site.settle() == []`.
"""

import json
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGUSR1
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests import warm
from tests.agent_tools import AGENTS
from tests.faults.launcher import BUCKETS
from tests.faults.versions import Version
from tests.integration.daemon import ARMED_RUN, BASE, ERRORS, PYTHON, RUN, Daemon, agent
from tests.patience import LONG_PATIENCE_S, Deadline, named
from tests.schema_tools import walk_suspects
from tests.spool_tools import end_kept

HERE = Path(__file__).parent
AUDIT = HERE / "audit.sql"
AGENT = HERE / "agent.py"
CLEANUP = AGENTS / "cleanup/drover-agent-cleanup"
LOOK_S = 0.02
STORY_S = 0.5  # for daemons to tell how they are, when a test has failed
BIG = 150_000  # more than a pipe holds
LASTING = {"jq_max_interruptions": 1000}  # no fault may use them up; no retries, which would hide a job that fails
# Where agents are killed: one death fails a job, two the same item of an SQL job.
RETRIED = LASTING | {"jq_retries": 1000, "jq_tolerate": 1000}
# Leases run out here, and what a statement was for that is refused waits for the next rescan: both are short.
QUICK = """
[scheduler]
log_level = "info"
lease = 1.0
lease_renewal = 0.2
rescan = 0.4
status_interval = 0.4
"""
TYPES = (
    ("line", {"slots": 2, "db": "statements", "statements": {"note": "insert into faults.noted values (:token)"}}),
    ("free", {"db": "sql"}),
    ("exec", {"kind": "exec"}),
)
CONDITIONS = """
[conditions.short]
wait = 0.2
[conditions.long]
wait = 0.2
max_tries = 2
tester = "probe"
tester_timeout = 5
"""
# A job with this variable goes there by its filter; the rate makes the daemon write down starts.
QUEUES = """
[queues.rated]
filter = "data.route = 'rated'"
rate = 1000
rate_interval = 1
"""
OWNER = "select daemon from drover.scheduler_group join faults.identity on uuid = group_owner"
ENDED = "select not exists (select from drover.jobqueue where jq_endtime is null)"
CHECK = "select rule, pk, seq, what from faults.violation order by rule, pk, seq limit 20"
SESSIONS = """
select application_name, state, wait_event_type, wait_event, left(query, 60) from pg_stat_activity
 where datname = current_database() and usename like 'drover%' and usename <> 'drover_frontend_sql'
"""
SUSPECTED = "update drover.jobqueue set jq_rescued = 3, jq_state = 'queued' where jq_pk = %s"
QUEUE_COMMANDS = ("add-queue q 2", "pause q", "poll q", "continue q", "set-concurrency q 3",
    "set-filter q type = 'nothing'", "set-rate q rate=9", "set-max-length q 9", "remove-queue q",
)  # fmt: skip
IN_BULK = """select drover.command('priority b', '{"type": "line", "state": "held"}')"""
SCHEDULE = """
insert into drover.schedule (schedule_name, schedule_every, schedule_job, schedule_next)
values (%s, '1 hour', '{"jq_type": "command", "jq_args": "status"}', now())
"""
QUOTA = """
insert into drover.quota (quota_name, quota_most, quota_user) values ('few', 3, '*') on conflict do nothing
"""
FAILED = """
update drover.jobqueue
   set jq_state = 'failed', jq_end_bits = 2, jq_starttime = now(), jq_endtime = now(), jq_not_before = null
 where jq_pk = %s
"""
OVER = """
update drover.jobqueue
   set jq_state = 'cancelled', jq_end_bits = 2, jq_queued = now() - interval '10 days', jq_starttime = now(),
       jq_endtime = now() - interval '9 days'
 where jq_pk = %s
"""
# A clean-up, like any job, fails for good if the fourth daemon, or a later one, dies as it tries the job alone. Walks
# kill eight, and of those that have much to do three or four die with one clean-up in hand.
REMOVED = """
select 'R43 a file is left', jq_pk, jq_delete[1], cleanup_state, cleanup_host, cleanup_text
  from drover.jobqueue join drover.cleanup using (jq_pk) where jq_delete is not null and jq_state = 'done'
   and not (cleanup_state = 'failed' and cleanup_text like '%the last time as it was tried alone')
"""
WORKED_ON = "select jq_pk from drover.jobs where jq_pk = any (%s) and jq_state in ('claimed', 'running')"
REPEATED = """
select pk, jq_args, sum(times) from faults.begun join drover.jobqueue on jq_pk = pk
 where jq_args !~ '(fail|blocked:|stuck:|1000)' group by pk, jq_args having sum(times) > 1 order by pk
"""
WAITING = """select jq_pk, w.jq_state::text, left(jq_args, 60), reason, jq_attempt, jq_rescued,
       drover.has_token(j) as has_token,
       (select array_agg(log_message order by log_pk) from drover.log where log_jq_fk = jq_pk) as log
  from drover.why w join drover.jobqueue j using (jq_pk) where w.jq_state < 'done' limit 10"""
RECORDS = "select hand_owner::text, hand_jobs from drover.in_hand"
FAILURES = """
select sum(case when jq_msq then 2 * jq_itemsfailed
                else greatest(jq_failures - (jq_args like '%fail%')::integer, 0) end)::integer
  from drover.jobqueue
"""
STORY = "select to_char(at, 'SS.MS'), daemon, was, state, attempt, owner from faults.move where pk = %s order by seq"


LOCK_IN_HAND = """
select from drover.jobqueue where jq_pk in (select unnest(hand_jobs) from drover.in_hand) and jq_endtime is null
   for no key update skip locked
"""


@dataclass(slots=True)
class Tally:
    """What one row of the table adds up to."""

    runs: int = 0
    violations: int = 0
    is_planted: bool = False  # what is violated is meant to be
    notes: list[str] = field(default_factory=list)
    gaps: list[int] = field(default_factory=lambda: [0] * (BUCKETS + 1))

    def add_gaps(self, cells: Sequence[int]) -> None:
        """Add the gaps of one daemon's loop."""
        longest = max(self.gaps[BUCKETS], cells[BUCKETS])
        self.gaps = [one + other for one, other in zip(self.gaps, cells, strict=True)]
        self.gaps[BUCKETS] = longest

    def gap_within_ms(self, share: float) -> float:
        """Return the gap that this share of them is shorter than; of the bucket it falls into, the upper end."""
        wanted, seen = share * sum(self.gaps[:BUCKETS]), 0
        for bucket, count in enumerate(self.gaps[:BUCKETS]):
            seen += count
            if seen >= wanted:
                return min(2 ** (bucket + 10), self.gaps[BUCKETS]) / 1e6
        return 0.0


class Site:
    """One database and all that works on it."""

    def __init__(self, database: str, folder: Path, tally: Tally, audit: str = "") -> None:
        self.database, self.folder, self.tally = database, folder, tally
        self.record = folder / "record"
        self.record.touch()
        self.ended = folder / "record.ended"
        self.ended.touch()
        (folder / "work").mkdir()
        self.lasting: dict[str, Any] = LASTING  # columns of each job
        self.has_detached = False  # jobs among the others
        self.daemons: list[Daemon] = []
        self._tokens = 0
        self._gaps: list[Path] = []
        self._owner = psycopg.connect(database, autocommit=True)
        self._front = psycopg.connect(make_conninfo(database, user="drover_frontend_sql"))
        self._victims: list[int] = []
        self._lost: list[int] = []
        audit = audit or AUDIT.read_text()
        self._looks_for_impossible = "drover.impossible" in audit
        self._owner.execute(audit.encode())

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all daemons, and add up what was measured; harmless when that was done."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.signal(SIGCONT)
            daemon.close()
        self.daemons.clear()
        for cells in self._measured():
            self.tally.add_gaps(cells)
        self._gaps.clear()
        self.end_keepers()
        self._disconnect()

    def _disconnect(self) -> None:
        self._owner.close()
        self._front.close()

    def reconnect(self) -> None:
        """Connect again once the server takes anybody."""
        self._disconnect()
        self._owner = self._insist(lambda: psycopg.connect(self.database, autocommit=True))
        self._front = self._insist(lambda: psycopg.connect(make_conninfo(self.database, user="drover_frontend_sql")))

    def _insist(self, connect: Callable[[], Any]) -> Any:
        """Try to connect until the server takes anybody."""
        deadline = Deadline(LONG_PATIENCE_S)
        while True:
            try:
                return connect()
            except psycopg.OperationalError:
                assert deadline.left > 0, "the server does not come back"
                time.sleep(LOOK_S)

    def longest_gap_ms(self) -> float:
        """Return the longest time in which a daemon's loop looked at nothing."""
        return max((cells[BUCKETS] / 1e6 for cells in self._measured()), default=0.0)

    def _measured(self) -> Iterator[tuple[int, ...]]:
        for path in self._gaps:
            if path.exists() and path.stat().st_size:
                yield struct.unpack(f"{BUCKETS + 1}Q", path.read_bytes())

    # ---- daemons

    def start(
        self,
        points: str = "",
        *,
        config: str = "",
        options: Sequence[str] = (),
        stdin: bytes | None = None,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        conninfo: str = "",
        metered: bool = True,
        log: Path | None = None,
        version: Version | None = None,
    ) -> Daemon:
        """Start a daemon with these failpoints, or one of another version; it may not serve yet.

        `config` is added to the suite's own.
        """
        name = f"d{len(self.daemons) + 1}"
        temporary = TemporaryDirectory(prefix="drover-faults-")
        folder = Path(temporary.name)
        (folder / "conf.d").mkdir()
        (folder / "drover.toml").write_text(BASE)
        (folder / "conf.d" / "suite.toml").write_text(QUICK + (version.settings if version else ""))
        (folder / "conf.d" / "test.toml").write_text(
            config or self.types(name, queues=QUEUES if version is None or version.knows_queues else "")
        )
        marked = make_conninfo(conninfo or self.database, user="drover_scheduler", options=f"-c faults.daemon={name}")
        around = os.environ | {"DROVER_DATABASE_URL": marked, **(environment or {})}
        if points:
            around["FAULTS_POINTS"] = points
        if metered:
            self._gaps.append(self.folder / f"gaps.{name}")
            around["FAULTS_GAPS"] = str(self._gaps[-1])
        program = ARMED_RUN if version is None else RUN
        around |= version.environment if version else {}
        with (log or folder / ERRORS).open("wb") as errors:
            process = warm.begin(
                [*prefix, *program, *options, "-c", str(folder / "drover.toml")],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=errors, env=around, cwd=version.folder if version else HERE.parents[1],
            )  # fmt: skip
        if stdin is not None:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
        if log is not None:
            (folder / ERRORS).symlink_to(log)
        daemon = self._insist(lambda: Daemon(process, self.database, temporary))
        daemon.rescan_helps = "what is refused by a fault waits for it"
        self.daemons.append(daemon)
        return daemon

    def serving(self, **options: Any) -> Daemon:
        """Start a daemon and wait until it serves."""
        daemon = self.start(**options)
        self.until(lambda: self.owner == self.name(daemon), "it does not serve")
        return daemon

    def types(self, name: str, slots: int = 2, queues: str = QUEUES) -> str:
        """Return the agent types of a daemon: each carries its name into the record."""
        command = [*PYTHON, str(AGENT), str(self.record), name]
        tables = []
        for kind, keys in TYPES:
            words = [*command, "{args}"] if kind == "exec" else command
            tables.append(agent(kind, words, **{"slots": slots, **keys}))
        if self.has_detached:
            tables.append(agent("kept", [*command, "{args}"], kind="exec", detached=True, slots=slots))
        tables.append(agent("cleanup", [str(CLEANUP), "--root", str(self.folder / "work")]))
        tables.append(agent("probe", ["sh", "-c", "exit 75"], kind="exec") + CONDITIONS + queues)
        host = f"[hosts.local]\nmax = {4 * slots}\n" + f'spool = "{self.spool}"\n' * self.has_detached
        return host + "".join(tables)

    @property
    def spool(self) -> Path:
        """The directory in which detached jobs are kept."""
        return self.folder / "spool"

    def end_keepers(self) -> None:
        """Kill what detached jobs that have not ended have left."""
        end_kept(self.spool.glob("*/*/*"))

    def name(self, daemon: Daemon) -> str:
        """Return the name of a daemon."""
        return f"d{self.daemons.index(daemon) + 1}"

    @property
    def owner(self) -> str | None:
        """Return the name of the daemon that owns the group."""
        return self.value(OWNER)

    # ---- jobs

    def submit(self, plain: int = 6, again: str = "") -> None:
        """Queue some of every kind, so that each statement of a daemon has something to do; `again` stands in each."""
        with self._front.transaction():
            for _ in range(plain):
                self._queue("line", again)
            for acts in ("nap:0.25", "log", "nap:0.1 event", "note"):
                self._queue("line", f"{acts} {again}")
            self._queue("line", f"fail {again}", jq_retries=1000)
            self._queue("line", f"blocked:short {again}")
            self._queue("line", f"stuck:long {again}", jq_max_interruptions=999)  # its policy fails it
            self._queue("free", f"sql {again}")
            self._queue("exec", f"out {again}")
            if self.has_detached:
                self._queue("kept", f"nap:0.3 {again}")
            self._queue("line", again, jq_variables='{"route": "rated"}')
            self._queue("line", "x" * BIG)
            self._edge(self._queue("line"), self._queue("exec"))
            self._queue("line", jq_delete=[self._file()])  # both ways to save an end
            self._queue("line", "fail", jq_delete=[self._file()], jq_retries=1000)
            self._queue("line", jq_not_before="0.3 s")
            self._rows("a", jq_key="n")
            self._rows("b")

    def add_query(self, rows: int) -> None:
        """Queue an SQL job with a key."""
        with self._front.transaction():
            self._rows("k", rows, jq_key="n")

    def order(self) -> None:
        """Return commands of every kind: about schedulers, tables, jobs that wait and one that is worked on."""
        self.rows("delete from drover.quota")
        self.add_old()
        self._tokens += 1
        self.rows(SCHEDULE, f"s{self._tokens}")
        self.command(f"schedule-enable s{self._tokens}")
        self.command(f"schedule-run s{self._tokens}")
        for words in ("reset", "host-enable local", "agent-enable line", "flush 5", "unblock nothing", *QUEUE_COMMANDS):
            self.command(words)
        self.command("add-queue rates 2")  # it stays: what another rate put off is freed in passes of seconds
        self.command(f"set-rate rates rate={1000 + self._tokens}")
        with self._front.transaction():
            freed, iced, suspected = (self._queue("line", jq_state="held") for _ in range(3))
            by_hand = self._queue("line", jq_mode="manual")
            held, failed = (self._queue("line", jq_not_before="1 day") for _ in range(2))
            self._victims.append(self._queue("line", "nap:1000"))
        self.rows(FAILED, failed)
        self.rows(SUSPECTED, suspected)  # three daemons have died with it: it is read alone
        for each in (
            "hold {held}",
            "priority {held} a",
            "move {held} default",
            "cancel {held}",
            "release {freed}",
            "ice {iced}",
            "retry {failed}",
        ):
            self.command(each.format(held=held, freed=freed, iced=iced, failed=failed))
        self.command(f"run {by_hand}")
        self.rows(IN_BULK)

    def add_old(self) -> None:
        """Let there be a job that was over long ago."""
        with self._front.transaction():
            old = self._queue("old", jq_state="held")
        self.rows(OVER, old)

    def limit_jobs(self) -> None:
        """Let there be a quota, with more jobs than fit, until the next order."""
        self.rows(QUOTA)
        self.queue(6, acts="nap:0.2")

    def lose_job(self) -> None:
        """Queue a job whose host cannot be reached, so that it fails; daemons without that host leave it alone."""
        with self._front.transaction():
            self._lost.append(self._queue("lost", jq_max_interruptions=999))

    def cancel_lost(self) -> None:
        """Cancel these jobs, those that have not failed."""
        for (pk,) in self.rows(
            "select jq_pk from drover.jobqueue where jq_pk = any (%s) and jq_endtime is null", self._lost
        ):
            self.command(f"cancel {pk}")
        self._lost.clear()

    def step_down(self) -> None:
        """Order whoever serves to let another serve, if there is one."""
        self.command("step-down")

    @contextmanager
    def locks(self) -> Iterator[Callable[[], None]]:
        """Let somebody keep rows in hand locked, those that are so at each call, until the end."""
        with psycopg.connect(self.database) as other:

            def lock() -> None:
                other.execute(LOCK_IN_HAND)

            yield lock
            other.rollback()

    def end_victims(self) -> None:
        """Cancel the jobs that would never end, those that are worked on by now."""
        found = self.rows(WORKED_ON, self._victims) if self._victims else []
        for (pk,) in found:
            self.command(f"cancel {pk}")
            self._victims.remove(pk)

    def command(self, words: str) -> None:
        """Order this."""
        self.rows("insert into drover.jobqueue (jq_type, jq_args) values ('command', %s)", words)

    def queue(self, count: int, kind: str = "line", acts: str = "", **columns: Any) -> None:
        """Queue jobs of one kind."""
        with self._front.transaction():
            for _ in range(count):
                self._queue(kind, acts, **columns)

    def _queue(self, kind: str, acts: str = "", **columns: Any) -> int:
        self._tokens += 1
        if "jq_not_before" in columns:
            columns["jq_not_before"] = self.value("select now() + %s::interval", columns["jq_not_before"])
        row = {"jq_type": kind, "jq_args": f"t{self._tokens} {acts}".strip(), **self.lasting, **columns}
        return self._insert(row)

    def _file(self) -> str:
        path = self.folder / "work" / f"f{self._tokens}"
        path.touch()
        return str(path)

    def _rows(self, mark: str, rows: int = 3, **columns: Any) -> None:
        self._tokens += 1
        query = f"select n, '{mark}{self._tokens}.' || n as token from generate_series(1, {rows}) n"
        self._insert({"jq_type": "line", "jq_args": query, "jq_msq": True, **self.lasting, **columns})

    def _insert(self, row: dict[str, Any]) -> int:
        names, places = ", ".join(row), ", ".join(["%s"] * len(row))
        query = f"insert into drover.jobqueue ({names}) values ({places}) returning jq_pk"
        found = self._front.execute(query.encode(), list(row.values())).fetchone()
        assert found is not None
        return int(found[0])

    def _edge(self, parent: int, child: int) -> None:
        self._front.execute(
            "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent)
        )

    # ---- what is seen

    def value(self, query: str, *values: Any) -> Any:
        """Return the one value of a query."""
        row = self._owner.execute(query.encode(), values or None).fetchone()
        return None if row is None else row[0]

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        cursor = self._owner.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def until(self, look: Callable[[], Any], what: str | Callable[[], str], patience: float = LONG_PATIENCE_S) -> Any:
        """Look until it is so, and return what was seen; `what` says what is missing when patience is over."""
        deadline = Deadline(patience)

        def missing() -> str:
            return what() if callable(what) else what

        with named(missing, self._story):
            while not (found := look()):
                assert deadline.left > 0, f"{missing()} within {patience:g} s\n{self._story()}"
                time.sleep(LOOK_S)
        return found

    def settle(self, patience: float = LONG_PATIENCE_S) -> list[tuple[Any, ...]]:
        """Wait until every job has ended, however slow the machine is, and return what is wrong with how it went."""
        self.tally.runs += 1
        ended, deadline = -1, Deadline(patience)
        with named(lambda: "not all jobs have ended", self._story):
            while not self._is_over():
                if (count := self.value("select count(*) from drover.jobqueue where jq_endtime is not null")) > ended:
                    ended, deadline = count, Deadline(patience)
                assert deadline.left > 0, f"no job has ended for {patience:g} s\n{self._story()}"
                time.sleep(LOOK_S)
        return self.violations() + self._left()

    def _left(self) -> list[tuple[Any, ...]]:
        """Return the jobs that are done, and so are all clean-ups, and whose files are still there."""
        left = [row for row in self.rows(REMOVED) if Path(row[2]).exists()]
        self.tally.violations += len(left)
        return left

    def _is_over(self) -> bool:
        self.end_victims()
        return bool(self.value(ENDED))

    def unsettled(self, patience: float) -> list[tuple[Any, ...]]:
        """Wait so long, and return the jobs that have not ended: none, if all is well."""
        deadline = time.monotonic() + patience
        while not self._is_over() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return self.rows("select 'left', jq_pk, jq_state::text from drover.jobqueue where jq_endtime is null limit 20")

    def violations(self) -> list[tuple[Any, ...]]:
        """Return the violations that audit.sql finds so far, the first of them with its story."""
        self._owner.execute("truncate faults.execution")
        notes = [line.split() for line in self.record.read_text().splitlines()]
        with self._owner.cursor() as cursor, cursor.copy("copy faults.execution from stdin") as copy:
            for note in notes:
                copy.write_row([None if word == "-" else word for word in note])
        self.rows("refresh materialized view faults.begun")
        self.rows("analyze faults.move, faults.begun, faults.execution, drover.jobqueue")
        if self._looks_for_impossible:
            walk_suspects(self.rows)
        found = self.rows(CHECK)
        self.tally.violations += len(found)
        return found + (self.rows(STORY, found[0][1]) if found else [])

    def repeated(self) -> list[tuple[Any, ...]]:
        """Return jobs that were begun more than once, though no process has died, and that do not ask for that."""
        found = self.rows(REPEATED)
        self.tally.violations += len(found)
        return found + (self.rows(STORY, found[0][0]) if found else [])

    def failures(self) -> int:
        """Return how many deaths of agents it takes for what has failed and was not told to: retries hide none."""
        return self.value(FAILURES) or 0

    def _story(self) -> str:
        waiting = [*self.rows(WAITING), *self.rows(RECORDS)]
        for each in self.daemons:
            if each.process.poll() is None:
                each.signal(SIGUSR1)  # it says what its agents do
        time.sleep(STORY_S)
        ends = [f"{self.name(each)} ({each.process.poll()}): {each.stderr()[-1500:]}" for each in self.daemons[-3:]]
        return "\n".join([json.dumps(waiting), *map(str, self.rows(SESSIONS)), *ends])
