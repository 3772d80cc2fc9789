"""Agents that run as another user: what they are, what they cannot do to others, and that they are killed as any."""

import json
import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon, agent, rec
from tests.needs import need
from tests.patience import LONG_PATIENCE_S

HOST = "[hosts.local]\n"
USER = "nobody"
FORGE = ["sh", "-c", 'printf "FAIL forged\\nOK\\n" > /proc/"$1"/fd/1', "sh", "{args}"]
WHOAMI = ["sh", "-c", 'echo $(id -u) $(id -g) $(id -G) "$HOME" "$USER" "$LOGNAME"; grep ^Cap[IPEA] /proc/self/status']
BY_NAME = """
cat /dev/stdin; echo two >/dev/stdout; echo three | tee /dev/stderr; exec >/dev/stderr; echo four
"""
LINES_BY_NAME = """
echo OK >/dev/stdout; exec </dev/stdin
while read -r line; do echo "LOG $line" >/dev/stdout; echo "not $line" >/dev/stderr; echo OK; done
"""
NAMED = {"out": "one\ntwo\nthree\n", "err": "three\nfour\n"}
SLEEPY = ["sh", "-c", "echo OK; while read -r line; do sleep 1000 & wait; done"]


@pytest.fixture(autouse=True)
def _as_root() -> None:
    need("root")
    need("setpriv")


def attack(daemon: Daemon, gate: Path) -> tuple[str, str]:
    """Let one agent write into the pipe of another that works; the ends of the victim's job and of the attacker's."""
    victim = daemon.insert(jq_type="victim", jq_args=f"gate:{gate}")
    daemon.wait(victim, "running")
    pids = "select status_pid from drover.scheduler_status where status_agent = 'victim' and status_jq_fk = %s"
    (row,) = daemon.until(lambda: daemon.execute(pids, victim))
    attacker = daemon.wait(daemon.insert(jq_type="forger", jq_args=str(row["status_pid"])), {"done", "failed"})
    gate.touch()
    return str(daemon.wait(victim, {"done", "failed"})["jq_state"]), str(attacker["jq_state"])


def output(daemon: Daemon, pk: int) -> str:
    """Return what a job has printed."""
    query = "select string_agg(out_data, '' order by out_pk) from drover.output where out_jq_fk = %s"
    return str(daemon.value(query, pk))


@pytest.mark.slow
def test_an_agent_of_the_same_user_can_write_to_the_pipe_of_another(launch: Launch, record: Path, gate: Path) -> None:
    daemon = launch(HOST + agent("victim", rec(record)) + agent("forger", FORGE, kind="exec"))
    assert attack(daemon, gate) == ("failed", "done")


@pytest.mark.slow
def test_an_agent_of_another_user_cannot_write_into_the_pipe_of_another(
    launch: Launch, record: Path, gate: Path
) -> None:
    daemon = launch(HOST + agent("victim", rec(record)) + agent("forger", FORGE, kind="exec", user=USER))
    assert attack(daemon, gate) == ("done", "failed")


def test_an_agent_has_uid_groups_home_and_environment_of_its_user(launch: Launch) -> None:
    daemon = launch(HOST + agent("who", WHOAMI, kind="exec", user=USER, limits={"nofile": 64}))
    pk = daemon.wait(daemon.insert(jq_type="who"))["jq_pk"]
    account = pwd.getpwnam(USER)
    groups = " ".join(map(str, os.getgrouplist(USER, account.pw_gid)))
    first, *capabilities = output(daemon, pk).splitlines()
    assert first == f"{account.pw_uid} {account.pw_gid} {groups} {account.pw_dir} {USER} {USER}"
    assert {line.split()[1] for line in capabilities} == {"0" * 16}


def streams(daemon: Daemon, pk: int) -> dict[str, str]:
    """Return what a job has printed, on each of its streams."""
    query = "select out_stream, string_agg(out_data, '' order by out_pk) from drover.output where out_jq_fk = %s"
    return {row["out_stream"]: row["string_agg"] for row in daemon.execute(f"{query} group by 1", pk)}


def test_command_of_another_user_opens_its_streams_by_name(launch: Launch) -> None:
    daemon = launch(HOST + agent("named", ["sh", "-c", BY_NAME], kind="exec", user=USER))
    pk = daemon.wait(daemon.insert(jq_type="named", jq_args="one"))["jq_pk"]
    assert streams(daemon, pk) == NAMED


