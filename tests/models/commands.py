"""Several schedulers of a group that carry out commands, on a real database: one statement of one of them at a time.

Each has the product's lease, commands and acknowledgements, and runs the product's statements; its core has no agents.
A test decides who makes the next step, who dies, and how time passes: `Site.advance` moves what the database has
recorded into the past. A step is the answer to one statement and all that follows up to the next statement, so a
scheduler may die before each statement, and after it before its answer.
"""

import random
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import psycopg

from scheduler.daemon.acknowledgements import Acknowledgements
from scheduler.daemon.command_actions import ACTIONS
from scheduler.daemon.command_rows import Commands, Context, text_of
from scheduler.daemon.watch_connection import registration
from scheduler.drivers.loop import Loop, Steps, Until
from scheduler.drivers.os_calls import Identity
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import Failure, Rows
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Scheduler
from scheduler.model.counters import Counted
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER, LeaseState
from scheduler.policy.group_lease import Lease, LeaseStatement, Owner
from tests.connection_tools import PATIENT, QUERIES, ask, opened
from tests.core_tools import make_core

LEASE_S: Final = 30.0
RESCAN_S: Final = 30.0
AGE: Final = """
update drover.scheduler set scheduler_seen = scheduler_seen - make_interval(secs => %(s)s);
update drover.scheduler_group set group_lease_until = group_lease_until - make_interval(secs => %(s)s);
"""
OPEN: Final = """
select jq_pk, jq_args from drover.jobqueue where jq_type = 'command' and jq_state = 'queued' order by jq_pk
   for update skip locked
"""
WORK: Final = """
update drover.jobqueue
   set jq_state = 'done', jq_attempt = jq_attempt + 1, jq_starttime = now(), jq_endtime = now(), jq_end_bits = 1
 where jq_type = 'a' and jq_state = 'queued' and jq_unmet = 0
"""


