"""Where a job runs, from the start on: in its row, in its attempt, in drover.why; and what a rescue tells of it."""

import pytest

from scheduler.model.queue_requests import EndAndClaim, Mark, MarkRow, Save, SaveRow
from tests.connection_tools import OTHER, OWNER, QUERIES, ask, fetch, take_group
from tests.queue_tools import Desk, end, insert, mark, states

WHERE = "select jq_state::text, jq_done_host, jq_done_pid from drover.jobs order by jq_pk"
ATTEMPTS = (
    "select att_attempt, att_host, att_agent, att_pid, att_outcome, att_end is null from drover.attempt order by 1"
)
LOG = "select log_type, log_host, log_agent, log_pid, log_message from drover.log"


def _begin(desk: Desk, host: str | None = "alpha", pid: int | None = 42, state: str = "running") -> int:
    """Claim a job and let an agent work on it for a moment; return its attempt."""
    (claim,) = desk.claim()
    desk.ask(Mark([MarkRow(claim.pk, claim.attempt, state, 0, host, pid)]))
    return claim.attempt


def _die_and_rescue(desk: Desk, database: str, state: str = "running", host: str | None = "alpha") -> None:
    """Let another daemon begin a job and die, and give back what it had."""
    take_group(database, OTHER)
    with Desk(database, OTHER) as other:
        _begin(other, host, 42 if host else None, state)
    take_group(database)
    ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=OWNER, live=[], age=0.0)


def test_row_shows_where_it_runs_from_the_start_and_queued_shows_nothing_f45(desk: Desk, database: str) -> None:
    insert(database)
    attempt = _begin(desk)
    shown = [fetch(database, WHERE)]
    desk.ask(Save([SaveRow(1, attempt, "queued", outcome="given back", host="alpha", agent="a", pid=42)]))
    shown.append(fetch(database, WHERE))
    _begin(desk, "beta", 7)
    shown.append(fetch(database, WHERE))
    assert shown == [[("running", "alpha", 42)], [("queued", None, None)], [("running", "beta", 7)]]


def test_row_of_a_job_that_ended_keeps_where_it_ran_f45(desk: Desk, database: str) -> None:
    insert(database)
    attempt = _begin(desk)
    desk.ask(Save([SaveRow(1, attempt, "failed", bits=2, outcome="failed", host="alpha", agent="a", pid=42)]))
    assert fetch(database, WHERE) == [("failed", "alpha", 42)]


def test_row_of_an_sql_job_names_no_agent(desk: Desk, database: str) -> None:
    insert(database, "('a', 'select 1', true)", "jq_type, jq_args, jq_msq")
    attempt = _begin(desk, None, None)
    desk.ask(Save([SaveRow(1, attempt, "running", processed=3, host="alpha", agent="a", pid=42)]))
    assert fetch(database, WHERE) == [("running", None, None)]


def test_why_tells_where_a_running_job_is(desk: Desk, database: str) -> None:
    insert(database)
    _begin(desk)
    ((why, masked),) = fetch(
        database, "select w.reason, m.reason from drover.why w join drover.why_masked m using (jq_pk)"
    )
    assert why.startswith("running on host alpha, pid 42, in hand since ")
    assert masked == why


def test_attempt_of_a_running_job_is_shown_without_an_end_f45_f47(desk: Desk, database: str) -> None:
    insert(database)
    (claim,) = desk.claim()
    shown = [fetch(database, ATTEMPTS)]
    desk.ask(Mark([MarkRow(claim.pk, 1, "running", 0, "alpha", 42)]))
    shown.append(fetch(database, ATTEMPTS))
    desk.ask(EndAndClaim([end(claim)], ()))
    shown.append(fetch(database, ATTEMPTS))
    assert shown == [[], [(1, "alpha", "a", 42, None, True)], [(1, "alpha", "a", 42, "done", False)]]


