"""Commands that wait say for what, and end: taken by a scheduler, or withdrawn so that they do not act later."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import DROVER, environment, insert, one
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import puppet
from tests.terminal_tools import on_terminal

TEXT = "[hosts.local]\n" + puppet()
REFUSE = """
create function public.refuse() returns trigger language plpgsql as $$begin raise exception 'not here'; end$$;
create trigger theirs before update on drover.queue for each row execute function public.refuse()
"""


@pytest.mark.parametrize(
    "words", ["cancel JOB", "retry JOB", "pause", "flush 0", "queue add q 1", "run JOB", "cancel --type other --yes",
              "command poll", "pause --wait", "drain"],
)  # fmt: skip
def test_command_that_no_scheduler_takes_is_withdrawn_and_ends(database_with_roles: str, ask: Ask, words: str) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as queue:
        job = insert(queue, "other")
        done = ask(f"{words.replace('JOB', str(job))} --for 0.2")
        rows = queue.execute(
            "select jq_state::text, jq_endtext from drover.jobqueue where jq_type = 'command'"
        ).fetchall()
    if words == "drain":
        assert (done.status, rows) == (0, [])
        return
    text = "withdrawn after 0.2 s: no scheduler of group default is active; nothing was done"
    assert (done.status, rows) == (4, [("failed", text)])
    assert done.err.splitlines()[0].startswith("drover: no scheduler is active: the commands wait until one is; ")
    assert done.err.splitlines()[-1] == f"drover: {text}"


def test_withdrawn_command_does_not_act_when_a_scheduler_starts(
    database_with_roles: str, launch: Launch, ask: Ask
) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as queue:
        job = insert(queue, "other")
    assert ask(f"cancel {job} --for 0").status == 4
    daemon = launch(TEXT)
    assert ask("poll").status == 0
    assert daemon.row(job)["jq_state"] == "queued"


def test_command_whose_giver_is_gone_does_not_act_after_its_time(
    database_with_roles: str, launch: Launch, ask: Ask
) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as queue:
        job = insert(queue, "other")
        command = one(queue.execute("select drover.command(%s, null, '0 s')", (f"cancel {job}",)))[0]
    daemon = launch(TEXT)
    assert daemon.wait(command, "failed")["jq_endtext"] == "no scheduler took it in time: nothing was done"
    assert daemon.row(job)["jq_state"] == "queued"


def test_command_that_may_wait_for_ever_is_carried_out_when_a_scheduler_starts(
    database_with_roles: str, launch: Launch, ask: Ask
) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as queue:
        job = insert(queue, "other")
    left = ask(f"cancel {job} --for inf --wait=0")
    assert (left.status, left.out) == (1, "")
    assert "; no scheduler of group default is active; what a scheduler takes is carried out" in left.err
    assert launch(TEXT).wait(job, "cancelled")


def test_group_without_a_scheduler_is_named_beside_others_that_have_one(launch: Launch, ask: Ask) -> None:
    daemon = launch(TEXT)
    daemon.execute("insert into drover.scheduler_group (group_name) values ('far')")
    daemon.execute("insert into drover.queue (queue_name, queue_group) values ('far', 'far')")
    job = daemon.insert(jq_type="other", jq_queue="far")
    daemon.execute("update drover.scheduler_group set group_lease_until = now() + interval '1 h', group_owner ="
                   " gen_random_uuid() where group_name = 'far'")  # fmt: skip
    done = ask(f"hold {job} --for 0.2")
    assert done.status == 4
    assert "no scheduler of group far is active" in done.err


def test_command_that_the_database_refuses_ends_with_the_reason(launch: Launch, ask: Ask) -> None:
    daemon = launch(TEXT)
    daemon.execute(REFUSE)
    done = ask("pause --for 1")
    assert done.status == 1
    assert done.err.splitlines()[-1].startswith("drover: given up after 1 s: ")
    assert "not here" in done.err
    daemon.execute("drop trigger theirs on drover.queue")


def test_command_whose_job_is_locked_says_by_whom_and_ends(
    launch: Launch, database_with_roles: str, config: Path
) -> None:
    daemon = launch(TEXT)
    job = daemon.insert(jq_type="other")
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with psycopg.connect(database_with_roles, application_name="site") as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for update", (job,))
        with on_terminal([*DROVER, "cancel", str(job), "--for", "8"], variables, columns=200) as (shown, _):
            shown.until(f"is locked by session {other.info.backend_pid} (postgres, site")
            shown.until("given up after 8 s: what it names is locked by another session")


def test_command_on_a_terminal_says_every_few_seconds_what_it_waits_for(database_with_roles: str, config: Path) -> None:
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with on_terminal([*DROVER, "pause", "--for", "9"], variables, columns=200) as (shown, _):
        shown.until("0 of 1 answers")
        shown.until(": no scheduler of group default is active")
        shown.until("withdrawn after 9 s")


def test_wait_for_a_job_says_on_a_terminal_why_it_does_not_end(database_with_roles: str, config: Path) -> None:
    with psycopg.connect(database_with_roles, autocommit=True) as queue:
        job = insert(queue, "other")
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)
    with on_terminal([*DROVER, "wait", str(job), "--timeout", "8"], variables, columns=200) as (shown, _):
        shown.until(f"s: job {job}: no agent type 'other' is configured in group default")