class Member:
    """One scheduler of the group."""

    def __init__(self, site: "Site", pid: int) -> None:
        self.site, self.pid = site, pid
        self._owner = str(UUID(int=pid))
        self._generation = 0
        self.lease = Lease(Scheduler(lease=LEASE_S, lease_renewal=LEASE_S / 3))
        self.lease.connected(site.now)
        self.is_alive, self.is_ending, self.has_left = True, False, False
        self._read_at = self._next_at = NEVER
        self._core = make_core()
        context = Context(
            self._core, lambda: site.now, self._ask, rescan=lambda: self._read_in(0.0),
            start_schedules_in=lambda seconds: None,
            daemon=self, is_gone=lambda cells: int(text_of(cells[1])) in site.gone,
        )  # fmt: skip
        self.commands = Commands(context, ACTIONS, self._read_in, self._go_on)
        self._rescan_at = NEVER
        self._steps: Steps[None] | None = None
        self._asked: tuple[str, dict[str, object]] | None = None  # the statement that is to be run
        self._wakes_at = 0.0
        self._stepped_down = False

    @property
    def is_known(self) -> bool:
        """Return whether it has registered once."""
        return self.lease.state is not LeaseState.UNREGISTERED or self._generation > 0

    @property
    def answers(self) -> Acknowledgements:
        return self.commands.acknowledgements

    # ---- what commands do to a daemon (DaemonControl)

    host_scripts: Any = None

    def stop(self) -> None:
        self.is_ending = True

    drain = stop

    def step_down(self) -> bool:
        self._stepped_down = True
        return not self.is_ending

    def reload(self) -> Steps[str]:
        yield from self._ask("register", config=self._registration())
        if self.site.rng.random() < 0.2:
            raise ConfigError("a mistake")
        return "nothing has changed"

    def catch_up(self) -> Steps[None]:
        yield from ()

    def role_changed(self) -> None: ...

    def troubles(self) -> list[dict[str, Any]]:
        return []

    def take_counted(self) -> Counted:
        return {}

    def reexec(self, command: int) -> tuple[bool, str] | None:
        return (True, "the same program") if self.site.rng.random() < 0.5 else None

    # ---- its tasks: the lease first, then commands

    def _read_in(self, seconds: float) -> None:
        self._read_at = min(self._read_at, self.site.now + seconds)

    def _go_on(self) -> None:
        self._next_at = self.site.now

    def notified(self) -> None:
        """Read the commands: one came."""
        if self.lease.state is not LeaseState.UNREGISTERED and not self.is_ending:
            self._read_in(0.0)

    def _next_task(self) -> Steps[None] | None:
        now = self.site.now
        if self.is_ending:
            return self._exit()
        if self._stepped_down:
            self._stepped_down = False
            self.lease.step_down(now)
        if statement := self.lease.step(now):
            return self._lease_steps(statement)
        for due, task in ((self._next_at, self.commands.carry_out_next), (self._read_at, self.commands.read)):
            if due <= now:
                self._next_at, self._read_at = (NEVER, self._read_at) if task == self.commands.carry_out_next else (
                    self._next_at, NEVER,
                )  # fmt: skip
                return task()
        if self._rescan_at <= now and self.lease.state is LeaseState.SERVING:
            self._rescan_at = now + RESCAN_S
            self._read_in(0.0)
            return self._forget_dead()
        return None

    def _forget_dead(self) -> Steps[None]:
        yield from self._ask("remove_dead", age=2 * LEASE_S)

    def _exit(self) -> Steps[None]:
        yield from self._ask("unregister", stays=False)
        yield from self.answers.finish(lambda: self.site.now, 2 * LEASE_S)
        self.is_alive, self.has_left = False, True
        self.site.has_left(self)

    def _lease_steps(self, statement: LeaseStatement) -> Steps[None]:
        try:
            yield from getattr(self, f"_{statement.name.lower()}")()
        except RefusedError:
            self.lease.refused(self.site.now)

    def _registration(self) -> dict[str, Any]:
        process = Identity("host", self.pid, "boot", "space", self.pid)
        return registration(Config(scheduler=Scheduler(lease=LEASE_S), hosts={}, agents={}), process, "")

    def _register(self) -> Steps[None]:
        yield from self._ask("register", config=self._registration())
        self.lease.registered(self.site.now)
        self._read_in(0.0)

    def _look(self) -> Steps[None]:
        rows = yield from self._ask("read_owner")
        if not rows:
            self.lease.connected(self.site.now)
            return
        owner, lapsed, _, pid, *_, taken = rows[0]
        is_dead = pid is not None and int(pid) in self.site.gone
        self.lease.looked(
            Owner(None if owner is None else text_of(owner), lapsed == b"t", is_dead, text_of(taken)), self.site.now
        )

    def _take(self) -> Steps[None]:
        dead = self.lease.owner.uuid if self.lease.owner.is_dead else None
        rows = yield from self._ask("take_lease", lease=LEASE_S, dead=dead, patient=self.lease.has_waited_a_lease)
        self.lease.taken(text_of(rows[0][0]) if rows else None, self.site.now)

    def _rescue(self) -> Steps[None]:
        yield from self._ask("rescue", live=[], age=0.0)
        self.lease.rescued(self.site.now)
        self.commands.forget()
        self._read_at, self._rescan_at = self.site.now, self.site.now + RESCAN_S

    def _renew(self) -> Steps[None]:
        self._renewed((yield from self._ask("renew_lease", lease=LEASE_S)))

    def _leave(self) -> Steps[None]:
        yield from self._ask("unregister", stays=True)
        self._renewed([])

    def _renewed(self, rows: list[Cells]) -> None:
        self.lease.renewed(bool(rows), self.site.now)
        if not rows:
            self._generation += 1
            self._owner = str(UUID(int=self.pid + 1_000_000 * self._generation))
            self.commands.forget()
            self._read_at = self._next_at = self._rescan_at = NEVER

    # ---- one statement at a time

    def _ask(self, query: str, /, **values: object) -> Steps[list[Cells]]:
        answer = yield (query, {"group": "default", "owner": self._owner, **values})  # type: ignore[misc]
        return answer  # type: ignore[no-any-return]

    @property
    def is_at_rest(self) -> bool:
        """Return whether it has nothing to do at this instant."""
        if self._steps is not None:
            return self._asked is None and self._wakes_at > self.site.now
        due = min(self.lease.next_deadline(), self._read_at, self._next_at)
        return not self.is_ending and not self._stepped_down and due > self.site.now

    def step(self) -> None:
        """Run the statement that was asked last, and go on to the next one."""
        if self._steps is None:
            self._steps = self._next_task()
            self._resume(next)
        elif self._asked is not None:
            query, values = self._asked
            answer = self.site.run(query, values)
            if isinstance(answer, Failure):
                self._resume(lambda steps: steps.throw(RefusedError(answer)))
            else:
                self._resume(lambda steps: steps.send(list(answer.rows)))
        elif self._wakes_at <= self.site.now:
            self._resume(next)

    def _resume(self, resume: Callable[[Any], Any]) -> None:
        if self._steps is None:
            return
        self._asked = None
        try:
            wanted = resume(self._steps)
        except StopIteration:
            self._steps = None
        except RefusedError:
            self._steps = None
            self._read_in(RESCAN_S)
        else:
            if isinstance(wanted, Until):
                self._wakes_at = wanted.instant
            else:
                self._asked = wanted

    def die(self, *, after_its_statement: bool) -> None:
        """End at once; the statement that it has sent is carried out, or not."""
        if after_its_statement and self._asked is not None:
            self.site.run(*self._asked)
        self.is_alive = False
        self._steps = None


