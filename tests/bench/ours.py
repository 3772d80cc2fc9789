"""Ourselves, from outside: rates from the database's timestamps, instants from the agents, memory and CPU from /proc.

That every item was worked is checked before anything is reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.bench.place import JOBS, LAST, LIVE, LOOK_S, ONE, START_S, Daemon, Place
from tests.bench.rates import Rate
from tests.bench.usage import metered, this_process

AGENTS: Final = 4
PAUSE_S: Final = 0.03  # between two samples of a latency
MB: Final = 1024  # kB

WORK: Final = """
drop table if exists work;
create table work as select i::bigint as id, 'some/path/of/file_' || i as path from generate_series(1, {}) i;
grant select on work to public;
"""
QUERY: Final = "select id, path from work"
MSQ: Final = (
    "insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key) values ('noop', %s, true, %s) returning jq_pk"
)
WORKED: Final = """
select jq_itemsprocessed, extract(epoch from jq_endtime - jq_queued)::float8 from drover.jobqueue where jq_pk = %s
"""
DRAINED: Final = """
select count(*) filter (where jq_state = 'done'), (select count(*) from drover.attempt where att_jq_fk > %s),
       extract(epoch from max(jq_endtime) - min(jq_starttime))::float8
  from drover.jobqueue where jq_pk > %s
"""
SINCE_QUEUED: Final = "select extract(epoch from max(jq_endtime) - min(jq_queued))::float8 from drover.jobqueue"


@dataclass(frozen=True, slots=True)
class Expanded:
    """What a multi-SQL-query took: items a second from insert to end, seconds to the first item, growth in MB."""

    rate: Rate
    first_s: float
    growth_mb: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What waiting costs: percent of a CPU, waits begun a second, MB resident, MB with the guardian."""

    cpu_percent: float
    wakeups: float
    rss_mb: float
    pss_mb: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """What so many agents cost that wait, in percent of a CPU, and how many items a second they take."""

    cpu_percent: float
    rate: Rate


