"""What is asked of a daemon and makes no sense: each is refused with its reason, and no other row is changed.

All of it is said to one daemon, beside jobs in every state: since nothing changes, one follows the other.
"""

import os
from collections.abc import Iterable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import Drover
from tests.integration.daemon import Daemon, agent, rec, start
from tests.integration.test_commands import told

TYPES = {"bad": ["false"], "good": ["true"]}
QUEUES = "[queues.one]\nconcurrency = 2\n[queues.two]\n"
# Every column of every row, and by which transaction it was written; not the commands themselves.
RECORD = """
select jsonb_build_array(
  (select jsonb_agg(jsonb_build_array(j.xmin::text, j) order by jq_pk) from drover.jobqueue j
    where jq_type <> 'command'),
  (select jsonb_agg(jsonb_build_array(d.xmin::text, d) order by d) from drover.jobdepends d),
  (select jsonb_agg(jsonb_build_array(q.xmin::text, q) order by queue_name) from drover.queue q),
  (select jsonb_agg(jsonb_build_array(h.xmin::text, h) order by host_name) from drover.host h),
  (select jsonb_agg(jsonb_build_array(a.xmin::text, a) order by agent_type) from drover.agent a))
"""
NAME = os.uname().nodename  # what daemons answer for themselves alone begins with it
EDGE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
STATES = ("held", "queued", "blocked", "claimed", "running", "done", "failed", "cancelled", "ignored", "skipped")
ENDED = STATES[5:]
NOT_WORKED = [*STATES[:3], *ENDED]


