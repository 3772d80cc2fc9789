"""Grants of roles.sql as a whole, of the scheduler, and of the logins for SQL of jobs and of agents."""

import re

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege, ReadOnlySqlTransaction

from scheduler.daemon.connections import PLANS
from scheduler.database import migrate
from scheduler.drivers.statements import load
from scheduler.package_data import schema_dir
from tests.role_tools import FRONTEND, SQL_ONLY, Login, grant_roles, insertable
from tests.schema_tools import fetch_all, fetch_one

QUERIES = load((schema_dir() / "queries.sql").read_text())
MEMBER_OF = {"operator": [("pg_read_all_stats",)]}
LOGINS = ["scheduler", "frontend", "frontend_sql", "tenant", "operator", "readonly", "msq", "agentdb"]
GRANTS = """
select 'table', c.oid::regclass::text, c.relowner::regrole::text, c.relacl::text from pg_class c
 where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v')
union all
select 'column', attrelid::regclass || '.' || attname, '', attacl::text from pg_attribute
  join pg_class c on c.oid = attrelid where relnamespace = 'drover'::regnamespace and attacl is not null
union all
select 'function', oid::regprocedure::text, proowner::regrole::text, proacl::text from pg_proc
 where pronamespace = 'drover'::regnamespace
order by 1, 2
"""


# ---- the file


def test_roles_may_be_applied_again_and_change_nothing(database_with_roles: str, login: Login) -> None:
    before = fetch_all(login(""), GRANTS)
    grant_roles(database_with_roles)
    assert fetch_all(login(""), GRANTS) == before


def test_applying_roles_again_takes_back_a_grant_too_many(database_with_roles: str, login: Login) -> None:
    before = fetch_all(login(""), GRANTS)
    login("").execute("grant update (jq_state) on drover.jobqueue to drover_frontend")
    login("").execute("grant select on drover.job to drover_msq")
    grant_roles(database_with_roles)
    assert fetch_all(login(""), GRANTS) == before


def test_every_object_belongs_to_an_owner_that_cannot_log_in(login: Login) -> None:
    assert {owner for _, _, owner, _ in fetch_all(login(""), GRANTS) if owner} == {"drover_owner"}
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        login("drover_owner")


def test_only_the_owner_and_the_roles_have_rights(login: Login) -> None:
    assert not [grant for _, _, _, grant in fetch_all(login(""), GRANTS) if re.search(r"[{,]=", grant or "")]
    assert not fetch_one(login(""), "select has_schema_privilege('public', 'drover', 'usage')")


def test_function_with_rights_of_the_owner_has_a_search_path(login: Login) -> None:
    query = """select proname, array_to_string(proconfig, ';') from pg_proc
                where pronamespace = 'drover'::regnamespace and prosecdef order by 1"""
    paths = dict(fetch_all(login(""), query))
    assert list(paths) == [
        "add_edges",
        "add_up_changes",
        "agent_event",
        "agent_type_for",
        "bury",
        "bury_deliveries",
        "change_jobs",
        "choose_agent",
        "clean_up",
        "command",
        "command_waits",
        "count_edges",
        "count_ends",
        "count_removed",
        "count_truncated",
        "deliver",
        "drop_edge",
        "ended_in_vain",
        "expect_tenants",
        "expect_variables",
        "fellows",
        "find_agent_type",
        "find_alerts",
        "find_alternates",
        "find_suspects",
        "find_unserved",
        "first_of_kind",
        "flush",
        "flush_chosen",
        "flush_jobs",
        "fold_tally",
        "forget_ended_subscriptions",
        "forget_events",
        "give_variables",
        "gone",
        "has_token",
        "hide",
        "install_routes",
        "is_route_stale",
        "job_event",
        "job_hide",
        "job_named",
        "job_share",
        "keep_group",
        "limit_group",
        "limit_group_tenant",
        "limit_job",
        "limit_queues",
        "limit_tenant",
        "move_start_window",
        "moved",
        "need_group",
        "newest_zone",
        "offer_command",
        "offer_new",
        "oldest_claimable",
        "prepare_job",
        "prepare_schedule",
        "prepare_tenant",
        "prepare_tenant_queue",
        "prune",
        "prune_piece",
        "put_in_queue",
        "queue_deliveries",
        "record",
        "record_one",
        "recount",
        "recount_next",
        "rename_owner",
        "route_job",
        "route_tenants",
        "run_schedule",
        "schedule_mistake",
        "settle",
        "shared_jobs",
        "show_all_in_hand",
        "start_schedule",
        "subscribe",
        "subscription_enable",
        "tenant_of",
        "trial_failed",
        "unsubscribe",
        "wards",
        "withdraw_commands",
    ]
    assert {path.split(";")[0] for path in paths.values()} == {"search_path=drover, pg_temp"}


@pytest.mark.parametrize("role", LOGINS)
def test_only_the_operator_is_a_member_of_a_role_the_one_for_statistics(login: Login, role: str) -> None:
    query = "select roleid::regrole::text from pg_auth_members where member = %s::regrole"
    assert fetch_all(login(""), query, f"drover_{role}") == MEMBER_OF.get(role, [])


@pytest.mark.parametrize("role", LOGINS)
def test_server_compiles_only_the_queries_of_jobs_and_agents(login: Login, role: str) -> None:
    assert fetch_one(login(f"drover_{role}"), "show jit") == ("on" if role in ("msq", "agentdb") else "off")


@pytest.mark.parametrize("role", LOGINS)
def test_no_role_may_change_the_schema(login: Login, role: str) -> None:
    with pytest.raises((InsufficientPrivilege, ReadOnlySqlTransaction)):
        login(f"drover_{role}").execute("create table drover.mine ()")
    with pytest.raises((InsufficientPrivilege, ReadOnlySqlTransaction)):
        login(f"drover_{role}").execute("create table public.mine ()")


