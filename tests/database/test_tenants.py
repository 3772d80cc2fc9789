"""Tenants: what their members see, share, command and use, and that a stranger has no part in it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from psycopg.errors import (
    CheckViolation,
    ForeignKeyViolation,
    InsufficientPrivilege,
    ReadOnlySqlTransaction,
    UndefinedObject,
    UniqueViolation,
)  # fmt: skip

from tests.database.test_routing import add as add_filter
from tests.patience import PATIENCE_S
from tests.role_tools import FRONTEND, PLAIN, Login, add_edge, insertable
from tests.schema_tools import Connection, fetch_all, fetch_one

OURS: Final = ("our_jobs", "our_why", "our_log", "our_output")
INTO: Final = "insert into drover.jobqueue (jq_type, jq_queue) values ('noop', %s)"
DEFAULT: Final = "insert into drover.jobqueue (jq_type) values ('noop') returning jq_pk"
QUEUE_OF: Final = "select jq_queue from drover.jobqueue where jq_pk = %s"
GROUP: Final = "insert into drover.job (job_name, job_tenant) values ('scan', %s) returning job_pk"
IN_GROUP: Final = "insert into drover.jobqueue (jq_type, jq_job_fk) values ('noop', %s)"
BLOCK: Final = """
update drover.jobqueue set jq_state = 'blocked', jq_endtext = 'blocked: tape' where jq_state = 'queued'
"""


@pytest.fixture
def admin(login: Login) -> Connection:
    return login("")


@pytest.fixture
def staff(admin: Connection, tenants: list[Connection]) -> Iterator[str]:
    """Yield the name of a tenant without members, the role of which lasts as long as the test."""
    name = f"staff_of_{tenants[0].info.user}"[:63]
    admin.execute(f"create role {name}".encode())
    admin.execute("insert into drover.tenant values (%s)", (name,))
    yield name
    admin.execute("delete from drover.tenant")
    admin.execute(f"drop role {name}".encode())


def join(admin: Connection, tenant: str, member: Connection, how: str = "") -> None:
    admin.execute(f"grant {tenant} to {member.info.user} {how}".encode())


def add_queue(admin: Connection, name: str, tenant: str | None = None) -> None:
    admin.execute("insert into drover.queue (queue_name, queue_group) values (%s, 'default')", (name,))
    if tenant is not None:
        admin.execute("insert into drover.tenant_queue values (%s, %s)", (name, tenant))


def fill(admin: Connection, job: int) -> None:
    """Insert a log line and a piece of output of a job."""
    admin.execute("insert into drover.log (log_jq_fk, log_type, log_message) values (%s, 'LOG', 'm')", (job,))
    admin.execute(
        "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) "
        "values (%s, 1, 1, 'out', 'd')",
        (job,),
    )


def wait_for_lock(connection: Connection) -> None:
    """Wait until a session of the database waits for a lock."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    deadline = time.monotonic() + PATIENCE_S
    while not fetch_one(connection, query):
        assert time.monotonic() < deadline, "no session waits for a lock"


def count(connection: Connection, view: str) -> int:
    return len(fetch_all(connection, f"select * from drover.{view}"))


# ---- what members see


@pytest.mark.parametrize("view", OURS)
def test_members_of_a_tenant_see_the_rows_of_each_other_t113(
    admin: Connection, tenants: list[Connection], staff: str, view: str
) -> None:
    ours, theirs = tenants
    fill(admin, fetch_one(theirs, PLAIN))
    join(admin, staff, ours)
    assert count(ours, view) == 0
    join(admin, staff, theirs)
    assert count(ours, view) == 1


@pytest.mark.parametrize("view", OURS)
def test_a_stranger_sees_nothing_of_a_tenant_t113(
    admin: Connection, tenants: list[Connection], staff: str, view: str
) -> None:
    stranger, member = tenants
    join(admin, staff, member)
    fill(admin, fetch_one(member, PLAIN))
    assert (count(stranger, view), count(member, view)) == (0, 1)


def test_a_role_that_is_no_tenant_lets_nobody_see_more_t113(admin: Connection, tenants: list[Connection]) -> None:
    ours, theirs = tenants
    fetch_one(theirs, PLAIN)  # both are members of drover_frontend
    assert count(ours, "our_jobs") == 0


def test_who_leaves_a_tenant_sees_no_more_of_it_t113(admin: Connection, tenants: list[Connection], staff: str) -> None:
    ours, theirs = tenants
    join(admin, staff, ours)
    join(admin, staff, theirs)
    fetch_one(theirs, PLAIN)
    admin.execute(f"revoke {staff} from {ours.info.user}".encode())
    assert count(ours, "our_jobs") == 0


