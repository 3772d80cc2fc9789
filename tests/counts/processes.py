"""What a real daemon costs: system calls seen from outside, calls in its whole loop seen from inside.

One agent. Where runs are compared it has one line in flight: each item is one turn of the loop, so that nothing
depends on what happens to come together. The timers are set so that nothing else falls into the measure.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.daemon.wiring import Daemon
from scheduler.model.config import MOST_LINES, AgentType, Config, Host, Scheduler
from scheduler.model.states import ST_READY
from tests.counts.figures import PUT, PUT_QUERY, ROWS, Figures
from tests.counts.meters import Work, number, work
from tests.counts.place import Place
from tests.integration import daemon as outside
from tests.patience import LONG_PATIENCE_S

ITEMS: Final = 3000
WARMING: Final = 1500  # items: more than there are slots
IDLE: Final = 1000  # slots of another type, each with an agent that waits
CALM: Final[dict[str, Any]] = {"lease": 3600.0, "lease_renewal": 1700.0, "rescan": 3600.0, "status_interval": 3600.0,
               "progress_interval": 3600.0, "max_idle": 3600.0}  # fmt: skip
AGENT: Final = ("sh", "-c", "echo OK; while read -r line; do echo OK; done")
LAST: Final = "select max(jq_pk) from drover.jobqueue"


# ---- from outside


def system_calls(place: Place) -> Figures:
    """System calls for an item, alone and beside IDLE agents, and for a one-parameter job."""
    items, jobs = _traced(place)
    alone, _ = _traced(place, window=1)
    beside, _ = _traced(place, window=1, idle=IDLE)
    return {
        "system_calls_per_item": sum(items.values()) / ITEMS,
        "sends_per_1000_items": 1000 * items["sendto"] / ITEMS,
        "system_calls_growth_with_idle_slots": sum(beside.values()) / sum(alone.values()),
        "reads_and_writes_per_job": (jobs["read"] + jobs["write"]) / ITEMS,
    }


def _traced(place: Place, window: int | None = None, idle: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    with place.database() as database, outside.start(_text(window, idle), database) as daemon:
        for name in ("noop", "other")[: 1 + (idle > 0)]:
            _expand(daemon, name, WARMING)
        pid = daemon.value("select scheduler_pid from drover.scheduler")  # below its guardian
        while _children(pid) < 1 + idle:  # they are started so many at a time, while those that are up eat the items
            _expand(daemon, "other", WARMING)
        assert _children(pid) == 1 + idle
        with _strace(place, pid) as items:
            _expand(daemon, "noop", ITEMS)
        with _strace(place, pid) as jobs:
            daemon.execute(PUT, "noop", ITEMS)
            daemon.wait(daemon.value(LAST))
    return items, jobs


def _children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _expand(daemon: outside.Daemon, name: str, rows: int) -> None:
    daemon.wait(daemon.insert(jq_type=name, jq_args=ROWS.format(rows), jq_msq=True), timeout=LONG_PATIENCE_S)


def _text(window: int | None, idle: int) -> str:
    timers = "".join(f"{name} = {value}\n" for name, value in CALM.items())
    types = outside.agent("noop", AGENT, **({"window": window} if window else {}))
    types += outside.agent("other", AGENT, slots=idle) if idle else ""
    return f'[scheduler]\nlog_level = "info"\n{timers}[hosts.local]\n{types}'


@contextmanager
def _strace(place: Place, pid: int) -> Iterator[dict[str, int]]:
    """Yield how often a process makes each system call within a block."""
    path = place.folder / "strace"
    strace = subprocess.Popen(["strace", "-c", "-o", path, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    counted: dict[str, int] = {}
    with strace.stderr:
        assert "attached" in strace.stderr.readline()
        yield counted
        strace.send_signal(SIGTERM)
        strace.wait(LONG_PATIENCE_S)
    counted |= _read(path)


def _read(path: Path) -> dict[str, int]:
    """Read the table: % time, seconds, usecs/call, calls, errors if any, name; lines of dashes around the rows."""
    _, rows, _ = path.read_text().split("------ ----------- ----------- --------- --------- ----------------\n")
    return {row.split()[-1]: int(row.split()[3]) for row in rows.splitlines()}


# ---- from inside


def whole_loop(place: Place) -> Figures:
    """Calls for an item in the whole daemon, alone and beside IDLE agents."""
    # As many lines ahead as it gets by its pace, but also where an item has just taken long on a busy machine.
    items = _run_inside(place, MOST_LINES)
    alone, beside = _run_inside(place, 1), _run_inside(place, 1, IDLE)
    return {
        "calls_per_item_of_the_daemon": items.calls / ITEMS,
        "daemon_growth_with_idle_slots": beside.calls / alone.calls,
    }


def _run_inside(place: Place, window: int, idle: int = 0) -> Work:
    agents = {"noop": AgentType(command=AGENT, window=window)}
    if idle:
        agents["other"] = AgentType(command=AGENT, slots=idle)
    config = Config(scheduler=Scheduler(**CALM), hosts={"local": Host()}, agents=agents)
    with place.database() as conninfo, psycopg.connect(conninfo, autocommit=True) as owner:
        daemon = Daemon(config, make_conninfo(conninfo, user="drover_scheduler"))
        try:
            daemon.connections.open()
            for name in agents:
                _expand_inside(daemon, owner, name, WARMING)
            while not _all_ready(daemon):  # they are started so many at a time, while those that are up eat the items
                _expand_inside(daemon, owner, "other", WARMING)
            with work() as counted:
                _expand_inside(daemon, owner, "noop", ITEMS)
        finally:
            daemon.close()
    return counted


def _all_ready(daemon: Daemon) -> bool:
    return all(slot.state == ST_READY for slot in daemon.core.state.slots.all)


def _expand_inside(daemon: Daemon, owner: psycopg.Connection, name: str, rows: int) -> None:
    owner.execute(PUT_QUERY.replace("'noop'", "%s").encode(), (name, ROWS.format(rows), None))
    world = daemon.core.state
    while not world.jobs:
        daemon.turn()
    while world.jobs or not world.outbox.is_empty:
        daemon.turn()
    assert number(owner, "select count(*) from drover.jobqueue where jq_state <> 'done'") == 0
