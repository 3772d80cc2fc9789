"""Rows of every kind that 0001 knew, after the migrations since: worked, ended and tried again as before.

The next migration adds the rows that it changes, as the schema before it lets them in, and its claims below.
"""

import shutil
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from scheduler.daemon.command_rows import VERBS_ABOUT
from scheduler.database import migrate
from scheduler.errors import WorldError
from scheduler.model.events_and_effects import Settled
from scheduler.model.queue_requests import Claim, EndAndClaim, Save, SaveRow, Settle
from scheduler.package_data import schema_dir
from tests.connection_tools import OWNER, fetch, rows_of
from tests.dump_schema import dump
from tests.queue_tools import WANT, Desk, end

FIRST: Final = "0001_create_drover.sql"
STOCK: Final = Path(__file__).with_name("rows_of_0001.sql").read_text()
WRONG: Final = Path(__file__).with_name("rows_of_0001_refused_since.sql").read_text()
KEPT: Final = (
    "job", "jobqueue", "claimable", "in_hand", "jobdepends", "attempt_kept", "log", "output", "item_failure",
    "scheduler_group", "scheduler", "host", "queue", "agent", "placement", "command_ack",
)  # fmt: skip


@pytest.fixture
def old(empty_database: str, tmp_path: Path) -> str:
    """Return the conninfo of a database that has the first migration alone, and a row of each kind."""
    shutil.copy(schema_dir() / "migrations" / FIRST, tmp_path)
    assert migrate.apply(empty_database, tmp_path) == [FIRST]
    fetch(empty_database, STOCK)
    return empty_database


@pytest.fixture
def database(old: str) -> str:
    """Return the conninfo of that database with all migrations: `desk` and `watch` are about this one."""
    fetch(old, WRONG)
    migrate.apply(old)
    return old


def named(database: str, name: str, columns: str = "jq_pk") -> Any:
    """Return columns of a job, or the only one."""
    ((*values,),) = fetch(database, f"select {columns} from drover.jobqueue where jq_name = %s", name)
    return values[0] if len(values) == 1 else tuple(values)


def claimed(desk: Desk, type: str = "a") -> dict[str, Claim]:
    """Claim all of a type; return the claims by the names of their jobs, or their parameters."""
    return {claim.args.decode(): claim for claim in desk.claim(WANT._replace(type=type))}


def command(database: str, words: str = "retry") -> int:
    ((pk,),) = fetch(
        database, "insert into drover.jobqueue (jq_type, jq_args) values ('command', %s) returning jq_pk", words
    )
    return int(pk)


VIEWS: Final = """
select table_name || '.' || column_name || ' ' || data_type from information_schema.columns
  join information_schema.views using (table_schema, table_name) where table_schema = 'drover'
"""
VERSION: Final = "select max(number) from (table drover.migration union all table drover.later_migration) m"


# ---- the upgrade itself


def test_an_upgrade_keeps_the_views_and_their_columns_and_says_its_version_t108(old: str) -> None:
    before, was = set(fetch(old, VIEWS)), fetch(old, VERSION)
    migrate.apply(old)
    gone = before - set(fetch(old, VIEWS))
    assert gone == {("jobs_masked.jq_endtext text",)}  # it may hold arguments of jobs, which that view is not to show
    assert fetch(old, VERSION) > was


def test_daemon_refuses_an_older_schema_and_says_what_to_run_f143(old: str) -> None:
    with pytest.raises(WorldError, match=r"schema out of date: 0002_harden_queue\.sql.* not applied: run drover init"):
        migrate.check(old)
    migrate.apply(old)
    migrate.check(old)  # raises when it does not know the schema


@pytest.mark.slow
@pytest.mark.parametrize("table", KEPT)
def test_an_upgrade_keeps_every_row_and_value_t34(old: str, table: str) -> None:
    not_in_turn = "where claim_type <> 'command'" if table == "claimable" else ""  # see below
    before = fetch(old, f"select to_jsonb(t) from drover.{table} t {not_in_turn}")
    assert before
    migrate.apply(old)
    for (row,) in before:
        kept = fetch(
            old, f"select count(*) from drover.{table} t where to_jsonb(t) @> %s::jsonb", psycopg.types.json.Json(row)
        )
        assert kept == [(1,)]


