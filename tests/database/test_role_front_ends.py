"""What front-ends may insert, set up and command, against the real grants of roles.sql."""

from itertools import takewhile

import pytest
from psycopg.errors import (
    CheckViolation,
    InsufficientPrivilege,
    InvalidParameterValue,
    ObjectNotInPrerequisiteState,
    ReadOnlySqlTransaction,
)

from scheduler.model.verbs import VERBS
from tests.patience import LONG_PATIENCE_S
from tests.role_tools import FRONTEND, PLAIN, SQL_ONLY, Login, add_edge, insertable
from tests.schema_tools import Connection, fetch_all, fetch_one

OWNERS = ["killjob", "cancel", "signal", "release", "hold", "ice", "retry", "priority", "run"]


def test_front_end_may_give_exactly_the_columns_of_the_contract_f27(login: Login) -> None:
    assert insertable(login(""), "drover_frontend") == FRONTEND


def test_front_end_with_sql_may_give_four_more_f27(login: Login) -> None:
    assert insertable(login(""), "drover_frontend_sql") == FRONTEND | SQL_ONLY


def test_front_end_can_set_up_a_group_with_jobs_and_edges_f27(login: Login) -> None:
    ui = login("drover_frontend")
    with ui.transaction():
        ui.execute("insert into drover.job (job_name, job_priority, job_tenant) values ('scan', 100, 'acme')")
        group = fetch_one(ui, "select job_pk from drover.job where job_name = 'scan'")
        insert = "insert into drover.jobqueue (jq_type, jq_args, jq_job_fk) values ('noop', %s, %s) returning jq_pk"
        parent, child = fetch_one(ui, insert, "a", group), fetch_one(ui, insert, "b", group)
        add_edge(ui, child, parent)
    seen = fetch_all(ui, "select jq_pk, jq_unmet, jq_urgent, jq_submitter from drover.my_jobs order by jq_pk")
    assert seen == [(parent, 0, True, "drover_frontend"), (child, 1, True, "drover_frontend")]


def test_front_end_with_sql_may_queue_sql_f17(login: Login) -> None:
    insert = """insert into drover.jobqueue (jq_type, jq_args, jq_runonpfile, jq_key)
                values ('sha256', 'select pfile_pk, host from pfile', 'host', 'pfile_pk') returning jq_pk"""
    job = fetch_one(login("drover_frontend_sql"), insert)
    assert fetch_one(login(""), "select jq_msq from drover.jobqueue where jq_pk = %s", job)


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
def test_command_of_a_role_that_is_no_operator_is_refused_j96_c53(login: Login, role: str) -> None:
    with pytest.raises(InsufficientPrivilege, match="only drover_operator may insert commands"):
        login(f"drover_{role}").execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'shutdown')")


@pytest.mark.parametrize("signal", ["STOP", "SIGSTOP", "sigstop", "19", "TSTP", "CONT", "KILL", "9", "x"])
def test_owner_of_a_job_may_not_send_signals_that_stop_a_shared_agent(login: Login, signal: str) -> None:
    job = fetch_one(login("drover_frontend"), PLAIN)
    for words in (f"signal {job} {signal}", f"signal {job} TERM {job} {signal}"):
        with pytest.raises(
            InsufficientPrivilege, match=f"may send signal {signal}: owners send INT, TERM, HUP, USR1 or USR2"
        ):
            login("drover_frontend").execute("select drover.command(%s)", (words,))
    assert fetch_one(login("drover_operator"), "select drover.command(%s)", f"signal {job} {signal}")


@pytest.mark.parametrize("signal", ["INT", "SIGTERM", "hup", "10", "USR2"])
def test_owner_of_a_job_may_send_harmless_signals(login: Login, signal: str) -> None:
    ui = login("drover_frontend")
    assert fetch_one(ui, "select drover.command(%s)", f"signal {fetch_one(ui, PLAIN)} {signal}")


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


def test_clean_up_belongs_to_the_submitter_of_the_job_r43(login: Login, tenants: list[Connection]) -> None:
    ours, theirs = tenants
    insert = "insert into drover.jobqueue (jq_type, jq_delete) values ('noop', '{/srv/data/x}') returning jq_pk"
    job, daemon = fetch_one(ours, insert), login("drover_scheduler")
    for move in (
        "jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now()",
        "jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1, jq_done_host = 'alpha', "
        "jq_done_by = gen_random_uuid()",
    ):
        daemon.execute(f"update drover.jobqueue set {move} where jq_pk = %s".encode(), (job,))
    found = (
        "select jq_args::json ->> 'names', jq_host, jq_submitter = session_user from drover.my_jobs where jq_name = %s"
    )
    assert fetch_all(ours, found, f"cleanup.{job}") == [('["/srv/data/x"]', "alpha", True)]
    assert fetch_all(ours, "select cleanup_state from drover.my_cleanup where jq_pk = %s", job) == [("pending",)]
    assert fetch_all(theirs, found, f"cleanup.{job}") == []


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
    with pytest.raises((InsufficientPrivilege, ObjectNotInPrerequisiteState)):  # nobody updates the view
        login(f"drover_{role}").execute(statement.encode())


@pytest.mark.parametrize("verb", OWNERS)
def test_front_end_without_update_rights_gives_each_command_about_its_job_t24_t110(login: Login, verb: str) -> None:
    ui = login("drover_frontend")
    words = {"signal": "TERM", "priority": "a"}.get(verb, "")
    order = fetch_one(ui, "select drover.command(%s)", f"{verb} {fetch_one(ui, PLAIN)} {words}".strip())
    writes = "select has_any_column_privilege('drover.jobqueue', 'update')"
    assert fetch_one(login(""), "select jq_args from drover.jobqueue where jq_pk = %s", order).startswith(verb)
    assert fetch_one(ui, writes) is False


@pytest.mark.parametrize(
    "table", ["scheduler", "scheduler_group", "scheduler_status", "claimable", "in_hand", "recovery", "blocked", "host"]
)
@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "tenant", "readonly"])
def test_front_end_writes_no_lease_slot_nor_claim_t20(login: Login, role: str, table: str) -> None:
    for statement in (f"insert into drover.{table} default values", f"delete from drover.{table}"):
        with pytest.raises((InsufficientPrivilege, ReadOnlySqlTransaction), match=r"permission|read-only"):
            login(f"drover_{role}").execute(statement.encode())


def test_copy_of_ten_thousand_rows_wakes_listeners_once(login: Login) -> None:
    daemon, ui = login("drover_scheduler"), login("drover_frontend")
    daemon.execute("listen drover_queue")
    with ui.cursor().copy("copy drover.jobqueue (jq_type, jq_args) from stdin") as copy:
        copy.write("".join(f"noop\t{number}\n" for number in range(10_000)))
    ui.execute("notify drover_queue, 'end'")
    woken = list(takewhile(lambda notify: notify.payload != "end", daemon.notifies(timeout=LONG_PATIENCE_S)))
    assert len(woken) == 1
    assert fetch_one(login(""), "select count(*) from drover.jobqueue where jq_state = 'queued'") == 10_000


def test_name_makes_set_up_idempotent_r22(login: Login) -> None:
    insert = """insert into drover.jobqueue (jq_type, jq_name) values ('billing', 'billing.simpsons-8761230871234')
                on conflict (jq_name) do nothing returning jq_pk"""
    ui = login("drover_frontend")
    assert [len(fetch_all(ui, insert)), len(fetch_all(ui, insert))] == [1, 0]


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
    assert fetch_all(login(""), "select jq_type, jq_args, jq_state from drover.jobqueue") == [
        (job_type, arguments, "queued")
    ]
