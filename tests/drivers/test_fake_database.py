"""The fake queue of the simulation answers as the real one does, statement by statement, row by row."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final

import pytest

from scheduler.drivers.statements import Query, expand, load
from scheduler.model.queue_requests import Claim, ClaimRequest, End, MarkRow, SaveRow
from scheduler.model.states import BLOCKED, CANCELLED, CLAIMED, DONE, FAILED, HELD, QUEUED, RUNNING
from scheduler.package_data import schema_dir
from tests.connection_tools import OTHER, OWNER, QUERIES
from tests.faults.mutants import Edit, Mutant, edited
from tests.sim.rows import Edge, Row
from tests.sim.twins import FAIR, HOST, QUEUES, DiffersError, Twins

STATEMENTS: Final = 300
OWNERS: Final = (OWNER, OTHER)
DETACHED: Final = "b"
TYPES: Final = (("a", DETACHED, FAIR, FAIR), ("a", DETACHED, FAIR, FAIR), (DETACHED,))  # of the jobs of a program
SPOOLS: Final = ("/spool", "~/spool")
LEASE: Final = 30.0
PLACES: Final = ((None, None), (HOST, None), (HOST, 7), ("beta", 8))  # of work: host and pid


class Program:
    """Random statements of two daemons, front-ends and operators, in the order of a seed."""

    def __init__(self, twins: Twins, seed: int) -> None:
        self.twins, self.rng = twins, Random(seed)
        self.types = self.rng.choice(TYPES)
        self.claims: list[Claim] = []  # of whomever, ended or not
        self.pk = 1  # the row of commands has it
        weights = {
            self.insert: 20, self.turn: 30, self.save: 15, self.mark: 8, self.command: 10, self.due: 8, self.lease: 6,
            self.rescue: 4, self.take_stock: 4, self.wait: 8, self.unsettled: 2, self.check_conditions: 8,
            self.adopt: 4, self.release: 4,
        }  # fmt: skip
        # Each program has other acts that are frequent: some faults show only after several acts that are rare in most.
        self.acts = {act: weight * self.rng.choice((0.2, 1, 5)) for act, weight in weights.items()}
        # `wait` lets leases run out, and a daemon without a lease claims nothing: `lease` is at least as frequent.
        self.acts[self.lease] = max(self.acts[self.lease], self.acts[self.wait])

    def run(self, statements: int) -> None:
        """Run so many statements, and compare after each."""
        for _ in range(statements):
            (act,) = self.rng.choices(list(self.acts), list(self.acts.values()))
            self.twins.settles = self.rng.random() < 0.9
            act()

    # ---- front-ends

    def insert(self) -> None:
        rows = [self.make_row() for _ in range(self.rng.choice((1, 1, 2, 5)))]
        older = list(self.twins.fake.rows.values())
        edges = []
        for number, row in enumerate(rows):
            if self.rng.random() < 0.4:
                parents = self.rng.sample(older + rows[:number], min(2, len(older) + number))
                edges += [
                    Edge(row, parent, self.rng.choice((1, 1, 2, 3)), self.rng.random() < 0.5) for parent in parents
                ]
        self.twins.insert(rows, edges)

    def make_row(self) -> Row:
        rng = self.rng
        self.pk += 1
        row = Row(self.pk, rng.choice(self.types), b"line", queue=rng.choice(QUEUES), urgent=rng.random() < 0.2)
        row.letter, row.submitter = rng.choice("nnnaz"), rng.choice(("anna", "anna", "bert"))
        row.host = HOST if rng.random() < 0.2 else ""
        row.max_interruptions, row.retries = rng.choice((0, 1, 3)), rng.choice((0, 0, 2))
        row.state = HELD if rng.random() < 0.1 else QUEUED
        if row.type != FAIR and rng.random() < 0.15:  # whose turn is first, of those due at once, is left to chance
            row.wait_until = self.twins.now + rng.choice((10, 60))
        row.expires = self.twins.now + rng.choice((20, 90)) if rng.random() < 0.1 else None
        row.timeout = 90.0 if rng.random() < 0.1 else None
        if rng.random() < 0.2:
            row.msq, row.key, row.repeat = True, rng.choice((None, "n")), rng.random() < 0.3
        return row

    # ---- daemons

    def turn(self) -> None:
        ends = [End(claim.pk, self.attempt_of(claim), 2000, 1000, HOST, 7, None) for claim in self.some_claims()]
        waiting = sorted({row.place for row in self.twins.fake.rows.values() if row.is_claimable})
        chosen = self.rng.sample(waiting, min(len(waiting), self.rng.choice((0, 1, 3))))
        wants = [ClaimRequest(*place, self.rng.random() < 0.2, self.rng.choice((1, 2, 10))) for place in chosen]
        if ends or wants:
            self.claims += self.twins.turn(self.someone(), ends, wants)

    def save(self) -> None:
        text = self.rng.choice(("blocked: tape", "blocked: disk is full"))  # one: which of two begins first is open
        if rows := [self.make_save(claim, text) for claim in self.some_claims()]:
            self.twins.save(self.someone(), rows)

    def make_save(self, claim: Claim, blocked: str) -> SaveRow:
        rng = self.rng
        row = SaveRow(claim.pk, self.attempt_of(claim), rng.choice((DONE, FAILED, QUEUED, RUNNING, BLOCKED, CANCELLED)))
        bits = {DONE: rng.choice((1, 5)), FAILED: 2, CANCELLED: 2}.get(row.state)
        outcome = None if row.state == RUNNING else {DONE: "done", BLOCKED: "blocked"}.get(row.state, "failed")
        values = {
            "bits": bits, "outcome": outcome, "processed": rng.choice((None, 5)), "failed": rng.choice((None, 1)),
            "failures": rng.choice((None, 2)), "interruptions": rng.choice((None, 1)),
            "host": (place := rng.choice(PLACES))[0], "pid": place[1],
        }  # fmt: skip
        if row.state in (QUEUED, BLOCKED):
            retry_in = None if self.twins.fake.rows[row.pk].type == FAIR else rng.choice((None, 15.0))
            values |= {"retry_in": retry_in, "back": rng.random() < 0.5}
        if row.state == BLOCKED:
            values |= {"text": blocked}
        return SaveRow(row.pk, row.attempt, row.state, **values)

    def mark(self) -> None:
        states = (CLAIMED, RUNNING, RUNNING)
        claims = [(claim, self.rng.choice(states)) for claim in self.some_claims()]
        ours = [each for each in claims if each[1] == RUNNING or self.twins.fake.rows[each[0].pk].state != RUNNING]
        if rows := [
            MarkRow(claim.pk, self.attempt_of(claim), state, 2_000_000, *self.place_of(claim, state))
            for claim, state in ours
        ]:
            self.twins.mark(self.someone(), rows)

    def place_of(self, claim: Claim, state: str) -> tuple[str | None, int | None, str | None]:
        """Return where a job runs: host, pid, and the spool of a detached one."""
        host, pid = self.rng.choice(PLACES)
        is_kept = host is not None and state == RUNNING and claim.request.type == DETACHED and self.rng.random() < 0.7
        return host, pid, self.rng.choice(SPOOLS) if is_kept else None

    def adopt(self) -> None:
        live = [row.pk for row in self.twins.fake.hand.values() if self.rng.random() < 0.3]
        types = self.rng.choice(([DETACHED], [DETACHED, "a"], ["a"]))
        self.twins.adopt(self.someone(), live, self.rng.choice((0.0, 10.0)), types)

    def release(self) -> None:
        """Remove some entries of jobs that have ended from the spools of hosts, and add entries that no job is for."""
        kept = [(pk, attempt) for _, _, pk, attempt in self.twins.read_kept()]
        gone = self.rng.sample(kept, self.rng.randrange(len(kept) + 1))
        self.twins.forget_kept(gone, [*self.twins.fake.detached, (self.pk + 1000, 1)])

    def due(self) -> None:
        self.twins.due()

    def check_conditions(self) -> None:
        self.twins.check_conditions(self.someone())

    def lease(self) -> None:
        owner, dead = self.rng.sample(OWNERS, 2)
        if self.rng.random() < 0.6:
            self.twins.renew_lease(self.someone(), LEASE)
        else:
            self.twins.take_lease(owner, self.rng.choice((None, dead)), self.rng.random() < 0.5, LEASE)

    def rescue(self) -> None:
        live = [row.pk for row in self.twins.fake.hand.values() if self.rng.random() < 0.7]
        self.twins.rescue(self.someone(), live, self.rng.choice((0.0, 10.0)))

    def take_stock(self) -> None:
        owner = self.someone()
        self.twins.take_stock(owner, [row.pk for row in self.twins.fake.hand.values() if row.holder == owner])

    def unsettled(self) -> None:
        self.twins.unsettled()

    # ---- operators and time

    def command(self) -> None:
        if not self.twins.fake.rows:
            return
        row, owner = self.rng.choice(list(self.twins.fake.rows.values())), self.someone()
        match self.rng.choice(("cancel", "hold", "release", "release", "kill", "cancel in hand")):
            case "cancel":
                self.twins.cancel(owner, row)
            case "hold":
                self.twins.hold(owner, row)
            case "release":
                self.twins.release(owner, row)
            case "kill":
                self.twins.want(owner, row, FAILED)
            case _:
                self.twins.want(owner, row, CANCELLED)

    def wait(self) -> None:
        with self.twins.instant(self.rng.choice((1.0, 12.0, 40.0))):
            pass

    # ---- below

    def someone(self) -> str:
        """Return a daemon: mostly the one that serves the group."""
        serving = self.twins.fake.group_owner
        return serving if serving and self.rng.random() < 0.8 else self.rng.choice(OWNERS)

    def some_claims(self) -> list[Claim]:
        latest = {claim.pk: claim for claim in self.claims[-30:]}
        return self.rng.sample(list(latest.values()), min(len(latest), self.rng.choice((0, 1, 3))))

    def attempt_of(self, claim: Claim) -> int:
        """Return its attempt; now and then the one before, or the next unless the job is in the queue."""
        choice = self.rng.choice((0, 0, 0, 0, 0, 0, 0, 1, -1))
        row = self.twins.fake.rows[claim.pk]
        is_free = row.state == QUEUED and row.taken_by is None
        return claim.attempt if choice > 0 and is_free else claim.attempt + choice


@contextmanager
def twins(conninfo: str, queries: Mapping[str, Query] = QUERIES) -> Iterator[Twins]:
    twins = Twins(conninfo, queries)
    try:
        yield twins
    finally:
        twins.close()


# Planted faults, by the seed of the program that detects them: a query, a text in it, and what stands there instead.
FAULTS: Final = {
    0: {
        "mark_of_a_recorded_job_keeps_the_attempt": ("mark", "jq_attempt = u.attempt, jq_owner", "jq_owner"),
        "rescue_of_a_recorded_job_that_waits": ("rescue", "then not drover.has_token(j) and", "then"),
        "interruption_not_counted": ("rescue", "+ (j.jq_state = 'running')::integer", ""),
        "rescued_job_keeps_where_it_was": (
            "rescue",
            "jq_done_host = case when over.ends is not null then over.host end,",
            "",
        ),
        "mark_does_not_say_where": ("mark", "jq_done_host = u.host, jq_done_pid = u.pid", "jq_done_pid = u.pid"),
        "held_row_waits_for_ever": ("due", "or jq_state = 'held'", ""),
    },
    1: {
        "save_guarded_by_the_state_only": ("save", "j.jq_owner = :owner::uuid and j.jq_attempt = u.attempt and", ""),
        "save_of_a_recorded_job_keeps_the_attempt": ("save", ", jq_attempt = u.attempt,\n", ",\n"),
        "recorded_job_is_not_rescued": (
            "rescue",
            "when (j.jq_state = 'queued'",
            "when false and (j.jq_state = 'queued'",
        ),
        "rescue_of_a_recorded_job_counts_no_attempt": (
            "rescue",
            "jq_attempt = over.attempt",
            "jq_attempt = j.jq_attempt",
        ),
        "queued_job_keeps_where_it_was": (
            "save",
            "jq_done_host = case when u.state not in ('queued', 'blocked') and",
            "jq_done_host = case when",
        ),
        "release_at_the_end_of_the_queue": (
            "release_blocked",
            "jq_state = 'queued', jq",
            "jq_queued = now(), jq_state = 'queued', jq",
        ),
        "check_without_the_lease": (
            "release_blocked",
            "and exists (select from drover.scheduler_group",
            "or exists (select from drover.scheduler_group",
        ),
        "check_that_forgets_who_came": ("release_blocked", "recovery_came = r.recovery_came - :came::integer,", ""),
    },
    3: {
        "end_guarded_by_the_owner_only": ("end_and_claim", "and j.jq_attempt = u.attempt and", "and"),
        "claim_past_the_lease": ("end_and_claim", "group_lease_until > now() as", "true as"),
        "claim_of_rows_that_are_late": ("end_and_claim", "and (jq_expires_at is null or jq_expires_at > now())", ""),
        "end_of_a_recorded_job_whatever_its_attempt": ("end_and_claim", "and j.jq_attempt = u.attempt - 1 and", "and"),
        "end_of_a_recorded_job_for_everybody": ("end_and_claim", "and exists (select from ownership)\n", "\n"),
        "rescued_in_another_order": ("rescue", "lost order by jq_pk", "lost order by jq_pk desc"),
    },
    4: {
        "release_of_one_too_few": ("release_blocked", "limit :most::integer", "limit :most::integer - 1"),
    },
    6: {
        "lease_taken_at_once": ("take_lease", ":patient::boolean and", ""),
    },
    10: {
        "detached_job_that_is_in_hand_is_adopted": ("adopt", "and not jq_pk = any (:live::bigint[])", ""),
        "adopted_job_keeps_its_owner": ("adopt", "set jq_owner = :owner::uuid, jq_schedinfo", "set jq_schedinfo"),
        "adoption_does_not_count": ("adopt", "set det_turn = d.det_turn + 1", "set det_turn = d.det_turn"),
        "released_while_it_runs": ("read_kept", "and jq_state = 'running'", "and jq_state = 'done'"),
    },
    16: {
        "job_is_cancelled_after_the_end_of_the_lease": ("cancel_job", "and group_lease_until > now()", ""),
    },
    17: {
        "detached_job_is_rescued": ("rescue", "where det_jq_fk = jq_pk and det_attempt = jq_attempt", "where false"),
    },
    27: {
        "adopted_by_one_that_does_not_own_the_group": ("adopt", "cross join ownership cross join", "cross join"),
    },
    30: {
        "recorded_job_is_held": ("hold_job", "or drover.has_token(j)", "or true"),
    },
    38: {
        "record_replaced_by_a_former_owner": ("record_in_hand", "and exists (select from ownership)", ""),
        "skip_forgotten": ("rescan", "or d.jdep_on_unmet = 'skip'", ""),
    },
    42: {
        "kept_for_good": ("forget_kept", "and d.det_attempt = u.attempt", "and d.det_attempt = u.attempt + 1"),
    },
    140: {
        "detached_job_that_began_since_is_adopted": ("adopt", " or d.det_since < :before::timestamptz", " or true"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", FAULTS)
def test_the_fake_queue_answers_as_the_real_one_does(database: str, seed: int) -> None:
    with twins(database) as both:
        program = Program(both, seed)
        program.run(STATEMENTS)  # raises DiffersError
    assert program.claims


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [(name, seed) for seed, faults in FAULTS.items() for name in faults])
def test_a_planted_fault_in_a_statement_is_detected(database: str, name: str, seed: int) -> None:
    with twins(database, planted(*FAULTS[seed][name])) as both, pytest.raises(DiffersError):
        Program(both, seed).run(STATEMENTS)  # the test above runs the same program without the fault


def planted(query: str, old: str, new: str) -> Mapping[str, Query]:
    """Return the queries with a fault in one."""
    text = expand((schema_dir() / "queries.sql").read_text())
    return load(edited(text, Mutant("planted", (Edit(query, old, new),), (), ())))


def run_twice(both: Twins) -> None:
    """Adopt detached jobs while the second attempt of a job runs, and a host still keeps the first: there is none."""
    both.take_lease(OWNER, None, False, LEASE)
    both.insert([Row(2, DETACHED, b"line")], [])
    want = ClaimRequest(DETACHED, "default", "", False, 1)
    for spool in ("/spool", None):
        (claim,) = both.turn(OWNER, [], [want])
        both.mark(OWNER, [MarkRow(claim.pk, claim.attempt, RUNNING, 0, HOST, 7, spool)])
        if spool:
            both.save(OWNER, [SaveRow(claim.pk, claim.attempt, QUEUED, outcome="failed")])
    assert both.adopt(OWNER, [], 0.0, [DETACHED]) == []


def test_no_attempt_is_adopted_but_the_one_that_runs(database: str) -> None:
    with twins(database) as both:
        run_twice(both)


def test_adoption_of_an_attempt_that_does_not_run_is_detected(database: str) -> None:
    with (
        twins(database, planted("adopt", " and jq_attempt = d.det_attempt\n", "\n")) as both,
        pytest.raises(DiffersError, match="adopted"),
    ):
        run_twice(both)