@pytest.mark.slow
def test_second_init_of_an_upgraded_database_changes_nothing_f145(database: str) -> None:
    tables = [f"select xmin::text, t::text from drover.{table} t order by 2" for table in KEPT]
    before = dump(database), [fetch(database, table) for table in tables]
    assert migrate.apply(database) == []
    assert (dump(database), [fetch(database, table) for table in tables]) == before


# ---- jobs that were queued


@pytest.mark.slow
def test_old_jobs_are_claimed_and_end_and_their_children_follow_t34(database: str, desk: Desk) -> None:
    claims = claimed(desk)
    assert claims.keys() == {"queued", "parent", "sliced", "", "select 1"}
    plain = [claims[name] for name in ("queued", "parent", "")]
    assert desk.ask(EndAndClaim([end(claim) for claim in plain], ())).parents == (claims["parent"].pk,)
    assert desk.ask(Settle([claims["parent"].pk])) == Settled(1)
    assert claimed(desk).keys() == {"child"}
    states = {named(database, f"a.{name}", "jq_state") for name in ("queued", "parent", "keyed")}
    assert states == {"done"}


@pytest.mark.slow
def test_unique_key_of_an_old_job_is_free_when_it_has_ended_t34(database: str, desk: Desk) -> None:
    claims = claimed(desk)
    desk.ask(EndAndClaim([end(claims[""])], ()))
    assert fetch(database, "insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'key') returning 1")


@pytest.mark.slow
def test_old_jobs_of_a_fair_type_keep_their_turns_t34(desk: Desk) -> None:
    assert list(claimed(desk, "f")) == ["anna1", "bert1", "anna2", "anna3"]


@pytest.mark.slow
def test_an_old_sql_job_keeps_its_start_over_attempts_t34(database: str, desk: Desk) -> None:
    claimed(desk)
    began = fetch(
        database,
        "select jq_starttime = (select min(att_start) from drover.attempt_kept where att_jq_fk = jq_pk),"
        " jq_attempt_start > jq_starttime from drover.jobqueue where jq_name = 'a.query'",
    )
    assert began == [(True, True)]
    assert named(database, "a.new_query", "jq_first_start, jq_attempt_start") == (None, None)


# ---- jobs in hand, blocked, held and failed


@pytest.mark.slow
def test_old_jobs_in_hand_are_rescued_t34(database: str, watch: Any) -> None:
    rows_of(watch("rescue", live=[], age=60.0))
    found = [
        named(database, f"a.{name}", "jq_state, jq_rescued, jq_interruptions")
        for name in ("claimed", "running", "wanted")
    ]
    assert found == [("queued", 1, 0), ("queued", 1, 1), ("failed", 1, 1)]


@pytest.mark.slow
def test_an_old_job_that_is_rescued_is_claimed_and_goes_back_t34(database: str, watch: Any, desk: Desk) -> None:
    rows_of(watch("rescue", live=[], age=60.0))
    claim = claimed(desk)["running"]
    desk.ask(Save([SaveRow(claim.pk, claim.attempt, "queued", text="again", outcome="retry", failures=1)]))
    assert claimed(desk)["running"].attempt == 3


@pytest.mark.slow
def test_old_jobs_are_retried_unblocked_and_released_t34(database: str, watch: Any) -> None:
    watch("retry_job", command=command(database), job=named(database, "a.failed"))
    watch("unblock", command=command(database), job=named(database, "a.blocked"), condition=None)
    watch("unblock", command=command(database), job=None, condition="disk")
    watch("release_job", command=command(database), job=named(database, "a.held"))
    tried = "{a.failed,a.blocked,a.waiting,a.held}"
    free = "select count(*) from drover.jobqueue join drover.claimable on claim_jq_fk = jq_pk where jq_name = any (%s)"
    assert fetch(database, free, tried) == [(4,)]