@pytest.fixture(scope="module")
def daemon(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon whose jobs stay as they are; `a` works on one of them until the end."""
    types = "".join(agent(name, command, kind="exec") for name, command in TYPES.items())
    record = tmp_path_factory.mktemp("agents") / "record"
    with start(
        "[scheduler]\nblocked_delay = 3600\n[hosts.alpha]\n" + QUEUES + types + agent("a", rec(record)), module_database
    ) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def jobs(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return a job in each state, and one that waits for another."""
    gate = tmp_path_factory.mktemp("gate") / "gate"
    jobs = {"done": daemon.insert(jq_type="good"), "failed": daemon.insert(jq_type="bad")}
    jobs["cancelled"], jobs["skipped"] = daemon.insert(jq_type="nobody"), daemon.insert(jq_type="nobody")
    jobs["ignored"] = daemon.insert(jq_type="a", jq_queue="nowhere", jq_mode="manual")
    told(daemon, f"cancel {jobs['cancelled']}")
    told(daemon, f"ice {jobs['skipped']}")
    told(daemon, f"run {jobs['ignored']}", "failed")
    jobs["held"] = daemon.insert(jq_type="a", jq_state="held", jq_name="a.held")
    jobs["waits"] = daemon.insert(jq_type="nobody", jq_queue="one")
    daemon.execute(EDGE, jobs["waits"], jobs["held"])
    jobs["queued"], jobs["blocked"] = daemon.insert(jq_type="nobody"), daemon.insert(jq_type="nobody")
    daemon.execute("update drover.jobqueue set jq_state = 'blocked' where jq_pk = %s", jobs["blocked"])
    jobs["running"] = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.wait(jobs["running"], "running")
    jobs["claimed"] = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    for state in STATES:
        daemon.wait(jobs[state], state)
    # the rows come to rest: that of a claimed job follows half a second after the claim
    daemon.until(
        lambda: daemon.value("select jq_state from drover.jobqueue where jq_pk = %s", jobs["claimed"]) == "claimed"
    )
    return jobs


def refused(daemon: Daemon, commands: Iterable[str]) -> dict[str, str]:
    """Command all of it, and return the reason why each was not done."""
    before = daemon.value(RECORD)
    rows = daemon.insert_all([{"jq_type": "command", "jq_args": words} for words in commands], role="drover_operator")
    reasons = {row["jq_args"]: row["jq_endtext"] for row in daemon.wait_all(rows, "failed")}
    assert daemon.value(RECORD) == before
    return reasons


# ---- wrong states

WRONG_STATES: list[tuple[str, list[str], str]] = [
    ("killjob {job}", NOT_WORKED, "job {job} is not being worked: it is {state}"),
    ("cancel {job} x", list(ENDED), "job {job} has ended: it is {state}"),
    ("signal {job} TERM", [*NOT_WORKED, "claimed"], "job {job} is not running: it is {state}"),
    ("hold {job}", ["claimed", "running"], "job {job} is in hand: it is {state}"),
    ("hold {job}", list(ENDED), "job {job} has ended: it is {state}"),
    ("ice {job}", [*STATES[2:5], *ENDED], "job {job} is neither held nor queued: it is {state}"),
    ("retry {job}", list(STATES[:5]), "job {job} has not failed: it is {state}"),
    (
        "retry {job}",
        [state for state in ENDED if state != "failed"],
        "job {job} has not failed: it is {state}; drover resubmit queues it as another job",
    ),
    ("unblock {job}", [state for state in STATES if state != "blocked"], "job {job} is not blocked: it is {state}"),
    ("run {job}", [*STATES[1:8], "skipped"], "job {job} is {state}, not held"),
    ("run {job}", ["ignored"], "job {job} is ignored: queue nowhere is served by no scheduler"),
]


@pytest.mark.slow
def test_a_command_about_a_job_in_a_wrong_state_changes_nothing_t25_j54_j55_j27(
    daemon: Daemon, jobs: dict[str, int]
) -> None:
    reasons = {
        words.format(job=jobs[state]): reason.format(job=jobs[state], state=state)
        for words, states, reason in WRONG_STATES
        for state in states
    }
    assert refused(daemon, reasons) == reasons


@pytest.mark.slow
def test_releasing_a_released_job_changes_nothing_r30(daemon: Daemon, jobs: dict[str, int]) -> None:
    before = daemon.value(RECORD)
    for state in STATES[1:]:
        what = "has ended" if state in ENDED else "is released already"
        assert told(daemon, f"release {jobs[state]}") == f"job {jobs[state]} {what}: it is {state}"
    assert daemon.value(RECORD) == before


# ---- words that make no sense

NO_JOB = "a job number is required (got '{}'): {}"
NO_LIMIT = "a concurrency is a number from 1 (got '{}'): {}"
NO_NAME = (
    "the name of a queue has letters and digits of any script, _ . / - (not first) and single blanks inside, "
    "64 characters at most (got '{}'): {}"
)
TOO_LONG = "a command has at most 1000 characters"
MALFORMED = {
    # numbers
    "retry x": NO_JOB.format("x", "retry JOB"),
    "retry 1.5": NO_JOB.format("1.5", "retry JOB"),
    "hold -1": NO_JOB.format("-1", "hold JOB"),
    "cancel 0": NO_JOB.format("0", "cancel JOB [TEXT...]"),
    "ice 9223372036854775808": NO_JOB.format("9223372036854775808", "ice JOB"),
    "run {held} x": NO_JOB.format("x", "run JOB..."),
    "signal x TERM": NO_JOB.format("x", "signal JOB SIGNAL [MORE...]"),
    "signal {running} TERM x KILL": NO_JOB.format("x", "signal JOB SIGNAL [JOB SIGNAL...]"),
    "signal {running} TERM {running}": "a signal is required for job {running}",
    "set-concurrency one x": NO_LIMIT.format("x", "set-concurrency QUEUE CONCURRENCY"),
    "set-concurrency one 0": NO_LIMIT.format("0", "set-concurrency QUEUE CONCURRENCY"),
    "set-concurrency one -1": NO_LIMIT.format("-1", "set-concurrency QUEUE CONCURRENCY"),
    "set-concurrency one 2147483648": NO_LIMIT.format("2147483648", "set-concurrency QUEUE CONCURRENCY"),
    "set-queue-priority one x": "a priority is a number (got 'x'): set-queue-priority QUEUE PRIORITY",
    "add-queue new 1.5": NO_LIMIT.format("1.5", "add-queue QUEUE CONCURRENCY"),
    "host-max alpha x": "a maximum is a number, -1 for none (got 'x'): host-max NAME MAX [URGENT]",
    "host-max alpha 1 -1": "the number for urgent jobs is at least 0 (got '-1'): host-max NAME MAX [URGENT]",
    "verbose x": "a level is a number from 0 (got 'x'): verbose LEVEL",
    "flush x": "a number of days, at most 36500, is required (got 'x'): flush DAYS [failed]",
    # what is not there
    "release 999999": "no job 999999",
    "release a.nobody": "no job a.nobody",
    "retry 1000000000000000000": "no job 1000000000000000000",
    "run 999999": "job 999999 not found",
    "pause one three": "no queue three",
    "continue one three": "no queue three",
    "poll one three": "invalid target: three",
    "set-concurrency three 1": "no queue three",
    "set-queue-priority three 1": "no queue three",
    "set-max-length three 1": "no queue three",
    "set-filter three urgent": "no queue three",
    "set-rate three rate=1": "no queue three",
    "remove-queue three": "no queue three",
    "host-disable beta": "no host beta",
    "host-max beta 1": "no host beta",
    "agent-disable nobody": "no agent type nobody",
    "status nobody": "no scheduler serves group nobody",
    "signal {running} FROB": "no signal 'FROB': a name such as TERM, or a number, is required",
    "signal {running} TERM {claimed} 999": "no signal '999': a name such as TERM, or a number, is required",
    # what is there already, and what is still needed
    "add-queue one 7": "there is a queue one already",
    "remove-queue one": "queue one is not empty",
    "remove-queue default": "queue default is a group's own",
    # too long
    f"cancel {{held}} {'x' * 1000}": TOO_LONG,
    f"add-queue {'q' * 65} 1": NO_NAME.format("q" * 65, "add-queue QUEUE CONCURRENCY"),
    "add-queue a!b 1": NO_NAME.format("a!b", "add-queue QUEUE CONCURRENCY"),
    "": "an empty command",
}


@pytest.mark.slow
def test_an_invalid_command_changes_nothing_j12_j54_j75_j81_j82_j83(daemon: Daemon, jobs: dict[str, int]) -> None:
    reasons = {words.format(**jobs): reason.format(**jobs) for words, reason in MALFORMED.items()}
    assert {
        words: text.removeprefix(f"{NAME}.{daemon.pid}: ") for words, text in refused(daemon, reasons).items()
    } == reasons
    assert daemon.value("select count(*) from drover.queue") == 3


# ---- on the command line

LINES: list[tuple[int, str, str]] = [
    (1, "release a.nobody", "no job a.nobody"),
    (1, "kill {queued}", "job {queued} is not being worked: it is queued"),
    (1, "cancel {done}", "job {done} has ended: it is done"),
    (1, "hold {running}", "job {running} is in hand: it is running"),
    (1, "ice {claimed}", "job {claimed} is neither held nor queued: it is claimed"),
    (1, "retry {held}", "job {held} has not failed: it is held"),
    (1, "unblock {queued}", "job {queued} is not blocked: it is queued"),
    (1, "signal {held} TERM", "job {held} is not running: it is held"),
    (1, "run {running}", "job {running} is running, not held"),
    (1, "pause three", "no queue three"),
    (1, "continue three", "no queue three"),
    (1, "poll three", "invalid target: three"),
    (1, "queue add one 7", "there is a queue one already"),
    (1, "queue remove one", "queue one is not empty"),
    (1, "queue set three 1", "no queue three"),
    (2, "queue set one x", "a concurrency is a number from 1 (got 'x')"),
    (2, "queue add a!b 1", "the name of a queue has letters and digits of any script"),
    (2, "host max alpha x", "a maximum is a number"),
    (1, "host disable beta", "no host beta"),
    (1, "signal {running} FROB", "no signal 'FROB': a name such as TERM, or a number, is required"),
    (2, "cancel {held} --reason " + "x" * 1000, "a command has at most 1000 characters"),
    (1, "wait 999999", "no job 999999"),
    (1, "exit a.nobody", "no job a.nobody"),
    (1, "out a.nobody", "no job a.nobody"),
    (1, "why a.nobody", "no job a.nobody"),
    (1, "log a.nobody", "no job a.nobody"),
    (1, "exit {running}", "job {running} has not ended: it is running"),
]


@pytest.mark.parametrize(("status", "line", "reason"), LINES, ids=[line for _, line, _ in LINES])
def test_a_request_that_fails_says_why_and_changes_nothing_j118_j119(
    daemon: Daemon, jobs: dict[str, int], drover: Drover, monkeypatch: pytest.MonkeyPatch,
    status: int, line: str, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(daemon.database, user="drover_operator"))
    before = daemon.value(RECORD)
    done = drover(*line.format(**jobs).split())
    assert (done.status, done.out) == (status, "")
    assert reason.format(**jobs) in done.err
    assert daemon.value(RECORD) == before
