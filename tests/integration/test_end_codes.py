"""The code of an end, of jobs that the real daemon ends, one for each kind of failure."""

from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.puppets import puppet, rows
from tests.integration.test_commands import command, told

CODE = "select jq_end_code from drover.jobs where jq_pk = %s"


@pytest.fixture
def daemon(launch: Launch, record: Path) -> Daemon:
    types = [
        agent("a", rec(record)),
        agent("sh", ["sh", "-c", "{args}"], kind="exec"),
        agent("absent", ["/nowhere/at-all", "{args}"], kind="exec"),
        agent("slow", ["sleep", "{args}"], kind="exec", item_timeout=0.2),
        agent("column", ["echo", "{x}"], kind="exec"),
        agent("closed", rec(record), submitters=["nobody"]),
        puppet(),
        rows("failing", "echo FAIL no"),
    ]
    return launch("[hosts.alpha]\n" + "".join(types))


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"jq_type": "a", "jq_args": "x"}, "normal"),
        ({"jq_type": "puppet", "jq_args": "echo FAIL no"}, "agent_error"),
        ({"jq_type": "sh", "jq_args": "exit 3"}, "exit_status"),
        ({"jq_type": "sh", "jq_args": "kill -9 $$"}, "agent_died"),
        ({"jq_type": "sh", "jq_args": "sleep 60", "jq_timeout": "0.2 s"}, "timeout"),
        ({"jq_type": "slow", "jq_args": "60"}, "timeout"),
        ({"jq_type": "absent", "jq_args": "x"}, "launch_failure"),
        ({"jq_type": "column", "jq_args": "x"}, "invalid_definition"),
        ({"jq_type": "closed", "jq_args": "x"}, "not_permitted"),
        ({"jq_type": "a", "jq_args": "a\nb"}, "invalid_definition"),
        ({"jq_type": "a", "jq_args": "selct", "jq_msq": True}, "query_failed"),
        ({"jq_type": "failing", "jq_args": "select 1 as n", "jq_msq": True}, "items_failed"),
        ({"jq_type": "a", "jq_args": "select 1 as n", "jq_msq": True, "jq_key": "m"}, "query_failed"),
    ],
)
def test_a_job_that_ended_has_the_code_of_its_end_t115(daemon: Daemon, columns: dict[str, object], code: str) -> None:
    pk = daemon.insert(**columns)
    daemon.wait(pk, "done" if code == "normal" else "failed")
    assert daemon.value(CODE, pk) == code, daemon.row(pk)["jq_endtext"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"jq_type": "puppet", "jq_args": "echo FAIL disc is full"}, "disc is full"),
        ({"jq_type": "puppet", "jq_args": "echo last words >&2; exit 3"}, "exit status 3: last words"),
        ({"jq_type": "sh", "jq_args": "echo last words >&2; exit 3"}, "exit status 3: last words"),
        ({"jq_type": "sh", "jq_args": "echo last words >&2; kill -9 $$"}, "killed by SIGKILL: last words"),
        ({"jq_type": "sh", "jq_args": "sleep 60", "jq_timeout": "0.2 s"}, "ran longer than 0.2 s"),
        ({"jq_type": "absent", "jq_args": "x"}, "cannot start '/nowhere/at-all': No such file"),
        ({"jq_type": "failing", "jq_args": "select 1 as n", "jq_msq": True}, "1 items failed, 0 tolerated"),
    ],
)
def test_a_failure_names_job_agent_host_attempt_and_cause_t16(
    daemon: Daemon, ask: Ask, columns: dict[str, object], told: str
) -> None:
    pk = daemon.insert(**columns)
    assert told in daemon.wait(pk, "failed")["jq_endtext"]
    (attempt,) = daemon.until(lambda: daemon.attempts(pk))
    assert (attempt["att_host"], attempt["att_agent"], attempt["att_attempt"]) == ("alpha", columns["jq_type"], 1)
    assert attempt["att_outcome"] == "failed"
    shown = ask(f"show {pk}").out
    assert [word for word in (str(pk), "alpha", str(columns["jq_type"]), told) if word not in shown] == []
    if "last words" in str(columns["jq_args"]):
        daemon.until(lambda: "last words" in ask(f"out -e {pk}").out + ask(f"log {pk}").out)


@pytest.mark.slow
def test_a_job_that_was_killed_or_cancelled_has_its_code_t115(daemon: Daemon) -> None:
    killed, cancelled = (daemon.insert(jq_type="sh", jq_args="sleep 60") for _ in range(2))
    told(daemon, f"cancel {cancelled} not needed")
    daemon.until(lambda: daemon.row(killed)["jq_state"] == "running")
    told(daemon, f"killjob {killed}")
    daemon.wait(killed, "failed")
    daemon.wait(cancelled, "cancelled")
    assert [daemon.value(CODE, pk) for pk in (killed, cancelled)] == ["killed", "cancelled"]


def test_a_refused_command_has_its_code_t115(daemon: Daemon) -> None:
    pk = command(daemon, "cancel 999999")
    daemon.wait(pk, "failed")
    assert daemon.value(CODE, pk) == "command_refused"
