"""The code of an end, of jobs that the real daemon ends, one for each kind of failure."""

from pathlib import Path

import pytest

from tests.integration.conftest import Launch
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