def test_line_agent_of_another_user_opens_its_streams_by_name_before_and_after_a_reexec(launch: Launch) -> None:
    daemon = launch(HOST + agent("named", ["sh", "-c", LINES_BY_NAME], user=USER))
    first = daemon.wait(daemon.insert(jq_type="named", jq_args="one"))["jq_pk"]
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="reexec"), timeout=LONG_PATIENCE_S)
    second = daemon.wait(daemon.insert(jq_type="named", jq_args="two"))["jq_pk"]
    assert daemon.attempts(first)[0]["att_pid"] == daemon.attempts(second)[0]["att_pid"]
    for pk, word in ((first, "one"), (second, "two")):
        said = {f"LOG {word}", f"STDERR not {word}"}
        daemon.until(lambda pk=pk, said=said: set(daemon.log_text(pk).splitlines()) == said)


@pytest.mark.slow
def test_agents_of_two_other_users_cannot_open_the_streams_of_each_other(launch: Launch) -> None:
    daemon = launch(HOST + agent("victim", SLEEPY, user="daemon") + agent("forger", FORGE, kind="exec", user=USER))
    victim = daemon.insert(jq_type="victim")
    daemon.wait(victim, "running")
    (pid,) = daemon.agent_pids()
    daemon.wait(daemon.insert(jq_type="forger", jq_args=str(pid)), "failed")
    assert daemon.row(victim)["jq_state"] == "running"


def test_an_agent_of_another_user_is_killed_and_reaped_like_others(launch: Launch) -> None:
    daemon = launch(HOST + agent("sleepy", SLEEPY, user=USER))
    pk = daemon.insert(jq_type="sleepy", jq_args="x")
    daemon.wait(pk, "running")
    pids = daemon.agent_pids()
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {pwd.getpwnam(USER).pw_uid}
    daemon.insert(role="drover_operator", jq_type="command", jq_args=f"killjob {pk}")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed by command of drover_operator"
    daemon.until(lambda: not daemon.agent_pids())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_agent_of_another_user_outlives_its_daemon(launch: Launch, number: int) -> None:
    daemon = launch(HOST + agent("sleepy", SLEEPY, user=USER))
    pk = daemon.insert(jq_type="sleepy", jq_args="x")
    daemon.wait(pk, "running")
    assert daemon.agent_pids()
    daemon.stop(number)  # an AssertionError if a process of its family is left


@pytest.mark.slow
def test_a_daemon_that_is_not_root_passes_pipes_and_no_capabilities_to_agents(launch: Launch) -> None:
    given = "+setuid,+setgid,+kill,+dac_read_search"  # the last for the files of this test
    ours = [
        "setpriv",
        "--reuid=1",
        "--regid=1",
        "--clear-groups",
        f"--inh-caps={given}",
        f"--ambient-caps={given}",
        "--",
    ]
    own, other = agent("own", WHOAMI, kind="exec"), agent("other", WHOAMI, kind="exec", user=USER)
    named = agent("named", ["sh", "-c", BY_NAME], kind="exec", user=USER)
    daemon = launch(HOST + own + other + named + agent("sleepy", SLEEPY, user=USER), program=[*ours, *RUN])
    pk = daemon.wait(daemon.insert(jq_type="named", jq_args="one"))["jq_pk"]
    assert streams(daemon, pk) == NAMED
    for kind in ("own", "other"):
        pk = daemon.wait(daemon.insert(jq_type=kind))["jq_pk"]
        first, *capabilities = output(daemon, pk).splitlines()
        assert first.split()[0] == ("1" if kind == "own" else str(pwd.getpwnam(USER).pw_uid))
        assert {line.split()[1] for line in capabilities} == {"0" * 16}
    daemon.wait(daemon.insert(jq_type="sleepy", jq_args="x"), "running")
    daemon.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacking", "user", "mistake"),
    [
        ("-setuid,-kill", USER, 'needs a daemon that is root, or that has CAP_SETUID, CAP_KILL (got "nobody")'),
        ("-setpcap", "no-such-user", 'is no user of this machine (got "no-such-user")'),
    ],
)
def test_a_daemon_that_cannot_become_the_user_refuses_to_start(
    tmp_path: Path, lacking: str, user: str, mistake: str
) -> None:
    file = tmp_path / "drover.toml"
    file.write_text(f"{HOST}[agents.a]\ncommand = {json.dumps(SLEEPY)}\nuser = '{user}'\n")
    without = ["setpriv", f"--bounding-set={lacking}", "--"]
    done = subprocess.run(
        [*without, *RUN, "-c", str(file)], capture_output=True, text=True, check=False, timeout=LONG_PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (2, f"{file}:4: agents.a.user: {mistake}\n")
