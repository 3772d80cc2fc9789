"""What tenants, operators and watchers may see and do, against the real grants of roles.sql."""

import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from tests.patience import LONG_PATIENCE_S
from tests.role_tools import FRONTEND, PLAIN, SQL_ONLY, Login, add_edge, insertable
from tests.schema_tools import Connection, fetch_all, fetch_one

MINE = [
    "my_jobs", "my_why", "my_log", "my_output", "my_attempt", "my_cleanup", "my_item_failure", "my_graph", "my_jobd",
]  # fmt: skip


# ---- tenants


def test_submitter_is_the_login_role_even_after_set_role_t17(tenants: list[Connection]) -> None:
    ours, _ = tenants
    ours.execute("set role drover_frontend")
    ours.execute(PLAIN.encode())
    assert fetch_one(ours, "select jq_submitter = session_user from drover.my_jobs")


@pytest.mark.parametrize("view", MINE)
def test_tenant_sees_no_rows_of_another_t113(login: Login, tenants: list[Connection], view: str) -> None:
    ours, theirs = tenants
    job = fetch_one(theirs, PLAIN)
    _fill(login(""), job)
    assert len(fetch_all(theirs, f"select * from drover.{view}")) == 1
    assert fetch_all(ours, f"select * from drover.{view}") == []


def test_tenant_reads_the_groups_and_edges_that_it_wrote_t113(tenants: list[Connection]) -> None:
    ours, theirs = tenants
    ours.execute("insert into drover.job (job_name, job_priority, job_data) values ('scan', 7, '{\"x\": 1}')")
    parent, child = fetch_one(ours, PLAIN), fetch_one(ours, PLAIN)
    add_edge(ours, child, parent)
    group = "select job_name, job_priority, job_data from drover.my_job_groups"
    edge = "select jdep_jq_fk, jdep_jq_depends_fk from drover.my_jobdepends"
    assert (fetch_all(ours, group), fetch_all(ours, edge)) == ([("scan", 7, {"x": 1})], [(child, parent)])
    assert fetch_all(theirs, group) == fetch_all(theirs, edge) == []


def _fill(admin: Connection, job: int) -> None:
    """Insert one row of a job wherever a front-end may look."""
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
def test_tenant_cannot_bypass_the_views_t113(tenants: list[Connection], table: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        tenants[0].execute(f"select * from drover.{table}".encode())


def test_function_in_a_condition_sees_no_rows_of_another_t113(login: Login, tenants: list[Connection]) -> None:
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
def test_tenant_cannot_make_an_edge_to_a_job_of_another_t113(tenants: list[Connection], turn: int) -> None:
    ours, theirs = tenants
    child, parent = [fetch_one(theirs, PLAIN), fetch_one(ours, PLAIN)][::turn]
    with pytest.raises(InsufficientPrivilege, match=f"job {child} or {parent} is not yours"):
        add_edge(ours, child, parent)


def test_operator_may_make_edges_between_any_jobs(login: Login, tenants: list[Connection]) -> None:
    child, parent = (fetch_one(tenant, PLAIN) for tenant in tenants)
    add_edge(login("drover_operator"), child, parent)
    assert fetch_one(login(""), "select jq_unmet from drover.jobqueue where jq_pk = %s", child) == 1


# ---- operators and watchers


def test_operator_commands_and_commands_have_no_queue(login: Login) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'status') returning jq_queue"
    assert fetch_one(login("drover_operator"), insert) is None


def test_member_of_the_operators_commands_too(login: Login, tenants: list[Connection]) -> None:
    ours, _ = tenants
    login("").execute(sql.SQL("grant drover_operator to {}").format(sql.Identifier(ours.info.user)))
    assert fetch_one(ours, "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'poll') returning jq_pk")


def test_operator_cannot_write_columns_of_the_scheduler(login: Login) -> None:
    assert insertable(login(""), "drover_operator") == FRONTEND | SQL_ONLY


def test_operator_reads_everything_but_secrets(login: Login) -> None:
    operator = login("drover_operator")
    query = """select c.oid::regclass::text from pg_class c
                where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v')
                  and not has_table_privilege(c.oid, 'select')"""
    assert fetch_all(operator, query) == [("drover.subscription_key",)]


def test_operator_edits_placement_and_wakes_schedulers(login: Login) -> None:
    daemon, operator = login("drover_scheduler"), login("drover_operator")
    daemon.execute("listen drover_change")
    operator.execute("insert into drover.placement (placement_from, placement_host) values ('disk1', 'alpha')")
    operator.execute("update drover.placement set placement_to = 'disk9', placement_type = 'license'")
    query = "select placement_type, placement_from, placement_to, placement_host from drover.placement"
    assert fetch_all(operator, query) == [("license", "disk1", "disk9", "alpha")]
    operator.execute("delete from drover.placement")
    assert fetch_all(operator, query) == []
    assert len(list(daemon.notifies(timeout=LONG_PATIENCE_S, stop_after=3))) == 3


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
    job = fetch_one(login("drover_frontend"), PLAIN)
    watcher = login("drover_readonly")
    assert fetch_one(watcher, "select jq_args_length from drover.jobs_masked where jq_pk = %s", job) == len("secret")
    assert "secret" not in str(fetch_all(watcher, "select * from drover.jobs_masked, drover.why_masked"))


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
    assert fetch_one(owner, "select reason from drover.why where jq_pk = 1") == "failed (agent_error): secret"
    assert fetch_one(watcher, "select reason from drover.why_masked where jq_pk = 1") == "failed (agent_error)"
    seen = [_everything(watcher), _everything(login("drover_frontend"))]
    assert "running" in seen[0]
    assert "secret" not in str(seen)


def _everything(connection: Connection) -> str:
    """Return all that may be read in the schema, of whole tables or of columns."""
    query = """select relname, string_agg(quote_ident(attname), ', ' order by attnum)
                 from pg_class c join pg_attribute on attrelid = c.oid
                where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v') and attnum > 0
                  and not attisdropped and has_column_privilege(c.oid, attnum, 'select') group by 1"""
    readable = fetch_all(connection, query)
    return str([fetch_all(connection, f"select {columns} from drover.{table}") for table, columns in readable])
