"""Plans of the hot statements are kept: one made while nothing was in the tables must hold when much is.

Counted are rows that parts of a plan gave or threw away, and pages that it looked at; nothing is timed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from scheduler.cli.database_session import Session
from scheduler.cli.database_session import statement as command_statement
from scheduler.daemon.command_rows import VERBS_ABOUT
from scheduler.daemon.connections import PLANS
from scheduler.drivers.loop import Loop
from scheduler.model.events_and_effects import EndedAndClaimed
from scheduler.model.queue_requests import (
    START,
    Claim,
    ClaimPosition,
    EndAndClaim,
    FindLocked,
    ItemFailure,
    RecordInHand,
    Request,
    Save,
    SaveRow,
)
from scheduler.model.states import JOB_STATES
from scheduler.web.job_filter import Filter
from tests.connection_tools import fetch, take_group
from tests.counts.meters import buffers
from tests.counts.queues import OWNER, Real, Straight, queries
from tests.queue_tools import WANT, Desk, end, mark

Plan = dict[str, Any]

JOBS = 20_000
BATCH = 1000
FILL = f"insert into drover.jobqueue (jq_type, jq_args) select 'a', i::text from generate_series(1, {JOBS}) i"
LATER = f"""
insert into drover.jobqueue (jq_type, jq_args, jq_not_before)
select 'a', i::text, now() + i * interval '1 hour' from generate_series(1, {JOBS}) i
"""
CLAIM = f"update drover.jobqueue set jq_state = 'claimed', jq_owner = '{OWNER}', jq_starttime = now()"
END = "update drover.jobqueue set jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1"
# Pages stay, without rows; and nobody analyses meanwhile: entries that are dead stay in an index while any snapshot is
# older than their end.
KEEP = """
do $$
declare
  name regclass;
begin
  for name in select oid from pg_class where relnamespace = 'drover'::regnamespace and relkind = 'r' loop
    execute format('alter table %s set (autovacuum_enabled = off, vacuum_truncate = off)', name);
  end loop;
end $$
"""
SWEEP = "vacuum (truncate false, analyze) drover.jobqueue, drover.claimable, drover.in_hand"
STATISTICS = "select relpages >= %s, reltuples from pg_class where oid = 'drover.claimable'::regclass"
CANCEL = """
update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2
 where jq_pk = 7000
"""
LOOKED_AT = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where schemaname = 'drover'
"""
VIEWS_OF_JOBS = """
select table_name from information_schema.columns join information_schema.views using (table_schema, table_name)
 where table_schema = 'drover' and column_name = 'jq_pk'
"""
FEW = 200
GROUP: dict[str, object] = {"group": "default", "owner": OWNER}
CHORES: dict[str, dict[str, object]] = {
    "read_owner": {},
    "renew_lease": {"lease": 30.0},
    "due": {},
    "read_shared_settings": {},
    "due_schedules": {"most": 200, "late": 30.0},
    "rescan": {"beyond": 0, "most": 200},
    "rescue": {"live": [], "age": 60.0},
    "read_commands": {**VERBS_ABOUT, "passed": []},
    "close_runs": {},
    "close_commands": {"every": VERBS_ABOUT["every"], "gone": []},
    "remove_dead": {"age": 60.0},
    "queue_deliveries": {"most": 200},
    "find_unserved": {"places": 100, "most": 200, "type": "", "queue": ""},
    "find_alerts": {"most": 200},
    "find_suspects": {"most": 20},
    "read_start_conditions": {},
    "forget_events": {"beyond": 0, "most": 200},
    "forget_subscriptions": {"beyond": 0, "most": 200},
}
ANY = [Claim(pk, 1, b"", b"1n", WANT) for pk in range(1, BATCH + 1)]


@pytest.fixture
def queue(database: str) -> Iterator[Real]:
    """Yield the queue of a daemon, which plans each statement once."""
    take_group(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield Real(connection, connection, Loop())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("past", "pages"),
    [
        pytest.param([], 0, id="always empty"),
        pytest.param([FILL, "delete from drover.jobqueue"], 100, id="all deleted"),
        pytest.param([FILL, CLAIM, "delete from drover.claimable", END], 100, id="all done"),
    ],
)
def test_plan_made_for_an_empty_queue_stays_good_for_a_full_one_p6(
    queue: Real, database: str, past: list[str], pages: int
) -> None:
    for statement in (KEEP, *past, SWEEP):
        fetch(database, statement)
    assert fetch(database, STATISTICS, pages) == [(True, 0.0)]
    _explain(queue, ANY, START)
    fetch(database, FILL)
    event = queue.send(_turn([], START))
    assert isinstance(event, EndedAndClaimed)
    plans = _explain(queue, list(event.claims), *event.reached.values())
    assert {name: _worst(plan) for name, plan in plans.items() if _worst(plan) > BATCH + 1} == {}
    assert {name: buffers(plan) for name, plan in plans.items() if buffers(plan) > 20 * BATCH} == {}


@pytest.mark.slow
@pytest.mark.parametrize("past", [[], [FILL, "delete from drover.jobqueue"]], ids=["always empty", "all deleted"])
def test_periodic_statements_read_only_the_jobs_they_need_p4_c46(database: str, past: list[str]) -> None:
    take_group(database)
    for statement in (KEEP, *past, SWEEP):
        fetch(database, statement)
    with psycopg.connect(database, autocommit=True) as connection:
        link = Straight(connection)
        for setting in PLANS:
            link.run(setting)
        for name, values in CHORES.items():
            link.explain(queries()[name], GROUP | values)
        for statement in (FILL, "delete from drover.claimable", CLAIM, END, FILL):
            fetch(database, statement)
        plans = {name: link.explain(queries()[name], GROUP | values) for name, values in CHORES.items()}
    assert {name: _worst(plan) for name, plan in plans.items() if _worst(plan) > FEW} == {}
    assert {name: buffers(plan) for name, plan in plans.items() if buffers(plan) > FEW} == {}


