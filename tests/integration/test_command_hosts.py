"""Hosts behind another engine, under the real daemon: the ssh binary with a real sshd, and a real Slurm."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, await_lines, python, rec, records
from tests.integration.slurm import CPUS, UNSEEN_S, Slurm, cluster
from tests.integration.ssh_tools import ALPHA, at_work, hosts, said
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.ssh.sshd import Server, below, kill, name_of, parent_of, serving
from tests.ssh.test_remote_agents import all_gone, connections

READER = python("import sys\nprint('OK')\nfor line in sys.stdin: sys.stdin.read()")  # works until its input ends
DEAF = python(
    "import signal, time\nfor each in (signal.SIGHUP, signal.SIGTERM): signal.signal(each, signal.SIG_IGN)\n"
    "print('OK')\nwhile True: time.sleep(9)"
)
SCRIPT = "echo $DROVER_HOST; echo oops >&2; cat; exit 3"
MEMORY = "--mem=100M"
LIMITED = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)


def behind(name: str, command: list[str], **keys: int) -> str:
    """Return the table of a host behind another engine."""
    rest = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[hosts.{name}]\ntransport = "command"\ncommand = {json.dumps(command)}\n{rest}'


def kill_job(daemon: Daemon, pk: int) -> None:
    daemon.insert(jq_type="command", jq_args=f"killjob {pk}", role="drover_operator")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed by command of drover_operator"


@pytest.mark.slow
def test_a_host_command_that_ignores_signals_is_killed_when_its_host_is_removed(launch: Launch) -> None:
    stubborn = ["bash", "-c", 'trap "" HUP; "$@"; sleep 1000', "bash"]
    types = agent("reader", python("import sys\nprint('OK')\nfor line in sys.stdin: print('OK')"))
    daemon = launch(ALPHA + "enabled = false\n" + behind("beta", stubborn) + types)
    daemon.wait(daemon.insert(jq_type="reader", jq_args="x"))
    watched = [os.pidfd_open(pid) for pid in below(daemon.pid)]
    (daemon.folder / "conf.d" / "test.toml").write_text(ALPHA + types)
    daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
    assert all_gone(watched)


# ---- the ssh binary


@pytest.fixture
def beta(tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path / "beta", AcceptEnv="DROVER_*") as server:
        yield server


def ssh(server: Server) -> list[str]:
    """Return the words of a host; all that a site writes into its ssh_config is there."""
    settings = {
        "HostName": server.address, "Port": server.port, "User": "root", "IdentityFile": server.user_key.path,
        "UserKnownHostsFile": server.known_hosts, "BatchMode": "yes", "SendEnv": "DROVER_*",
    }  # fmt: skip
    config = server.folder / "ssh_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    shared = ["ControlMaster=auto", f"ControlPath={server.folder}/mux", "ControlPersist=60"]
    return ["ssh", "-F", str(config), *(word for option in shared for word in ("-o", option)), "{host}", "--"]


def quoting(command: list[str]) -> list[str]:
    """Return words that quote those of the agent for the shell over there."""
    return ["bash", "-c", " ".join(["exec", *command, '"${@@Q}"']), "ssh"]


@pytest.mark.slow
def test_agents_work_behind_the_ssh_binary_over_one_connection_f8_c24(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(ALPHA + behind("beta", ssh(beta)) + agent("rec", rec(record), slots=3))
    daemon.wait(daemon.insert(jq_type="rec", jq_args="first", jq_host="beta"))
    jobs = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}", "jq_host": "beta"}] * 3)
    await_lines(daemon, record, 4)
    there = {note["pid"] for note in records(record) if note["event"] == "line"}
    assert there <= set(at_work(beta))
    gate.touch()
    daemon.wait_all(jobs)
    assert (hosts(record), len(there), connections(beta)) == ({"beta": 4}, 3, 1)


@pytest.mark.slow
def test_agents_beyond_the_session_limit_get_another_connection(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    many = 12  # sshd allows 10
    daemon = launch(behind("beta", ssh(beta)) + agent("rec", rec(record), slots=many))
    pks = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}"} for _ in range(many)])
    daemon.until(lambda: hosts(record)["beta"] == many, what="not all are at work")
    assert connections(beta) > 1
    gate.touch()
    daemon.wait_all(pks)


def test_output_and_exit_status_come_back_from_behind_the_ssh_binary_c27(launch: Launch, beta: Server) -> None:
    text = behind("beta", quoting(ssh(beta))) + agent("sh", ["sh", "-c", SCRIPT], kind="exec")
    daemon = launch(text)
    pk = daemon.insert(jq_type="sh", jq_args="line")
    row = daemon.wait(pk, "failed")
    assert (row["jq_exitcode"], said(daemon, pk, "out"), said(daemon, pk, "err")) == (3, "beta\nline\n", "oops\n")


@pytest.mark.slow
def test_a_remote_agent_that_reads_its_input_ends_when_its_job_is_killed_f9(launch: Launch, beta: Server) -> None:
    daemon = launch(behind("beta", quoting(ssh(beta))) + agent("reader", READER))
    pk = daemon.insert(jq_type="reader", jq_args="x")
    daemon.wait(pk, "running")
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    assert watched
    kill_job(daemon, pk)
    assert all_gone(watched)


def test_a_remote_agent_that_reads_its_input_ends_when_the_daemon_is_killed_f9(launch: Launch, beta: Server) -> None:
    daemon = launch(behind("beta", quoting(ssh(beta))) + agent("reader", READER))
    daemon.wait(daemon.insert(jq_type="reader", jq_args="x"), "running")
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    assert watched
    daemon.kill()
    assert all_gone(watched)


@pytest.mark.slow
def test_a_killed_job_ends_with_its_ssh_even_if_the_remote_program_goes_on(launch: Launch, beta: Server) -> None:
    daemon = launch(behind("beta", quoting(ssh(beta))) + agent("deaf", DEAF))
    pk = daemon.insert(jq_type="deaf", jq_args="x")
    daemon.wait(pk, "running")
    kill_job(daemon, pk)
    assert at_work(beta)


@pytest.mark.slow
def test_the_ssh_binary_joins_arguments_of_an_agent_for_a_shell(launch: Launch, beta: Server) -> None:
    daemon = launch(behind("beta", ssh(beta)) + agent("say", ["printf", "%s.", "{args}"], kind="exec"))
    pk = daemon.insert(jq_type="say", jq_args="a  b; echo more")
    daemon.wait(pk)
    assert said(daemon, pk, "out") == "a.b.more\n"


@pytest.mark.parametrize("text", ["a  b", "$(touch x) `id`; exit 1 #", """it's "so" \\n""", "* ~ {a,b} !!", "-n", "ä"])
def test_quoted_arguments_arrive_unchanged_behind_the_ssh_binary(launch: Launch, beta: Server, text: str) -> None:
    daemon = launch(behind("beta", quoting(ssh(beta))) + agent("say", ["printf", "<%s>", "{args}", ""], kind="exec"))
    pk = daemon.insert(jq_type="say", jq_args=text)
    daemon.wait(pk)
    assert said(daemon, pk, "out") == f"<{text}><>"


