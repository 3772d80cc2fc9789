"""What may stand beside the jobs that are drained: a long history, many others that wait, a snapshot that is held."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.bench.ours import AGENTS
from tests.bench.place import JOBS, LAST, LOOK_S, Daemon, Place
from tests.bench.rates import Rate

DATABASE: Final = "history"
CHUNK: Final = 20_000  # jobs of one insert
AHEAD: Final = 3  # chunks that wait or are worked
TENTH: Final = 0.1

OLD: Final = "2 days"
FLUSH: Final = b"insert into drover.jobqueue (jq_type, jq_args) values ('command', 'flush 1')"

# As they would be after their life, on the disk too: a row is inserted small, and grows in its page when it ends. Rows
# that were inserted with their ends would leave room for one more small row on each page, and scatter new jobs.
FINISHED: Final = (
    """
insert into drover.jobqueue (jq_type, jq_args, jq_queued)
select 'noop', 'argument ' || i, now() - cast(%s as interval) from generate_series(1, %s) i
""",
    """
update drover.jobqueue
   set jq_state = 'done', jq_attempt = 1, jq_starttime = jq_queued, jq_endtime = jq_queued, jq_end_bits = 1,
       jq_endtext = 'all data processed', jq_itemsprocessed = 1, jq_itemstotal = 1, jq_elapsedtime = '1 s',
       jq_processedtime = '1 s', jq_done_by = gen_random_uuid(), jq_done_host = 'local', jq_done_pid = 1
 where jq_state = 'queued' and jq_type = 'noop'
""",
)
ENDED_IN: Final = """
select count(*), count(*) filter (where jq_endtime > to_timestamp(%s)) from drover.jobqueue
 where jq_endtime between to_timestamp(%s) and to_timestamp(%s)
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rate over the whole time, and jobs a second in its last tenth."""

    whole: Rate
    end: float


def with_history(place: Place, finished: int, queued: int) -> Place:
    """Make a database with so many finished jobs, and jobs of another type that nobody serves."""
    full = place.in_database(DATABASE)
    add_finished(full, finished)
    with full.database() as database:
        database.execute(JOBS.encode(), ("other", "argument ", queued))
    return full


def add_finished(place: Place, count: int, age: str = "0 s") -> None:
    """Add so many jobs that are done, so long ago, behind the back of the triggers."""
    with place.database() as database:
        database.execute(b"set session_replication_role = replica")
        insert, end = FINISHED
        database.execute(insert.encode(), (age, count))
        database.execute(end.encode())


@contextmanager
def nobody(_place: Place) -> Iterator[None]:
    """Hold nothing."""
    yield


@contextmanager
def snapshot(place: Place) -> Iterator[None]:
    """Hold a snapshot that has read the queue."""
    with place.database() as database:
        database.execute(b"begin isolation level repeatable read")
        database.execute(b"select count(*) from drover.jobqueue")
        yield
        database.execute(b"rollback")


@contextmanager
def history(place: Place, count: int) -> Iterator[None]:
    """Have so many old jobs stand by."""
    add_finished(place, count, OLD)
    yield


@contextmanager
def flush(place: Place, count: int) -> Iterator[None]:
    """Have so many old jobs leave."""
    with history(place, count), place.database() as database:
        database.execute(FLUSH)
        yield


def sustained(place: Place, seconds: float, holding: Callable[[Place], AbstractContextManager[None]]) -> Rates:
    """Keep some jobs waiting for so long while somebody holds what he holds."""
    place.empty()
    place.rest()
    with holding(place), place.daemon(place.line_agents(AGENTS)) as daemon:
        daemon.start_all(place.gate, AGENTS)
        chunks = deque(_chunk(daemon) for _ in range(AHEAD))
        begun = _now(daemon)
        daemon.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _feed(daemon, chunks)
        return _rates(daemon, begun, _now(daemon))


def _feed(daemon: Daemon, chunks: "deque[int]") -> None:
    """Queue another chunk when the oldest is worked, else let some time pass."""
    if daemon.row("select jq_endtime is null from drover.jobqueue where jq_pk = %s", chunks[0])[0]:
        time.sleep(LOOK_S)
        return
    chunks.popleft()
    chunks.append(_chunk(daemon))


def _chunk(daemon: Daemon) -> int:
    """Queue so many jobs; the last of them."""
    daemon.database.execute(JOBS.encode(), ("noop", "argument ", CHUNK))
    return daemon.value(LAST)


def _now(daemon: Daemon) -> float:
    return float(daemon.row("select extract(epoch from clock_timestamp())::float8")[0])


def _rates(daemon: Daemon, begun: float, ended: float) -> Rates:
    span = (ended - begun) * TENTH
    whole, end = daemon.row(ENDED_IN, ended - span, begun, ended)
    cost = daemon.cost(max(whole, 1))  # in a very short time no job may end
    return Rates(Rate(whole / (ended - begun), cost), end / span)
