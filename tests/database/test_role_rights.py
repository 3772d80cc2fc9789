"""All rights of each role: the tables that it reads and writes, and the functions that it calls."""

from typing import Final

import pytest

from tests.role_tools import Login
from tests.schema_tools import fetch_all

FRONT_ENDS: Final = ("drover_tenant", "drover_frontend", "drover_frontend_sql")
# Beside its own views: of jobs and groups a few columns only.
TENANTS_READ: Final = {
    "agent", "condition", "hidden", "host", "job", "jobqueue", "later_migration", "migration", "queue", "scheduler",
    "scheduler_group", "size_limit",
}  # fmt: skip
WATCHERS_READ: Final = {
    "agent", "attempt", "backlog", "beside_zones", "blocked_jobs", "cleanup", "condition", "counters", "depth",
    "detached_jobs", "graph", "hidden", "host", "impossible", "job", "job_counts", "job_states", "job_zones",
    "jobdepends", "jobs_in_hand", "jobs_masked", "later_migration", "migration", "phases", "placement", "queue",
    "schedule", "scheduler", "scheduler_group", "scheduler_status", "suspect_walk", "tally", "vitals", "why_masked",
    "zone_parts",
}  # fmt: skip
# Functions with the rights of the owner: each looks itself whose rows it is asked for, or tells nothing of rows.
FOR_ALL: Final = {"first_of_kind", "has_token", "newest_zone"}
FOR_TENANTS: Final = FOR_ALL | {
    "agent_type_for", "command", "command_waits", "ended_in_vain", "fellows", "find_agent_type", "hide",
    "job_event", "job_hide", "job_named", "job_share", "shared_jobs", "subscribe", "subscription_enable",
    "unsubscribe", "withdraw_commands",
}  # fmt: skip
FOR_WATCHERS: Final = FOR_ALL | {"is_route_stale", "oldest_claimable"}
FOR_OPERATORS: Final = FOR_TENANTS | FOR_WATCHERS | {"flush_chosen", "flush_jobs", "recount", "rename_owner"}
INSERT: Final = {(table, "insert") for table in ("job", "jobdepends", "jobqueue")}
CONFIGURED: Final = ("placement", "quota", "schedule", "tenant", "tenant_queue", "variable")
OPERATORS_WRITE: Final = (
    INSERT
    | {(table, right) for table in CONFIGURED for right in ("insert", "update", "delete")}
    | {("size_limit", "update")}
)
READABLE: Final = """
select relname from pg_class
 where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v')
   and has_any_column_privilege(%s, oid, 'select') and relname !~ '^(my|our)_'
"""
CALLABLE: Final = """
select proname from pg_proc
 where pronamespace = 'drover'::regnamespace and prosecdef and prorettype <> 'trigger'::regtype
   and has_function_privilege(%s, oid, 'execute')
"""
WRITABLE: Final = """
select relname, p from pg_class,
       unnest('{insert,update,references,delete,truncate,trigger}'::text[]) with ordinality as u(p, n)
 where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v')
   and case when n <= 3 then has_any_column_privilege(%s, oid, p) else has_table_privilege(%s, oid, p) end
"""


def first_column(login: Login, query: str, role: str) -> set[str]:
    return {name for (name,) in fetch_all(login(""), query, role)}


@pytest.mark.parametrize("role", FRONT_ENDS)
def test_a_tenant_reads_its_own_views_and_what_is_of_no_tenant_t113(login: Login, role: str) -> None:
    assert first_column(login, READABLE, role) == TENANTS_READ


def test_a_watcher_reads_what_shows_no_arguments_and_no_output(login: Login) -> None:
    assert first_column(login, READABLE, "drover_readonly") == WATCHERS_READ
    own = READABLE.replace("!~", "~")
    assert first_column(login, own, "drover_readonly") == set()


@pytest.mark.parametrize(
    ("role", "functions"),
    [
        *((role, FOR_TENANTS) for role in FRONT_ENDS),
        ("drover_operator", FOR_OPERATORS),
        ("drover_readonly", FOR_WATCHERS),
        ("drover_msq", set[str]()),
        ("drover_agentdb", set[str]()),
    ],
)
def test_a_role_calls_these_functions_with_the_rights_of_the_owner_and_no_others(
    login: Login, role: str, functions: set[str]
) -> None:
    assert first_column(login, CALLABLE, role) == functions


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        *((role, INSERT) for role in FRONT_ENDS),
        ("drover_operator", OPERATORS_WRITE),
        ("drover_readonly", set[tuple[str, str]]()),
        ("drover_msq", set[tuple[str, str]]()),
        ("drover_agentdb", set[tuple[str, str]]()),
    ],
)
def test_a_role_writes_these_tables_and_no_others_t7(login: Login, role: str, rights: set[tuple[str, str]]) -> None:
    assert {(table, right) for table, right in fetch_all(login(""), WRITABLE, role, role)} == rights
