"""A fake queue: rows of drover.jobqueue with the meaning of schema/queries.sql, in memory.

Each method is one statement: it happens at one instant, names pk, attempt and owner as the real one does, and moves a
row only along the allowed moves. Slowness, losses and locks are the harness's (harness.py); time comes in as `now`.
"""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import EndedAndClaimed, Settled
from scheduler.model.queue_requests import (
    Adoption,
    Claim,
    ClaimPosition,
    ClaimRequest,
    EndAndClaim,
    Mark,
    Save,
    SaveRow,
    Settle,
)
from scheduler.model.states import (
    BLOCKED,
    CANCELLED,
    CLAIMED,
    DONE,
    FAILED,
    HELD,
    JOB_MOVES,
    QUEUED,
    RUNNING,
    SKIPPED,
    TERMINAL,
)
from scheduler.policy.conditions import (
    AGENT,
    HOST,
    Answer,
    Ask,
    Condition,
    Fail,
    Forget,
    Policy,
    Release,
    Step,
    Wait,
    wait_before,
)
from scheduler.policy.job import TRIED_ALONE
from scheduler.policy.query_progress import IN_PROGRESS
from scheduler.policy.unstartable_jobs import StartFailure
from tests.sim.broken import Broken
from tests.sim.rows import IN_HAND, NOWHERE, STAFF, Edge, Kept, Recovery, Row

PIECE = 2  # edges of one statement
MOST_KEPT = 100  # entries of one statement