@pytest.mark.slow
@pytest.mark.parametrize("past", [[], [FILL, "delete from drover.jobqueue"]], ids=["always empty", "all deleted"])
def test_page_of_jobs_that_wait_for_a_time_reads_no_other_jobs(database: str, past: list[str]) -> None:
    take_group(database)
    for statement in (KEEP, *past, SWEEP):
        fetch(database, statement)
    values = GROUP | {"queue": "default", "after": "-infinity", "most": FEW, "current": None}
    with psycopg.connect(database, autocommit=True) as connection:
        link = Straight(connection)
        for setting in PLANS:
            link.run(setting)
        link.explain(queries()["free_put_off"], values)
        fetch(database, LATER)
        plan = link.explain(queries()["free_put_off"], values)
    assert _worst(plan) <= FEW + 1
    assert buffers(plan) <= 2 * FEW


@pytest.mark.slow
def test_job_leaves_its_shared_token_by_few_reads_after_statistics_of_an_empty_queue(database: str) -> None:
    take_group(database)
    fill = FILL.replace(str(JOBS), "5000")
    for statement in (KEEP, fill, "delete from drover.jobqueue", SWEEP, fill):
        fetch(database, statement)
    with psycopg.connect(database) as connection:
        connection.execute(CANCEL)
        ((read,),) = connection.execute(LOOKED_AT).fetchall()
    assert read < 50


def _explain(queue: Real, claims: Sequence[Claim], after: ClaimPosition) -> dict[str, Plan]:
    """Carry out all that may follow a claim, each as if nothing else had; return the plans."""
    failures = [ItemFailure(claim.pk, claim.attempt, None, "line", "alpha", "a", 42, "it died") for claim in claims]
    requests = {
        "end_and_claim": _turn(claims, START),
        "end_and_claim that goes on": _turn(claims, after),
        "only_end": EndAndClaim([end(claim) for claim in claims], ()),
        "only_claim": _turn([], START),
        "only_claim that goes on": _turn([], after),
        "mark": mark(claims),
        "save": Save([SaveRow(claim.pk, claim.attempt, "failed", 2, "failed", "failed") for claim in claims], failures),
        "find_locked": FindLocked(mark(claims)),
        "record_in_hand": RecordInHand([claim.pk for claim in claims]),
    }
    return {name: queue.explain(request) for name, request in requests.items()}


def _turn(claims: Sequence[Claim], after: ClaimPosition) -> Request:
    return EndAndClaim([end(claim) for claim in claims], (WANT._replace(most=BATCH, after=after),))


def _parts(plan: Plan) -> Iterator[Plan]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _parts(part)


def _handled(part: Plan) -> float:
    """Return how many rows a part of a plan returned or filtered out."""
    thrown = sum(count for name, count in part.items() if name.startswith("Rows Removed"))
    return float((part["Actual Rows"] + thrown) * part["Actual Loops"])


def _worst(plan: Plan) -> float:
    return max(map(_handled, _parts(plan)))


def test_view_of_one_job_is_not_worth_compiling(database: str) -> None:
    """The server compiles what it thinks is dear, which takes seconds: what a view tells of one job must look cheap."""
    views = fetch(database, VIEWS_OF_JOBS)
    costs = {}
    for (name,) in views:
        ((plan,),) = fetch(database, f"explain (format json) select * from drover.{name} where jq_pk = 1")
        costs[name] = plan[0]["Plan"]["Total Cost"]
    ((limit,),) = fetch(database, "show jit_above_cost")
    assert "why" in costs
    assert {name: cost for name, cost in costs.items() if cost > float(limit)} == {}


# ---- lists of jobs, by commands and by the dashboard


OF_DASHBOARD = Filter(states=("queued", "claimed"), type="a", by="postgres").parameters()
WANTED = {
    "states": list(JOB_STATES), "types": ["a"], "submitters": ["postgres"], "with_hidden": True,
    "with_ended_commands": True, "sort": "job",
}  # fmt: skip
NUMBERS = list(range(1, JOBS + 1))
LISTS = {
    "jobs_in_zones": WANTED | {"first_jobs": [0], "last_jobs": [JOBS], "words": [None]},
    "jobs_among": WANTED | {"jobs": NUMBERS},
    "list_jobs": {"jobs": NUMBERS, "sort": "job"},
    "page_of_jobs": {"jobs": NUMBERS},
    "count_jobs": OF_DASHBOARD,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_list_of_jobs_compares_none_with_each_in_hand_though_nothing_was_analysed(
    desk: Desk, database: str, name: str
) -> None:
    """The server expects one job of this type, and would look at all in hand for each that there is."""
    fetch(database, f"{FILL} returning jq_pk")
    in_hand = len(desk.claim(WANT._replace(most=200)))
    with psycopg.connect(database, autocommit=True) as connection:
        session = Session(connection)
        text, parameters = session._permitted(name, dict.fromkeys(command_statement(name).names) | LISTS[name])
        explain = b"explain (analyze, format json) " + text
        with session.expecting_many_jobs():
            ((((plan,)),),) = psycopg.RawCursor(connection).execute(explain, parameters).fetchall()
    assert in_hand == 200
    assert _worst(plan["Plan"]) <= 2 * JOBS