# ---- Slurm


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    need("slurm")
    with cluster("alpha", "beta") as slurm:
        yield slurm


def nodes(slurm: Slurm, *names: str) -> str:
    """Return a host for each node."""
    return "".join(behind(name, slurm.srun("--nodelist={host}", MEMORY), max=CPUS) for name in names)


def freed(daemon: Daemon, slurm: Slurm, timeout: float = PATIENCE_S) -> None:
    daemon.until(lambda: not slurm.jobs() and not slurm.tasks(), timeout, what="Slurm has not freed it")


@pytest.mark.slow
def test_a_job_for_a_node_runs_there_under_slurm_c24_f8(launch: Launch, slurm: Slurm, record: Path, gate: Path) -> None:
    daemon = launch("[hosts.here]\n" + nodes(slurm, "alpha", "beta") + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}", jq_host="beta")
    near = daemon.insert(jq_type="rec", jq_args="near", jq_host="here")
    daemon.until(lambda: len(hosts(record)) == 2, what="one of them does not begin")
    (pid,) = (note["pid"] for note in records(record) if note["event"] == "line" and note["host"] == "beta")
    environment = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if each)
    assert parent_of(pid) in slurm.steps()
    assert (int(environment["SLURM_JOB_ID"]), environment["SLURMD_NODENAME"]) == (1, "beta")
    assert slurm.jobs() == {"beta": 1}
    gate.touch()
    assert [row["jq_endtext"] for row in daemon.wait_all([pk, near])] == ["all data processed"] * 2
    assert [daemon.attempts(each)[0]["att_host"] for each in (pk, near)] == ["beta", "here"]


@pytest.mark.slow
def test_several_agents_work_at_once_on_a_node_c24(launch: Launch, slurm: Slurm, record: Path, gate: Path) -> None:
    daemon = launch(nodes(slurm, "alpha", "beta") + agent("rec", rec(record), slots=CPUS))
    pks = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}"} for _ in range(2 * CPUS)])
    daemon.until(lambda: hosts(record) == {"alpha": CPUS, "beta": CPUS}, what="not all are at work")
    assert slurm.jobs() == {"alpha": CPUS, "beta": CPUS}
    gate.touch()
    daemon.wait_all(pks)
    daemon.stop()
    freed(daemon, slurm)


@pytest.mark.slow
def test_one_host_can_stand_for_a_whole_partition_c24(launch: Launch, slurm: Slurm, record: Path, gate: Path) -> None:
    command = slurm.srun("--ntasks=1", MEMORY)
    daemon = launch(behind("cluster", command, max=2 * CPUS) + agent("rec", rec(record), slots=2 * CPUS))
    pks = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}"} for _ in range(2 * CPUS)])
    daemon.until(lambda: hosts(record) == {"cluster": 2 * CPUS}, what="not all are at work")
    assert slurm.jobs() == {"alpha": CPUS, "beta": CPUS}
    gate.touch()
    daemon.wait_all(pks)