class Site:
    """The schedulers, the database and the time."""

    def __init__(self, conninfo: str, rng: random.Random) -> None:
        self.rng, self.now = rng, 100.0
        self._loop = Loop()
        self._connection = opened(self._loop, conninfo, settings=PATIENT)
        self.people = psycopg.connect(conninfo, autocommit=True)
        self.other = psycopg.connect(conninfo)  # locks rows
        self.members: list[Member] = []
        self.gone: set[int] = set()  # pids of which it is known that they have ended
        self.story: list[str] = []
        self.left_open: list[str] = []

    def close(self) -> None:
        for each in (self.people, self.other, self._connection):
            each.close()
        self._loop.close()

    @property
    def alive(self) -> list[Member]:
        return [each for each in self.members if each.is_alive]

    def run(self, query: str, values: dict[str, object]) -> Rows | Failure:
        """Run a statement of a scheduler."""
        answer = ask(self._loop, self._connection, QUERIES[query], **values)
        assert isinstance(answer, Rows | Failure)
        return answer

    def start(self) -> Member:
        member = Member(self, len(self.members) + 1)
        self.members.append(member)
        self.story.append(f"start {member.pid}")
        return member

    def kill(self, member: Member, *, is_seen: bool, after_its_statement: bool) -> None:
        """Kill a scheduler; if it is seen the others know that its process is gone."""
        self.story.append(f"kill {member.pid}{' seen' * is_seen}: {member._asked and member._asked[0]}")
        member.die(after_its_statement=after_its_statement)
        if is_seen:
            self.gone.add(member.pid)

    def has_left(self, member: Member) -> None:
        """Note what a scheduler leaves open that exits in order, if it is the last one."""
        self.gone.add(member.pid)
        self.story.append(f"{member.pid} has left")
        if not self.alive:
            given = [f"{pk}: {words}" for pk, words in self.open() if words.startswith("shutdown")]
            self.left_open += given if member.answers.obeys_shutdown else []

    def give(self, words: str, filter: str | None = None) -> int:
        """Give a command, which notifies all."""
        (pk,) = self.people.execute("select drover.command(%s, %s)", (words, filter)).fetchone() or (0,)
        self.story.append(f"give {pk}: {words}")
        self.notify()
        return int(pk)

    def notify(self) -> None:
        for each in self.alive:
            each.notified()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for statement in AGE.split(";")[:2]:
            self.people.execute(statement.encode(), {"s": seconds})

    def work(self) -> None:
        """Do all jobs that are queued, if somebody serves."""
        if any(each.lease.state is LeaseState.SERVING for each in self.alive):
            self.people.execute(WORK.encode())
            self.notify()

    def open(self) -> list[tuple[int, str]]:
        """Return the commands that have not ended, but those whose row is locked."""
        return self.people.execute(OPEN.encode()).fetchall()

    def rest(self, *members: Member) -> None:
        """Let these, or all that live, go on until they have nothing to do at this instant."""
        while busy := [each for each in members or self.alive if each.is_alive and not each.is_at_rest]:
            busy[0].step()

    def settle(self, most: int = 3000) -> None:
        """Let all that live go on, and time pass, until all commands have ended."""
        self.other.rollback()
        for _ in range(most):
            if not [each for each in self.alive if not each.is_ending]:
                self.start()
            busy = [each for each in self.alive if not each.is_at_rest]
            if busy:
                self.rng.choice(busy).step()
            elif self.open():
                self.work()
                self.advance(1.0)
            else:
                return