def test_rescue_of_a_running_job_tells_where_it_was_in_its_attempt_and_its_log_f45(desk: Desk, database: str) -> None:
    insert(database)
    _die_and_rescue(desk, database)
    assert (states(database), fetch(database, WHERE)) == (["queued"], [("queued", None, None)])
    assert fetch(database, ATTEMPTS) == [(1, "alpha", "a", 42, "rescued", False)]
    text = "interrupted: its scheduler here.7 is gone; queued again, interruption 1 of 3"
    assert fetch(database, LOG) == [("WARNING", "alpha", "a", 42, text)]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("jq_interruptions = 3", "interrupted: its scheduler here.7 is gone; failed: interrupted more than 3 times"),
        ("jq_wanted = 'kill'", "interrupted: its scheduler here.7 is gone; failed: killed"),
        ("jq_wanted = 'cancel why'", "interrupted: its scheduler here.7 is gone; cancelled: why"),
    ],
)
def test_rescue_that_ends_a_job_tells_so_in_one_line(desk: Desk, database: str, columns: str, told: str) -> None:
    insert(database)
    take_group(database, OTHER)
    with Desk(database, OTHER) as other:
        _begin(other)
    fetch(database, f"update drover.jobqueue set {columns}")
    take_group(database)
    ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=OWNER, live=[], age=0.0)
    assert [message for *_, message in fetch(database, LOG + " where log_jq_fk = 1")] == [told]
    assert fetch(database, "select jq_done_host, jq_done_pid from drover.jobqueue") == [("alpha", 42)]


def test_rescue_of_a_job_that_no_agent_had_names_no_host(desk: Desk, database: str) -> None:
    insert(database)
    _die_and_rescue(desk, database, "claimed", None)
    assert fetch(database, ATTEMPTS) == [(1, None, None, None, "rescued", False)]
    assert fetch(database, LOG) == [
        ("WARNING", None, None, None, "rescued: its scheduler here.7 is gone; queued again")
    ]


def test_rescue_of_a_job_in_hand_by_record_names_its_scheduler(desk: Desk, database: str) -> None:
    insert(database)
    take_group(database, OTHER)
    with Desk(database, OTHER) as other:
        other.claim()
    fetch(
        database,
        "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, "
        " scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_lease)"
        " values (%s, 'default', 'there', 8, '', '', 0, '', 30)",
        OTHER,
    )
    take_group(database)
    ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=OWNER, live=[], age=0.0)
    assert [message for *_, message in fetch(database, LOG)] == ["rescued: its scheduler there.8 is gone; queued again"]


def test_a_lost_row_of_our_own_is_told_to_have_been_lost(desk: Desk, database: str) -> None:
    insert(database)
    desk.ask(mark(desk.claim(), "claimed"))
    ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=OWNER, live=[], age=0.0)
    assert [message for *_, message in fetch(database, LOG)] == [
        "rescued: its scheduler here.7 had lost it; queued again"
    ]


def test_retry_of_a_failed_job_forgets_where_it_ran(desk: Desk, database: str) -> None:
    (job,) = insert(database)
    attempt = _begin(desk)
    desk.ask(Save([SaveRow(job, attempt, "failed", bits=2, outcome="failed", host="alpha", agent="a", pid=42)]))
    (command,) = insert(database, f"('command', 'retry {job}')")
    ask(desk.loop, desk.connection, QUERIES["retry_job"], group="default", owner=OWNER, command=command, job=job)
    assert fetch(database, f"select jq_state::text, jq_done_host from drover.jobqueue where jq_pk = {job}") == [
        ("queued", None)
    ]


def test_clean_up_goes_to_the_host_of_the_last_attempt(desk: Desk, database: str) -> None:
    """A daemon of the version before has left there where the job ran before."""
    insert(database, "('a', '{/srv/x}')", "jq_type, jq_delete")
    attempt = _begin(desk)
    row = SaveRow(1, attempt, "done", bits=5, outcome="done", host="beta", agent="a", pid=7)
    desk.ask(Save([row]))
    assert fetch(database, "select jq_host from drover.jobqueue where jq_name = 'cleanup.1'") == [("beta",)]


def test_a_host_counts_as_down_until_a_minute_after_its_next_attempt_c56(desk: Desk, database: str) -> None:
    fetch(database, "insert into drover.host (host_name, host_group) values ('beta', 'default')")
    fetch(database, "insert into drover.agent (agent_group, agent_type) values ('default', 'a')")
    insert(database, "('a', 'beta')", "jq_type, jq_host")
    rows = '[{"name": "beta", "seconds": 60, "reason": "no route"}]'
    ask(desk.loop, desk.connection, QUERIES["show_hosts"], group="default", owner=OWNER, rows=rows)
    ((is_real,),) = fetch(database, "select host_down_until between now() + '1 s' and now() + '60 s' from drover.host")
    fetch(database, "update drover.host set host_down_until = now() - interval '50 s'")
    ((why,),) = fetch(database, "select reason from drover.why")
    fetch(database, "update drover.host set host_down_until = now() - interval '61 s'")
    ((later,),) = fetch(database, "select reason from drover.why")
    assert (is_real, why) == (True, "host beta is down: no route")
    assert later != why
