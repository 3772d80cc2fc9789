"""A traceparent from the row of a job to its agent, and into the log."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import agent, lines, rec

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SH = agent("sh", ["/bin/sh", "-c", "{args}"], kind="exec")
PRINT = 'echo "$TRACEPARENT"; exit 3'


def test_command_gets_the_trace_of_its_row_and_the_log_has_it(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.alpha]\n" + SH)
    pk = daemon.insert(jq_type="sh", jq_args=PRINT, jq_variables=json.dumps({"traceparent": PARENT}))
    daemon.wait(pk, "failed")
    assert ask(f"out {pk}").out == f"{PARENT}\n"
    assert f"job={pk} trace={TRACE} " in daemon.stderr()


def test_submit_gives_a_trace_and_refuses_what_is_none(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.alpha]\n" + SH)
    done = ask(f"submit --traceparent {PARENT} sh env")
    assert (done.status, done.err) == (0, "")
    daemon.wait(int(done.out))
    assert f"TRACEPARENT={PARENT}\n" in ask(f"out {int(done.out)}").out
    refused = ask("submit --traceparent nonsense sh env")
    assert refused.status == 2
    assert refused.err == "--traceparent nonsense: is no traceparent, as 00-TRACE-PARENT-01; nothing was queued\n"


@pytest.mark.slow
def test_line_agent_of_a_job_that_was_set_up_has_it_in_its_line(launch: Launch, record: Path) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("rec", rec(record)))
    settings = json.dumps({"traceparent": PARENT})
    pk = daemon.value("select jq_pk from drover.job_setup('rec.one', %s::jsonb)", settings)
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args=f"release {pk}"))
    daemon.wait(pk)
    assert lines(record) == [f'traceparent="{PARENT}"']