@pytest.mark.slow
def test_old_jobs_are_held_cancelled_and_iced_t34(database: str, watch: Any) -> None:
    watch("hold_job", command=command(database), job=named(database, "a.queued"))
    watch("cancel_job", command=command(database), job=named(database, "a.later"), text="no")
    watch("ice_job", command=command(database), job=named(database, "a.child"))
    states = [named(database, f"a.{name}", "jq_state") for name in ("queued", "later", "child")]
    assert states == ["held", "cancelled", "skipped"]


# ---- 0002: commands


@pytest.mark.slow
def test_old_commands_of_others_take_turns_behind_operators(database: str, watch: Any) -> None:
    fetch(
        database,
        "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,"
        " scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)"
        " values (%s, 'default', 'h', 1, 'b', 's', 1, '0')",
        OWNER,
    )
    rows = rows_of(watch("read_commands", **VERBS_ABOUT, passed=[]))
    assert [row[1] for row in rows] == [b"hold 3", b"hold 1 anna", b"hold 1 bert", b"hold 2 anna"]


@pytest.mark.slow
def test_a_new_command_is_queued_behind_an_old_one(database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_args, jq_submitter) values ('command', 'hold 4', 'anna')")
    line = "select claim_rank from drover.claimable where claim_line = 'anna' and claim_type = 'command' order by 1"
    assert [rank[-2:] for (rank,) in fetch(database, line)] == ["00", "01", "02"]


@pytest.mark.slow
def test_old_commands_are_ordered_by_their_times(database: str) -> None:
    first, second = (
        pk
        for (pk,) in fetch(
            database, "select jq_pk from drover.jobqueue where jq_args in ('shutdown', 'reload') order by 1"
        )
    )
    assert fetch(database, "select group_number from drover.scheduler_group order by group_name") == [(first,), (None,)]
    ((number,),) = fetch(database, "select scheduler_number from drover.scheduler")
    assert first == number < second


# ---- 0002: what is let in no more


@pytest.mark.slow
def test_old_rows_over_the_size_limits_are_processed(database: str, desk: Desk) -> None:
    claims = desk.claim(WANT._replace(type="l"))
    plain = [claim for claim in claims if not claim.rules.msq]
    assert sorted(len(claim.args) for claim in plain) == [0, 0, 0, 0, 1048577]
    (long,) = (claim.rules.variables for claim in plain if claim.rules.variables)
    assert len(long["a"] or "") == 5000000
    desk.ask(EndAndClaim([end(claim) for claim in plain], ()))
    done = "select count(*), bool_and(jq_state = 'done') from drover.jobqueue where not jq_msq and jq_type = 'l'"
    assert fetch(database, f"{done} and jq_attempt > 0") == [(5, True)]


@pytest.mark.slow
def test_old_dates_out_of_range_become_the_last_readable_date(database: str) -> None:
    low, high = "0001-01-02T00:00:00", "9999-12-31T09:59:59"
    assert fetch(
        database,
        "select to_json(job_queued at time zone 'UTC')#>>'{}' from drover.job where job_pk > 1 order by job_pk",
    ) == [(high,), (low,), (high,)]
    window = "select to_json(jq_not_before at time zone 'UTC')#>>'{}', to_json(jq_not_after at time zone 'UTC')#>>'{}'"
    some = "jq_type = 'l' and coalesce(jq_not_before, jq_not_after) is not null"
    found = fetch(database, f"{window} from drover.jobqueue where {some} order by jq_pk")
    assert found == [(low, high), (high, None), (None, low)]
    derived = "jq_wait_until = jq_not_before, jq_expires_at = jq_not_after"
    assert (named(database, "l.never", derived), named(database, "l.late", derived)) == ((True, None), (None, True))


@pytest.mark.slow
def test_an_old_time_limit_is_a_hundred_years_at_most(database: str) -> None:
    assert fetch(database, "select jq_timeout = '100 years' from drover.jobqueue where jq_timeout is not null") == [
        (True,)
    ]


@pytest.mark.slow
def test_an_old_query_without_a_host_column_runs_on_any_host(desk: Desk) -> None:
    (query,) = (claim for claim in desk.claim(WANT._replace(type="l")) if claim.rules.msq)
    assert query.rules.runonpfile is None