def test_function_in_a_condition_sees_no_rows_of_strangers_t113(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    stranger, member = tenants
    join(admin, staff, member)
    fetch_one(member, PLAIN)
    admin.execute("""
        create function public.peep(value text) returns boolean language plpgsql cost 0.0000001 as
        $$ begin raise notice '%', value; return true; end $$""")
    seen: list[str | None] = []
    stranger.add_notice_handler(lambda notice: seen.append(notice.message_primary))
    stranger.execute("select jq_pk from drover.our_jobs where public.peep(jq_args)")
    assert seen == []


def test_every_view_that_a_tenant_reads_is_a_security_barrier_t113(admin: Connection) -> None:
    views = fetch_all(
        admin,
        "select relname, coalesce('security_barrier=true' = any (reloptions), false) from pg_class"
        " where relnamespace = 'drover'::regnamespace and relkind = 'v'"
        " and (relname ~ '^(my|our)_' or has_any_column_privilege('drover_tenant', oid, 'select'))",
    )
    assert len(views) > 30
    assert [name for name, is_barrier in views if not is_barrier] == ["condition"]  # words, which are of no job


@pytest.mark.parametrize(
    "table", ["tenant", "tenant_queue", "share", "quota", "recovery", "blocked", "jobs", "impossible"]
)
def test_a_tenant_cannot_read_what_is_of_all_tenants_t104_t113(tenants: list[Connection], table: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        tenants[0].execute(f"select * from drover.{table}".encode())


@pytest.mark.parametrize("table", ["tenant", "tenant_queue", "share"])
def test_a_tenant_cannot_make_itself_a_member_t113(tenants: list[Connection], table: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        tenants[0].execute(f"insert into drover.{table} values (null, null)".encode())


def test_a_tenant_copies_into_the_queue_t113(admin: Connection, tenants: list[Connection], staff: str) -> None:
    ours, _ = tenants
    join(admin, staff, ours)
    with ours.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as rows:
        rows.write_row(("noop", "x"))
    assert count(ours, "our_jobs") == 1


# ---- shared rows


@pytest.mark.parametrize("view", OURS)
def test_a_shared_job_can_be_read_until_it_is_shared_no_more_t28_t21(
    admin: Connection, tenants: list[Connection], view: str
) -> None:
    ours, theirs = tenants
    job = fetch_one(theirs, PLAIN)
    fill(admin, job)
    theirs.execute("select drover.job_share(%s, %s)", (job, ours.info.user))
    assert count(ours, view) == 1
    theirs.execute("select drover.job_share(%s, %s, false)", (job, ours.info.user))
    assert count(ours, view) == 0


def test_a_job_shared_with_a_role_is_read_by_its_members_t28(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    ours, theirs = tenants
    join(admin, staff, ours)
    theirs.execute("select drover.job_share(%s, %s)", (fetch_one(theirs, PLAIN), staff))
    assert count(ours, "our_jobs") == 1


def test_a_shared_job_is_not_commanded_shared_on_or_depended_on_t28_t113(tenants: list[Connection]) -> None:
    ours, theirs = tenants
    job = fetch_one(theirs, PLAIN)
    theirs.execute("select drover.job_share(%s, %s)", (job, ours.info.user))
    with pytest.raises(InsufficientPrivilege, match="is not yours"):
        ours.execute(f"select drover.command('cancel {job}')".encode())
    with pytest.raises(InsufficientPrivilege, match="is not yours"):
        ours.execute("select drover.job_share(%s, 'drover_frontend')", (job,))
    with pytest.raises(InsufficientPrivilege, match="is not yours"):
        add_edge(ours, fetch_one(ours, PLAIN), job)


def test_a_job_is_shared_with_a_role_that_there_is_t28(tenants: list[Connection]) -> None:
    with pytest.raises(UndefinedObject, match="no role 'nobody'"):
        tenants[0].execute("select drover.job_share(%s, 'nobody')", (fetch_one(tenants[0], PLAIN),))


def test_a_share_goes_with_its_job_t28_r52(admin: Connection, tenants: list[Connection]) -> None:
    ours, theirs = tenants
    job = fetch_one(theirs, PLAIN)
    theirs.execute("select drover.job_share(%s, %s)", (job, ours.info.user))
    admin.execute("select drover.remove_jobs(array[%s::bigint])", (job,))
    assert fetch_all(admin, "select * from drover.share") == []


# ---- commands


def test_a_member_with_the_admin_option_commands_the_jobs_of_the_tenant_t60(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    ours, theirs = tenants
    join(admin, staff, theirs)
    join(admin, staff, ours, "with admin option")
    job = fetch_one(theirs, PLAIN)
    assert fetch_one(ours, f"select drover.command('cancel {job}')") > job


@pytest.mark.parametrize("how", ["", "with admin option"])
def test_nobody_commands_jobs_of_those_outside_his_tenant_t60_t113(
    admin: Connection, tenants: list[Connection], staff: str, how: str
) -> None:
    ours, theirs = tenants
    join(admin, staff, ours, how)
    job = fetch_one(theirs, PLAIN)
    with pytest.raises(InsufficientPrivilege, match=f"job {job} is not yours"):
        ours.execute(f"select drover.command('cancel {job}')".encode())


def test_a_plain_member_commands_no_job_of_another_t60(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    ours, theirs = tenants
    join(admin, staff, ours)
    join(admin, staff, theirs)
    job = fetch_one(theirs, PLAIN)
    with pytest.raises(InsufficientPrivilege, match=f"job {job} is not yours"):
        ours.execute(f"select drover.command('killjob {job}')".encode())


# ---- groups


def test_a_stranger_adds_no_job_to_the_group_of_another_t113(tenants: list[Connection]) -> None:
    ours, theirs = tenants
    group = fetch_one(theirs, GROUP, None)
    with pytest.raises(InsufficientPrivilege, match=f"job group {group} is not yours"):
        ours.execute(IN_GROUP.encode(), (group,))


def test_a_member_adds_jobs_to_the_groups_of_his_tenant_t113(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    ours, theirs = tenants
    join(admin, staff, ours)
    join(admin, staff, theirs)
    ours.execute(IN_GROUP.encode(), (fetch_one(theirs, GROUP, staff),))
    assert count(theirs, "our_jobs") == 1


def test_a_stranger_makes_no_group_of_a_tenant_t113(tenants: list[Connection], staff: str) -> None:
    with pytest.raises(InsufficientPrivilege, match="is no member of tenant"):
        tenants[0].execute(GROUP.encode(), (staff,))


def test_a_group_may_name_a_tenant_that_is_no_role_t113(tenants: list[Connection]) -> None:
    assert fetch_one(tenants[0], GROUP, "people of the first floor") > 0


# ---- queues


def test_a_new_tenant_has_a_queue_without_further_ado_t29_t41(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    join(admin, staff, tenants[0])
    assert fetch_one(admin, QUEUE_OF, fetch_one(tenants[0], DEFAULT)) == "default"


@pytest.mark.parametrize("queue", ["null", "'nowhere'"])
def test_a_tenant_without_a_queue_cannot_be_made_t41(admin: Connection, staff: str, queue: str) -> None:
    with pytest.raises(UndefinedObject, match="no queue"):
        admin.execute(f"update drover.tenant set tenant_queue = coalesce({queue}, 'nothing')".encode())


def test_a_job_of_a_tenant_goes_to_its_usual_queue_t41(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    ours, theirs = tenants
    add_queue(admin, "for_staff", staff)
    admin.execute("update drover.tenant set tenant_queue = 'for_staff'")
    join(admin, staff, ours)
    queues = [fetch_one(admin, QUEUE_OF, fetch_one(each, DEFAULT)) for each in (ours, theirs)]
    assert queues == ["for_staff", "default"]


def test_a_tenant_has_many_queues_and_each_gets_jobs_t31_t42(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    names = [f"q{n}" for n in range(5)]
    for name in names:
        add_queue(admin, name, staff)
    join(admin, staff, tenants[0])
    for name in names:
        tenants[0].execute(INTO.encode(), (name,))
    assert fetch_all(tenants[0], "select jq_queue from drover.my_jobs order by 1") == [(name,) for name in names]


REFUSED: Final = "queue for_staff belongs to a tenant, and tenant_"


def test_a_stranger_uses_no_queue_of_a_tenant_t43_t58(admin: Connection, tenants: list[Connection], staff: str) -> None:
    add_queue(admin, "for_staff", staff)
    with pytest.raises(InsufficientPrivilege, match=REFUSED):
        tenants[0].execute(INTO.encode(), ("for_staff",))
    with pytest.raises(InsufficientPrivilege, match=REFUSED):
        tenants[0].execute("select drover.job_setup('noop.1', '{\"jq_queue\": \"for_staff\"}')")


def test_a_stranger_copies_into_no_queue_of_a_tenant_t43_t58(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    add_queue(admin, "for_staff", staff)
    rows = "copy drover.jobqueue (jq_type, jq_queue) from stdin"
    with pytest.raises(InsufficientPrivilege, match=REFUSED), tenants[0].cursor().copy(rows) as copy:
        copy.write_row(("noop", "for_staff"))


def test_a_stranger_reaches_no_queue_of_a_tenant_by_its_host_t43(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    add_queue(admin, "for_staff", staff)
    admin.execute("insert into drover.host (host_name, host_group, host_max) values ('theirs', 'for_staff', 1)")
    with pytest.raises(InsufficientPrivilege, match="belongs to a tenant"):
        tenants[0].execute("insert into drover.jobqueue (jq_type, jq_host) values ('noop', 'theirs')")


def test_filters_of_a_tenants_queues_are_for_its_jobs_alone_t43_t54(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    member, stranger = tenants
    join(admin, staff, member)
    add_filter(admin, "theirs", "type = 'noop'", 9)
    add_filter(admin, "shared", "type = 'noop'", 1)
    fetch_one(admin, "select drover.install_routes()")
    was = fetch_one(admin, QUEUE_OF, fetch_one(stranger, DEFAULT))
    admin.execute("insert into drover.tenant_queue values ('theirs', %s)", (staff,))
    queues = [fetch_one(admin, QUEUE_OF, fetch_one(each, DEFAULT)) for each in (member, stranger)]
    assert (was, queues) == ("theirs", ["theirs", "shared"])


def test_an_operator_uses_every_queue_t43(admin: Connection, login: Login, staff: str) -> None:
    add_queue(admin, "for_staff", staff)
    assert login("drover_operator").execute(INTO.encode(), ("for_staff",)).rowcount == 1


def test_a_queue_is_not_of_two_tenants_t43(admin: Connection, tenants: list[Connection], staff: str) -> None:
    add_queue(admin, "for_staff", staff)
    admin.execute("update drover.tenant set tenant_queue = 'for_staff'")
    other = tenants[1].info.user
    with pytest.raises(CheckViolation, match="queue for_staff belongs to another tenant"):
        admin.execute("insert into drover.tenant values (%s, 'for_staff')", (other,))
    admin.execute("insert into drover.tenant values (%s)", (other,))
    with pytest.raises(CheckViolation, match="usual one of another tenant"):
        admin.execute("update drover.tenant_queue set tq_tenant = %s", (other,))


def test_queue_default_is_of_no_tenant_t43(admin: Connection, staff: str) -> None:
    with pytest.raises(CheckViolation, match="queue default is for all tenants"):
        admin.execute("insert into drover.tenant_queue values ('default', %s)", (staff,))


def test_without_tenants_inserts_ask_for_none_t113(admin: Connection, staff: str) -> None:
    query = "select tgenabled::text from pg_trigger where tgname = 'jobqueue_tenant'"
    was = fetch_one(admin, query)
    admin.execute("delete from drover.tenant")
    assert (was, fetch_one(admin, query)) == ("O", "D")


def test_a_tenant_that_comes_as_the_last_one_goes_keeps_its_separation_t113(
    admin: Connection, login: Login, tenants: list[Connection], staff: str
) -> None:
    query = "select tgenabled::text from pg_trigger where tgname = 'jobqueue_tenant'"
    with login("") as other, ThreadPoolExecutor(1) as pool:
        with admin.transaction():
            admin.execute("insert into drover.tenant values (%s)", (tenants[0].info.user,))
            gone = pool.submit(other.execute, b"delete from drover.tenant where tenant_name = %s", (staff,))
            wait_for_lock(login(""))
        gone.result()
    assert fetch_one(admin, query) == "O"


def test_no_function_takes_an_advisory_lock_that_any_login_may_keep_t113(admin: Connection) -> None:
    query = "select proname from pg_proc where pronamespace = 'drover'::regnamespace and prosrc ~ 'advisory'"
    assert fetch_all(admin, query) == []


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "tenant", "readonly", "operator", "scheduler"])
def test_no_role_holds_a_gate_that_others_wait_for_t113(login: Login, role: str) -> None:
    for statement in (
        "select from drover.gate for update",
        "select drover.enter('queue q')",
        "table drover.gate for share",
    ):
        with pytest.raises((InsufficientPrivilege, ReadOnlySqlTransaction)):
            login(f"drover_{role}").execute(statement.encode())


# ---- names


@pytest.fixture
def discreet(admin: Connection, login: Login, tenants: list[Connection]) -> Iterator[Connection]:
    """Yield the connection of a login that is not to know the names of others' jobs."""
    name = f"discreet_{tenants[0].info.user}"[:63]
    admin.execute(f"create role {name} login in role drover_tenant".encode())
    with login(name) as connection:
        yield connection
    admin.execute(f"drop role {name}".encode())


NAMED: Final = "insert into drover.jobqueue (jq_type, jq_name) values ('noop', 'noop.1') returning jq_pk"
SETUP: Final = "select jq_pk, existed from drover.job_setup('noop.1', %s)"


@pytest.mark.parametrize("column", ["jobqueue.jq_name", "jobqueue.jq_args", "job.job_name", "job.job_data"])
def test_a_member_of_drover_tenant_reads_no_name_of_another_t113(discreet: Connection, column: str) -> None:
    table, name = column.split(".")
    with pytest.raises(InsufficientPrivilege):
        discreet.execute(f"select {name} from drover.{table}".encode())


def test_a_member_of_drover_tenant_inserts_as_one_of_drover_frontend_t113(
    admin: Connection, discreet: Connection
) -> None:
    assert insertable(admin, "drover_tenant") == FRONTEND
    job = fetch_one(discreet, PLAIN)
    discreet.execute(f"{NAMED.split(' returning')[0]} on conflict do nothing".encode())
    with discreet.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as rows:
        rows.write_row(("noop", "x"))
    add_edge(discreet, fetch_one(discreet, PLAIN), job)
    assert (count(discreet, "my_jobs"), count(discreet, "our_jobs")) == (4, 4)
    assert fetch_one(discreet, f"select drover.command('cancel {job}')") > job


def test_a_member_of_drover_tenant_sets_jobs_up_by_name_t113(discreet: Connection) -> None:
    ((job, existed),) = fetch_all(discreet, SETUP, "{}")
    assert (existed, fetch_all(discreet, SETUP, "{}")) == (False, [(job, True)])
    assert fetch_one(discreet, "select drover.job_named('noop.1')") == job
    assert fetch_all(discreet, "select jq_pk from drover.job_setup('noop.2', '{\"depends\": \"noop.1\"}')") == [
        (job + 2,)  # the one that existed took a number
    ]


def test_a_member_of_drover_tenant_finds_no_job_of_another_by_name_t113(
    discreet: Connection, tenants: list[Connection]
) -> None:
    job = fetch_one(tenants[0], NAMED)
    for name in ("noop.1", job):
        with pytest.raises(ForeignKeyViolation, match=f"no job '{name}'"):
            discreet.execute(f"select drover.job_named('{name}')".encode())
    with pytest.raises(UniqueViolation, match=r"job name noop\.1 is taken"):
        fetch_all(discreet, SETUP, "{}")


def test_a_member_of_drover_tenant_sets_up_no_sql_t113(discreet: Connection) -> None:
    with pytest.raises(InsufficientPrivilege):
        fetch_all(discreet, SETUP, '{"jq_msq": true}')


# ---- lengths


@pytest.mark.parametrize("length", [64, 65, 100_000])
def test_a_tenant_with_a_long_name_is_refused_with_the_reason_t117(admin: Connection, length: int) -> None:
    with pytest.raises(UndefinedObject, match=r"no role 'xxx.*': create it, and grant it to the members") as refused:
        admin.execute("insert into drover.tenant values (%s)", ("x" * length,))
    assert len(str(refused.value)) < 300


def test_a_quota_with_a_long_name_is_refused_t117(admin: Connection) -> None:
    with pytest.raises(CheckViolation):
        admin.execute("insert into drover.quota (quota_name, quota_most, quota_user) values (%s, 1, '*')", ("x" * 65,))


# ---- conditions


def test_blocked_jobs_of_two_tenants_have_separate_conditions_t74(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    join(admin, staff, tenants[0])
    for tenant in (*tenants, tenants[0]):
        tenant.execute(PLAIN.encode())
    admin.execute(BLOCK.encode())
    query = "select recovery_tenant, recovery_came from drover.recovery where recovery_condition = 'tape' order by 1"
    assert fetch_all(admin, query) == [(staff, 2), (None, 1)]


def test_a_quota_counts_blocked_jobs_of_all_tenants_together_t74_t116(
    admin: Connection, tenants: list[Connection], staff: str
) -> None:
    join(admin, staff, tenants[0])
    for tenant in tenants:
        tenant.execute(PLAIN.encode())
    admin.execute(BLOCK.replace("tape", "quota:few 1 of 1").encode())
    assert fetch_all(admin, "select recovery_tenant, recovery_came from drover.recovery") == [(None, 2)]


def test_a_tenant_sees_the_conditions_of_its_own_jobs_only_t74_t113(
    tenants: list[Connection], admin: Connection
) -> None:
    ours, theirs = tenants
    theirs.execute(PLAIN.encode())
    admin.execute(BLOCK.encode())
    assert (count(ours, "my_blocked"), count(theirs, "my_blocked")) == (0, 1)