@pytest.mark.slow
def test_output_and_exit_status_come_back_from_a_node_c27(launch: Launch, slurm: Slurm) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("sh", ["sh", "-c", SCRIPT], kind="exec"))
    pk = daemon.insert(jq_type="sh", jq_args="line")
    row = daemon.wait(pk, "failed")
    err = {"oops", "srun: error: beta: task 0: Exited with exit code 3"}  # in the order in which srun hears of them
    assert (row["jq_exitcode"], said(daemon, pk, "out")) == (3, "beta\nline\n")
    assert set(said(daemon, pk, "err").splitlines()) == err


@pytest.mark.slow
def test_arguments_of_an_agent_arrive_unchanged_on_a_node(launch: Launch, slurm: Slurm) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("say", ["printf", "<%s>", "{args}", ""], kind="exec"))
    text = """a  b $(touch x); 'so' "so" \\n *"""
    pk = daemon.insert(jq_type="say", jq_args=text)
    daemon.wait(pk)
    assert said(daemon, pk, "out") == f"<{text}><>"


@pytest.mark.slow
def test_long_lines_reach_a_node_c27(launch: Launch, slurm: Slurm, record: Path) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("rec", rec(record)))
    text = "x" * 1_000_000
    daemon.wait(daemon.insert(jq_type="rec", jq_args=text))
    (note,) = (note for note in records(record) if note["event"] == "line")
    assert note["line"] == text


@pytest.mark.slow
@pytest.mark.parametrize("command", [READER, DEAF], ids=["reader", "deaf"])
def test_killjob_ends_what_runs_on_a_node_and_frees_it_f9(launch: Launch, slurm: Slurm, command: list[str]) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("victim", command))
    pk = daemon.insert(jq_type="victim", jq_args="x")
    daemon.wait(pk, "running")
    watched = [os.pidfd_open(pid) for pid in slurm.tasks()]
    assert watched
    kill_job(daemon, pk)
    assert all_gone(watched)
    freed(daemon, slurm)


@pytest.mark.slow
def test_a_stopped_daemon_leaves_no_job_running_or_pending_in_slurm_f9(
    launch: Launch, slurm: Slurm, record: Path
) -> None:
    full = behind("beta", slurm.srun("--nodelist={host}", MEMORY))  # without max: Slurm makes the last one wait
    daemon = launch("[scheduler]\nstart_limit = 60\n" + full + agent("rec", rec(record), slots=CPUS + 1))
    daemon.insert_all([{"jq_type": "rec", "jq_args": "mute"} for _ in range(CPUS + 1)])
    daemon.until(lambda: (hosts(record)["beta"], slurm.jobs()) == (CPUS, {"beta": CPUS, "": 1}), what="it is not full")
    daemon.stop()
    freed(daemon, slurm)
    assert slurm.jobs() == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", [READER, DEAF], ids=["reader", "deaf"])
def test_srun_ends_the_job_step_when_the_daemon_is_killed_f9(launch: Launch, slurm: Slurm, command: list[str]) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("victim", command, slots=2))
    watched = at_work_twice(daemon, slurm)
    daemon.kill()
    freed(daemon, slurm)
    assert all_gone(watched)


@pytest.mark.slow
def test_slurm_ends_the_job_step_when_daemon_and_srun_are_killed_together_f9(launch: Launch, slurm: Slurm) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("victim", DEAF, slots=2))
    watched = at_work_twice(daemon, slurm)
    for pid in (daemon.process.pid, *below(daemon.process.pid)):  # as a service manager does
        kill(pid)
    freed(daemon, slurm, UNSEEN_S)
    assert all_gone(watched)


def at_work_twice(daemon: Daemon, slurm: Slurm) -> list[int]:
    """Let two victims work; pidfds of what that is on the node."""
    daemon.wait_all(daemon.insert_all([{"jq_type": "victim", "jq_args": "x"} for _ in range(2)]), "running")
    watched = [os.pidfd_open(pid) for pid in slurm.tasks()]
    assert len(watched) == 2
    return watched


@pytest.mark.slow
def test_limits_of_a_type_apply_on_the_node_and_not_to_srun(launch: Launch, slurm: Slurm) -> None:
    daemon = launch(nodes(slurm, "beta") + agent("reader", READER, limits={"nofile": 77, "fsize": 4096}))
    daemon.wait(daemon.insert(jq_type="reader", jq_args="x"), "running")
    (task,) = (pid for step in slurm.steps() for pid in below(step) if name_of(pid).startswith("python"))
    (srun,) = daemon.agent_pids()
    ours = [resource.getrlimit(kind) for kind in LIMITED]
    assert [resource.prlimit(task, kind) for kind in LIMITED] == [(77, 77), (4096, 4096)]
    assert [resource.prlimit(srun, kind) for kind in LIMITED] == ours
