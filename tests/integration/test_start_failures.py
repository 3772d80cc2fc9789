"""Jobs that cannot start: their type says whether they wait, are blocked, or fail."""

import json
import re
import shlex
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.integration.puppets import LOCAL
from tests.integration.ssh_tools import ALPHA, reached, table
from tests.integration.test_recovery import conditions, policy
from tests.ssh.sshd import Server

QUICK = "[scheduler]\nrescan = 0.3\nrespawn_count = 1\nrespawn_interval = 3600\n"
AWAY = 'condition = "host:beta"\n'
SLOW = AWAY + "wait = 3600\n"
BY_STATE = """
select jq_state::text, count(*)::integer as n from drover.jobs where jq_pk = any (%s) group by 1 order by 1
"""


def types(record: Path, **keys: object) -> str:
    """Return three types with the policies."""
    policies = ("wait", "block", "fail")
    command = ["true"] if "kind" in keys else rec(record)
    return "".join(agent(name, command, on_start_failure=name, **keys) for name in policies)


def insert(daemon: Daemon, *names: str, **columns: object) -> list[int]:
    return daemon.insert_all([{"jq_type": name, "jq_args": f"{name}.{n}", **columns} for n, name in enumerate(names)])


def states(daemon: Daemon, pks: list[int]) -> list[str]:
    return [daemon.row(pk)["jq_state"] for pk in pks]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"kind": "exec"}])
def test_jobs_of_an_unreachable_host_are_retried_blocked_or_failed_c24_c26_t75(
    launch: Launch, beta: Server, record: Path, keys: dict[str, str]
) -> None:
    beta.kill()
    daemon = launch(QUICK + ALPHA + table("beta", beta) + types(record, **keys) + policy("away", SLOW))
    far = insert(daemon, "wait", "block", "fail", jq_host="beta")
    near = insert(daemon, "wait", "block", "fail", jq_host="alpha")
    daemon.wait(far[1], "blocked")
    daemon.wait(far[2], "failed")
    daemon.until(lambda: states(daemon, far) == ["queued", "blocked", "failed"])
    assert daemon.value("select jq_end_code from drover.jobs where jq_pk = %s", far[2]) == "launch_failure"
    said = "agent 'fail': cannot start '.*': host beta cannot be reached: .*refused.*"
    assert re.fullmatch(said, daemon.row(far[2])["jq_endtext"])
    (condition,) = conditions(daemon)
    assert (condition["condition"], condition["jobs"], condition["policy"]) == ("host:beta", 1, "away")
    daemon.wait_all(near)
    beta.begin()
    daemon.wait_all(far[:2])
    assert [len(daemon.attempts(pk)) for pk in far] == [1, 1, 0]


@pytest.mark.slow
def test_jobs_without_a_host_are_blocked_where_no_host_is_left_and_return_c24_c26_c56(
    launch: Launch, beta: Server, record: Path
) -> None:
    daemon = launch(QUICK + table("beta", beta) + types(record) + policy("away", SLOW))
    daemon.wait_all(insert(daemon, "block", jq_host="beta"))
    beta.kill()
    daemon.until(lambda: daemon.value("select host_reason from drover.host where host_name = 'beta'"))
    pks = insert(daemon, *["block"] * 5, jq_host="beta") + insert(daemon, *["block"] * 5)
    daemon.wait_all(pks, "blocked")
    assert [row["condition"] for row in conditions(daemon)] == ["agent:block", "host:beta"]
    beta.begin()
    daemon.wait_all(pks)
    daemon.until(lambda: conditions(daemon) == [])


@pytest.mark.slow
def test_jobs_of_agents_that_do_not_come_up_are_retried_blocked_or_failed_c25_c26_t75(
    launch: Launch, tmp_path: Path, record: Path
) -> None:
    program = tmp_path / "program"
    text = "".join(agent(name, [str(program)], on_start_failure=name) for name in ("wait", "block", "fail"))
    daemon = launch(QUICK + ALPHA + text + policy("broken", 'condition = "agent:block"\nwait = 0.5'))
    pks = insert(daemon, "wait", "block", "fail")
    daemon.wait(pks[1], "blocked")
    daemon.wait(pks[2], "failed")
    assert states(daemon, pks)[0] in ("queued", "claimed")
    assert "cannot start" in daemon.row(pks[2])["jq_endtext"]
    program.write_text(f"#!/bin/sh\nexec {shlex.join(json.loads(rec(record)))}\n")
    program.chmod(0o755)
    for name in ("wait", "block"):
        daemon.insert(jq_type="command", jq_args=f"agent-enable {name}", role="drover_operator")
    daemon.wait_all(pks[:2])
    assert sorted(lines(record)) == ["block.1", "wait.0"]


