"""The fake queue beside the real one: each statement runs on both, and every answer and every row is compared.

The real side is schema/queries.sql on Postgres, sent and read by the daemon's own driver. Its clock is the program's:
each statement runs in a transaction that first moves all instants in the tables, so that just as much time has passed
since the last one as the program says, and `now()` stands for the fake's `now`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from scheduler.daemon.command_rows import text_of
from scheduler.daemon.condition_checks import read_condition, statement_of
from scheduler.daemon.detached_jobs import read_adoption
from scheduler.drivers import queue
from scheduler.drivers.loop import Loop
from scheduler.drivers.queue import QueueConnection
from scheduler.drivers.statements import Failure, Query, load
from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import EndedAndClaimed, Event, LockedFound, Saved, Settled
from scheduler.model.queue_requests import (
    SUSPECT_AFTER,
    Adoption,
    Claim,
    ClaimRequest,
    End,
    EndAndClaim,
    FindLocked,
    Mark,
    MarkRow,
    Request,
    Save,
    SaveRow,
    Settle,
)
from scheduler.model.states import CANCELLED, FAILED, RUNNING
from scheduler.policy.conditions import Condition, Fail, Policy, Release, Step, decide
from tests.connection_tools import QUERIES, ask, opened, rows_of, run
from tests.job_count_tools import WRONG
from tests.loop_tools import turn_until
from tests.queue_tools import quiet
from tests.sim.database import Database
from tests.sim.rows import Edge, Kept, Recovery, Row

T = TypeVar("T")
TICK: Final = 0.001  # seconds from one statement to the next: what is queued later stands behind
FAIR: Final = "fair"  # an agent type whose submitters take turns
QUEUES: Final = ("default", "heavy")
HOST: Final = "alpha"

SITE: Final = (
    "insert into drover.queue (queue_name, queue_group) values ('heavy', 'default')",
    f"insert into drover.host (host_name, host_group) values ('{HOST}', 'default')",
    "insert into drover.agent (agent_group, agent_type, agent_fair, agent_fair_file)"
    f" values ('default', '{FAIR}', true, true)",
    "insert into drover.scheduler_group (group_name) values ('default')",
    "insert into drover.recovery_policy values ('default', '', '*', '{}', '{\"steps\": [[2, 15], [0, 40]]}')",
    "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'of the program')",
    "create temporary table clock as select now() as at",
)
COMMAND: Final = 1  # the row that commands of the program are given in

OURS: Final = load(
    """
-- name: insert
insert into drover.jobqueue (
  jq_type, jq_args, jq_queue, jq_host, jq_urgent, jq_priority, jq_submitter, jq_not_before, jq_not_after, jq_msq,
  jq_key, jq_tolerate, jq_repeat, jq_retries, jq_timeout, jq_max_interruptions, jq_state)
values (
  :type, :args, :queue, :host, :urgent, :letter, :submitter, now() + make_interval(secs => :wait),
  now() + make_interval(secs => :expires), :msq, :key, :tolerate, :repeat, :retries, make_interval(secs => :timeout),
  :max_interruptions, :state::drover.job_state)
returning jq_pk

-- name: add_edges
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)
select * from unnest(:children::bigint[], :parents::bigint[], :masks::integer[], :wishes::text[])

-- name: time_passed
select extract(epoch from now() - at) from clock

-- name: time_before
select now() - make_interval(secs => :seconds::float8)

-- name: move_clock
update clock set at = now()

-- name: instants
select attname from pg_attribute
 where attrelid = :name::regclass and atttypid = 'timestamptz'::regtype and not attisdropped

-- name: rows
select jq_pk, jq_state, jq_attempt, jq_owner, jq_rescued, jq_interruptions, jq_failures, jq_itemsprocessed,
       jq_itemsfailed, jq_end_bits, jq_unmet,
       round(extract(epoch from jq_wait_until - now()), 3), round(extract(epoch from jq_expires_at - now()), 3),
       round(extract(epoch from jq_queued - now()), 3),
       round(extract(epoch from s.began - now()), 3),
       claim_rank, (select hand_owner from drover.recorded r where r.jq_pk = j.jq_pk), jq_done_host, jq_done_pid
  from drover.jobqueue j left join drover.claimable on claim_jq_fk = jq_pk
 cross join lateral (
   select case when jq_state in ('claimed', 'running') then coalesce(jq_attempt_start, jq_starttime) end as began) s
 where jq_type <> 'command' order by jq_pk

