"""A daemon with no database, host or clock: its periodic tasks run against a database and hosts that a test describes.

The tasks, the core, the event loop and the statements' names and parameters are the product's; only who answers is not.
fakes.toml has the columns of each statement, AT_FIRST its rows where nothing is there;
tests/database/test_fake_answers.py compares both with the real schema.
"""

import json
import tomllib
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
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

_COLUMNS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TYPES: Final = {name: types.split() for name, types in _COLUMNS.items()}
AT_FIRST: Final[dict[str, tuple[Any, ...]]] = {  # the row that a statement returns where nothing is there; others none
    "add_up_changes": (0, 0), "due": (0, None, None), "due_schedules": (10**15, 10**15, None, []), "find_alerts": (0,),
    "find_suspects": (False,), "find_unserved": (0, {}, None, None), "flush": (0, None, 0, 0, "", None),
    "fold_tally": (0,), "forget_events": (None,), "forget_subscriptions": (None,), "free_put_off": (0, 0, None),
    "queue_deliveries": (0, 0, None), "read_shared_settings": ([], [], [], [], [], None),
    "read_site": (OWNER, "2026-01-01 00:00:00+00"), "rescan": (None, None), "rescue": (0, None, False, 0),
}  # fmt: skip
FITS: Final = {"boolean": bool, "bigint": int, "integer": int, "numeric": int | float, "float8": int | float}
LOST: Final = ConnectionLostError()  # nobody knows whether the statement was carried out

Answer = list[tuple[Any, ...]] | Exception


class After(NamedTuple):  # an answer that comes so many seconds late
    seconds: float
    answer: Answer


class Asked(NamedTuple):  # a statement that was sent
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
    """The hosts of detached jobs: each keeps entries, and may be in trouble."""

    def __init__(self, at: Callable[[float, Callable[[], None]], None]) -> None:
        self._at, self.keeps = at, defaultdict[str, set[Entry]](set)
        self.trouble: dict[str, str] = {}  # one of TROUBLES
        self.asked: list[tuple[str, set[Entry]]] = []

    def run(self, type: str, host: str, words: tuple[bytes, ...], done: host_scripts.Done) -> None:
        """Release the entries that the words name, and answer with what is left, as the script of a keeper does."""
        entries, trouble = read_entries(b"\n".join(words)), self.trouble.get(host, "")
        self.asked.append((host, entries))
        if trouble in ("", "is slow", "loses the answer"):
            self.keeps[host] -= entries
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
    notified = poll = None  # nothing is received on connections that are not open

    def __init__(self, core: Core) -> None:
        self.core, self.now, self.hosts = core, 0.0, Hosts(self._at)
        self.loop = Loop(lambda: self.now)
        self.asked: list[Asked] = []
        self._next: dict[str, deque[Answer | After]] = defaultdict(deque)
        self.answers: dict[str, Callable[[dict[str, Any]], Answer | After]] = {}  # where none is next
        self.counted: dict[Any, int] = {}  # for drover metrics
        self.drains = self.step_downs = 0
        self._instants: list[float] = []
        self._task: Task[None] | None = None
        lease = Lease(core.config.scheduler)
        lease.restore([NEVER, None])
        us: Any = self
        connections = Connections(self.loop, core.config, "", core, QUERIES, "here.7", us, lambda: None)  # not opened
        detached = DetachedJobs(core, lambda: self.loop.now, self.ask, us.hosts, "here.7")
        shared = self.loop, core.config.scheduler, core, lease, self.ask, connections, us, detached
        self.tasks = PeriodicTasks(*shared, lambda process: False)
        self._connected()

    def troubles(self) -> list[Any]:
        return []

    def take_counted(self) -> dict[Any, int]:
        counted, self.counted = self.counted, {}
        return counted

    def drain(self) -> None:
        self.drains += 1

    def step_down(self) -> bool:
        self.step_downs += 1
        return True

    def answer(self, query: str, *answers: Answer | After) -> None:
        """Answer a statement with these, one after the other, and then as before."""
        self._next[query] += answers

    def ask(self, query: str, /, **values: Any) -> Steps[list[Cells]]:
        """Run a statement as Watch.ask does."""
        given = {"group": "default", "owner": OWNER, **values}
        assert set(QUERIES[query].names) <= given.keys()
        self.asked.append(Asked(self.now, query, values))
        assert len(self.asked) < 5000  # a loop that does not end
        usual = self.answers.get(query, lambda _: [AT_FIRST[query]] if query in AT_FIRST else [])
        answer = self._next[query].popleft() if self._next[query] else usual(values)
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
        self._at(1.0, self._connected)

    def _connected(self) -> None:
        self._is_up = True
        self.tasks.all_due()

    def run(self, seconds: float) -> None:
        """Let time pass, and each task begin when it is due and no other is under way, as Watch.step does."""
        end = self.now + seconds
        while (instant := self._begin_task()) <= end:
            self._pass(max(instant, self.now))
        self._pass(end)

    def _begin_task(self) -> float:
        """Begin the next task if it is time; return the next instant."""
        if self._is_up and self._task is None and self.tasks.next_deadline() <= self.now:
            steps = self.tasks.next_steps()
            assert steps is not None
            self._task = Task(self.loop, self._carry_out(steps))
            self._task.start()
        is_free = self._is_up and self._task is None
        return min([*self._instants, self.tasks.next_deadline() if is_free else NEVER])

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