@pytest.mark.slow
def test_jobs_of_a_command_that_is_missing_are_blocked_or_failed_c25_c26_t75(launch: Launch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    text = "".join(agent(name, [str(program)], kind="exec", on_start_failure=name) for name in ("block", "fail"))
    daemon = launch(QUICK + ALPHA + text + policy("broken", 'condition = "agent:block"\nwait = 0.5'))
    failed, *blocked = insert(daemon, "fail", *["block"] * 3)
    daemon.wait(failed, "failed")
    assert daemon.value("select jq_end_code from drover.jobs where jq_pk = %s", failed) == "launch_failure"
    daemon.wait_all(blocked, "blocked")
    assert [row["condition"] for row in conditions(daemon)] == ["agent:block"]
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    daemon.insert(jq_type="command", jq_args="agent-enable block", role="drover_operator")
    daemon.wait_all(blocked)


@pytest.mark.slow
def test_status_warns_of_a_host_that_is_down_until_it_is_back_c25(
    launch: Launch, beta: Server, record: Path, ask: Ask
) -> None:
    def warnings() -> list[str]:
        return [
            row["what"] for row in json.loads(ask("status --json").out)["warnings"] if row["warning"] == "host down"
        ]

    beta.kill()
    daemon = launch(QUICK + table("beta", beta) + types(record))
    insert(daemon, *["wait"] * 3, jq_host="beta")
    (told,) = daemon.until(warnings)
    assert re.fullmatch("host beta cannot be reached, next attempt 20.*: .*refused.*; jobs that wait for it: 3", told)
    beta.begin()
    daemon.until(lambda: warnings() == [])


@pytest.mark.slow
def test_a_host_that_stays_away_longer_than_its_policy_lets_jobs_fail_c26_t90(
    launch: Launch, beta: Server, record: Path
) -> None:
    beta.kill()
    keys = AWAY + "wait = 0.3\nmax_tries = 2"
    daemon = launch(QUICK + table("beta", beta) + types(record) + policy("away", keys))
    (pk,) = insert(daemon, "block", jq_host="beta")
    text = daemon.wait(pk, "failed")["jq_endtext"]
    assert text.startswith("recovery_timeout: condition host:beta was still there after 2 checks: blocked: host:beta")


@pytest.mark.slow
def test_a_job_that_fails_since_its_host_is_down_releases_its_children_c26_c28(
    launch: Launch, beta: Server, record: Path
) -> None:
    beta.kill()
    daemon = launch(QUICK + ALPHA + table("beta", beta) + types(record))
    child = daemon.insert(jq_type="wait", jq_args="child", jq_state="held")
    (parent,) = insert(daemon, "fail", jq_state="held", jq_host="beta")
    daemon.execute("insert into drover.jobdepends values (%s, %s, 2, 'skip')", child, parent)
    for pk in (child, parent):
        daemon.insert(jq_type="command", jq_args=f"release {pk}", role="drover_operator")
    assert "host beta" in daemon.wait(parent, "failed")["jq_endtext"]
    assert daemon.wait(child)["jq_attempt"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_back_before", [True, False])
def test_blocked_jobs_of_a_host_return_with_it_after_the_daemon_was_killed_c24_c56_t84(
    launch: Launch, beta: Server, record: Path, is_back_before: bool
) -> None:
    beta.kill()
    text = QUICK + table("beta", beta) + types(record) + policy("away", SLOW)
    first = launch(text)
    pks = insert(first, *["block"] * 3, jq_host="beta")
    first.wait_all(pks, "blocked")
    first.kill()
    if is_back_before:
        beta.begin()
    second = launch(text)
    if not is_back_before:
        second.until(lambda: second.value("select host_reason from drover.host where host_name = 'beta'"))
        beta.begin()
    second.wait_all(pks)
    assert second.value("select sum(jq_attempt) from drover.jobqueue where jq_type = 'block'") == 3


class Timeline:
    """The numbers of jobs by state; a line where there are jobs of other states, or more or fewer blocked ones."""

    def __init__(self, daemon: Daemon, pks: list[int]) -> None:
        self._daemon, self._pks, self._began = daemon, pks, time.monotonic()
        self._shown: object = None

    def now(self) -> dict[str, int]:
        """Return the numbers, and print them if they are to be seen."""
        found = {row["jq_state"]: row["n"] for row in self._daemon.execute(BY_STATE, self._pks)}
        if (look := (set(found), found.get("blocked"))) != self._shown:
            self.note("  ".join(f"{name} {n:3}" for name, n in found.items()))
            self._shown = look
        return found

    def note(self, what: str) -> None:
        """Print what happens."""
        print(f"{time.monotonic() - self._began:6.2f} s  {what}")


@pytest.mark.slow
def test_a_hundred_jobs_wait_out_a_dead_host_in_one_list_and_each_runs_once_t12_t85(
    launch: Launch, beta: Server, record: Path
) -> None:
    probe = agent("probe", ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{beta.port} || exit 75"], kind="exec")
    kinds = agent("block", rec(record), on_start_failure="block", slots=2, hosts=["beta"])
    asks = policy("away", AWAY + 'wait = 0.5\ntester = "probe"')
    daemon = launch(QUICK + ALPHA + table("beta", beta) + kinds + probe + asks)
    pks = daemon.insert_all([{"jq_type": "block", "jq_args": f"nap:0.05;{n}", "jq_host": "beta"} for n in range(100)])
    seen = Timeline(daemon, pks)
    daemon.until(lambda: seen.now().get("done", 0) >= 10)
    seen.note("-- the host dies")
    beta.kill()
    daemon.until(lambda: set(seen.now()) == {"done", "blocked"})
    (condition,) = conditions(daemon)
    assert condition["jobs"] == seen.now()["blocked"]
    daemon.until(lambda: seen.now() and conditions(daemon)[0]["tries"] >= 2)
    asked = daemon.value("select count(*) from drover.jobqueue where jq_type = 'probe'")
    assert asked <= conditions(daemon)[0]["tries"] + 1
    seen.note("-- the host is back")
    beta.begin()
    daemon.until(lambda: seen.now() == {"done": 100})
    worked = Counter(line for line in lines(record))
    interrupted = daemon.value("select count(*) from drover.jobqueue where jq_interruptions > 0")
    assert len(worked) == 100
    assert sum(worked.values()) <= 100 + interrupted
    daemon.until(lambda: conditions(daemon) == [])


@pytest.mark.slow
def test_blocked_jobs_obey_commands_c26_t62_t89(launch: Launch, beta: Server, record: Path) -> None:
    beta.kill()
    daemon = launch(QUICK + table("beta", beta) + types(record) + policy("away", SLOW))
    cancelled, held = insert(daemon, *["block"] * 2, jq_host="beta")
    daemon.wait_all([cancelled, held], "blocked")
    for words in (f"cancel {cancelled}", f"hold {held}"):
        daemon.insert(jq_type="command", jq_args=words, role="drover_operator")
    daemon.wait(cancelled, "cancelled")
    daemon.wait(held, "held")
    assert conditions(daemon) == []


@pytest.mark.slow
def test_due_starts_of_this_machine_and_of_a_host_that_was_down_all_begin_c18_c24_c56(
    launch: Launch, beta: Server, record: Path
) -> None:
    beta.kill()
    daemon = launch(QUICK + ALPHA + table("beta", beta) + types(record) + policy("away", SLOW))
    query = """
        insert into drover.schedule (schedule_name, schedule_at, schedule_job)
        select host || n, now() + interval '0.5 s',
               jsonb_build_object('jq_type', 'block', 'jq_host', host, 'jq_args', host || n)
          from unnest(array['alpha', 'beta']) as host, generate_series(1, 5) as n"""
    daemon.execute(query, role="drover_operator")
    here, there = ("select count(*) from drover.jobs where jq_host = %s and jq_state = %s",) * 2
    daemon.until(lambda: daemon.value(here, "alpha", "done") == 5 and daemon.value(there, "beta", "blocked") == 5)
    beta.begin()
    daemon.until(lambda: daemon.value(there, "beta", "done") == 5)
    assert sorted(lines(record)) == sorted(f"{host}{n}" for host in ("alpha", "beta") for n in range(1, 6))


@pytest.mark.slow
def test_the_log_of_a_job_counts_how_often_its_host_was_down_t91(launch: Launch, beta: Server, record: Path) -> None:
    queue = "[queues.q]\npaused = true\n"
    daemon = launch(QUICK + table("beta", beta) + types(record) + queue + policy("away", SLOW))
    (pk,) = insert(daemon, "block", jq_host="beta", jq_queue="q")
    for _ in range(2):
        daemon.until(lambda: daemon.row(pk)["jq_state"] == "queued")
        reached(daemon, times=daemon.stderr().count("beta: reached") or 1)
        beta.kill()
        daemon.wait(pk, "blocked")
        beta.begin()
    told = [row["log_message"] for row in daemon.log_rows(pk)]
    assert len(told) == 2
    assert all(message.startswith("blocked: host:beta host beta cannot be reached: ") for message in told)


@pytest.mark.parametrize("name", ["host:alpha", "agent:b"])
def test_an_agent_that_names_a_condition_of_ours_waits_as_for_any_other_c26_t92(launch: Launch, name: str) -> None:
    text = agent("b", ["sh", "-c", f"echo OK; read line; echo BLOCKED {name}; echo OK; cat"])
    daemon = launch(QUICK + ALPHA + text + policy("any", 'condition = "*"\nwait = 3600'))
    (pk,) = insert(daemon, "b")
    daemon.wait(pk, "blocked")
    (row,) = conditions(daemon)
    assert (row["condition"], row["tries"]) == (f"agent:{name}", 0)


def test_new_host_without_the_program_is_tried_once_and_all_jobs_are_done(launch: Launch, tmp_path: Path) -> None:
    bare = f'[hosts.b]\ntransport = "command"\ncommand = ["env", "PATH={tmp_path}"]\n'
    daemon = launch(LOCAL + bare + agent("noop", ["drover-agent-noop"], slots=2))
    pks = daemon.insert_all([{"jq_type": "noop", "jq_args": "x"}] * 60)
    daemon.wait_all(pks)
    daemon.until(lambda: "host b has no program of agent noop" in daemon.stderr())
    assert daemon.stderr().count("ST_FREE -> ST_PREP slot") <= 4
    assert daemon.value("select count(*) from drover.log where log_type = 'ERROR' and log_host = 'b'") <= 2
