"""All that the core knows at one moment: plain state, shared by the modules that decide.

`stirred` are pools to look at again before the turn ends: their work, their slots or the room around them changed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from scheduler.model.config import Config, Scheduler
from scheduler.model.events import Command, ConnectionKind, LogMessage
from scheduler.model.jobs import Claim, LogRow
from scheduler.model.protocol import printable
from scheduler.model.states import NEVER, ST_FREE
from scheduler.policy.claims import Claims
from scheduler.policy.entities import HostState, Job, Pool, QueueState, Slot
from scheduler.policy.outbox import Outbox
from scheduler.policy.output import Capture
from scheduler.policy.run_queue import Placement
from scheduler.policy.slots import Slots, timeouts_of

MOST_STARTS: Final = 32  # at 0.8 ms each: what ends, commands and the lease wait for at most, twice
MARK_AFTER: Final = 0.05  # seconds of work after which a row is shown as running


@dataclass(frozen=True, slots=True)
class MissingConnection:
    """Why connections of a kind cannot be made, since when, and when the next attempt is made."""

    reason: str
    since: float
    until: float


class State:
    """Slots, pools, hosts, queues, jobs in hand, and what is to be done and saved."""

    __slots__ = (
        "captures",
        "claimed",
        "claimed_at",
        "claims",
        "commands",
        "config",
        "dirty",
        "draining",
        "expanding",
        "file_hosts",
        "has_ended",
        "hosts",
        "hosts_changed",
        "is_assigning",
        "job_deadlines",
        "jobs",
        "last_ticket",
        "mark_at",
        "max_starts",
        "may_claim",
        "missing_connections",
        "most_queries",
        "outbox",
        "output_at",
        "placed",
        "places",
        "pools",
        "progress_at",
        "queues",
        "record_at",
        "reports_ends",
        "retry_start_at",
        "serving_until",
        "slots",
        "spilled",
        "start_at",
        "started_jobs",
        "starting",
        "starving",
        "steps_down",
        "stopping",
        "successes",
        "timers",
        "trial",
        "uncap_at",
        "unstarted",
    )  # fmt: skip

    def __init__(self, config: Config, now: float) -> None:
        self.config = config  # with the filters of hosts that commands have set
        self.file_hosts = config.hosts  # as the file has them
        self.timers: Scheduler = config.scheduler
        self.commands: list[Command] = []
        self.slots = Slots(self.timers, self.commands)
        self.outbox = Outbox()
        self.claims = Claims()
        self.places = Placement((), ())
        self.hosts = {name: HostState(name, host) for name, host in config.hosts.items()}
        self.hosts_changed = {host for host in self.hosts.values() if not host.is_up}  # since they were shown
        self.queues: dict[str, QueueState] = {}
        self.pools: dict[str, Pool] = {}
        self.jobs: dict[int, Job] = {}
        self.trial: Job | None = None  # whose contents are read of it alone, for daemons died with it in hand
        self.expanding: set[int] = set()  # jobs with an expansion connection, or asking for one
        self.most_queries = NEVER  # expansion connections that there are, while others cannot be made
        self.missing_connections: dict[
            ConnectionKind, MissingConnection
        ] = {}  # connections that cannot be made, see policy/serving.py
        self.captures: dict[int, Capture] = {}  # by slot: output of exec agents
        self.output_at = NEVER  # when what they have is to be stored
        self.dirty: set[Pool] = set()
        self.last_ticket = 0  # the number that the last lane was given which began to wait or was served
        self.successes = 0  # Success lines heard
        self.placed = 0  # rows that came with a host of theirs
        self.spilled = 0  # of these, rows that did not wait for it
        self.is_assigning = False  # whether agents may be given work
        self.serving_until = -NEVER
        self.draining = 0  # how often we were asked to drain
        self.stopping = False
        self.steps_down = False  # `stopping` is to give the group up, and to live on
        self.has_ended = False  # after a drain or a stop nothing is left to do, and that was told
        self.may_claim = True  # what to claim may be more than when nothing was wanted
        self.claimed: list[Iterable[Claim]] = []  # rows that are ours and not unpacked yet
        self.claimed_at = 0.0
        self.record_at = NEVER  # when to say anew what is in hand
        self.started_jobs: deque[tuple[float, Job]] = deque()  # jobs not looked at since, and when they began
        self.mark_at = NEVER  # when they are looked at, to be marked running
        self.progress_at = NEVER
        self.starving: set[Pool] = set()  # pools whose work found no room
        self.job_deadlines: list[tuple[float, int]] = []  # a heap: when jobs that have begun are late; some have ended
        self.reports_ends = False  # whether somebody inside the daemon waits for ends
        self.retry_start_at = NEVER  # when a starving pool is to be looked at again
        self.max_starts = MOST_STARTS  # agents started between two ticks
        self.starting = 0  # agents started since the last tick
        self.unstarted: set[Pool] = set()  # pools whose next agent waits for the next tick
        self.start_at = NEVER  # when that is to be: at once
        self.uncap_at = NEVER  # when more agents are tried again on a host that could start no more
        for name, kind in config.agents.items():
            self.pools[name] = pool = Pool(name, kind, kind.enabled)
            timeouts = timeouts_of(kind, self.timers)
            hosts = config.hosts_of(name)
            pool.filter({host_name: config.hosts[host_name] for host_name in hosts})
            for host_name in hosts:
                self.add_slots(pool, host_name, kind.slots, timeouts, now)

    def add_slots(self, pool: Pool, host_name: str, count: int, timeouts: tuple[float, ...], now: float) -> None:
        """Give a type so many more slots on a host."""
        if host_name not in pool.bound:
            pool.bound[host_name] = pool.queue_type(frozenset((host_name,)))
            pool.free[host_name] = deque()
            pool.idle[host_name] = []
        for _ in range(count):
            self.slots.add(pool, self.hosts[host_name], timeouts, now)

    def take_changed_hosts(self) -> set[HostState]:
        """Return the hosts that have come up or gone down since the last call."""
        changed, self.hosts_changed = self.hosts_changed, set()
        return changed

    def log(self, slot: Slot, kind: str, text: bytes | str) -> None:
        """Write a line to drover.log in the name of an agent, about its job or, without one, about `slot.about`."""
        job = slot.job.pk if slot.job is not None else slot.about_job
        message = text if isinstance(text, str) else printable(text)
        self.outbox.log(LogRow(job, kind, slot.host.name, slot.pool.name, slot.pid, message))

    def log_death(self, slot: Slot, why: str, *, killed: bool) -> None:
        """Write to drover.log why an agent died or is killed; the end of its job need not repeat it."""
        self.log(slot, "ERROR", f"{why}; killed" if killed else why)
        if slot.job is not None:
            slot.job.logged = why

    def log_job(self, job: Job, kind: str, text: str) -> None:
        """Write a line about a job to drover.log; of a job of one parameter with the process that had it last."""
        where = job.where if job.query is None else None
        host, agent, pid = where or (None, job.pool.name, None)
        self.outbox.log(LogRow(job.pk, kind, host, agent, pid, text))

    def log_message(self, level: str, text: str) -> None:
        """Write a line to the daemon's own log."""
        self.commands.append(LogMessage(level, text))

    def has_processes(self) -> bool:
        """Say whether some slot has a process, or is making one."""
        return any(slot.state > ST_FREE for slot in self.slots.all)
