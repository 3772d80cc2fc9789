"""All that the core knows at one moment, shared by the modules that decide.

`dirty` are pools to schedule again before the turn of the loop ends: their work, their slots or the room around them
changed. Counters and deadlines change through methods only.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

from scheduler.model.config import AgentType, Config, Host, Scheduler
from scheduler.model.counters import FOUND_LATE, Counted, add
from scheduler.model.events_and_effects import CloseQuery, ConnectionKind, Effect, Expand, Fetch, Keep, LogMessage, Send
from scheduler.model.protocol import printable, shown_item
from scheduler.model.queue_requests import PLAIN, LogRow
from scheduler.model.states import NEVER, NO_LIMIT, ST_FAIL, QueryEvent, QueryState
from scheduler.policy.attachments import Attachments
from scheduler.policy.capacity import HostState, QueueState
from scheduler.policy.claims import Claims
from scheduler.policy.deadlines import ITEM_RATES, LEASE, MARK, RATES, STARTS, TIME_LIMITS, Deadlines
from scheduler.policy.job import Job, Pool
from scheduler.policy.outbox import Outbox
from scheduler.policy.output_buffers import Capture
from scheduler.policy.query_progress import JobQuery
from scheduler.policy.quotas import Quotas
from scheduler.policy.rates import Rates
from scheduler.policy.run_queue import Placement
from scheduler.policy.slots import Slot, Slots, timeouts_of

MOST_STARTS: Final = 32  # of agents in one tick: a start takes 0.8 ms, for which all else waits
QUERIES: Final[ConnectionKind] = "queries"
MARK_AFTER: Final = 0.05  # seconds of work after which a row is shown as running
_FEW: Final = 100  # deadlines of jobs that have ended are kept up to here


@dataclass(frozen=True, slots=True)
class MissingConnection:
    """Why connections of a kind cannot be made, since when, and when the next attempt is made."""

    reason: str
    since: float
    until: float


class State:
    """Slots, pools, hosts, queues, jobs in hand, and what is to be done and saved."""

    def __init__(self, config: Config, now: float) -> None:
        self.config = config  # with the filters of hosts that commands have set
        self.file_hosts = config.hosts  # as the file has them
        self.timers: Scheduler = config.scheduler
        self.effects: list[Effect] = []
        self.deadlines = Deadlines()
        self.slots = Slots(self.emit, self.deadlines)
        self.outbox = Outbox(self.deadlines)
        self.claims = Claims()
        self.places = Placement((), ())
        self.hosts = {name: HostState(name, host) for name, host in config.hosts.items()}
        self.hosts_changed = {host for host in self.hosts.values() if not host.is_up}  # since they were shown
        self.queues: dict[str, QueueState] = {}
        self.quotas = Quotas()
        self.start_conditions: set[str] = set()  # that jobs which cannot start are blocked on, as far as we know
        self.pools: dict[str, Pool] = {}
        self.jobs: dict[int, Job] = {}
        self.suspect: Job | None = None  # the suspect being read: daemons died with it in hand
        self.expanding: set[int] = set()  # jobs with an expansion connection, or asking for one
        self.kept: dict[int, int] = {}  # by job: bytes of its rows that went to a file
        self.most_queries = NO_LIMIT  # expansion connections that there are, while others cannot be made
        self.missing_connections: dict[ConnectionKind, MissingConnection] = {}  # see policy/group_lease.py
        self.captures: dict[int, Capture] = {}  # by slot: output of exec agents
        self.dirty: set[Pool] = set()
        self.rated: dict[str, Rates] = {}  # queues with a rate limit
        self.has_limits_each = False  # one of them is for each value of an attribute
        self.tickets = count(1)  # numbers for lanes that begin to wait or are served
        # lines Success, rows that came with a host of theirs, and of these those that did not wait for it
        self.counts = {"successes": 0, "placed": 0, "spilled": 0}
        self.counted: Counted = {}  # processes, for drover metrics
        self.is_assigning = False  # whether agents may be given work
        self.serving_until = -NEVER
        self.draining = 0  # how often we were asked to drain
        self.stopping = False
        self.steps_down = False  # `stopping` is to give the group up, and to live on
        self.has_ended = False  # after a drain or a stop nothing is left to do, and that was told
        self.is_held = False  # nothing new is begun, since another program is to take over (policy/handover.py)
        self.may_want_more = True  # what to claim may be more than when nothing was wanted
        self.is_receiving = False  # rows are claimed that are still to come, in an event Claimed
        self.attachments = Attachments()
        self.begun_slots: dict[Slot, None] = {}  # whose agents began one-parameter jobs since these were last marked
        self.begun_queries: deque[tuple[float, Job, Slot]] = deque()  # when queries began, and where first
        self.starving: set[Pool] = set()  # pools whose work found no room
        self.job_deadlines: list[tuple[float, int]] = []  # a heap: when jobs that have begun are late; some have ended
        self.reports_ends = False  # whether a part of the daemon waits for ends
        self.max_starts = MOST_STARTS  # agents started between two ticks
        self.starting = 0  # agents started since the last tick
        self.unstarted: set[Pool] = set()  # pools whose next agent waits for the next tick
        for name, kind in config.agents.items():
            pool, hosts = self.add_pool(name, kind, kind.enabled), config.hosts_of(name)
            pool.queues.filter({host_name: config.hosts[host_name] for host_name in hosts})
            for host_name in hosts:
                self.add_slots(pool, host_name, kind.slots, now)

    # ---- the configuration, and what follows from it

    def set_config(self, config: Config) -> None:
        self.config = config

    def set_file(self, config: Config) -> None:
        """Note what the file says now."""
        self.file_hosts, self.timers = config.hosts, config.scheduler

    def set_tables(self, queues: Iterable[QueueState], places: Placement) -> None:
        """Note what the tables of queues and placements say now."""
        self.queues, self.places = {queue.name: queue for queue in queues}, places
        self.rated = {name: queue.rates for name, queue in self.queues.items() if queue.rates is not None}
        self.has_limits_each = any(rates.limit.each for rates in self.rated.values())

    def add_host(self, name: str, host: Host) -> HostState:
        """Return a host, which is added if it is new."""
        return self.hosts.setdefault(name, HostState(name, host))

    def add_pool(self, name: str, kind: AgentType, enabled: bool) -> Pool:
        """Add a type, or replace it, and return its pool."""
        pool = self.pools[name] = Pool(name, kind, enabled)
        pool.set_counted(bool(self.quotas.all))
        return pool

    def add_slots(self, pool: Pool, host_name: str, count: int, now: float) -> None:
        if host_name not in pool.queues.by_host:
            pool.add_host(host_name)
        timeouts = timeouts_of(pool.kind, self.timers)
        for _ in range(count):
            self.slots.add(pool, self.hosts[host_name], timeouts, now)

    # ---- whether work is given out

    def set_assigning(self, wanted: bool) -> None:
        """Assign work to agents from now on, until the lease ends, or assign none."""
        self.is_assigning = wanted
        self.deadlines.set(LEASE, self.serving_until if wanted else NEVER)

    def set_lease(self, until: float) -> None:
        """Set the end of the lease, by our clock."""
        self.serving_until = until
        self.set_assigning(self.is_assigning)

    def hold(self, wanted: bool) -> None:
        """Begin nothing new from now on, or go on with everything."""
        self.is_held = wanted
        if not wanted:
            self.set_may_want_more(True)
            self.mark_dirty(*self.pools.values())

    def begin_drain(self) -> None:
        """Count a request to drain."""
        self.draining += 1
        self.steps_down = False

    def begin_stop(self, *, steps_down: bool) -> None:
        """Note that all children are to be killed, because the daemon ends or gives the group up."""
        self.stopping, self.steps_down = True, steps_down
        self.set_assigning(False)

    def lose_group(self) -> None:
        """Note that the group is another daemon's; giving it up is over with that."""
        for rates in self.rated.values():
            rates.forget()
        self.has_ended = False
        self.set_assigning(False)
        self.set_lease(-NEVER)
        if self.steps_down:
            self.steps_down = self.stopping = False

    def replace_outbox(self) -> None:
        """Drop what was to be saved of jobs that have another owner now; only logs stay."""
        self.outbox, self.suspect = Outbox(self.deadlines, self.outbox), None

    def end(self) -> None:
        self.has_ended = True

    def connections_missing(self, need: ConnectionKind, missing: MissingConnection | None, up: float) -> None:
        """Note whether connections can be made, and how many there are while others of their kind cannot be."""
        if need == QUERIES:
            self.most_queries = up
        self.missing_connections.pop(need, None)
        if missing is not None:
            self.missing_connections[need] = missing

    # ---- jobs

    def remove_job(self, job: Job) -> None:
        """Take a job out of what is in hand, and leave its expansion connection to a query that waits for one."""
        del self.jobs[job.pk]
        if job.rules is not PLAIN:
            job.pool.forget(job)
        if job.quotas:
            self.quotas.ended(job)
        if (queue := self.queues.get(job.queue)) is not None:
            queue.ended(job.pk)
        if job.query is not None:
            self.close_expansion(job)
            self.mark_dirty(job.pool)  # another query of it may begin

    def wait_for_rates(self, now: float) -> None:
        """Claim again when the first rate limit has room that has none now."""
        self.deadlines.set(RATES, min([rates.next_at(now) for rates in self.rated.values()]))

    def take_token(self, pool: Pool, now: float) -> None:
        """Count an item that an agent gets for the rate of items of its type; after the last none is given out."""
        assert pool.bucket is not None
        pool.bucket.take(now)
        if not pool.look_for_token(now):
            self.deadlines.bring_forward(ITEM_RATES, pool.bucket.next_at())

    def refill(self, now: float) -> None:
        """Give out items again of the types that have tokens, and find out when the others have."""
        for pool in self.pools.values():
            if pool.bucket is None or not pool.waits_for_token:
                continue
            if pool.look_for_token(now):
                self.mark_dirty(pool)
            else:
                self.deadlines.bring_forward(ITEM_RATES, pool.bucket.next_at())

    def set_may_want_more(self, may_claim: bool) -> None:
        """Note whether there may be more to claim than when that was last asked."""
        self.may_want_more = may_claim

    def receive(self, is_receiving: bool) -> None:
        """Note whether rows are claimed that are still to come."""
        self.is_receiving = is_receiving

    def job_began(self, job: Job, slot: Slot, now: float) -> None:
        """Note that an agent has the first item of a job: its time limit runs, and soon its row is to say running."""
        if self.rated and (rates := self.rated.get(job.queue)) is not None:
            rates.began(job.pk, now)
            self.deadlines.bring_forward(RATES, now + rates.limit.interval)
        if job.query is None:
            self.begun_slots[slot] = None
        else:
            self.begun_queries.append((now, job, slot))
        if now + MARK_AFTER < self.deadlines.at[MARK]:
            self.deadlines.set(MARK, now + MARK_AFTER)
        if job.rules.timeout is not None and job.deadline == NEVER:
            self.limit_time(job, now)

    def limit_time(self, job: Job, began: float) -> None:
        """Let the time limit of a job run, if it has one."""
        if job.rules.timeout is None:
            return
        job.set_deadline(began + job.rules.timeout)
        heappush(self.job_deadlines, (job.deadline, job.pk))
        if len(self.job_deadlines) > 2 * len(self.jobs) + _FEW:  # most have ended
            live = [(each.deadline, pk) for pk, each in self.jobs.items() if each.deadline < NEVER]
            self.job_deadlines = sorted(live)
        self._set_time_limits()

    def began_before(self, job: Job, slot: Slot) -> None:
        """Note that an agent has had an item of a job since before we were executed; its row may not say so yet."""
        if job.query is None:
            self.begun_slots[slot] = None
        elif not job.marked:
            self.begun_queries.append((slot.assigned_at, job, slot))
        self.deadlines.bring_forward(MARK, slot.assigned_at + MARK_AFTER)

    def set_job_deadlines(self) -> None:
        """Find the time limits of all jobs in hand."""
        self.job_deadlines = sorted((job.deadline, pk) for pk, job in self.jobs.items() if job.deadline < NEVER)
        self._set_time_limits()

    def set_rates(self, rated: dict[str, Rates]) -> None:
        """Go on with these rate limits until the table of queues is read."""
        self.rated = rated

    def take_begun_jobs(self, now: float) -> list[tuple[Job, Slot]]:
        """Return the jobs that began a moment ago, and where; the younger ones are looked at a moment later.

        Of one-parameter jobs only those that an agent still has: most have ended, and cost nothing here.
        """
        slots = [slot for slot in self.begun_slots if slot.job is None or slot.assigned_at + MARK_AFTER <= now]
        for slot in slots:
            del self.begun_slots[slot]
        begun = [(slot.job, slot) for slot in slots if slot.job is not None]
        while self.begun_queries and self.begun_queries[0][0] + MARK_AFTER <= now:
            begun.append(self.begun_queries.popleft()[1:])
        self.deadlines.set(MARK, now + MARK_AFTER if self.begun_slots or self.begun_queries else NEVER)
        return begun

    def take_late_jobs(self, now: float) -> list[Job]:
        """Return the jobs in hand whose time limit is over, and forget it."""
        late = []
        while self.job_deadlines and self.job_deadlines[0][0] <= now:
            deadline, pk = heappop(self.job_deadlines)
            job = self.jobs.get(pk)
            if job is not None and job.deadline == deadline:
                late.append(job)
        self._set_time_limits()
        return late

    def resume(self, pause: float) -> None:
        """Resume after a pause: move the deadlines of slots and jobs; the order of the heap stays."""
        self.slots.resume(pause)
        self.job_deadlines = [(deadline + pause, pk) for deadline, pk in self.job_deadlines]
        for job in self.jobs.values():
            job.set_deadline(job.deadline + pause)
        self._set_time_limits()

    def _set_time_limits(self) -> None:
        self.deadlines.set(TIME_LIMITS, self.job_deadlines[0][0] if self.job_deadlines else NEVER)

    def expand(self, job: Job, query: str) -> None:
        """Ask for an expansion connection that runs the query of a job."""
        self.expanding.add(job.pk)
        self.emit(Expand(job.pk, query))

    def close_expansion(self, job: Job) -> None:
        """Forget the rows of a query, and leave its connection, if it has one, to a query that waits for one."""
        if job.pk in self.expanding or job.pk in self.kept:
            self.kept.pop(job.pk, None)
            self.emit(CloseQuery(job.pk))
            self.leave_connection(job)

    def leave_connection(self, job: Job) -> None:
        """Leave the expansion connection of a job to a query that waits for one."""
        self.expanding.discard(job.pk)
        self.mark_dirty(*[pool for pool in self.pools.values() if pool.waits_for_connection])

    def keep_more(self, job: Job, query: JobQuery) -> None:
        """Have more rows of a query fetched into its file."""
        query.fire(QueryEvent.KEEP)
        self.kept.setdefault(job.pk, 0)
        self.emit(Keep(job.pk, query.batch))

    def count_kept(self, job: Job, size: int) -> None:
        """Count rows of a query that went to its file."""
        self.kept[job.pk] += size

    def fetch_more(self, job: Job) -> None:
        """Ask for more rows of a query, as many as a batch may have of rows of this size.

        One that gave its connection back asks for another.
        """
        self.may_want_more = True  # the last row may be out: others of this type can be claimed
        if job.waits_for_connection:
            self.mark_dirty(job.pool)
            return
        query = job.query
        if self.is_held and job.rules.key is not None:
            return
        if query is not None and query.state is QueryState.OPEN and job.verdict is None:
            query.fire(QueryEvent.FETCH)
            self.emit(Fetch(job.pk, query.batch))

    def set_suspect(self, job: Job | None) -> None:
        self.suspect = job

    def report_ends(self, wanted: bool) -> None:
        """Emit an effect JobEnded at the end of each job, or none."""
        self.reports_ends = wanted

    def count(self, what: str, number: int = 1) -> None:
        """Count what the status shows the sum of."""
        self.counts[what] += number

    def count_process(self, name: str, slot: Slot, *labels: str) -> None:
        """Count a process that was started or has ended, for drover metrics."""
        add(self.counted, (name, slot.pool.name, slot.host.name, *labels), 1)

    def found_late(self, kind: str, count: int) -> None:
        """Count and log what a rescan alone found."""
        add(self.counted, (FOUND_LATE, kind), count)
        self.log_message("warning", f"only a rescan found {count} {kind}: a notification or an event was lost")

    def take_counted(self) -> Counted:
        """Return the processes that were counted since the last call."""
        counted, self.counted = self.counted, {}
        return counted

    # ---- effects

    def emit(self, effect: Effect) -> None:
        """Add an effect to those that the drivers are to carry out."""
        self.effects.append(effect)

    def send(self, slot: Slot, line: bytes) -> None:
        """Send a line to an agent at the end of this turn."""
        slot.set_unsent(True)
        self.effects.append(Send(slot.number, line))

    def withdraw_line(self, slot: Slot) -> None:
        """Do not send to an agent what was to be sent at the end of this turn."""
        self.effects = [each for each in self.effects if not (isinstance(each, Send) and each.slot == slot.number)]

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call; lines among them are as good as sent."""
        taken, self.effects = self.effects, []
        for effect in taken:
            if type(effect) is Send:
                self.slots.all[effect.slot].set_unsent(False)
        return taken

    # ---- pools, slots and hosts

    def mark_dirty(self, *pools: Pool) -> None:
        """Schedule these pools before the turn of the loop ends."""
        self.dirty.update(pools)

    def wake_all(self) -> None:
        """Claim and schedule for every type."""
        self.claims.ask_again()
        self.dirty.update(self.pools.values())

    def take_dirty(self) -> set[Pool]:
        """Return the pools to schedule now: those that changed, and those that found no room before."""
        pools = self.dirty | self.starving
        self.dirty, self.starving = set(), set()
        return pools

    def add_starving(self, pool: Pool) -> None:
        self.starving.add(pool)

    def retry_starving(self) -> None:
        """Schedule anew the types whose work found no room."""
        self.dirty |= self.starving

    def may_start(self, pool: Pool, now: float) -> bool:
        """Return whether one more agent may be started before the next tick; if not the type waits for that."""
        if self.is_held:
            return False
        if self.starting < self.max_starts:
            return True
        self.unstarted.add(pool)
        self.deadlines.set(STARTS, now)
        return False

    def begin_process(self, slot: Slot, job: int | None, now: float) -> None:
        """Begin to make the process of a slot, for a job or for the trial of a program: a start, which is limited."""
        self.starting += 1
        if slot.host.name in slot.pool.failed_starts:
            slot.host.begin_probe(slot)
        slot.begin_process(job, now)

    def reset_failed_slots(self, pool: Pool, now: float) -> int:
        """Let the slots of a type that have failed start agents again; return how many there are."""
        pool.forget_failed_starts()
        reset: int = sum([slot.thaw(now) for slot in pool.slots])
        self.unblock(pool)
        self.mark_dirty(pool)
        return reset

    def unblock(self, pool: Pool) -> None:
        """Let a type be claimed for again when not all of its slots have failed."""
        if pool.blocked_until and not (pool.slots and all(slot.state == ST_FAIL for slot in pool.slots)):
            pool.unblock()

    def allow_starts(self) -> None:
        """Let as many agents be started until the next tick, and begin with the types that had to wait."""
        self.starting = 0
        if self.unstarted:
            self.deadlines.set(STARTS, NEVER)
            self.dirty |= self.unstarted
            self.unstarted.clear()

    def begin_capture(self, slot: Slot) -> None:
        """Keep the output of a command from now on."""
        self.captures[slot.number] = Capture(slot.pool.kind.output_limit)

    def end_capture(self, slot: Slot) -> Capture | None:
        """Return what is kept of the output of a command that has ended, and forget it."""
        return self.captures.pop(slot.number, None)

    def show_hosts(self, *hosts: HostState) -> None:
        """Mark these hosts as changed, so that the status shows them anew."""
        self.hosts_changed.update(hosts)

    def take_changed_hosts(self) -> set[HostState]:
        """Return the hosts that have come up or gone down since the last call."""
        changed, self.hosts_changed = self.hosts_changed, set()
        return changed

    # ---- the log

    def log(self, slot: Slot, kind: str, text: bytes | str) -> None:
        """Write a line to drover.log in the name of an agent, about its job or, without one, about `slot.about_job`."""
        job = slot.job.pk if slot.job is not None else slot.about_job
        message = text if isinstance(text, str) else printable(text)
        self.outbox.log(LogRow(job, kind, slot.host.name, slot.pool.name, slot.pid, message))

    def log_death(self, slot: Slot, why: str, *, killed: bool) -> None:
        """Write to drover.log why an agent died or is killed, with which row; the end of its job need not repeat it."""
        job, text = slot.job, f"{why}; killed" if killed else why
        had = f": it had {shown_item(slot.item)}" if job is not None and job.query is not None and slot.item else ""
        self.log(slot, "ERROR", text + had)
        if job is not None:
            job.set_logged(why)

    def log_job(self, job: Job, kind: str, text: str) -> None:
        """Write a line about a job to drover.log; of a job of one parameter with the process that had it last."""
        where = job.where if job.query is None else None
        host, agent, pid = where or (None, job.pool.name, None)
        self.outbox.log(LogRow(job.pk, kind, host, agent, pid, text))

    def log_message(self, level: str, text: str) -> None:
        """Write a line to the daemon's own log."""
        self.emit(LogMessage(level, text))