def expand(place: Place, rows: int, key: str | None) -> Expanded:
    """Work one multi-SQL-query of so many rows, on a daemon that has done nothing yet."""
    _prepare(place, rows)
    with place.daemon(place.line_agents(AGENTS, first=1)) as daemon:
        before = daemon.status("VmRSS")
        daemon.begin()
        begun = time.monotonic_ns()
        pk = daemon.value(MSQ, QUERY, key)
        first_s = (daemon.stamps(1)[0] - begun) / 1e9
        rate = _rate_of(daemon, pk, rows)
        growth = daemon.status("VmHWM") - before
    return Expanded(rate, first_s, growth / MB)


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs to drain, and by whom: the tables of agents and hosts, what each is given, who queues them."""

    jobs: int
    agents: str
    hosts: str = "[hosts.local]\n"
    args: str = "argument "
    submitter: str = "postgres"


def drain(place: Place, jobs: int) -> Rate:
    """Return the rate of one-parameter jobs that wait when the daemon starts, from first claim to last end."""
    return drain_alone(place, Load(jobs, place.line_agents(AGENTS)))


def drain_alone(place: Place, load: Load) -> Rate:
    """Do the same with another load."""
    place.empty()
    return drain_beside(place, load)


def drain_beside(place: Place, load: Load) -> Rate:
    """Do the same beside all that is there."""
    with place.database(user=load.submitter) as database:
        (base,) = database.execute(LAST.encode()).fetchone() or (0,)
        database.execute(JOBS.encode(), ("noop", load.args, load.jobs))
        (last,) = database.execute(LAST.encode()).fetchone() or (0,)
    place.rest()
    with place.daemon(load.agents, load.hosts) as daemon:
        daemon.begin()
        daemon.wait(last)
        seconds = _seconds_of(daemon, base, load.jobs)
        return Rate(load.jobs / seconds, daemon.cost(load.jobs))


def latencies(place: Place, samples: int, other: Callable[[], float] | None = None) -> tuple[list[float], list[float]]:
    """Return milliseconds from the return of an insert to an agent that holds its line, the rest being idle.

    `other` is asked for a sample of its own after each of ours; its samples come second.
    """
    ours, others = [], []
    place.empty()
    place.rest()
    with place.daemon(place.line_agents(AGENTS)) as daemon:
        daemon.start_all(place.gate, AGENTS)
        for _ in range(samples):
            ours.append(_latency_ms(daemon))
            if other:
                others.append(other())
    return ours, others


def idle(place: Place, seconds: float) -> Idle:
    """Watch a daemon that has nothing to do, with all its agents READY."""
    place.empty()
    place.rest()
    with place.daemon(place.line_agents(AGENTS)) as daemon:
        daemon.start_all(place.gate, AGENTS)
        cpu_percent, wakeups = _watch(daemon, seconds)
        return Idle(cpu_percent, wakeups, daemon.status("VmRSS") / MB, daemon.pss_kb() / MB)


def crowd(place: Place, agents: int, items: int, idle_s: float) -> Crowd:
    """Start so many agents, watch them wait, and let them work one query of so many rows."""
    _prepare(place, items)
    with place.daemon(place.line_agents(agents)) as daemon:
        daemon.start_all(place.gate, agents)
        cpu_percent, _ = _watch(daemon, idle_s)
        daemon.begin()
        return Crowd(cpu_percent, _rate_of(daemon, daemon.value(MSQ, QUERY, None), items))


def on_host(place: Place, table: str, agents: int, rows: int, window: int = 1) -> Rate:
    """Return the rate of the rows of a query on so many agents of the one host of this table, all of them READY."""
    _prepare(place, rows)
    with place.daemon(place.line_agents(agents) + f"window = {window}\n", table) as daemon:
        daemon.start_all(place.gate, agents)
        daemon.begin()
        return _rate_of(daemon, daemon.value(MSQ, QUERY, None), rows)


def commands(place: Place, count: int, slots: int, program: str) -> Rate:
    """Return the rate of exec jobs that nothing was started for yet, from their insert to the last end."""
    place.empty()
    place.rest()
    agents = f'[agents.noop]\ncommand = ["{program}"]\nkind = "exec"\nslots = {slots}\n'
    with place.daemon(agents) as daemon:
        daemon.begin()
        daemon.database.execute(JOBS.encode(), ("noop", "", count))
        daemon.wait(daemon.value(LAST))
        _seconds_of(daemon, 0, count)
        return Rate(count / float(daemon.row(SINCE_QUEUED)[0]), daemon.cost(count))


def copy(place: Place, rows: int) -> Rate:
    """Return the rate of rows that a front-end copies into the queue."""
    place.login("bench_front", "drover_frontend")
    place.empty()
    place.rest()
    text = "".join(f"noop\targument {i}\n" for i in range(rows)).encode()
    with metered(place.conninfo) as meter, place.database(user="bench_front") as database:
        meter.begin(this_process())
        begun = time.monotonic()
        with database.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copying:
            copying.write(text)
        seconds = time.monotonic() - begun
        return Rate(rows / seconds, meter.cost(rows))


def _prepare(place: Place, rows: int) -> None:
    place.empty()
    with place.database() as database:
        database.execute(WORK.format(rows).encode())
    place.rest()


def _rate_of(daemon: Daemon, pk: int, rows: int) -> Rate:
    daemon.wait(pk)
    worked, seconds = daemon.row(WORKED, pk)
    assert worked == rows, f"{worked} of {rows} items were worked"
    return Rate(rows / float(seconds), daemon.cost(rows))


def _seconds_of(daemon: Daemon, base: int, jobs: int) -> float:
    """Wait until all jobs after `base` are done; seconds from first claim to last end."""
    deadline = time.monotonic() + START_S
    while (row := daemon.row(DRAINED, base, base))[0] < jobs and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    done, attempts, seconds = row
    assert (done, attempts) == (jobs, jobs), f"{done} of {jobs} jobs are done, with {attempts} attempts"
    return float(seconds)


def _watch(daemon: Daemon, seconds: float) -> tuple[float, float]:
    """Return percent of a CPU, and waits begun a second."""
    cpu, wakeups, begun = daemon.cpu_ns(), daemon.wakeups(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begun
    return (daemon.cpu_ns() - cpu) / took / 1e7, (daemon.wakeups() - wakeups) / took


def _latency_ms(daemon: Daemon) -> float:
    time.sleep(PAUSE_S)
    pk = daemon.value(ONE, "noop", "stamp")
    returned = time.monotonic_ns()
    (held,) = daemon.stamps(1)
    while daemon.row("select jq_state::text from drover.jobqueue where jq_pk = %s", pk)[0] in LIVE:
        time.sleep(LOOK_S)
    return (held - returned) / 1e6
