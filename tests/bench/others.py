"""Lines that inform: requirements with a figure in them, whose place is a bench and not a test."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from threading import Event
from typing import Final

from tests.bench import beside, far, limits, ours
from tests.bench.cases import Run, in_turns
from tests.bench.lines import Line, of_rates
from tests.bench.place import JOBS, LAST, LOOK_S, ONE, START_S, Daemon, Place
from tests.bench.rates import Rate

CLIENTS: Final = 50
EACH_S: Final = 1.0  # a client lists so often
LIST: Final = "select jq_pk, jq_type, jq_state, jq_starttime from {} order by jq_pk desc limit 50"
LISTS: Final = {
    "drover_frontend": LIST.format("drover.my_jobs"),
    "drover_readonly": LIST.format("drover.jobs_masked"),
}
NAP_MS: Final = 20
SHORT_NAP_MS: Final = 5
SHORT_MS: Final = 10
CROWD: Final = 128  # agents, as on the paper of decision 11
NOBODY: Final = "not waited for"
AWAY: Final[Mapping[str, float | None]] = {NOBODY: None, "at hand": 0.0, "5 ms away": 5.0, "20 ms away": 20.0}
TWO_HOSTS: Final = {
    "one": "[hosts.a]\nmax = 4\n",
    "two": "[hosts.a]\nmax = 4\n[hosts.b]\nmax = 4\n",
}
HOSTS: Final = 100
SLOTS: Final = 5000
WAITING: Final = """
insert into drover.jobqueue (jq_type, jq_args, jq_not_before)
select 'noop', 'argument ' || i, now() + %s::interval from generate_series(1, %s) i
"""
LENGTH, WIDTH = 100, 1000
GRAPHS: Final = f"""
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select base + i, base + case when i <= jobs / 2 then i - 1 else (i - 1) / {WIDTH} * {WIDTH} + 1 end
  from (values (%s::bigint, %s)) g(base, jobs), generate_series(1, jobs) i
 where (i - 1) %% case when i <= jobs / 2 then {LENGTH} else {WIDTH} end > 0