class Database:
    """The tables, and who owns the group."""

    def __init__(self, notify: Callable[[], None], ended: Callable[[Row], None]) -> None:
        self.rows: dict[int, Row] = {}
        self.open: dict[int, Row] = {}  # not terminal
        self.hand: dict[int, Row] = {}  # claimed, if only by a record, or running
        self.noted: list[tuple[str, list[int], float]] = []  # drover.in_hand: where a rescue looks
        self.detached: dict[tuple[int, int], Kept] = {}  # by job and attempt
        self.queued: dict[tuple[str, str, str], dict[int, Row]] = {}
        self.group_owner: str | None = None
        self.lease_until = 0.0
        self.taken = ""  # the group, last
        self.locked: dict[int, float] = {}  # pk -> until when somebody else holds it
        self.fair: set[str] = set()  # types
        self.policy = Policy()  # for all conditions
        self.conditions: dict[str, Recovery] = {}
        self._notify = notify
        self._ended = ended

    # ---- front-ends

    def insert(self, rows: Sequence[Row], edges: Sequence[Edge], now: float) -> None:
        """A front-end queues rows (or inserts them held), and edges below them or others, in one transaction."""
        for row in rows:
            self.rows[row.pk] = self.open[row.pk] = row
            row.is_dated = row.expires is not None
            row.not_after = row.expires
            if row.state == QUEUED:
                self.queued.setdefault(row.place, {})[row.pk] = row
                self._line_up(row, is_back=False)
        for edge in edges:
            self._add_edge(edge)
        self._notify()
        in_vain = [edge for edge in edges if edge.parent.end is not None and not edge.met]
        in_vain.sort(key=lambda edge: (edge.parent.pk, edge.child.pk))
        self.settle([edge.child.pk for edge in in_vain if self._skip(edge, now)], now)

    def _add_edge(self, edge: Edge) -> None:
        """A child waits for a parent, unless that has ended as it should."""
        edge.met = edge.parent.end is not None and bool(edge.parent.bits & edge.mask)
        edge.parent.edges.append(edge)
        edge.child.above.append(edge)
        if not edge.met:
            edge.child.unmet += 1
            edge.child.leave_line()

    def _line_up(self, row: Row, *, is_back: bool) -> None:
        """A row that may be claimed from now on stands, if its type is fair, at the end of a line."""
        if not row.is_claimable or row.line is not None or row.type not in self.fair:
            return
        line = row.submitter + "/back" * is_back
        others = [
            other for other in self.queued[row.place].values() if other.line is not None and other.rank == row.rank
        ]
        head = min((other.round for other in others), default=0)
        row.round = max((head, *(other.round + 1 for other in others if other.line == line)))
        row.line = line

    def register(self, types: Mapping[str, AgentType]) -> None:
        """Learn which types are fair; one that was stays so while a row has a round."""
        lined = {row.type for place in self.queued.values() for row in place.values() if row.line is not None}
        self.fair = {name for name, kind in types.items() if kind.fair} | lined

    def move(self, row: Row, state: str, now: float) -> None:
        """Change a row's state: along the allowed moves, to an end once only."""
        if state == row.state:
            return
        if state not in JOB_MOVES[row.state]:
            raise Broken("moves_are_legal", f"job {row.pk}: {row.state} -> {state}")
        if row.state == QUEUED:
            del self.queued[row.place][row.pk]
            row.leave_line()
        if row.state == BLOCKED:
            del self.conditions[row.condition].jobs[row.pk]
        row.state = state
        self.hand.pop(row.pk, None)
        if state not in IN_HAND:
            row.owner = row.start = None
        row.expires = row.not_after if state in (HELD, QUEUED) and row.attempt == 0 else None
        if state in IN_HAND:
            self.hand[row.pk] = row
        elif state == QUEUED:
            self.queued.setdefault(row.place, {})[row.pk] = row
            self._line_up(row, is_back=row.attempt > 0 and row.queued < now)
        elif state == BLOCKED:
            self._enter_recovery(row, now)
        elif state in TERMINAL:
            row.end, row.wait_until = now, None
            row.ends += 1
            del self.open[row.pk]
            self._ended(row)

    # ---- conditions

    def _enter_recovery(self, row: Row, now: float) -> None:
        """A row that is blocked from now on waits for the next check of its condition."""
        row.condition = (row.text or "unnamed").removeprefix("blocked: ").split()[0]
        fresh = Recovery(row.condition, now, now + wait_before(self.policy, 0))
        recovery = self.conditions.setdefault(row.condition, fresh)
        recovery.came += 1
        recovery.looked = now
        recovery.jobs[row.pk] = row.rank, row.queued, row.pk
        self._notify()

    def start_conditions(self) -> list[str]:
        """Return the conditions of hosts and agent types that jobs are blocked on since their starts failed."""
        return [name for name in self.conditions if name.startswith((HOST, AGENT)) and name.count(":") == 1]

    def stop_unstartable(self, owner: str, failure: StartFailure, now: float) -> tuple[int, list[int]]:
        """Block or fail jobs of a type and a host in the queue; return how many, and the parents that failed."""
        if not self._serves(owner, now):
            return 0, []
        places = [rows for place, rows in self.queued.items() if (place[0], place[2]) == (failure.type, failure.host)]
        found = [row for rows in places for row in rows.values() if row.is_claimable]
        rows = [row for row in found if not self.locked_of([row.pk], now)]
        for row in rows:
            row.text = failure.text
            if failure.state == FAILED:
                row.bits = 2
            self.move(row, failure.state, now)
        return len(rows), [row.pk for row in rows if row.edges and failure.state == FAILED]

    def check_now(self, names: Iterable[str], now: float) -> None:
        """Let jobs that are blocked on these conditions be looked at now; a name with a colon at its end is several."""
        for name, recovery in self.conditions.items():
            if any(name == each or (each.endswith(":") and name.startswith(each)) for each in names):
                recovery.next = min(recovery.next, now)

    def read_recovery(self, now: float) -> Condition | float | None:
        """Return the condition whose check is due longest, or the seconds to the next; None if there is none."""
        if not self.conditions:
            return None
        first = min(self.conditions.values(), key=lambda each: each.next)
        if first.next > now:
            return first.next - now
        elapsed = now - first.since
        return Condition(
            first.name, self.policy, first.tries, first.came, elapsed, has_jobs=bool(first.jobs), answer=first.answer
        )

    def check_condition(
        self, owner: str, seen: Condition, step: Step, now: float, answer: Answer = Answer.CLEARED
    ) -> tuple[int, list[int]]:
        """Carry a step of a check out; return how many rows were moved, and the parents of those that failed.

        A tester that is asked says `answer`, a while later.
        """
        recovery = self.conditions[seen.name]
        if not self._serves(owner, now):
            return 0, []
        recovery.looked, recovery.answer = now, Answer.NOT_ASKED
        match step:
            case Forget():
                if recovery.jobs:
                    raise Broken("blocked_jobs_are_listed", f"{seen.name} is forgotten with jobs {list(recovery.jobs)}")
                del self.conditions[seen.name]
            case Release(most, tries, wait, is_new):
                rows = [self.rows[pk] for _, _, pk in sorted(recovery.jobs.values())[:most]]
                for row in rows:
                    row.wait_until = None
                    self.move(row, QUEUED, now)
                recovery.tries, recovery.came, recovery.next = tries, recovery.came - seen.came, now + wait
                recovery.since = now if is_new else recovery.since
                self._notify()
                return len(rows), []
            case Fail(text):
                rows = [self.rows[pk] for pk in recovery.jobs]
                for row in rows:
                    row.bits, row.text = 2, text
                    self.move(row, FAILED, now)
                return len(rows), [row.pk for row in rows if row.edges]
            case Wait(tries, wait):
                recovery.tries, recovery.next = tries, now + wait
            case Ask(timeout=timeout):
                if not seen.policy.tester:
                    raise Broken("blocked_jobs_are_listed", f"{seen.name} has no tester")
                recovery.next, recovery.answer = now + timeout / 10, answer
        return 0, []

    def claimable(self, place: tuple[str, str, str], urgent: bool, now: float) -> Iterator[Row]:
        """Return the rows of a place that a claim may take, in any order."""
        for row in self.queued.get(place, {}).values():
            is_time = row.expires is None or row.expires > now
            if is_time and row.is_claimable and row.urgent >= urgent:
                yield row

    # ---- the daemon's statements

    def owned(self, owner: str, pk: int, attempt: int) -> Row | None:
        """Return the row if it is still this owner's, in hand, at this attempt: the guard of every update."""
        row = self.rows.get(pk)
        if row is None:
            return None
        if row.state == QUEUED:
            return row if row.attempt == attempt - 1 and self.group_owner == owner else None
        return row if row.state in IN_HAND and row.owner == owner and row.attempt == attempt else None

    def write(self, row: Row, attempt: int, state: str, since: float, owner: str, now: float) -> None:
        """Change the state of a row in hand, which says from now on what the record alone said."""
        was_free = row.is_claimable
        row.attempt, row.taken_by = attempt, None
        began = since if row.start is None else row.start
        if state != row.state:
            self.move(row, state, now)
        elif state == QUEUED:
            self.hand.pop(row.pk, None)
            self._line_up(row, is_back=row.queued < now)
        if was_free and state == QUEUED:
            raise Broken("owners_keep_their_rows", f"job {row.pk} was free, and is written as one in hand")
        if state in IN_HAND:
            row.owner, row.start = owner, began

    def turn(self, owner: str, turn: EndAndClaim, now: float) -> EndedAndClaimed:
        """End the plain successes and claim."""
        parents, fenced = [], []
        taken: list[tuple[tuple[str, float, int], Claim]] = []
        reached: dict[ClaimRequest, ClaimPosition] = {}
        for end in turn.ends:
            row = self.owned(owner, end.pk, end.attempt)
            if row is None:
                fenced.append(end.pk)
                continue
            row.processed, row.place_of_work = 1, (end.host, end.pid)
            row.bits, row.text = 1, "all data processed"
            self.write(row, end.attempt, DONE, now, owner, now)
            parents += [row.pk] if row.edges else []
        is_owner = self._serves(owner, now)
        if is_owner:
            for want in turn.wanted:
                there = self.claimable(want[:3], want.urgent, now)
                beyond = (row for row in there if row.claim_rank < want.below and _place(row) > _read(want.after))
                some = sorted(beyond, key=_place)[: want.most]
                if some:
                    reached[want] = _written(some[-1])
                taken += [(_place(row), self.claim(row, want, owner, now, turn.unread)) for row in some]
            self.noted.append((owner, [claim.pk for _, claim in taken], now))
        claims = [claim for _, claim in sorted(taken, key=lambda each: each[0])]
        found = Counter(claim.request for claim in claims)
        return EndedAndClaimed(claims, parents, fenced, reached, found, has_lapsed=bool(turn.wanted) and not is_owner)

    def take_stock(self, owner: str, pks: Sequence[int], now: float) -> None:
        """Say anew what an owner has in hand, as long as the group is its."""
        if owner != self.group_owner:
            return
        self.noted = [*(note for note in self.noted if note[0] != owner), (owner, list(pks), now)]

    def meets_unreadable(self, turn: EndAndClaim, now: float) -> bool:
        """Return whether a claim may come upon a row that cannot be read."""
        places = [(want[:3], want.urgent) for want in turn.wanted if not turn.unread]
        return any(
            row.unreadable and not row.is_suspect(False) for place in places for row in self.claimable(*place, now)
        )

    def read(self, owner: str, rows: Iterable[tuple[int, int]]) -> dict[int, tuple[bytes, bytes]]:
        """Return what rows hold that are still this owner's."""
        ours = [row for pk, attempt in rows if (row := self.owned(owner, pk, attempt)) is not None]
        return {row.pk: (row.args, _more(row)) for row in ours}

    def claim(self, row: Row, want: ClaimRequest, owner: str, now: float, unread: bool = False) -> Claim:
        """Take a row in hand, at a new attempt."""
        rules = row.rules(unread)
        if want.guarded or want.detailed:
            roles = (row.submitter, *(("staff",) if row.submitter in STAFF else ()))
            rules = replace(rules, submitter=row.submitter, roles=roles)
        if row.is_claimed_by_record:
            row.taken_by = owner
            row.leave_line()
            self.hand[row.pk] = row
        else:
            self.move(row, CLAIMED, now)
            row.owner, row.start, row.attempt, row.text = owner, now, row.attempt + 1, IN_PROGRESS
        args = b"" if rules.unread else row.args
        is_marked = row.taken_by is None
        return Claim(row.pk, row.attempt_in_hand, args, row.rank.encode(), want, rules, is_marked)

    def save(self, owner: str, save: Save, now: float, jitter: Callable[[], float]) -> tuple[frozenset[int], list[int]]:
        """Save ends, ways back and progress with the items that failed; return the rows that were ours, and parents."""
        pks, parents = set(), []
        for word in save.rows:
            row = self.owned(owner, word.pk, word.attempt)
            if row is None:
                continue
            pks.add(row.pk)
            row.item_failures += [f.key for f in save.failures if f.pk == row.pk]
            self._write(row, word, owner, now, jitter)
            if word.outcome is not None and row.edges:
                parents.append(row.pk)
        return frozenset(pks), parents

    def _write(self, row: Row, word: SaveRow, owner: str, now: float, jitter: Callable[[], float]) -> None:
        row.bits = word.bits or 0
        row.text = row.text if word.text is None else word.text
        row.processed = row.processed if word.processed is None else word.processed
        row.failed = row.failed if word.failed is None else word.failed
        row.failures = row.failures if word.failures is None else word.failures
        row.checkpoint = row.checkpoint if word.checkpoint is None else word.checkpoint
        row.interruptions = row.interruptions if word.interruptions is None else word.interruptions
        is_shown = word.state not in (QUEUED, BLOCKED) and not row.msq
        row.place_of_work = (word.host, word.pid) if is_shown else NOWHERE
        row.wait_until = None
        if word.retry_in is not None:
            row.wait_until = now + word.retry_in * (jitter() if word.jitter else 1.0)
        if word.back:
            row.queued = now
        self.write(row, word.attempt, word.state, now - (word.elapsed or 0.0), owner, now)

    def mark(self, owner: str, mark: Mark, now: float) -> frozenset[int]:
        """Show in rows that they are in hand; return those that were ours."""
        ours = set()
        for pk, attempt, state, age, *place, spool in mark.rows:
            if (row := self.owned(owner, pk, attempt)) is not None:
                ours.add(pk)
                row.place_of_work = tuple(place)
                row.text = IN_PROGRESS if row.state == QUEUED else row.text
                self.write(row, attempt, state, now - age * 1e-6, owner, now)
                if spool is not None:
                    self._keep(pk, attempt, place[0], spool, now)
        return frozenset(ours)

    # ---- detached jobs

    def _keep(self, pk: int, attempt: int, host: str, spool: str, now: float) -> None:
        """A host is to keep an attempt from now on."""
        kept = self.detached.setdefault((pk, attempt), Kept(host, spool, now))
        kept.host, kept.spool = host, spool

    def runs_detached(self, row: Row) -> bool:
        """Return whether a row that runs is kept by a host: a rescue leaves it alone."""
        return row.state == RUNNING and (row.pk, row.attempt) in self.detached

    def adopt(
        self, owner: str, live: Container[int], before: float, types: Container[str], now: float
    ) -> list[Adoption]:
        """Take over detached jobs that run and that the owner of the group does not have in hand."""
        if self.group_owner != owner:
            return []
        lost = [
            (self.rows[pk], kept) for (pk, attempt), kept in sorted(self.detached.items())
            if self.runs_detached(row := self.rows[pk]) and row.attempt == attempt and row.type in types
            and pk not in live and (row.owner != owner or kept.since < before) and not self.locked_of([pk], now)
        ]  # fmt: skip
        return [self._adopt(owner, row, kept, now) for row, kept in lost]

    def _adopt(self, owner: str, row: Row, kept: Kept, now: float) -> Adoption:
        kept.turn += 1
        row.owner = owner
        request = ClaimRequest(row.type, row.queue, row.host, False, 1)
        claim = Claim(row.pk, row.attempt, row.args, row.rank.encode(), request, row.details(), True)
        wanted = {None: "", FAILED: "kill", CANCELLED: "cancel by hand"}[row.wanted]
        return Adoption(claim, kept.host, kept.spool, kept.turn, wanted, now - (row.start or now))

    def read_kept(self) -> list[tuple[str, str, int, int]]:
        """Return what hosts may still keep of jobs that do not run any more: host, spool, job, attempt."""
        kept = [(each.host, each.spool, *key) for key, each in self.detached.items() if not self._keeps(*key)]
        return sorted(kept)[:MOST_KEPT]

    def _keeps(self, pk: int, attempt: int) -> bool:
        row = self.rows.get(pk)
        return row is not None and row.state == RUNNING and row.attempt == attempt

    def forget_kept(self, gone: Iterable[tuple[int, int]], left: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Forget what a host does not keep any more; return which others that it keeps are known for no job."""
        known = set(self.detached)
        for key in gone:
            self.detached.pop(key, None)
        return [key for key in left if key not in known]

    def locked_of(self, pks: Iterable[int], now: float) -> frozenset[int]:
        """Return those that somebody else keeps locked."""
        return frozenset(pk for pk in pks if self.locked.get(pk, 0.0) > now)

    def settle(self, parents: Iterable[int], now: float) -> None:
        """Settle the edges below ended parents, all of them."""
        left: Settle | None = Settle(list(parents))
        while left is not None:
            left = self.settle_some(left, now, waits=True).left

    def settle_some(self, asked: Settle, now: float, *, waits: bool = False) -> Settled:
        """Settle a few edges below ended parents; a child that is skipped is such a parent, a locked one is left."""
        rows = [self.rows[pk] for pk in dict.fromkeys(asked.parents)]
        edges = [edge for row in rows for edge in sorted(row.edges, key=lambda edge: edge.child.pk) if not edge.met]
        edges = [edge for edge in edges if edge.parent is not rows[0] or edge.child.pk > asked.beyond][:PIECE]
        busy = frozenset() if waits else self.locked_of((edge.child.pk for edge in edges), now)
        free = [edge for edge in edges if edge.child.pk not in busy]
        met = [edge for edge in free if edge.parent.end is not None and edge.parent.bits & edge.mask]
        for edge in met:
            edge.met = True
            edge.child.unmet -= 1
            self._line_up(edge.child, is_back=edge.child.attempt > 0)
        skipped = [edge.child.pk for edge in free if edge not in met and self._skip(edge, now)]
        locked = list(dict.fromkeys(edge.parent.pk for edge in edges if edge not in free))
        if met:
            self._notify()
        if len(edges) < PIECE:
            return Settled(len(met), Settle(skipped) if skipped else None, locked)
        parents = list(asked.parents)
        parents = parents[parents.index(edges[-1].parent.pk) :]
        return Settled(len(met), Settle(parents + skipped, edges[-1].child.pk), locked)

    def _skip(self, edge: Edge, now: float) -> bool:
        """Skip a child that would wait in vain, if it says so."""
        if not (edge.skips and edge.parent.end is not None and edge.child.state in (HELD, QUEUED)):
            return False
        edge.child.bits, edge.child.text = 2, "dependency not met"
        self.move(edge.child, SKIPPED, now)
        return True

    def due(self, now: float) -> tuple[int, list[int], float | None]:
        """Release rows whose time has come, fail those too late; return how many, parents, seconds to the next."""
        waiting = [row for place in self.queued.values() for row in place.values()]
        late = [row for row in waiting if row.expires is not None and row.expires <= now]
        held = [row for row in self.open.values() if row.state == HELD]
        for row in held:
            if row.expires is not None and row.expires <= now:
                row.expires = None
        due = [
            row for row in held + waiting if row.wait_until is not None and row.wait_until <= now and row not in late
        ]
        for row in sorted(due, key=lambda row: row.pk):
            row.wait_until = None
            self._line_up(row, is_back=row.attempt > 0)
        for row in late:
            row.bits, row.text = 2, "not started in time"
            self.move(row, FAILED, now)
        nexts = [t for row in held + waiting for t in (row.wait_until, row.expires) if t is not None and t > now]
        return len(due), [row.pk for row in late if row.edges], min(nexts) - now if nexts else None

    def rescue(self, owner: str, live: Sequence[int], age: float, now: float) -> tuple[int, list[int]]:
        """Give back rows of other owners, and ours that are not in memory; return how many, and parents that failed."""
        if self.group_owner != owner:
            return 0, []
        noted: dict[int, list[tuple[str, float]]] = {}
        for who, pks, at in self.noted:
            for pk in pks:
                noted.setdefault(pk, []).append((who, at))
        hand = [self.hand[pk] for pk in sorted(self.hand) if pk in noted]
        lost = [row for row in hand if _is_lost(row, noted[row.pk], owner, live, now - age)]
        lost = [row for row in lost if not self.runs_detached(row)]
        parents = []
        for row in lost:
            row.rescued += 1
            row.disruptions += 1
            was_running, allowance = row.state == RUNNING, row.max_interruptions - row.interruptions
            was_alone = was_running and row.text == TRIED_ALONE
            row.interruptions += was_running
            if row.wanted or was_alone or (was_running and allowance <= 0):
                row.bits, row.text = 2, "by a command, or interrupted too often"
                parents += [row.pk] if row.edges else []
                self.move(row, row.wanted or FAILED, now)
            else:
                row.place_of_work = NOWHERE
                self.write(row, row.attempt_in_hand, QUEUED, now, owner, now)
        return len(lost), parents

    # ---- commands

    def cancel(self, owner: str, row: Row, now: float) -> bool:
        """Cancel a row that nobody works on; False when it is none or the group is another's."""
        if not self._serves(owner, now) or row.state not in (HELD, QUEUED, BLOCKED) or row.taken_by is not None:
            return False
        row.bits, row.wait_until = 2, None
        self.move(row, CANCELLED, now)
        return True

    def hold(self, owner: str, row: Row, now: float) -> bool:
        """Take a row that nobody works on out of the queue; False as above."""
        if not self._serves(owner, now) or row.state not in (QUEUED, BLOCKED) or row.taken_by is not None:
            return False
        self.move(row, HELD, now)
        return True

    def release(self, owner: str, row: Row, now: float) -> int:
        """Queue a held row and all below it that are held; return how many."""
        if not self._serves(owner, now) or row.state != HELD:
            return 0
        below, new = {row.pk: row}, [row]
        while new:
            new = [edge.child for one in new for edge in one.edges if edge.child.pk not in below]
            below |= {child.pk: child for child in new}
        held = [child for _, child in sorted(below.items()) if child.state == HELD]
        for child in held:
            self.move(child, QUEUED, now)
        self._notify()
        return len(held)

    def want(self, owner: str, row: Row, state: str, now: float) -> bool:
        """Note how a row that its owner works on is to end."""
        if row.taken_by == owner == self.group_owner:
            since = max(at for who, pks, at in self.noted if row.pk in pks)
            row.text = IN_PROGRESS
            self.write(row, row.attempt_in_hand, CLAIMED, since, owner, now)
        if row.owner != owner or row.state not in IN_HAND:
            return False
        row.wanted = state
        return True

    def _serves(self, owner: str | None, now: float) -> bool:
        return self.group_owner == owner and now < self.lease_until

    def unsettled(self) -> list[int]:
        """Return the ended parents of dependencies that nobody settled."""
        ended = [row for row in self.rows.values() if row.end is not None]
        return [row.pk for row in ended if any(_is_unsettled(edge) for edge in row.edges)]

    # ---- the lease

    def take_lease(self, owner: str, dead: str | None, patient: bool, lease: float, now: float) -> str | None:
        """Become the owner of the group if it may be taken; return when that was."""
        free = self.group_owner in (None, owner) or (dead is not None and self.group_owner == dead)
        if free or (patient and self.lease_until <= now):
            self.group_owner, self.lease_until, self.taken = owner, now + lease, f"{owner} at {now}"
            return self.taken
        return None

    def renew_lease(self, owner: str, lease: float, now: float) -> bool:
        """Stay the owner."""
        if self.group_owner != owner:
            return False
        self.lease_until = now + lease
        return True

    def leave(self, owner: str) -> None:
        """Own the group no more."""
        if self.group_owner == owner:
            self.group_owner, self.lease_until = None, 0.0


def _is_unsettled(edge: Edge) -> bool:
    waits = edge.child.state in (HELD, QUEUED, BLOCKED)
    return not edge.met and waits and bool(edge.skips or edge.parent.bits & edge.mask)


def _more(row: Row) -> bytes:
    """Return what query `read_claimed` gives of a row beside its parameter."""
    variables = {} if row.variables is None else {"variables": row.variables}
    return json.dumps({"checkpoint": row.checkpoint} | variables).encode()


def _place(row: Row) -> tuple[str, float, int]:
    return row.claim_rank, row.queued, row.pk


def _written(row: Row) -> ClaimPosition:
    return ClaimPosition(row.claim_rank, repr(row.queued), row.pk)


def _read(after: ClaimPosition) -> tuple[str, float, int]:
    return after.rank, float(after.queued.replace("infinity", "inf")), after.pk


def _is_lost(row: Row, notes: Sequence[tuple[str, float]], owner: str, live: Container[int], before: float) -> bool:
    """Return whether a row in hand is another's, or ours since before an instant and not in memory."""
    if row.taken_by is None:
        return row.owner != owner or (row.pk not in live and (row.start or 0.0) <= before)
    is_ours = owner in [who for who, _ in notes]
    return row.pk not in live and (not is_ours or max(at for _, at in notes) <= before)
