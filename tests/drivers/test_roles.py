"""Who may do what: every role against the real grants of roles.sql."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, InsufficientPrivilege, InvalidParameterValue, ReadOnlySqlTransaction

from scheduler.daemon.connections import PLANS
from scheduler.database import migrate
from scheduler.drivers.sql import load
from scheduler.model.commands import VERBS
from scheduler.package_data import schema_dir

Login = Callable[[str], psycopg.Connection[Any]]

QUERIES = load((schema_dir() / "queries.sql").read_text())
FRONTEND = {
    "jq_job_fk", "jq_name", "jq_type", "jq_args", "jq_variables", "jq_resubmit_of", "jq_host", "jq_tolerate",
    "jq_queue", "jq_urgent", "jq_priority", "jq_not_before", "jq_not_after", "jq_max_interruptions", "jq_retries",
    "jq_timeout", "jq_unique_key", "jq_delete", "jq_mode", "jq_state",
}  # fmt: skip
OWNERS = ["killjob", "cancel", "signal", "release", "hold", "ice", "retry", "run"]
SQL_ONLY = {"jq_msq", "jq_runonpfile", "jq_key", "jq_repeat"}
MINE = [
    "my_jobs", "my_why", "my_log", "my_output", "my_attempt", "my_cleanup", "my_item_failure", "my_graph", "my_jobd",
]  # fmt: skip
MEMBER_OF = {"operator": [("pg_read_all_stats",)]}
LOGINS = ["scheduler", "frontend", "frontend_sql", "operator", "readonly", "msq", "agentdb"]
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
PLAIN = "insert into drover.jobqueue (jq_type, jq_args) values ('noop', 'secret') returning jq_pk"


@pytest.fixture
def login(database_with_roles: str) -> Iterator[Login]:
    """Give what connects as a role, committing each statement; the empty name is the superuser."""
    with ExitStack() as stack:

        def connect(role: str) -> psycopg.Connection[Any]:
            conninfo = make_conninfo(database_with_roles, **({"user": role} if role else {}))
            return stack.enter_context(psycopg.connect(conninfo, autocommit=True))

        yield connect


@pytest.fixture
def tenants(login: Login) -> Iterator[list[psycopg.Connection[Any]]]:
    """Give the connections of two logins that are members of drover_frontend."""
    names = [f"tenant_{uuid4().hex}" for _ in range(2)]
    admin = login("")
    for name in names:
        admin.execute(f"create role {name} login in role drover_frontend".encode())
    connections = [login(name) for name in names]
    yield connections
    for name, connection in zip(names, connections, strict=True):
        connection.close()
        admin.execute(f"drop role {name}".encode())


def _all(connection: psycopg.Connection[Any], query: str, *values: object) -> list[Any]:
    return connection.execute(query.encode(), values or None).fetchall()


def _one(connection: psycopg.Connection[Any], query: str, *values: object) -> Any:
    return _all(connection, query, *values)[0][0]


def _edge(connection: psycopg.Connection[Any], child: int, parent: int) -> None:
    connection.execute(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent)
    )


def _insertable(connection: psycopg.Connection[Any], role: str) -> set[str]:
    query = """
        select attname from pg_attribute
         where attrelid = 'drover.jobqueue'::regclass and attnum > 0 and not attisdropped
           and has_column_privilege(%s, attrelid, attnum, 'insert')"""
    return {name for (name,) in _all(connection, query, role)}


# ---- the file


def test_roles_may_be_applied_again_and_change_nothing(database_with_roles: str, login: Login) -> None:
    before = _all(login(""), GRANTS)
    migrate.apply_roles(database_with_roles)
    assert _all(login(""), GRANTS) == before


def test_applying_roles_again_takes_back_a_grant_too_many(database_with_roles: str, login: Login) -> None:
    before = _all(login(""), GRANTS)
    login("").execute("grant update (jq_state) on drover.jobqueue to drover_frontend")
    login("").execute("grant select on drover.job to drover_msq")
    migrate.apply_roles(database_with_roles)
    assert _all(login(""), GRANTS) == before


def test_every_object_belongs_to_an_owner_that_cannot_log_in(login: Login) -> None:
    assert {owner for _, _, owner, _ in _all(login(""), GRANTS) if owner} == {"drover_owner"}
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        login("drover_owner")


def test_only_the_owner_and_the_roles_have_rights(login: Login) -> None:
    assert not [grant for _, _, _, grant in _all(login(""), GRANTS) if re.search(r"[{,]=", grant or "")]
    assert not _one(login(""), "select has_schema_privilege('public', 'drover', 'usage')")


def test_function_with_rights_of_the_owner_has_a_search_path(login: Login) -> None:
    query = """select proname, array_to_string(proconfig, ';') from pg_proc
                where pronamespace = 'drover'::regnamespace and prosecdef order by 1"""
    paths = dict(_all(login(""), query))
    assert list(paths) == [
        "add_edges",
        "clean_up",
        "command",
        "count_edges",
        "drop_edge",
        "flush",
        "gone",
        "job_hide",
        "limit_group",
        "limit_job",
        "moved",
        "offer_command",
        "offer_new",
        "prepare_job",
        "settle",
    ]
    assert {path.split(";")[0] for path in paths.values()} == {"search_path=drover, pg_temp"}


@pytest.mark.parametrize("role", LOGINS)
def test_only_the_operator_is_a_member_of_a_role_the_one_for_statistics(login: Login, role: str) -> None:
    query = "select roleid::regrole::text from pg_auth_members where member = %s::regrole"
    assert _all(login(""), query, f"drover_{role}") == MEMBER_OF.get(role, [])


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


# ---- front-ends


def test_front_end_may_give_exactly_the_columns_of_the_contract_f27(login: Login) -> None:
    assert _insertable(login(""), "drover_frontend") == FRONTEND


def test_front_end_with_sql_may_give_four_more_f27(login: Login) -> None:
    assert _insertable(login(""), "drover_frontend_sql") == FRONTEND | SQL_ONLY


def test_front_end_can_set_up_a_group_with_jobs_and_edges_f27(login: Login) -> None:
    ui = login("drover_frontend")
    with ui.transaction():
        ui.execute("insert into drover.job (job_name, job_priority, job_tenant) values ('scan', 100, 'acme')")
        group = _one(ui, "select job_pk from drover.job where job_name = 'scan'")
        insert = "insert into drover.jobqueue (jq_type, jq_args, jq_job_fk) values ('noop', %s, %s) returning jq_pk"
        parent, child = _one(ui, insert, "a", group), _one(ui, insert, "b", group)
        _edge(ui, child, parent)
    seen = _all(ui, "select jq_pk, jq_unmet, jq_urgent, jq_submitter from drover.my_jobs order by jq_pk")
    assert seen == [(parent, 0, True, "drover_frontend"), (child, 1, True, "drover_frontend")]


def test_front_end_with_sql_may_queue_sql_f17(login: Login) -> None:
    insert = """insert into drover.jobqueue (jq_type, jq_args, jq_runonpfile, jq_key)
                values ('sha256', 'select pfile_pk, host from pfile', 'host', 'pfile_pk') returning jq_pk"""
    job = _one(login("drover_frontend_sql"), insert)
    assert _one(login(""), "select jq_msq from drover.jobqueue where jq_pk = %s", job)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("jq_submitter", "'postgres'"),
        ("jq_owner", "gen_random_uuid()"),
        ("jq_attempt", "7"),
        ("jq_unmet", "0"),
        ("jq_queued", "'2001-01-01'"),
        ("jq_starttime", "now()"),
        ("jq_endtime", "now()"),
        ("jq_end_bits", "1"),
        ("jq_wait_until", "null"),
        ("jq_checkpoint", "'{}'"),
        ("jq_msq", "true"),
        ("jq_runonpfile", "'host'"),
        ("jq_key", "'pfile_pk'"),
        ("jq_repeat", "true"),
    ],
)
def test_front_end_cannot_forge_a_column(login: Login, column: str, value: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_frontend").execute(
            f"insert into drover.jobqueue (jq_type, {column}) values ('noop', {value})".encode()
        )


def test_front_end_cannot_forge_the_user_of_a_group_t17(login: Login) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_frontend").execute("insert into drover.job (job_user) values ('postgres')")


def test_front_end_cannot_mark_an_edge_met(login: Login) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_frontend").execute(
            "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_met_at) values (1, 2, now())"
        )


@pytest.mark.parametrize(
    "state", ["claimed", "running", "blocked", "done", "failed", "cancelled", "ignored", "skipped"]
)
def test_front_end_cannot_forge_a_state_j25(login: Login, state: str) -> None:
    with pytest.raises(CheckViolation, match=f"inserted held or queued, not {state}"):
        login("drover_frontend").execute(
            "insert into drover.jobqueue (jq_type, jq_state) values ('noop', %s)", (state,)
        )


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "scheduler"])
def test_command_of_a_role_that_is_no_operator_is_refused_j96(login: Login, role: str) -> None:
    with pytest.raises(InsufficientPrivilege, match="only drover_operator may insert commands"):
        login(f"drover_{role}").execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'shutdown')")


@pytest.mark.parametrize("signal", ["STOP", "SIGSTOP", "sigstop", "19", "TSTP", "CONT", "KILL", "9", "x"])
def test_owner_of_a_job_may_not_send_signals_that_stop_a_shared_agent(login: Login, signal: str) -> None:
    job = _one(login("drover_frontend"), PLAIN)
    for words in (f"signal {job} {signal}", f"signal {job} TERM {job} {signal}"):
        with pytest.raises(
            InsufficientPrivilege, match=f"may send signal {signal}: owners send INT, TERM, HUP, USR1 or USR2"
        ):
            login("drover_frontend").execute("select drover.command(%s)", (words,))
    assert _one(login("drover_operator"), "select drover.command(%s)", f"signal {job} {signal}")


@pytest.mark.parametrize("signal", ["INT", "SIGTERM", "hup", "10", "USR2"])
def test_owner_of_a_job_may_send_harmless_signals(login: Login, signal: str) -> None:
    ui = login("drover_frontend")
    assert _one(ui, "select drover.command(%s)", f"signal {_one(ui, PLAIN)} {signal}")


@pytest.mark.parametrize("words", ["fly 9", "", "Cancel 9", " \n"])
def test_unknown_command_is_refused_with_the_known_ones(login: Login, words: str) -> None:
    for role, verbs in (("operator", VERBS), ("frontend", OWNERS)):
        with pytest.raises(InvalidParameterValue) as refused:
            login(f"drover_{role}").execute("select drover.command(%s)", (words,))
        said, _, those = str(refused.value.diag.message_primary).partition("; there are ")
        assert said == f"no such command: {repr(words.split()[0]) if words.split() else 'nothing'}"
        assert set(those.split(", ")) == set(verbs)


@pytest.mark.parametrize("words", ["signal {0} INT {1} INT", "run {0} {1}", "signal {1} INT {0} INT", "cancel {1}"])
def test_a_command_about_several_jobs_needs_ownership_of_all(login: Login, words: str) -> None:
    ui = login("drover_frontend")
    ((mine,),) = ui.execute(PLAIN).fetchall()
    ((other,),) = login("drover_operator").execute(PLAIN).fetchall()
    with pytest.raises(InsufficientPrivilege, match=f"job {other} is not yours"):
        ui.execute("select drover.command(%s)", (words.format(mine, other),))


def test_command_by_copy_is_refused_too(login: Login) -> None:
    ui = login("drover_frontend")
    with (
        pytest.raises(InsufficientPrivilege, match="only drover_operator"),
        ui.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copy,
    ):
        copy.write_row(("command", "shutdown"))


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "operator", "scheduler"])
def test_no_role_inserts_a_clean_up_directly_r50(login: Login, role: str) -> None:
    with pytest.raises(InsufficientPrivilege, match="it is not inserted"):
        login(f"drover_{role}").execute("insert into drover.jobqueue (jq_type, jq_args) values ('cleanup', '[]')")


def test_clean_up_by_copy_is_refused_too_r50(login: Login) -> None:
    ui = login("drover_frontend")
    with (
        pytest.raises(InsufficientPrivilege, match="it is not inserted"),
        ui.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copy,
    ):
        copy.write_row(("cleanup", '["/srv/data/x"]'))


def test_trigger_of_a_front_end_inserts_no_clean_up_r50(login: Login) -> None:
    ui = login("drover_frontend")
    ui.execute("""
        create temporary table bait (n integer);
        create function pg_temp.forge() returns trigger language plpgsql as $$
        begin
          insert into drover.jobqueue (jq_type, jq_args) values ('cleanup', '["/srv/data/x"]');
          return null;
        end $$;
        create trigger forge after insert on bait for each row execute function pg_temp.forge()""")
    with pytest.raises(InsufficientPrivilege, match="it is not inserted"):
        ui.execute("insert into bait values (1)")


def test_clean_up_belongs_to_the_submitter_of_the_job_r43(login: Login, tenants: list[psycopg.Connection[Any]]) -> None:
    ours, theirs = tenants
    insert = "insert into drover.jobqueue (jq_type, jq_delete) values ('noop', '{/srv/data/x}') returning jq_pk"
    job, daemon = _one(ours, insert), login("drover_scheduler")
    for move in (
        "jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now()",
        "jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1, jq_done_host = 'alpha'",
    ):
        daemon.execute(f"update drover.jobqueue set {move} where jq_pk = %s".encode(), (job,))
    found = (
        "select jq_args::json ->> 'names', jq_host, jq_submitter = session_user from drover.my_jobs where jq_name = %s"
    )
    assert _all(ours, found, f"cleanup.{job}") == [('["/srv/data/x"]', "alpha", True)]
    assert _all(ours, "select cleanup_state from drover.my_cleanup where jq_pk = %s", job) == [("pending",)]
    assert _all(theirs, found, f"cleanup.{job}") == []


@pytest.mark.parametrize(
    "statement",
    [
        "update drover.jobqueue set jq_state = 'cancelled'",
        "update drover.jobqueue set jq_wanted = 'kill'",
        "update drover.my_jobs set jq_state = 'done'",
        "delete from drover.jobqueue",
        "delete from drover.jobdepends",
        "truncate drover.jobqueue",
        "update drover.queue set queue_paused = true",
        "insert into drover.log (log_type, log_message) values ('LOG', 'lies')",
    ],
)
@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "operator", "readonly"])
def test_only_the_scheduler_updates_jobs_t7(login: Login, role: str, statement: str) -> None:
    login("").execute(PLAIN.encode())
    with pytest.raises(InsufficientPrivilege):
        login(f"drover_{role}").execute(statement.encode())


def test_copy_of_ten_thousand_rows_wakes_listeners_once(login: Login) -> None:
    daemon, ui = login("drover_scheduler"), login("drover_frontend")
    daemon.execute("listen drover_queue")
    with ui.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copy:
        copy.write("".join(f"noop\t{number}\n" for number in range(10_000)))
    ui.execute("notify drover_queue, 'end'")
    woken = list(takewhile(lambda notify: notify.payload != "end", daemon.notifies(timeout=30)))
    assert len(woken) == 1
    assert _one(login(""), "select count(*) from drover.jobqueue where jq_state = 'queued'") == 10_000


def test_name_makes_set_up_idempotent_r22(login: Login) -> None:
    insert = """insert into drover.jobqueue (jq_type, jq_name) values ('billing', 'billing.simpsons-8761230871234')
                on conflict (jq_name) do nothing returning jq_pk"""
    ui = login("drover_frontend")
    assert [len(_all(ui, insert)), len(_all(ui, insert))] == [1, 0]


@pytest.mark.parametrize(
    ("job_type", "arguments"),
    [
        ("nobody-serves-this", "x"),
        ("sha256", ""),
        ("sha256", "selekt * form pfile where"),
        ("sha256", "x" * 60_000),
        ("sha256", "\x01\x07\x1b[31m\ufffd\n\r\t'\"\\$`"),
    ],
)
def test_insert_accepts_any_type_and_arguments_f28(login: Login, job_type: str, arguments: str) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_args, jq_msq) values (%s, %s, true) returning jq_pk"
    login("drover_frontend_sql").execute(insert.encode(), (job_type, arguments))
    assert _all(login(""), "select jq_type, jq_args, jq_state from drover.jobqueue") == [
        (job_type, arguments, "queued")
    ]


# ---- tenants


def test_submitter_is_the_login_role_even_after_set_role_t17(tenants: list[psycopg.Connection[Any]]) -> None:
    ours, _ = tenants
    ours.execute("set role drover_frontend")
    ours.execute(PLAIN.encode())
    assert _one(ours, "select jq_submitter = session_user from drover.my_jobs")


@pytest.mark.parametrize("view", MINE)
def test_tenant_sees_no_rows_of_another_t113(login: Login, tenants: list[psycopg.Connection[Any]], view: str) -> None:
    ours, theirs = tenants
    job = _one(theirs, PLAIN)
    _fill(login(""), job)
    assert len(_all(theirs, f"select * from drover.{view}")) == 1
    assert _all(ours, f"select * from drover.{view}") == []


def _fill(admin: psycopg.Connection[Any], job: int) -> None:
    """Give a job one row wherever a front-end may look."""
    admin.execute("insert into drover.log (log_jq_fk, log_type, log_message) values (%s, 'LOG', 'm')", (job,))
    admin.execute(
        "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) "
        "values (%s, 1, 1, 'out', 'd')",
        (job,),
    )
    admin.execute(
        "insert into drover.attempt_kept (att_jq_fk, att_attempt, att_start, att_outcome) "
        "values (%s, 1, now(), 'done')",
        (job,),
    )
    admin.execute(
        "insert into drover.item_failure (item_jq_fk, item_attempt, item_line, item_reason) values (%s, 1, 'l', 'r')",
        (job,),
    )


@pytest.mark.parametrize("table", ["jobqueue", "job", "jobdepends", "log", "output", "attempt", "item_failure", "why"])
def test_tenant_cannot_bypass_the_views_t113(tenants: list[psycopg.Connection[Any]], table: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        tenants[0].execute(f"select * from drover.{table}".encode())


def test_function_in_a_condition_sees_no_rows_of_another_t113(
    login: Login, tenants: list[psycopg.Connection[Any]]
) -> None:
    ours, theirs = tenants
    theirs.execute(PLAIN.encode())
    login("").execute("""
        create function public.peek(value text) returns boolean language plpgsql cost 0.0000001 as
        $$ begin raise notice '%', value; return true; end $$""")
    seen: list[str | None] = []
    ours.add_notice_handler(lambda notice: seen.append(notice.message_primary))
    ours.execute("select jq_pk from drover.my_jobs where public.peek(jq_args)")
    assert seen == []


@pytest.mark.parametrize("turn", [1, -1], ids=["their child", "their parent"])
def test_tenant_cannot_make_an_edge_to_a_job_of_another_t113(tenants: list[psycopg.Connection[Any]], turn: int) -> None:
    ours, theirs = tenants
    child, parent = [_one(theirs, PLAIN), _one(ours, PLAIN)][::turn]
    with pytest.raises(InsufficientPrivilege, match=f"job {child} or {parent} is not yours"):
        _edge(ours, child, parent)


def test_operator_may_make_edges_between_any_jobs(login: Login, tenants: list[psycopg.Connection[Any]]) -> None:
    child, parent = (_one(tenant, PLAIN) for tenant in tenants)
    _edge(login("drover_operator"), child, parent)
    assert _one(login(""), "select jq_unmet from drover.jobqueue where jq_pk = %s", child) == 1


# ---- operators and watchers


def test_operator_commands_and_commands_have_no_queue(login: Login) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'status') returning jq_queue"
    assert _one(login("drover_operator"), insert) is None


def test_member_of_the_operators_commands_too(login: Login, tenants: list[psycopg.Connection[Any]]) -> None:
    ours, _ = tenants
    login("").execute(sql.SQL("grant drover_operator to {}").format(sql.Identifier(ours.info.user)))
    assert _one(ours, "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'poll') returning jq_pk")


def test_operator_cannot_write_columns_of_the_scheduler(login: Login) -> None:
    assert _insertable(login(""), "drover_operator") == FRONTEND | SQL_ONLY


def test_operator_reads_everything(login: Login) -> None:
    operator = login("drover_operator")
    query = """select c.oid::regclass::text from pg_class c
                where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v')
                  and not has_table_privilege(c.oid, 'select')"""
    assert _all(operator, query) == []


def test_operator_edits_placement_and_wakes_schedulers(login: Login) -> None:
    daemon, operator = login("drover_scheduler"), login("drover_operator")
    daemon.execute("listen drover_change")
    operator.execute("insert into drover.placement (placement_from, placement_host) values ('disk1', 'alpha')")
    operator.execute("update drover.placement set placement_to = 'disk9', placement_type = 'license'")
    query = "select placement_type, placement_from, placement_to, placement_host from drover.placement"
    assert _all(operator, query) == [("license", "disk1", "disk9", "alpha")]
    operator.execute("delete from drover.placement")
    assert _all(operator, query) == []
    assert len(list(daemon.notifies(timeout=30, stop_after=3))) == 3


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "readonly", "scheduler"])
def test_other_roles_cannot_edit_placement(login: Login, role: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        login(f"drover_{role}").execute(
            "insert into drover.placement (placement_from, placement_host) values ('disk1', 'alpha')"
        )


@pytest.mark.parametrize("table", ["jobqueue", "log", "output", "item_failure", "my_jobs", "scheduler_status", "job"])
def test_watcher_cannot_read_arguments_of_jobs(login: Login, table: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        login("drover_readonly").execute(f"select * from drover.{table}".encode())


def test_watcher_sees_jobs_and_why_without_arguments(login: Login) -> None:
    job = _one(login("drover_frontend"), PLAIN)
    watcher = login("drover_readonly")
    assert _one(watcher, "select jq_args_length from drover.jobs_masked where jq_pk = %s", job) == len("secret")
    assert "secret" not in str(_all(watcher, "select * from drover.jobs_masked, drover.why_masked"))


SAYING = """
insert into drover.jobqueue (jq_type, jq_state, jq_attempt, jq_owner, jq_starttime, jq_endtime, jq_endtext, jq_end_bits,
                             jq_retry_at, jq_wait_until, jq_wanted)