"""
BUSY_MS: Final = 600_000
RUNNING: Final = "select count(*) from drover.jobqueue where jq_state = 'running'"
KILL: Final = """
insert into drover.jobqueue (jq_type, jq_args)
select 'command', 'killjob ' || min(jq_pk) from drover.jobqueue where jq_state = 'running' returning jq_pk
"""
TOOK: Final = "select extract(epoch from jq_endtime - jq_queued) * 1000 from drover.jobqueue where jq_pk = %s"
DUE_IN_MS: Final = 100
DUE: Final = "jq_wait_until <= now()"
BUNDLED: Final = '[agents.noop]\ncommand = ["drover-agent-noop"]\nslots = 1\n'
LOGGED: Final = ("log_min_duration_statement = 0", "log_parameter_max_length = 0")
DURATION: Final = re.compile(
    r"LOG:  duration: ([\d.]+) ms  (?:execute|statement)[^:]*: (.*?)(?=^\S+ \S+ \S+ \[|\Z)", re.M | re.S
)


def keyed(run: Run) -> list[Line]:
    """The rows of one query whose progress is checkpointed by key."""
    rows = run.sizes.keyed
    given = in_turns(
        run.turns(),
        {
            "raw": partial(limits.ping_pong, run.place.conninfo, run.place.agent, ours.AGENTS, rows),
            "ours": partial(ours.expand, run.place, rows, "id"),
        },
    )
    rates = [each.rate for each in given["ours"]]
    line = Line("KEY", f"{rows:,} keyed rows of a query: to ready lines", "/s", against="limit")
    return [of_rates(line, rates, given["raw"])]


def j129(run: Run) -> list[Line]:
    """The bundled agent."""
    jobs = run.sizes.bundled
    rates = [ours.drain_alone(run.place, ours.Load(jobs, BUNDLED)) for _ in run.turns()]
    return [of_rates(Line("J129", f"{jobs:,} jobs of the bundled noop agent, one process", "/s", at_least=200), rates)]


def r33(run: Run) -> list[Line]:
    """Jobs that wait for each other, half of them in chains and half in fans."""
    place, jobs = run.place, run.sizes.crowd
    place.empty()
    with place.database() as database:
        database.execute(JOBS.encode(), ("noop", "argument ", jobs))
        (last,) = database.execute(LAST.encode()).fetchone() or (0,)
        database.execute(GRAPHS.encode(), (last - jobs, jobs))
    place.rest()
    with _logged(place) as log, place.daemon(place.line_agents(ours.AGENTS)) as daemon:
        daemon.begin()
        per_s = jobs / ours._seconds_of(daemon, last - jobs, jobs)
        rate = Rate(per_s, daemon.cost(jobs))
        told = log.read_text(errors="replace")
    claims, settled = claims_of(told), [ms for ms, text in statements_of(told) if "drover.settle" in text]
    what = f"{jobs:,} jobs in chains of {LENGTH} and fans of {WIDTH:,}"
    return [
        Line("R33", f"{what}: claim, p95", "ms", [quantiles(claims, n=100)[94]], at_most=50),
        Line("R33", f"{what}: a piece of their edges, p95", "ms", [quantiles(settled, n=100)[94]]),
        Line(
            "R33", f"{what}: statements per 1,000 ends", "", [(len(claims) + len(settled)) * 1000 / jobs], at_most=100
        ),
        of_rates(Line("R33", what, "/s"), [rate]),
    ]


def r52(run: Run) -> list[Line]:
    """Old rows that leave beside jobs that are worked."""
    count, seconds = run.sizes.flushed, run.sizes.flush_s
    holding = {"stay": partial(beside.history, count=count), "leave": partial(beside.flush, count=count)}
    rates = in_turns(
        run.turns(), {name: partial(beside.sustained, run.place, seconds, each) for name, each in holding.items()}
    )
    stay, leave = ([each.whole for each in rates[name]] for name in ("stay", "leave"))
    return [of_rates(Line("R52", f"{seconds:g} s while {count:,} old jobs leave", "/s", against="limit"), leave, stay)]


def t10(run: Run) -> list[Line]:
    """Two hosts instead of one, for jobs that only wait."""
    load = ours.Load(run.sizes.naps, run.place.line_agents(4), args=f"sleep {NAP_MS} ")
    rates = in_turns(
        run.turns(),
        {name: partial(ours.drain_alone, run.place, replace(load, hosts=hosts)) for name, hosts in TWO_HOSTS.items()},
    )
    what = f"jobs of {NAP_MS} ms, 2 hosts of 4 agents: to 1 host"
    return [of_rates(Line("T10", what, "/s", against="limit", at_least=1.7), rates["two"], rates["one"])]


def c38(run: Run) -> list[Line]:
    """Commits that wait for a replica, ever farther away."""
    with far.far(run.place) as there:
        given = in_turns(
            run.turns(), {away: partial(_committed, there, ms, run.sizes.waited) for away, ms in AWAY.items()}
        )
    rates = {away: [rate for rate, _ in pairs] for away, pairs in given.items()}
    commits = {away: [commit_ms for _, commit_ms in pairs] for away, pairs in given.items()}
    what = f"jobs of {SHORT_MS} ms, {CROWD} agents, replica"
    return [
        line
        for away in AWAY
        if away != NOBODY
        for line in (
            of_rates(Line("C38", f"{what} {away}: to no wait", "/s", against="limit"), rates[away], rates[NOBODY]),
            Line("C38", f"a commit, synchronous replica {away}", "ms", commits[away], commits[NOBODY]),
        )
    ]


def c43(run: Run) -> list[Line]:
    """Front-ends that list while jobs are drained."""
    for role in LISTS:
        run.place.login(f"bench_{role}", role)
    load = ours.Load(run.sizes.listed, run.place.line_agents(ours.AGENTS), submitter="bench_drover_frontend")
    drain = partial(ours.drain_alone, run.place, load)
    rates = in_turns(run.turns(), {"alone": drain, "listed": partial(_listed, run.place, drain)})
    what = f"drain while {CLIENTS} clients list every {EACH_S:g} s: to alone"
    return [of_rates(Line("C43", what, "/s", against="limit", at_least=0.8), rates["listed"], rates["alone"])]


def c45(run: Run) -> list[Line]:
    """Measure a look for rows whose time has come, one at a time, before many that wait."""
    rows = run.sizes.crowd
    run.place.empty()
    with run.place.database() as database:
        database.execute(WAITING.encode(), ("1 day", rows))
    run.place.rest()
    with _logged(run.place) as log, run.place.daemon(run.place.line_agents(1)) as daemon:
        for _ in range(run.sizes.urgent):
            daemon.database.execute(WAITING.encode(), (f"{DUE_IN_MS} ms", 1))
            daemon.wait(daemon.value(LAST))
        durations = [ms for ms, text in statements_of(log.read_text(errors="replace")) if DUE in text]
    return [Line("C45", f"a look for due rows, {rows:,} wait: median", "ms", [median(durations)], at_most=5)]


def c46(run: Run) -> list[Line]:
    """Measure the statement that ends a batch and claims the next, among many that wait."""
    jobs = run.sizes.crowd
    with _logged(run.place) as log:
        ours.drain(run.place, jobs)
        durations = claims_of(log.read_text(errors="replace"))
    what = f"end a batch and claim the next, {jobs:,} queued"
    cuts = quantiles(durations, n=100, method="inclusive")
    return [
        Line("C46", f"{what}: median", "ms", [median(durations)], at_most=20),
        Line("C46", f"{what}: p99", "ms", [cuts[98]]),
    ]


def c55(run: Run) -> list[Line]:
    """An urgent job behind many that wait."""
    place, jobs, urgent = run.place, run.sizes.crowd, run.sizes.urgent
    place.empty()
    with place.database() as database:
        database.execute(JOBS.encode(), ("noop", f"sleep {SHORT_NAP_MS} ", jobs))
    place.rest()
    with place.daemon(place.line_agents(ours.AGENTS)) as daemon:
        waits = []
        for _ in range(urgent):
            time.sleep(ours.PAUSE_S)
            begun = time.monotonic_ns()
            daemon.value(ONE.replace("jq_args)", "jq_args, jq_urgent)").replace("%s)", "%s, true)"), "noop", "stamp")
            waits.append((daemon.stamps(1)[0] - begun) / 1e9)
    return [Line("C55", f"urgent job, {jobs:,} queued: insert -> agent, worst", "s", [max(waits)], at_most=1.0)]


def f139(run: Run) -> list[Line]:
    """Commands while every agent is busy and many jobs wait."""
    place, jobs, count = run.place, run.sizes.crowd, run.sizes.urgent
    place.empty()
    with place.database() as database:
        database.execute(JOBS.encode(), ("noop", f"sleep {BUSY_MS} ", jobs))
    place.rest()
    with place.daemon(place.line_agents(ours.AGENTS)) as daemon:
        _await_busy(daemon)
        took = [_commanded(daemon) for _ in range(count)]
    return [Line("F139", f"killjob, all busy, {jobs:,} queued: insert -> end, worst", "ms", [max(took)], at_most=100)]


def f153(run: Run) -> list[Line]:
    """From its start until a daemon of many hosts serves."""
    hosts = "".join(f"[hosts.h{number}]\nmax = {SLOTS // HOSTS}\n" for number in range(HOSTS))
    agents = run.place.line_agents(SLOTS // HOSTS)
    seconds = [_served(run.place, agents, hosts) for _ in run.turns()]
    return [Line("F153", f"{HOSTS} hosts, {SLOTS:,} slots: start -> serving", "s", seconds, at_most=2.0)]


OTHERS: Final[Mapping[str, Callable[[Run], list[Line]]]] = {
    "KEY": keyed, "J129": j129, "R33": r33, "R52": r52, "T10": t10, "C38": c38, "C43": c43, "C45": c45, "C46": c46,
    "C55": c55, "F139": f139, "F153": f153,
}  # fmt: skip


def claims_of(log: str) -> list[float]:
    """Return the milliseconds of every statement in a server's log that claims."""
    return [ms for ms, text in statements_of(log) if "skip locked" in text and "drover.claimable" in text]