@pytest.mark.parametrize(
    "function",
    [
        "settle(array[1::bigint], 0, 1, true)",
        "announce(array[1::bigint], '{done}')",
        "record(array[1::bigint], '{done}')",
        "record_one('user', 1, null, null, 'x')",
        "count_ends(array[1::bigint], '{done}')",
        "fold_tally(1)",
        "recount_ends()",
        "deliver(array[1::bigint])",
        "notification(1)",
        "agent_event(1, 'x')",
        "queue_deliveries('default', 1)",
        "offer(null, false)",
        "offer_all(null)",
        "withdraw_all(null)",
        "line_up(null)",
        "withdraw(null)",
        "is_claimable(null)",
    ],
)
@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "operator", "readonly"])
def test_internal_functions_cannot_be_called_by_other_roles(login: Login, role: str, function: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        login(f"drover_{role}").execute(f"select drover.{function}".encode())


# ---- the scheduler


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_scheduler_has_the_rights_for_each_of_its_statements(login: Login, name: str) -> None:
    """Explaining a statement starts it, which asks for every right, and runs nothing."""
    query, daemon = QUERIES[name], login("drover_scheduler")
    plan = psycopg.RawCursor(daemon).execute(f"explain {query.sql}".encode(), [None] * len(query.names))
    assert plan.fetchall()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("end_and_claim", "update (jq_owner) on drover.jobqueue"),
        ("end_and_claim", "insert on drover.in_hand"),
        ("save", "execute on function drover.announce(bigint[], text[])"),
        ("register", "insert on drover.host"),
    ],
)
def test_a_missing_right_fails_the_test_of_the_statements(login: Login, name: str, right: str) -> None:
    login("").execute(f"revoke {right} from drover_scheduler".encode())
    with pytest.raises(InsufficientPrivilege):
        test_scheduler_has_the_rights_for_each_of_its_statements(login, name)


def test_scheduler_may_insert_only_the_columns_of_submit_and_of_testers_j37(login: Login) -> None:
    of_submit, of_testers = {"jq_pk", "jq_type", "jq_args", "jq_urgent"}, {"jq_queue", "jq_timeout", "jq_unique_key"}
    assert insertable(login(""), "drover_scheduler") == of_submit | of_testers


@pytest.mark.parametrize("table", ["job", "jobdepends", "placement", "migration"])
def test_scheduler_adds_no_column_of_the_user_j37(login: Login, table: str) -> None:
    query = "select has_any_column_privilege('drover_scheduler', %s, 'insert, update')"
    assert not fetch_one(login(""), query, f"drover.{table}")


MOVED = {"jq_state", "jq_priority"}  # by commands


@pytest.mark.parametrize("column", sorted((FRONTEND | SQL_ONLY | {"jq_submitter", "jq_pk"}) - MOVED))
def test_scheduler_cannot_change_what_a_job_asks_for_r71(login: Login, column: str) -> None:
    query = "select has_column_privilege('drover_scheduler', 'drover.jobqueue', %s, 'update')"
    assert not fetch_one(login(""), query, column)


def test_scheduler_deletes_no_jobs_j3(login: Login) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_scheduler").execute("delete from drover.jobqueue")


def test_scheduler_may_check_the_schema_f143(database_with_roles: str) -> None:
    conninfo = make_conninfo(database_with_roles, user="drover_scheduler")
    migrate.check(conninfo)  # raises when it may not
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("select min(number) from drover.migration").fetchone() == (1,)


# ---- the logins of SQL jobs and of agents


@pytest.mark.parametrize("role", ["msq", "agentdb"])
@pytest.mark.parametrize("table", ["jobqueue", "why", "my_jobs", "agent"])
def test_login_for_job_sql_sees_nothing_of_the_queue(login: Login, role: str, table: str) -> None:
    with pytest.raises(InsufficientPrivilege, match="schema drover"):
        login(f"drover_{role}").execute(f"select * from drover.{table}".encode())


def test_login_of_sql_jobs_only_reads(login: Login) -> None:
    login("").execute("create table public.pfile (pfile_pk int); grant all on public.pfile to drover_msq")
    with pytest.raises(ReadOnlySqlTransaction):
        login("drover_msq").execute("insert into public.pfile values (1)")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("default_transaction_read_only", "on"),
        ("statement_timeout", "0"),
        ("lock_timeout", "5s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("temp_file_limit", "10GB"),
    ],
)
def test_login_of_sql_jobs_has_limits(login: Login, setting: str, value: str) -> None:
    assert fetch_one(login("drover_msq"), f"show {setting}") == value


@pytest.mark.parametrize("role", ["drover_frontend", "drover_frontend_sql", "drover_readonly"])
def test_login_that_idles_in_a_transaction_is_ended(login: Login, role: str) -> None:
    assert fetch_one(login(role), "show idle_in_transaction_session_timeout") == "5min"


def test_login_of_sql_jobs_has_ten_connections(login: Login) -> None:
    assert fetch_one(login(""), "select rolconnlimit from pg_roles where rolname = 'drover_msq'") == 10


def test_the_login_of_the_scheduler_plans_as_its_connections_do_behind_a_pooler_too(database_with_roles: str) -> None:
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_scheduler")) as connection:
        plain = [tuple(statement.removeprefix("set ").split(" = ")) for statement in PLANS]
        found = [(name, connection.execute(f"show {name}".encode()).fetchone()) for name, _ in plain]
    assert found == [(name, (value,)) for name, value in plain]
