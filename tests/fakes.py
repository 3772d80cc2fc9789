"""A daemon with no database, host or clock: its periodic tasks run against a database and hosts that a test describes.

The tasks, the core, the event loop and the statements' names and parameters are the product's; only who answers is not.
TYPES and AT_FIRST say what answers look like; tests/database/test_fake_answers.py compares that with the real schema.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from scheduler.daemon.connections import Connections
from scheduler.daemon.detached_jobs import DetachedJobs, Entry, read_entries
from scheduler.daemon.periodic_tasks import PeriodicTasks
from scheduler.drivers import host_scripts
from scheduler.drivers.loop import Callback, ConnectionLostError, Loop, Steps, Task
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import Failure, encode
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER
from scheduler.policy.core import Core
from scheduler.policy.group_lease import Lease
from tests.connection_tools import OWNER, QUERIES

_TYPES: Final = """
acknowledge check_now count forget_recovery put_off_is_free remove_dead show_agents show_hosts show_starts show_status:
ask_tester fold_tally forget_events forget_subscriptions postpone_recovery set_wanted: bigint
add_up_changes: integer bigint
adopt: bigint integer text text text text text text text text integer text numeric
begin_command: boolean numeric
cancel_job close_runs end_command: bigint boolean
close_commands: bigint boolean boolean uuid text integer text text bigint
due: bigint text numeric
due_schedules: bigint bigint numeric json
fail_blocked: bigint text boolean
find_alerts: integer
find_suspects: boolean
find_unserved: integer jsonb text text
flush: bigint text bigint integer text text
forget_kept: bigint integer
free_put_off: bigint bigint timestamptz
install_routes read_start_conditions: text
queue_deliveries: integer integer float8
read_commands: bigint text bigint text text boolean boolean boolean boolean
read_kept: text text bigint integer
read_recovery: bigint text integer integer numeric text boolean bigint drover.job_state text boolean numeric
read_shared_settings: json json json json json numeric
read_site: uuid timestamptz
release_blocked: bigint boolean text
rescan: text bigint
stop_unstartable: bigint text
rescue: bigint text boolean bigint
start_schedules: text boolean integer text
"""
_LINES: Final = [line.partition(":") for line in _TYPES.splitlines()]
TYPES: Final = {name: types.split() for names, _, types in _LINES for name in names.split()}
AT_FIRST: Final[dict[str, tuple[Any, ...]]] = {  # the row that a statement returns where nothing is there; others none
    "add_up_changes": (0, 0), "due": (0, None, None), "due_schedules": (10**15, 10**15, None, []), "find_alerts": (0,),
    "find_suspects": (False,), "find_unserved": (0, {}, None, None), "flush": (0, None, 0, 0, "", None),
    "fold_tally": (0,), "forget_events": (None,), "forget_subscriptions": (None,), "free_put_off": (0, 0, None),
    "queue_deliveries": (0, 0, None), "read_shared_settings": ([], [], [], [], [], None),
    "read_site": (OWNER, "2026-01-01 00:00:00+00"), "rescan": (None, None), "rescue": (0, None, False, 0),
}  # fmt: skip
FITS: Final = {"boolean": bool, "bigint": int, "integer": int, "numeric": int | float, "float8": int | float}
LOST: Final = ConnectionLostError()  # nobody knows whether the statement was carried out
MOST: Final = 5000  # statements of a test: more are a loop that does not end
BACK_S: Final = 1.0  # from the loss of the connection until it is up again

Answer = list[tuple[Any, ...]] | Exception


class After(NamedTuple):
    """An answer that comes so many seconds late."""

    seconds: float
    answer: Answer


class Asked(NamedTuple):
    """A statement that was sent."""

    at: float
    query: str
    values: dict[str, Any]


def refused(sqlstate: str = "53100") -> RefusedError:
    """Return the answer of a server that refuses a statement: by default, its disk is full."""
    return RefusedError(Failure(sqlstate, "the server refuses it"))


def cells(query: str, rows: list[tuple[Any, ...]]) -> list[Cells]:
    """Return rows as a server sends them, if the statement has such columns."""
    return [tuple(_cell(value, type) for value, type in zip(row, TYPES[query], strict=True)) for row in rows]


def _cell(value: Any, type: str) -> bytes | None:
    if type in ("json", "jsonb") and value is not None:
        return json.dumps(value).encode()
    assert value is None or isinstance(value, FITS.get(type, str)), f"{value!r} is no {type}"
    return encode(value) if not isinstance(value, bool) else b"t" if value else b"f"


class Hosts:
    """The hosts of detached jobs: each keeps entries, and may be in a trouble of TROUBLES."""

    def __init__(self, at: Callable[[float, Callable[[], None]], None]) -> None:
        self._at = at
        self.keeps: dict[str, set[Entry]] = defaultdict(set)
        self.trouble: dict[str, str] = {}
        self.asked: list[tuple[str, set[Entry]]] = []

    def run(self, type: str, host: str, words: tuple[bytes, ...], done: host_scripts.Done) -> None:
        """Release the entries that the words name, and answer with what is left, as the script of a keeper does."""
        entries, trouble = read_entries(b"\n".join(words[-1:0:-1])), self.trouble.get(host, "")
        self.asked.append((host, entries))
        if trouble != "cannot be reached" and trouble != "hangs":
            self.keeps[host] -= set() if trouble == "cannot end them" else entries
        left = b"".join(b"%d.%d\n" % entry for entry in sorted(self.keeps[host]))
        seconds, code = TROUBLES[trouble]
        self._at(seconds, lambda: done(code, b"" if code is None else left))


TROUBLES: Final = {  # after how many seconds a script has ended, and how
    "": (0.1, 0), "is slow": (20.0, 0), "cannot end them": (5.0, 1), "cannot be reached": (0.0, None),
    "hangs": (host_scripts.LIMIT_S, None), "loses the answer": (0.1, None),
}  # fmt: skip


class Site:
    """A daemon that serves its group, from instant 0 on: its core, its periodic tasks, the database and hosts."""

    owner = OWNER

    def __init__(self, core: Core) -> None:
        self.core, self.now, self.hosts = core, 0.0, Hosts(self._at)
        self.loop = Loop(lambda: self.now)
        self.asked: list[Asked] = []
        self._next: dict[str, deque[Answer | After]] = defaultdict(deque)
        self.answers: dict[str, Callable[[dict[str, Any]], Answer | After]] = {}  # where none is next
        self.counted: dict[Any, int] = {}  # for drover metrics
        self.drains, self._is_up = 0, True
        self._instants: list[float] = []
        self._task: Task[None] | None = None
        lease = Lease(core.config.scheduler)
        lease.restore([NEVER, None])
        connections = Connections(self.loop, core.config, "", core, QUERIES, "here.7", self, lambda: None)  # not opened
        hosts: Any = self.hosts
        detached = DetachedJobs(core, lambda: self.loop.now, self.ask, hosts, "here.7")
        shared: Any = self.loop, core.config.scheduler, core, lease, self.ask, connections, self, detached
        self.tasks = PeriodicTasks(*shared, lambda process: False)
        self.tasks.all_due()

    # ---- what is told of the daemon, and what commands have it do

    def notified(self, channel: str) -> None: ...
    def poll(self) -> None: ...
    def troubles(self) -> list[Any]:
        return []

    def take_counted(self) -> dict[Any, int]:
        counted, self.counted = self.counted, {}
        return counted

    def drain(self) -> None:
        self.drains += 1

    # ---- the database

    def answer(self, query: str, *answers: Answer | After) -> None:
        """Answer a statement with these, one after the other, and then as before."""
        self._next[query] += answers

    def ask(self, query: str, /, **values: Any) -> Steps[list[Cells]]:
        """Run a statement as Watch.ask does."""
        given = {"group": "default", "owner": OWNER, **values}
        assert all(encode(given[name]) != [] for name in QUERIES[query].names)  # each is there and can be sent
        self.asked.append(Asked(self.now, query, values))
        assert len(self.asked) < MOST, "a loop that does not end"
        first = [AT_FIRST[query]] if query in AT_FIRST else []
        following, usual = self._next[query], self.answers.get(query, lambda _: first)
        answer = following.popleft() if following else usual(values)
        late, answer = answer if isinstance(answer, After) else (0.0, answer)
        yield Callback(lambda resume: self._at(late, partial(resume, None)))
        if isinstance(answer, ConnectionLostError):
            self._lose_connection()
        if isinstance(answer, Exception):
            raise answer
        return cells(query, answer)

    def sent(self, query: str) -> list[Asked]:
        """Return how often a statement was sent, when, and with which values."""
        return [each for each in self.asked if each.query == query]

    def _lose_connection(self) -> None:
        self._task, self._is_up = None, False
        self.tasks.stop()
        self._at(BACK_S, self._come_back)

    def _come_back(self) -> None:
        self._is_up = True
        self.tasks.all_due()

    # ---- time

    def run(self, seconds: float) -> None:
        """Let time pass, and each task begin when it is due and no other is under way, as Watch.step does."""
        end = self.now + seconds
        while (instant := self._begin_task()) <= end:
            self._pass(max(instant, self.now))
        self._pass(end)

    def _begin_task(self) -> float:
        """Begin the next task if it is time; return the next instant."""
        if self._is_free and self.tasks.next_deadline() <= self.now and (steps := self.tasks.next_steps()) is not None:
            self._task = Task(self.loop, self._carry_out(steps))
            self._task.start()
        return min([*self._instants, self.tasks.next_deadline() if self._is_free else NEVER])

    @property
    def _is_free(self) -> bool:
        return self._is_up and self._task is None

    def _carry_out(self, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        except RefusedError:
            self.tasks.refused()
        self._task = None

    def _at(self, seconds: float, call: Callable[[], None]) -> None:
        self._instants.append(self.now + seconds)
        self.loop.at(self.now + seconds, call)

    def _pass(self, instant: float) -> None:
        self.now = instant
        self._instants = [each for each in self._instants if each > instant]
        self.loop.turn(instant)