values ('a', 'failed', 1, null, now(), now(), 'secret', 2, null, null, null),
       ('a', 'queued', 1, null, null, null, 'secret', 0, now() + '1 h', now() + '1 h', null),
       ('a', 'running', 1, gen_random_uuid(), now(), null, 'secret', 0, null, null, 'cancel secret');
insert into drover.attempt_kept (att_jq_fk, att_attempt, att_start, att_outcome, att_reason)
values (1, 1, now(), 'failed', 'secret');
insert into drover.agent (agent_group, agent_type, agent_revision) values ('default', 'a', 'a --password secret')
"""


def test_watcher_and_front_end_cannot_read_agent_output_or_commands(login: Login) -> None:
    owner, watcher = login(""), login("drover_readonly")
    owner.execute("alter table drover.jobqueue disable trigger user")
    owner.execute(SAYING.encode())
    assert _one(owner, "select reason from drover.why where jq_pk = 1") == "failed: secret"
    assert _one(watcher, "select reason from drover.why_masked where jq_pk = 1") == "failed"
    seen = [_everything(watcher), _everything(login("drover_frontend"))]
    assert "running" in seen[0]
    assert "secret" not in str(seen)


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


def test_scheduler_may_insert_only_the_columns_of_submit_j37(login: Login) -> None:
    assert _insertable(login(""), "drover_scheduler") == {"jq_pk", "jq_type", "jq_args", "jq_urgent"}


@pytest.mark.parametrize("table", ["job", "jobdepends", "placement", "migration"])
def test_scheduler_adds_no_column_of_the_user_j37(login: Login, table: str) -> None:
    query = "select has_any_column_privilege('drover_scheduler', %s, 'insert, update')"
    assert not _one(login(""), query, f"drover.{table}")


@pytest.mark.parametrize("column", sorted((FRONTEND | SQL_ONLY | {"jq_submitter", "jq_pk"}) - {"jq_state"}))
def test_scheduler_cannot_change_what_a_job_asks_for_r71(login: Login, column: str) -> None:
    query = "select has_column_privilege('drover_scheduler', 'drover.jobqueue', %s, 'update')"
    assert not _one(login(""), query, column)


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
    assert _one(login("drover_msq"), f"show {setting}") == value


@pytest.mark.parametrize("role", ["drover_frontend", "drover_frontend_sql", "drover_readonly"])
def test_login_that_idles_in_a_transaction_is_ended(login: Login, role: str) -> None:
    assert _one(login(role), "show idle_in_transaction_session_timeout") == "5min"


def test_login_of_sql_jobs_has_ten_connections(login: Login) -> None:
    assert _one(login(""), "select rolconnlimit from pg_roles where rolname = 'drover_msq'") == 10


def test_the_login_of_the_scheduler_plans_as_its_connections_do_behind_a_pooler_too(database_with_roles: str) -> None:
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_scheduler")) as connection:
        plain = [tuple(statement.removeprefix("set ").split(" = ")) for statement in PLANS]
        found = [(name, connection.execute(f"show {name}".encode()).fetchone()) for name, _ in plain]
    assert found == [(name, (value,)) for name, value in plain]


def _everything(connection: psycopg.Connection[Any]) -> str:
    """Give all that may be read in the schema, of whole tables or of columns."""
    query = """select relname, string_agg(quote_ident(attname), ', ' order by attnum)
                 from pg_class c join pg_attribute on attrelid = c.oid
                where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v') and attnum > 0
                  and not attisdropped and has_column_privilege(c.oid, attnum, 'select') group by 1"""
    readable = _all(connection, query)
    return str([_all(connection, f"select {columns} from drover.{table}") for table, columns in readable])