def statements_of(log: str) -> list[tuple[float, str]]:
    """Return milliseconds and text of every statement in a server's log."""
    return [(float(ms), text) for ms, text in DURATION.findall(log)]


# ---- commands


def _await_busy(daemon: Daemon) -> None:
    deadline = time.monotonic() + START_S
    while daemon.value(RUNNING) < ours.AGENTS and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _commanded(daemon: Daemon) -> float:
    """Kill one of the jobs that are worked; the milliseconds until the command has ended."""
    _await_busy(daemon)
    pk = daemon.value(KILL)
    daemon.wait(pk)
    return float(daemon.row(TOOK, pk)[0])


# ---- a site


def _served(place: Place, agents: str, hosts: str) -> float:
    """Return the seconds until it serves."""
    place.empty()
    begun = time.monotonic()
    with place.daemon(agents, hosts):
        return time.monotonic() - begun


# ---- a replica


def _committed(there: far.Far, delay_ms: float | None, jobs: int) -> tuple[Rate, float]:
    """Return the rate of agents that are there already, and milliseconds of a commit."""
    place = there.place
    there.wait(None)
    place.empty()
    place.rest()
    with place.daemon(place.line_agents(CROWD)) as daemon:
        daemon.start_all(place.gate, CROWD)
        there.wait(delay_ms)
        commit_ms = there.commit_ms()
        base = daemon.value(LAST)
        daemon.begin()
        daemon.database.execute(JOBS.encode(), ("noop", f"sleep {SHORT_MS} ", jobs))
        daemon.wait(daemon.value(LAST))
        per_s = jobs / ours._seconds_of(daemon, base, jobs)
        rate = Rate(per_s, daemon.cost(jobs))
        there.wait(None)
    return rate, commit_ms


# ---- clients


def _listed(place: Place, drain: Callable[[], Rate]) -> Rate:
    """Return what `drain` returns while clients list."""
    over = Event()
    roles = [*LISTS] * (CLIENTS // len(LISTS))
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(_list, place, role, i * EACH_S / CLIENTS, over) for i, role in enumerate(roles)]
        try:
            rate = drain()
        finally:
            over.set()
    for client in clients:
        client.result()
    return rate


def _list(place: Place, role: str, delay_s: float, over: Event) -> None:
    """List every EACH_S until it is over; clients do not do so all at once."""
    with place.database(user=f"bench_{role}") as database:
        over.wait(delay_s)
        while not over.is_set():
            database.execute(LISTS[role].encode()).fetchall()
            over.wait(EACH_S)


# ---- the server's log


@contextmanager
def _logged(place: Place) -> Iterator[Path]:
    """Let the server log what each statement takes; its log."""
    with place.database() as database:
        (name,) = database.execute(b"select current_database()").fetchone() or ("",)
        (data,) = database.execute(b"show data_directory").fetchone() or ("",)
        for setting in LOGGED:
            database.execute(f"alter database {name} set {setting}".encode())
        try:
            yield Path(data).parent / "log"
        finally:
            database.execute(f"alter database {name} reset all".encode())
