"""Tenants that share one installation, by the real daemon; and a stranger who tries all that a login may."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from scheduler.model.verbs import VERBS
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import Meeting, puppet, rows
from tests.patience import LONG_PATIENCE_S

Connection = psycopg.Connection[Any]

MEMBERS: Final = {"anna": "lab", "bert": "lab", "carl": "shop", "eve": None, "dora": None}
TYPES: Final = "[hosts.local]\n" + puppet(slots=8) + rows("reader", ":")
QUEUES: Final = "[queues.lab]\n[queues.shop]\n"
INSERT: Final = "insert into drover.jobqueue (jq_type, jq_args) values ('puppet', %s) returning jq_pk"
OWN_VERBS: Final = sorted(name for name, verb in VERBS.items() if verb.is_for_owners)
WORDS: Final = {"priority": "{} a", "signal": "{} TERM", "cancel": "{} because"}
READ: Final = """
select relname, string_agg(quote_ident(attname), ', ' order by attnum)
  from pg_class c join pg_attribute on attrelid = c.oid
 where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v') and attnum > 0
   and not attisdropped and has_column_privilege(c.oid, attnum, 'select')
 group by 1
"""


class Site:
    """A database with two tenants, `lab` of anna and bert and `shop` of carl, and with strangers: eve and dora."""

    def __init__(self, database: str, stack: ExitStack) -> None:
        self._database, self._stack = database, stack
        self.owner = self._connect()
        for name in ("lab", "shop"):
            self._role(name, "nologin")
        for name, tenant in MEMBERS.items():
            self._role(name, f"login in role {'drover_tenant' if name == 'dora' else 'drover_frontend_sql'}")
            if tenant:
                self.owner.execute(f"grant {self.role(tenant)} to {self.role(name)}".encode())

    def role(self, name: str) -> str:
        """Return the name of a role of this test alone."""
        return f"{name}_of_tenants"

    def _role(self, name: str, what: str) -> None:
        self.owner.execute(f"create role {self.role(name)} {what}".encode())
        self._stack.callback(self.owner.execute, f"drop role {self.role(name)}".encode())

    def _connect(self, **parameters: str) -> Connection:
        return self._stack.enter_context(psycopg.connect(make_conninfo(self._database, **parameters), autocommit=True))

    def login(self, name: str) -> Connection:
        """Log in as one of them."""
        return self._connect(user=self.role(name))

    def found(self) -> None:
        """Make the tenants, each with a queue of its own, which the daemon has registered."""
        for name in ("lab", "shop"):
            self.owner.execute("insert into drover.tenant values (%s)", (self.role(name),))
            self.owner.execute("insert into drover.tenant_queue values (%s, %s)", (name, self.role(name)))
            self.owner.execute("update drover.tenant set tenant_queue = %s where tenant_name = %s",
                               (name, self.role(name)))  # fmt: skip


@pytest.fixture
def site(database_with_roles: str) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(database_with_roles, stack)


@pytest.fixture
def daemon(launch: Launch, site: Site) -> Daemon:
    daemon = launch(TYPES + QUEUES)
    site.found()
    return daemon


def queue(who: Connection, args: str) -> int:
    return int(one(who, INSERT, args))


def one(who: Connection, query: str, *values: object) -> Any:
    row = who.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def numbers(who: Connection, view: str = "our_jobs") -> list[int]:
    return sorted(pk for (pk,) in who.execute(f"select jq_pk from drover.{view} where jq_type <> 'command'".encode()))


def running(daemon: Daemon, meeting: Meeting, who: Connection) -> int:
    """Queue a job that runs until it is let go, and wait until it does."""
    job = queue(who, f"{meeting.tell('here')}; {meeting.wait}")
    meeting.hear()
    daemon.until(lambda: daemon.row(job)["jq_state"] == "running")
    return job


# ---- side by side


def test_two_tenants_run_jobs_in_one_database_at_the_same_time_t35(
    daemon: Daemon, meeting: Meeting, site: Site
) -> None:
    anna, bert, carl = (site.login(name) for name in ("anna", "bert", "carl"))
    ours = [running(daemon, meeting, who) for who in (anna, bert)]
    theirs = running(daemon, meeting, carl)
    assert (numbers(anna), numbers(bert), numbers(carl)) == (ours, ours, [theirs])
    assert [daemon.row(pk)["jq_queue"] for pk in (*ours, theirs)] == ["lab", "lab", "shop"]
    meeting.let_go(3)
    daemon.wait_all([*ours, theirs])


def test_a_flooded_queue_of_one_tenant_delays_no_other_t45(launch: Launch, meeting: Meeting, site: Site) -> None:
    daemon = launch(TYPES + "[queues.lab]\nconcurrency = 2\n[queues.shop]\n")
    site.found()
    anna = site.login("anna")
    flood = [queue(anna, meeting.wait) for _ in range(20)]
    daemon.wait(queue(site.login("carl"), ":"))
    assert {daemon.row(job)["jq_state"] for job in flood} <= {"queued", "claimed", "running"}
    meeting.let_go(20)


def test_a_shared_job_and_its_log_are_read_by_another_and_commanded_by_none_t28(daemon: Daemon, site: Site) -> None:
    anna, eve = site.login("anna"), site.login("eve")
    job = queue(anna, "echo LOG read me")
    daemon.wait(job)
    anna.execute("select drover.job_share(%s, %s)", (job, site.role("eve")))
    assert numbers(eve) == [job]
    assert one(eve, "select log_message from drover.our_log where log_type = 'LOG'") == "read me"
    with pytest.raises(InsufficientPrivilege, match="is not yours"):
        eve.execute(f"select drover.command('retry {job}')".encode())


def test_a_tenants_admin_cancels_what_a_member_runs_t60_t61(daemon: Daemon, meeting: Meeting, site: Site) -> None:
    site.owner.execute(f"grant {site.role('lab')} to {site.role('bert')} with admin option".encode())
    job = running(daemon, meeting, site.login("anna"))
    site.login("bert").execute(f"select drover.command('cancel {job} enough')".encode())
    assert daemon.wait(job, "cancelled")["jq_endtext"] == f"cancelled by {site.role('bert')}: enough"


def test_a_tenants_admin_releases_what_a_member_holds_and_the_jobs_below_t60(daemon: Daemon, site: Site) -> None:
    site.owner.execute(f"grant {site.role('lab')} to {site.role('bert')} with admin option".encode())
    anna = site.login("anna")
    held = "insert into drover.jobqueue (jq_type, jq_args, jq_state) values ('puppet', ':', 'held') returning jq_pk"
    parent, child = one(anna, held), one(anna, held)
    anna.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
    site.login("bert").execute(f"select drover.command('release {parent}')".encode())
    assert [row["jq_attempt"] for row in daemon.wait_all([parent, child])] == [1, 1]


def test_a_condition_of_one_tenant_is_checked_apart_from_that_of_another_t74(daemon: Daemon, site: Site) -> None:
    jobs = [queue(site.login(name), "echo BLOCKED tape") for name in ("anna", "bert", "carl", "eve")]
    for job in jobs:
        daemon.wait(job, "blocked")
    query = """select recovery_tenant as tenant, count(*)::integer as n from drover.recovery
                 join drover.blocked on blocked_recovery = recovery_pk group by 1 order by 1"""
    found = [(row["tenant"], row["n"]) for row in daemon.execute(query)]
    assert found == [(site.role("lab"), 2), (site.role("shop"), 1), (None, 1)]


@pytest.mark.slow
def test_a_tenant_with_a_group_of_its_own_has_an_msq_login_of_its_own_t113(
    launch: Launch, site: Site, database_with_roles: str
) -> None:
    launch(TYPES)
    msq = "lab_msq_of_tenants"
    site.owner.execute(f"create role {msq} login; create table public.secrets as select 'x' as a".encode())
    site.owner.execute(f"grant select on public.secrets to {msq}".encode())
    try:
        settings = (
            f'[scheduler]\ngroup = "lab"\n[database]\nmsq_url = "{make_conninfo(database_with_roles, user=msq)}"\n'
        )
        daemon = launch(settings + "[hosts.labs]\n" + rows("reader", ":"))
        site.owner.execute("insert into drover.tenant values (%s)", (site.role("lab"),))
        site.owner.execute("insert into drover.tenant_queue values ('lab', %s)", (site.role("lab"),))
        site.owner.execute("update drover.tenant set tenant_queue = 'lab'")
        sql = """insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ('reader', 'select * from secrets', true)
                 returning jq_pk"""
        ours, strangers = (one(site.login(name), sql) for name in ("anna", "eve"))
        daemon.wait(ours)
        assert "permission denied for table secrets" in daemon.wait(strangers, "failed")["jq_endtext"]
        for columns in ("jq_queue) values ('reader', true, 'lab'", "jq_host) values ('reader', true, 'labs'"):
            with pytest.raises(InsufficientPrivilege, match="queue lab belongs to a tenant"):
                site.login("eve").execute(f"insert into drover.jobqueue (jq_type, jq_msq, {columns})".encode())
    finally:
        site.owner.execute(f"drop table public.secrets; drop role {msq}".encode())


# ---- a stranger


def fill(daemon: Daemon, meeting: Meeting, anna: Connection) -> None:
    """Let anna have jobs in many states, with a secret wherever a text may be; and a group, with secret and name."""
    data = "insert into drover.job (job_name, job_data) values ('named', '{\"x\": \"secret\"}') returning job_pk"
    columns = "jq_type, jq_args, jq_name, jq_job_fk, jq_state"
    held = f"insert into drover.jobqueue ({columns}) values ('puppet', 'secret', 'puppet.named', %s, 'held')"
    anna.execute("select drover.subscribe()")
    anna.execute(held.encode(), (one(anna, data),))
    daemon.wait(queue(anna, "echo LOG secret; echo FAIL secret"), "failed")
    daemon.wait(queue(anna, "echo BLOCKED tape secret"), "blocked")
    running(daemon, meeting, anna)


def seen_by(who: Connection) -> dict[str, str]:
    """Return all that a login may read in the schema, by table and view."""
    readable = who.execute(READ.encode()).fetchall()
    return {table: str(who.execute(f"select {columns} from drover.{table}".encode()).fetchall())
            for table, columns in readable}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), [("eve", "secret"), ("dora", "secret|named")])
def test_a_stranger_reads_nothing_of_a_tenant_anywhere_t113(
    daemon: Daemon, meeting: Meeting, site: Site, name: str, words: str
) -> None:
    fill(daemon, meeting, site.login("anna"))
    seen = seen_by(site.login(name))
    assert [table for table, found in seen.items() if re.search(words, found)] == []
    assert [table for table, found in seen.items() if found != "[]" and table.startswith(("my_", "our_"))] == []


def test_a_member_reads_all_that_the_views_for_members_show_c54_t113(
    daemon: Daemon, meeting: Meeting, site: Site
) -> None:
    fill(daemon, meeting, site.login("anna"))
    seen = seen_by(site.login("bert"))
    assert {table for table, found in seen.items() if "secret" in found} == {"our_jobs", "our_why", "our_log"}


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_a_stranger_commands_no_job_of_a_tenant_t113(daemon: Daemon, meeting: Meeting, site: Site, verb: str) -> None:
    job = running(daemon, meeting, site.login("anna"))
    words = f"{verb} {WORDS.get(verb, '{}').format(job)}"
    with pytest.raises(InsufficientPrivilege, match=f"job {job} is not yours"):
        site.login("eve").execute("select drover.command(%s)", (words,))
    assert daemon.row(job)["jq_state"] == "running"


@pytest.mark.parametrize(
    "statement",
    [
        "insert into drover.jobqueue (jq_type, jq_args) values ('command', 'cancel {}')",
        "insert into drover.jobqueue (jq_type, jq_submitter) values ('puppet', 'anna_of_tenants')",
        "update drover.jobqueue set jq_priority = 'a' where jq_pk = {}",
        "delete from drover.jobqueue where jq_pk = {}",
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values ({own}, {})",
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values ({}, {own})",
        "insert into drover.jobqueue (jq_type, jq_job_fk) values ('puppet', {group})",
        "insert into drover.jobqueue (jq_type, jq_queue) values ('puppet', 'lab')",
        "insert into drover.job (job_tenant) values ('lab_of_tenants')",
        "select drover.job_share({}, 'eve_of_tenants')",
        "insert into drover.share values ({}, 'eve_of_tenants')",
        "insert into drover.tenant values ('eve_of_tenants')",
        "update drover.tenant_queue set tq_tenant = 'shop_of_tenants'",
        "delete from drover.quota",
        "select drover.subscribe(job => {})",
        "select drover.subscribe(tenant => 'lab_of_tenants')",
        "select drover.subscribe(owner => 'anna_of_tenants')",
        "select drover.subscribe(is_site => true)",
        "select drover.job_event({}, 'x')",
        "select drover.agent_event({}, 'x')",
        "select * from drover.event",
        "select * from drover.delivery",
        "select * from drover.subscription",
        "select * from drover.subscription_key",
        "select * from drover.dead_letter",
        "set role anna_of_tenants",
        "set session authorization anna_of_tenants",
        "grant lab_of_tenants to eve_of_tenants",
        "select drover.members_of('anna_of_tenants', array['lab_of_tenants'])",
        "select drover.wards('anna_of_tenants')",
        "select drover.prune('{{\"failed\": \"2100-01-01\"}}', 10, 'jobs', 0)",
        "select drover.remove_jobs(array[{}])",
        "select drover.settle(array[{}]::bigint[], 0, 1, false)",
        "alter view drover.our_jobs set (security_barrier = false)",
        "create view drover.all_jobs as select * from drover.jobqueue",
    ],
)
def test_a_stranger_changes_nothing_of_a_tenant_t113(daemon: Daemon, site: Site, statement: str) -> None:
    anna, eve = site.login("anna"), site.login("eve")
    job = queue(anna, ":")
    daemon.wait(job)
    group = one(anna, "insert into drover.job (job_name) values ('g') returning job_pk")
    own = one(eve, "insert into drover.jobqueue (jq_type, jq_state) values ('puppet', 'held') returning jq_pk")
    with pytest.raises(InsufficientPrivilege):
        eve.execute(statement.format(job, own=own, group=group).encode())


def test_a_stranger_resubmits_no_job_of_a_tenant_and_hides_no_group_t113(daemon: Daemon, site: Site) -> None:
    anna, eve = site.login("anna"), site.login("eve")
    job = queue(anna, ":")
    daemon.wait(job)
    group = one(anna, "insert into drover.job (job_name) values ('g') returning job_pk")
    with pytest.raises(psycopg.errors.NoDataFound, match=f"no job {job} of yours"):
        eve.execute("select drover.job_resubmit(%s)", (job,))
    with pytest.raises(psycopg.errors.NoDataFound, match="no job group"):
        eve.execute("select drover.job_hide(%s)", (group,))


def test_a_stranger_hears_numbers_and_states_of_jobs_and_no_contents_t63_t113(daemon: Daemon, site: Site) -> None:
    eve = site.login("eve")
    eve.execute("listen drover_event")
    job = queue(site.login("anna"), "echo LOG secret; echo FAIL secret")
    daemon.wait(job, "failed")
    heard = [notice.payload for notice in eve.notifies(timeout=LONG_PATIENCE_S, stop_after=1)]
    assert str(job) in heard[0]
    assert "secret" not in heard[0]


def test_a_text_that_is_too_long_is_refused_with_its_name_and_the_limit_t117(daemon: Daemon, site: Site) -> None:
    anna = site.login("anna")
    with pytest.raises(psycopg.errors.CheckViolation, match="jq_name has 2007 bytes, and 2000 are let in"):
        anna.execute("insert into drover.jobqueue (jq_type, jq_name) values ('puppet', 'puppet.' || repeat('x', 2000))")
    with pytest.raises(psycopg.errors.CheckViolation, match="job_tenant has 2001 bytes, and 2000 are let in"):
        anna.execute("insert into drover.job (job_tenant) values (repeat('x', 2001))")


def test_a_long_message_of_an_agent_is_cut_with_a_marker_and_whole_in_the_log_t117(daemon: Daemon, site: Site) -> None:
    job = queue(site.login("anna"), "x=$(head -c 20000 /dev/zero | tr '\\0' x); echo LOG $x; echo FAIL $x")
    assert daemon.wait(job, "failed")["jq_endtext"] == "x" * 16_300 + " [cut: 20000 characters]"
    assert daemon.log_text(job).count("x" * 20_000) == 2  # LOG, and why it failed


@pytest.mark.slow
def test_a_line_of_an_agent_that_is_too_long_fails_its_job_with_the_reason_t117(daemon: Daemon, site: Site) -> None:
    job = queue(site.login("anna"), "head -c 2000000 /dev/zero | tr '\\0' x; echo; sleep 60")
    assert daemon.wait(job, "failed")["jq_endtext"].startswith("protocol violation: line over ")