-- name: conditions
select recovery_condition, recovery_tries, recovery_came, round(extract(epoch from recovery_next - now()), 3),
       round(extract(epoch from recovery_since - now()), 3),
       (select string_agg(blocked_jq_fk::text, ',' order by blocked_rank, blocked_queued, blocked_jq_fk)
          from drover.blocked where blocked_recovery = recovery_pk)
  from drover.recovery order by 1

-- name: detached
select det_jq_fk, det_attempt, det_host, det_spool, det_turn, round(extract(epoch from det_since - now()), 3)
  from drover.detached order by 1, 2

-- name: wrong_counts
"""
    + WRONG
)


# tables whose instants time moves
MOVED: Final = (
    "drover.jobqueue", "drover.claimable", "drover.in_hand", "drover.scheduler_group", "drover.recovery",
    "drover.blocked", "drover.detached",
)  # fmt: skip
POLICY: Final = Policy(steps=((2, 15.0), (0, 40.0)), at_once=2)


class DiffersError(AssertionError):
    """The fake and the real one do not say the same."""


class Twins:
    """A fake queue and a real one, which are the same as far as anybody can see."""

    def __init__(self, conninfo: str, queries: Mapping[str, Query] = QUERIES) -> None:
        self.queries = queries
        self.now = 1000.0
        self.settles = True  # False: the daemon that ends a job is killed before it settles the edges below that job
        self.fake = Database(lambda: None, lambda row: None)
        self.fake.policy = POLICY
        self.fake.register({FAIR: AgentType(command=("true",), fair=True)})
        self.events: list[Event] = []
        self.loop = Loop()
        self.connection = opened(self.loop, conninfo, settings=queue.settings(0.2))
        self.courier = QueueConnection(
            self.loop, self.connection, queries, "", "default", "here.7", self.events.append, quiet()
        )
        for statement in SITE:
            self._run(statement)
        self._moves = [_move(name, self._ask(OURS["instants"], name=name)) for name in MOVED]

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
        self.loop.close()

    @contextmanager
    def instant(self, seconds: float = TICK) -> Iterator[None]:
        """Let time pass, and run what follows at one instant."""
        self.now += seconds
        self._run("begin")
        ((passed,),) = self._ask(OURS["time_passed"])
        self._ask(OURS["move_clock"])
        late = float(passed or 0) - seconds
        self._run("set local session_replication_role = replica")  # no trigger: nothing moves but time
        for statement in self._moves:
            self._ask(statement, seconds=late)
        self._run("set local session_replication_role = origin")
        yield
        self.compare_rows()
        self._run("commit")

    def compare_rows(self) -> None:
        """Compare every row of the queue."""
        real = [tuple(cell and cell.decode() for cell in cells) for cells in self._ask(OURS["rows"])]
        fake = [self._seen(row) for _, row in sorted(self.fake.rows.items())]
        for ours, theirs in zip(fake, real, strict=True):
            _same("row", ours, theirs)
        real = [tuple(cell and cell.decode() for cell in cells) for cells in self._ask(OURS["conditions"])]
        listed = sorted(self.fake.conditions.values(), key=lambda each: each.name)
        _same("conditions", [self._seen_condition(each) for each in listed], real)
        real = [tuple(cell and cell.decode() for cell in cells) for cells in self._ask(OURS["detached"])]
        kept = sorted(self.fake.detached.items())
        _same("detached", [self._seen_kept(*key, each) for key, each in kept], real)
        _same("wrong counts of jobs", [], self._ask(OURS["wrong_counts"]))

    # ---- statements

    def insert(self, rows: Sequence[Row], edges: Sequence[Edge]) -> None:
        """Queue rows, and edges between them or to others, in one transaction."""
        with self.instant():
            for row in rows:
                row.queued = self.now
                _same("jq_pk", row.pk, int(self._ask(OURS["insert"], **_columns(row, self.now))[0][0] or 0))
            if edges:
                self._ask(
                    OURS["add_edges"],
                    children=[edge.child.pk for edge in edges], parents=[edge.parent.pk for edge in edges],
                    masks=[edge.mask for edge in edges], wishes=["skip" if edge.skips else "wait" for edge in edges],
                )  # fmt: skip
            self.fake.insert(rows, edges, self.now)

    def turn(self, owner: str, ends: Sequence[End], wants: Sequence[ClaimRequest]) -> list[Claim]:
        """End and claim; return the claims."""
        with self.instant():
            real = self._request(owner, EndAndClaim(ends, wants))
            fake = self.fake.turn(owner, EndAndClaim(ends, wants), self.now)
            real = _expect(real, EndedAndClaimed)
            claims = list(real.claims)
            _same("claims", list(fake.claims), claims)
            _same("fenced", sorted(fake.fenced), sorted(real.fenced))
            _same("parents", sorted(fake.parents), sorted(real.parents))
            _same("found", (dict(fake.found), fake.has_lapsed), (dict(real.found), real.has_lapsed))
            places = [{want: (at.rank, at.pk) for want, at in answer.reached.items()} for answer in (fake, real)]
            _same("reached", *places)
        self.settle(real.parents)
        return claims

    def save(self, owner: str, rows: Sequence[SaveRow]) -> None:
        """Save what became of rows, or how far they are."""
        with self.instant():
            real = self._request(owner, Save(rows, ()))
            pks, parents = self.fake.save(owner, Save(rows, ()), self.now, lambda: 1.0)
            real = _expect(real, Saved)
            _same("saved", (sorted(pks), sorted(parents)), (sorted(real.pks), sorted(real.parents)))
        self.settle(real.parents)

    def mark(self, owner: str, rows: Sequence[MarkRow]) -> None:
        """Show in rows that they are in hand."""
        with self.instant():
            real = self._request(owner, Mark(rows))
            real = _expect(real, Saved)
            _same("marked", sorted(self.fake.mark(owner, Mark(rows), self.now)), sorted(real.pks))

    def settle(self, parents: Iterable[int]) -> None:
        """Settle all edges below ended parents, in as many statements as each wants."""
        asked: Settle | None = Settle(sorted(parents)) if parents and self.settles else None
        real = fake = False
        with self.instant():
            left = asked
            while left is not None:
                told = self._request("", left)
                assert isinstance(told, Settled)
                real, left = real or bool(told.released), told.left
            left = asked
            while left is not None:
                some = self.fake.settle_some(left, self.now)
                fake, left = fake or bool(some.released), some.left
        _same("released", fake, real)

    def take_stock(self, owner: str, pks: Sequence[int]) -> None:
        """Say anew what an owner has in hand."""
        with self.instant():
            self._ask(self.queries["record_in_hand"], group="default", owner=owner, pks=pks)
            self.fake.take_stock(owner, pks, self.now)

    def find_locked(self, pks: Sequence[int]) -> None:
        """Ask which rows are locked, while none is."""
        with self.instant():
            real = self._request("", FindLocked(Mark([MarkRow(pk, 1, RUNNING, 0) for pk in pks])))
            assert isinstance(real, LockedFound)
            _same("locked", self.fake.locked_of(pks, self.now), real.pks)

    def due(self) -> None:
        """Release rows whose time has come, fail those whose time is over."""
        with self.instant():
            ((released, parents, seconds),) = self._ask(self.queries["due"], group="default")
            real = int(released or 0), _numbers(parents), _rounded(seconds)
            count, tops, left = self.fake.due(self.now)
            _same("due", (count, sorted(tops), left and round(left, 3)), real)
        self.settle(real[1])

    def check_conditions(self, owner: str) -> None:
        """Check the condition that is due longest, if one is, as its policy says."""
        parents: list[int] = []
        with self.instant():
            rows = self._ask(self.queries["read_recovery"], group="default")
            fake = self.fake.read_recovery(self.now)
            if fake is None or isinstance(fake, float):
                left = rows and (rows[0][0], _rounded(rows[0][-1]))
                _same("next check", [] if fake is None else (None, round(fake, 3)), left)
                return
            seen = replace(read_condition(rows[0][1:-1]), policy=POLICY)
            _same(
                "condition",
                replace(fake, elapsed=round(fake.elapsed, 3)),
                replace(seen, elapsed=round(seen.elapsed, 3)),
            )
            parents = self._carry_out(owner, int(rows[0][0] or 0), fake, decide(fake))
        self.settle(parents)

    def _carry_out(self, owner: str, recovery: int, seen: Condition, step: Step) -> list[int]:
        """Carry out a step of a check on both sides; return the parents among the jobs that failed."""
        name, values = statement_of(seen, step)
        known = {"owner": owner, "group": "default", "recovery": recovery, "tries": seen.tries}
        rows = self._ask(self.queries[name], **known, **values)
        moved, parents = self.fake.check_condition(owner, seen, step, self.now)
        if isinstance(step, Release | Fail):
            _same("moved", moved, int(rows[0][0] or 0) if rows else 0)
        if isinstance(step, Fail):
            _same("parents", sorted(parents), _numbers(rows[0][1]) if rows else [])
        return parents

    def take_lease(self, owner: str, dead: str | None, patient: bool, lease: float) -> bool:
        """Become the owner of the group, if that may be; return whether it was."""
        with self.instant():
            values = {"owner": owner, "dead": dead, "patient": patient, "lease": lease, "group": "default"}
            real = bool(self._ask(self.queries["take_lease"], **values))
            _same("taken", self.fake.take_lease(owner, dead, patient, lease, self.now) is not None, real)
        return real

    def renew_lease(self, owner: str, lease: float) -> None:
        """Stay the owner."""
        with self.instant():
            real = bool(self._ask(self.queries["renew_lease"], owner=owner, lease=lease, group="default"))
            _same("renewed", self.fake.renew_lease(owner, lease, self.now), real)

    def rescue(self, owner: str, live: Sequence[int], age: float) -> None:
        """Give back what others had, and what an owner has and does not know."""
        with self.instant():
            ((count, parents, *_),) = self._ask(
                self.queries["rescue"], owner=owner, live=live, age=age, group="default"
            )
            fake = self.fake.rescue(owner, live, age, self.now)
            _same("rescued", (fake[0], sorted(fake[1])), (int(count or 0), _numbers(parents)))
        self.settle(_numbers(parents))

    # ---- detached jobs

    def adopt(self, owner: str, live: Sequence[int], seconds: float, types: Sequence[str]) -> list[Adoption]:
        """Take over detached jobs that were not in hand so many seconds ago."""
        with self.instant():
            ((before,),) = self._ask(OURS["time_before"], seconds=seconds)
            values = {"owner": owner, "group": "default", "live": live, "before": text_of(before), "types": types}
            rows = self._ask(self.queries["adopt"], **values, guarded=[], unread=SUSPECT_AFTER, schedinfo="here.7")
            fake = self.fake.adopt(owner, live, self.now - seconds, types, self.now)
            _same("adopted", [_rounded_age(each) for each in fake], [_rounded_age(read_adoption(row)) for row in rows])
        return fake

    def read_kept(self) -> list[tuple[str, str, int, int]]:
        """Ask what hosts may still keep of jobs that do not run."""
        with self.instant():
            rows = self._ask(self.queries["read_kept"], group="default")
            fake = self.fake.read_kept()
            real = [(text_of(host), text_of(spool), _number(pk), _number(attempt)) for host, spool, pk, attempt in rows]
            _same("kept", fake, real)
        return fake

    def forget_kept(self, gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]) -> None:
        """Forget what hosts do not keep any more, and ask which of the others are known for no job."""
        with self.instant():
            rows = self._ask(
                self.queries["forget_kept"], pks=[pk for pk, _ in gone], attempts=[attempt for _, attempt in gone],
                left_pks=[pk for pk, _ in left], left_attempts=[attempt for _, attempt in left],
            )  # fmt: skip
            fake = self.fake.forget_kept(gone, left)
            _same("strays", sorted(fake), sorted((_number(pk), _number(attempt)) for pk, attempt in rows))

    def unsettled(self) -> None:
        """Find ended parents that nobody settled, and settle them."""
        with self.instant():
            ((parents, _),) = self._ask(self.queries["rescan"], group="default", beyond=0, most=10_000)
            _same("unsettled", sorted(self.fake.unsettled()), _numbers(parents))
        self.settle(_numbers(parents))

    # ---- commands

    def cancel(self, owner: str, row: Row) -> None:
        """Cancel a row that nobody works on."""
        with self.instant():
            done = self._ask(
                self.queries["cancel_job"], owner=owner, group="default", command=COMMAND, job=row.pk, text="not wanted"
            )
            if _same("cancelled", self.fake.cancel(owner, row, self.now), bool(done)):
                _same("is a parent", bool(row.edges), done[0][1] == b"t")
        self.settle([row.pk] if done else [])

    def hold(self, owner: str, row: Row) -> None:
        """Take a row that nobody works on out of the queue."""
        with self.instant():
            done = self._ask(self.queries["hold_job"], owner=owner, group="default", job=row.pk)
            _same("held", self.fake.hold(owner, row, self.now), bool(done))

    def release(self, owner: str, row: Row) -> None:
        """Queue a held row and those below it."""
        with self.instant():
            ((count, _),) = self._ask(
                self.queries["release_job"], owner=owner, group="default", command=COMMAND, job=row.pk
            )
            _same("released", self.fake.release(owner, row, self.now), int(count or 0))

    def want(self, owner: str, row: Row, wanted: str) -> None:
        """Note what a command wants of a row that is worked."""
        with self.instant():
            text = {FAILED: "kill", CANCELLED: "cancel by hand"}[wanted]
            values = {"owner": owner, "group": "default", "command": COMMAND, "job": row.pk, "wanted": text}
            done = self._ask(self.queries["set_wanted"], **values)
            _same("wanted", self.fake.want(owner, row, wanted, self.now), bool(done))

    # ---- below

    def _request(self, owner: str, request: Request) -> Event:
        self.events.clear()
        self.courier.owner = owner
        self.courier.send(request)
        turn_until(self.loop, lambda: self.events)
        event, *rows = self.events
        if not isinstance(event, EndedAndClaimed):
            return event
        return replace(event, claims=[claim for each in (event, *rows) for claim in each.claims])

    def _ask(self, query: Query, **values: object) -> list[tuple[bytes | None, ...]]:
        answer = ask(self.loop, self.connection, query, **values)
        if isinstance(answer, Failure):
            raise DiffersError(f"{query.name}: the database refused what its double carried out: {answer.message}")
        return list(rows_of(answer))

    def _run(self, text: str) -> None:
        rows_of(run(self.loop, self.connection, text))

    def _seen(self, row: Row) -> tuple[str | None, ...]:
        """Return what query `rows` shows of a row."""
        numbers = (row.rescued, row.interruptions, row.failures, row.processed, row.failed, row.bits, row.unmet)
        start = row.start if row.state in ("claimed", "running") else None
        return (
            str(row.pk), row.state, str(row.attempt), row.owner, *map(str, numbers),
            self._until(row.wait_until), self._until(row.expires), self._until(row.queued), self._until(start),
            row.claim_rank if row.is_claimable else None, row.taken_by,
            *(None if each is None else str(each) for each in row.place_of_work),
        )  # fmt: skip

    def _seen_condition(self, each: Recovery) -> tuple[str | None, ...]:
        """Return what query `conditions` shows of a condition."""
        jobs = ",".join(str(pk) for _, _, pk in sorted(each.jobs.values())) or None
        times = self._until(each.next), self._until(each.since)
        return each.name, str(each.tries), str(each.came), *times, jobs

    def _seen_kept(self, pk: int, attempt: int, kept: Kept) -> tuple[str | None, ...]:
        """Return what query `detached` shows of an attempt."""
        return str(pk), str(attempt), kept.host, kept.spool, str(kept.turn), self._until(kept.since)

    def _until(self, instant: float | None) -> str | None:
        return None if instant is None else f"{instant - self.now:.3f}"


def _move(table: str, columns: Iterable[tuple[bytes | None, ...]]) -> Query:
    """Return the statement that moves all instants of a table by :seconds."""
    moves = ", ".join(f"{name} = {name} + d" for cells in columns for name in [(cells[0] or b"").decode()])
    name = "move_" + table.partition(".")[2]
    return load(f"-- name: {name}\nupdate {table} set {moves} from make_interval(secs => :seconds) d")[name]


def _columns(row: Row, now: float) -> dict[str, object]:
    """Return the parameters of query `insert`."""
    lengths = {"wait": row.wait_until, "expires": row.expires}
    return {
        "type": row.type, "args": row.args, "queue": row.queue, "host": row.host or None, "urgent": row.urgent,
        "letter": row.letter, "submitter": row.submitter, "msq": row.msq, "key": row.key, "tolerate": row.tolerate,
        "repeat": row.repeat, "retries": row.retries, "timeout": row.timeout, "state": row.state,
        "max_interruptions": row.max_interruptions,
        **{name: None if at is None else at - now for name, at in lengths.items()},
    }  # fmt: skip


def _numbers(cell: bytes | None) -> list[int]:
    return sorted(map(int, cell.split(b","))) if cell else []


def _number(cell: bytes | None) -> int:
    return int(cell or 0)


def _rounded_age(adoption: Adoption) -> Adoption:
    return adoption._replace(age=round(adoption.age, 3))


def _rounded(cell: bytes | None) -> float | None:
    return None if cell is None else round(float(cell), 3)


def _expect(event: Event, kind: type[T]) -> T:
    """Return the answer of the real one, which is of this kind unless it refuses what the fake does."""
    if not isinstance(event, kind):
        raise DiffersError(f"the real one says {event}")
    return event


def _same(what: str, fake: Any, real: Any) -> Any:
    """Return what both say."""
    if fake != real:
        raise DiffersError(f"{what}: the fake says {fake}, the real one {real}")
    return real
