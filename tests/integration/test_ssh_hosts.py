"""Hosts over SSH, under the real daemon and a real sshd: work goes there, and comes back whatever happens to them.

The protocol over SSH is test_agent_protocol.py's.
"""

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, await_lines, lines, python, rec, records
from tests.integration.puppets import Meeting
from tests.integration.ssh_tools import ALPHA, SOON, at_work, hosts, reached, said, table
from tests.needs import need
from tests.patience import LONG_PATIENCE_S
from tests.ssh.net import cabled
from tests.ssh.sshd import Keys, Server, below, serving
from tests.ssh.test_remote_agents import all_gone

STUBBORN = "import signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nprint('OK')\nwhile True: time.sleep(9)"


# ---- work


@pytest.mark.slow
def test_an_agent_works_on_another_host_f8_f23_f155_c24(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec", jq_args="hello")
    row = daemon.wait(pk)
    (attempt,) = daemon.attempts(pk)
    (note,) = (note for note in records(record) if note["event"] == "line")
    assert (row["jq_endtext"], attempt["att_host"], attempt["att_pid"]) == ("all data processed", "beta", note["pid"])
    assert (note["line"], note["host"]) == ("hello", "beta")
    assert note["pid"] in at_work(beta)


@pytest.mark.slow
def test_work_for_any_host_goes_to_both_f13_f22_r1_j65(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), slots=2))
    reached(daemon)
    sql = "select 'nap:0.3' as act, n from generate_series(1, 20) n"
    daemon.wait(daemon.insert(jq_type="rec", jq_args=sql, jq_msq=True))
    daemon.wait_all(daemon.insert_all([{"jq_type": "rec", "jq_args": "nap:0.3"} for _ in range(20)]))
    assert set(hosts(record)) == {"alpha", "beta"}
    assert hosts(record).total() == 40


@pytest.mark.slow
def test_bound_work_goes_to_its_host_only_f13_f14_f21_f24(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), slots=2))
    for first, last, host in (("a", "m", "beta"), ("n", "z", "alpha")):
        query = "insert into drover.placement (placement_from, placement_to, placement_host) values (%s, %s, %s)"
        daemon.execute(query, first, last, host)
    reached(daemon)
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select 'far' as t, 'k' || n as at from generate_series(1, 9) n",
                              jq_runonpfile="at"))  # fmt: skip
    daemon.wait_all(daemon.insert_all([{"jq_type": "rec", "jq_args": "bound", "jq_host": "beta"} for _ in range(5)]))
    daemon.wait(daemon.insert(jq_type="rec", jq_args="select 'near' as t, 'p' as at", jq_runonpfile="at"))
    assert hosts(record) == {"beta": 14, "alpha": 1}


def test_a_remote_command_runs_and_returns_its_output_f8_r53(launch: Launch, beta: Server) -> None:
    text = table("beta", beta) + agent("sh", ["sh", "-c", "cat; echo $DROVER_HOST; echo oops >&2; exit 3"], kind="exec")
    daemon = launch(text)
    pk = daemon.insert(jq_type="sh", jq_args="ignored")
    row = daemon.wait(pk, "failed")
    assert (row["jq_exitcode"], said(daemon, pk, "out"), said(daemon, pk, "err")) == (3, "ignored\nbeta\n", "oops\n")


@pytest.mark.slow
def test_a_remote_agent_inherits_only_what_its_type_configures(
    launch: Launch, beta: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_TEST_PASSED", "passed")
    monkeypatch.setenv("DROVER_SECRET", "secret")
    monkeypatch.setenv("TEST_PASSED", "passed")
    kind = {"kind": "exec", "env": {"GIVEN": "given"}, "pass_env": ["TEST_PASSED"], "limits": {"nofile": 77}}
    script = "echo $GIVEN $TEST_PASSED $DROVER_SECRET $PGPASSWORD $DROVER_JOB; ulimit -n; pwd"
    daemon = launch(table("beta", beta) + agent("sh", ["sh", "-c", script], **kind))
    pk = daemon.insert(jq_type="sh", jq_args="x")
    daemon.wait(pk)
    assert said(daemon, pk, "out") == f"given passed {pk}\n77\n/tmp\n"


@pytest.mark.slow
def test_a_missing_remote_program_is_named_by_why_c25(launch: Launch, beta: Server) -> None:
    daemon = launch("[scheduler]\nrespawn_count = 1\n" + table("beta", beta) + agent("none", ["no-such-program"]))
    pk = daemon.insert(jq_type="none", jq_args="x")
    daemon.until(lambda: "no-such-program: not found" in daemon.why(pk), what="why does not say so")
    row = daemon.row(pk)
    assert (row["jq_state"] in ("queued", "claimed"), row["jq_end_bits"], row["jq_failures"]) == (True, 0, 0)
    assert {attempt["att_outcome"] for attempt in daemon.attempts(pk)} <= {"given back"}


@pytest.mark.slow
@pytest.mark.parametrize("host", ["alpha", "beta"])
def test_jobs_that_were_not_started_are_distinguished_from_failed_ones_c25(
    launch: Launch, beta: Server, host: str, gate: Path, record: Path
) -> None:
    types = agent("none", ["no-such"]) + agent("gone", ["no-such"], kind="exec") + agent("rec", rec(record))
    daemon = launch("[scheduler]\nrespawn_count = 1\n" + ALPHA + table("beta", beta) + types)
    line, command = (daemon.insert(jq_type=name, jq_args="x", jq_host=host) for name in ("none", "gone"))
    started = daemon.insert(jq_type="rec", jq_args=f"gate:{gate};die:1", jq_host=host)
    daemon.until(lambda: "no-such" in daemon.why(line), what="why does not say so")
    row = daemon.row(line)
    assert (row["jq_state"] in ("queued", "claimed"), row["jq_end_bits"], daemon.attempts(line)) == (True, 0, [])
    assert daemon.wait(started, "running")["jq_endtext"] == "in progress"
    gate.touch()
    not_started, failed = daemon.wait(command, "failed"), daemon.wait(started, "failed")
    assert "no-such" in not_started["jq_endtext"]
    assert failed["jq_endtext"] == "agent terminated prematurely, with exit status 1"
    assert (not_started["jq_exitcode"], failed["jq_exitcode"]) == (127, 1)
    assert [(past["att_exitcode"], past["att_pid"]) for past in daemon.attempts(command)] == [(127, None)]


@pytest.mark.slow
def test_jobs_of_an_unreachable_host_do_not_fail_c25(launch: Launch, beta: Server) -> None:
    beta.kill()
    daemon = launch(table("beta", beta) + agent("cat", ["cat"]) + agent("true", ["true"], kind="exec"))
    pks = daemon.insert_all([{"jq_type": name, "jq_args": "x", "jq_host": "beta"} for name in ("cat", "true")])
    for pk in pks:
        daemon.until(lambda: re.search("host beta is down: .*refused", daemon.why(pk)), what="why does not say so")  # noqa: B023
    rows = [daemon.row(pk) for pk in pks]
    assert [(row["jq_end_bits"], row["jq_failures"], row["jq_endtime"]) for row in rows] == [(0, 0, None)] * 2
    assert {row["jq_state"] for row in rows} <= {"queued", "claimed"}
    assert [each["att_outcome"] for pk in pks for each in daemon.attempts(pk) if each["att_outcome"] == "failed"] == []


# ---- one thread


@pytest.mark.slow
def test_the_daemon_has_one_thread_with_local_and_remote_agents_f6(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), slots=5))
    reached(daemon)
    pks = [
        daemon.insert(jq_type="rec", jq_args=f"gate:{gate}", jq_host=host)
        for host in ("alpha", "beta")
        for _ in "12345"
    ]
    daemon.wait_all(pks, "running")
    await_lines(daemon, record, 10)
    assert hosts(record) == {"alpha": 5, "beta": 5}
    assert re.search(r"^Threads:\s*1$", Path(f"/proc/{daemon.pid}/status").read_text(), re.MULTILINE)
    gate.touch()
    daemon.wait_all(pks)


# ---- killing


@pytest.mark.slow
def test_a_remote_agent_that_ignores_sighup_is_killed_like_a_local_one_f9(launch: Launch, beta: Server) -> None:
    daemon = launch(table("beta", beta) + agent("deaf", python(STUBBORN)))
    pk = daemon.insert(jq_type="deaf", jq_args="x")
    daemon.wait(pk, "running")
    pid = daemon.until(
        lambda: daemon.value("select min(status_pid) from drover.scheduler_status where status_slot >= 0")
    )
    assert pid in at_work(beta)
    watched = [os.pidfd_open(pid)]
    daemon.insert(jq_type="command", jq_args=f"killjob {pk}", role="drover_operator")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed by command of drover_operator"
    assert all_gone(watched)


@pytest.mark.slow
def test_no_remote_process_is_left_when_the_daemon_is_killed_f9(launch: Launch, beta: Server) -> None:
    daemon = launch(table("beta", beta) + agent("deaf", python(STUBBORN), slots=3))
    daemon.wait_all(daemon.insert_all([{"jq_type": "deaf", "jq_args": "x"} for _ in range(3)]), "running")
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    assert len(watched) >= 3
    daemon.kill()
    assert all_gone(watched)


# ---- hosts that cannot be reached


def no_key(server: Server) -> None:
    (server.folder / "authorized_keys").write_text("")


def another_host_key(server: Server) -> None:
    server.trust(Keys(server.folder / "other"))


def no_server(server: Server) -> None:
    server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [(no_key, "none of our keys is accepted"), (another_host_key, "host key"), (no_server, "refused")],
)
def test_an_unreachable_host_delays_no_other_and_why_says_so_f10_c53_c25(
    launch: Launch, beta: Server, record: Path, spoil: Callable[[Server], None], why: str
) -> None:
    spoil(beta)
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record)))
    bound = daemon.insert(jq_type="rec", jq_args="far", jq_host="beta")
    daemon.wait_all([daemon.insert(jq_type="rec", jq_args="near") for _ in range(5)])
    daemon.until(lambda: re.search(f"host beta is down: .*{why}", daemon.why(bound)), what="why does not say so")
    told = [line for line in daemon.stderr().splitlines() if "host beta" in line]
    assert 1 <= len(told) <= 4, told  # one a step of the back-off, which doubles
    assert lines(record) == ["near"] * 5


def test_a_host_unknown_to_the_configuration_delays_no_other(launch: Launch, record: Path) -> None:
    daemon = launch(ALPHA + agent("rec", rec(record)))
    lost = daemon.insert(jq_type="rec", jq_args="x", jq_host="nowhere")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="y"))
    assert "no host 'nowhere'" in daemon.why(lost)


@pytest.mark.slow
def test_jobs_of_a_lost_host_run_elsewhere_or_wait_and_run_once_r2_r3_c56(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=2) + "[hosts.alpha]\nenabled = false\n")
    anywhere = daemon.insert(jq_type="rec", jq_args=f"gate:{gate};any")
    bound = daemon.insert(jq_type="rec", jq_args=f"gate:{gate};bound", jq_host="beta")
    daemon.wait_all([anywhere, bound], "running")
    beta.kill()
    daemon.until(lambda: "host beta is down" in daemon.why(bound), what="the loss is not seen")
    daemon.insert(jq_type="command", jq_args="host-enable alpha", role="drover_operator")
    daemon.until(lambda: hosts(record)["alpha"] == 1, what="it does not go on elsewhere")
    gate.touch()
    daemon.wait(anywhere)
    beta.begin()
    daemon.wait(bound)
    ends = {pk: [(each["att_host"], each["att_outcome"]) for each in daemon.attempts(pk)] for pk in (anywhere, bound)}
    assert ends == {
        anywhere: [("beta", "given back"), ("alpha", "done")],
        bound: [("beta", "given back"), ("beta", "done")],
    }
    assert [daemon.row(pk)["jq_interruptions"] for pk in (anywhere, bound)] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["line", "exec"])
def test_the_loss_of_a_host_is_one_line_in_the_log_and_the_attempt_names_it_r2(
    launch: Launch, beta: Server, tmp_path: Path, kind: str
) -> None:
    script = "print('OK', flush=True); input()\nwhile True: __import__('time').sleep(1)"
    command = python(script) if kind == "line" else ["sleep", "600"]
    daemon = launch(table("beta", beta) + agent("long", command, kind=kind))
    pk = daemon.insert(jq_type="long")
    daemon.wait(pk, "running")
    row = daemon.until(lambda: (row := daemon.row(pk))["jq_done_pid"] and row, what="it has no pid")
    assert (row["jq_done_host"], row["jq_done_pid"] in at_work(beta)) == ("beta", True)
    beta.kill()
    daemon.until(lambda: daemon.row(pk)["jq_done_host"] is None, what="it still has a host")
    (attempt,) = daemon.attempts(pk)
    assert (attempt["att_host"], attempt["att_pid"]) == ("beta", row["jq_done_pid"])
    daemon.until(lambda: daemon.log_rows(pk), what="its log is empty")
    (told,) = daemon.log_rows(pk)
    assert re.fullmatch(
        "interrupted: the link to host beta was lost: .+; queued again, interruption 1 of 3", told["log_message"]
    )
    assert (told["log_type"], told["log_host"], told["log_pid"]) == ("WARNING", "beta", row["jq_done_pid"])


@pytest.mark.slow
def test_a_host_that_is_down_shows_when_it_is_tried_next_c25(launch: Launch, beta: Server, record: Path) -> None:
    beta.kill()
    daemon = launch(table("beta", beta) + agent("rec", rec(record)))
    shown = """select extract(epoch from host_down_until)::float8 as at, host_reason from drover.host
                where host_reason like '%refused%'"""
    said = r"(\S+ \S+) WARNING host beta cannot be reached: .*refused.*; next attempt in ([\d.]+) s"

    def both() -> tuple[float, float] | None:
        rows, story = daemon.execute(shown), re.findall(said, daemon.stderr())
        if not rows or len(story) < 3:
            return None
        when, seconds = story[-1]
        told = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() + float(seconds)
        return (rows[0]["at"], told) if abs(rows[0]["at"] - told) < 0.5 else None

    shown_at, told_at = daemon.until(both, what="the time of the next attempt is not the real one")
    assert shown_at == pytest.approx(told_at, abs=0.5)


@pytest.mark.slow
def test_the_loss_of_a_host_changes_no_row_of_another_r87(
    launch: Launch, beta: Server, record: Path, gate: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "gamma") as gamma:
        daemon = launch(ALPHA + table("beta", beta) + table("gamma", gamma) + agent("rec", rec(record), slots=2))
        jobs = [{"jq_type": "rec", "jq_args": f"gate:{gate}", "jq_host": host} for host in ("alpha", "beta", "gamma")]
        near, lost, far = daemon.insert_all(jobs)
        daemon.wait_all([near, lost, far], "running")
        before = [daemon.row(pk) for pk in (near, far)]
        beta.kill()
        daemon.wait(lost, "queued")
        assert [daemon.row(pk) for pk in (near, far)] == before
        beta.begin()
        gate.touch()
        daemon.wait_all([near, lost, far])
    assert hosts(record) == {"alpha": 1, "beta": 2, "gamma": 1}
    assert [daemon.row(pk)["jq_attempt"] for pk in (near, lost, far)] == [1, 2, 1]


@pytest.mark.slow
def test_a_signal_reaches_the_one_of_three_hosts_where_the_job_is_j89(
    launch: Launch, beta: Server, meeting: Meeting
) -> None:
    script = f"trap '{meeting.tell('$DROVER_HOST')}' USR1; {meeting.tell('up')}; while :; do sleep 0.1; done"
    words = '[hosts.gamma]\ntransport = "command"\ncommand = ["env", "HERE=gamma"]\n'
    trap = agent("trap", ["bash", "-c", script], kind="exec")
    daemon = launch(ALPHA + table("beta", beta) + words + trap)
    jobs = {host: daemon.insert(jq_type="trap", jq_args="x", jq_host=host) for host in ("alpha", "beta", "gamma")}
    meeting.hear_all(3)
    for host in ("beta", "gamma", "alpha", "beta"):
        order = daemon.insert(jq_type="command", jq_args=f"signal {jobs[host]} USR1", role="drover_operator")
        assert daemon.wait(order)["jq_result"] == {str(jobs[host]): True}
        assert meeting.hear() == host
    assert {daemon.row(pk)["jq_state"] for pk in jobs.values()} <= {"claimed", "running"}


@pytest.mark.slow
def test_items_of_a_query_survive_the_loss_of_a_host(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), slots=2))
    reached(daemon)
    sql = "select n as k, 'nap:0.03' as act from generate_series(1, 400) n"
    pk = daemon.insert(jq_type="rec", jq_args=sql, jq_msq=True, jq_key="k")
    daemon.until(lambda: hosts(record)["beta"] >= 5, what="beta gets no work")
    beta.kill()
    row = daemon.wait(pk)
    keys = {re.search(r'k="(\d+)"', line)[1] for line in lines(record)}  # type: ignore[index]
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"], len(keys)) == (400, 0, 400)


@pytest.mark.slow
def test_ssh_process_is_started_again_when_it_dies(launch: Launch, beta: Server, record: Path, gate: Path) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}")
    daemon.wait(pk, "running")
    await_lines(daemon, record, 1)
    (ssh_process,) = [pid for pid in daemon.agent_pids() if "scheduler.ssh" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(ssh_process, SIGKILL)
    gate.touch()
    assert daemon.wait(pk)["jq_interruptions"] == 1
    assert lines(record) == [f"gate:{gate}"] * 2


@pytest.mark.slow
def test_a_reload_changes_the_transport_of_a_host_t50(
    launch: Launch, beta: Server, record: Path, tmp_path: Path
) -> None:
    types = agent("rec", rec(record))
    daemon = launch(ALPHA + types)
    config = daemon.folder / "conf.d" / "test.toml"
    pk = daemon.insert(jq_type="rec", jq_args="one", jq_host="beta")
    config.write_text(ALPHA + table("beta", beta) + types)
    daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
    daemon.wait(pk)
    with serving(tmp_path / "other") as other:
        config.write_text(ALPHA + table("beta", other) + types)
        daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
        reached(daemon, times=2)
        daemon.wait(daemon.insert(jq_type="rec", jq_args="two", jq_host="beta"))
        daemon.until(lambda: not at_work(beta), what="something is left on the former way")
        config.write_text(ALPHA + types)
        daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
        daemon.until(lambda: not below(other.process.pid), what="something is left on a host that is gone")
    assert hosts(record) == {"beta": 2}


@pytest.mark.slow
def test_a_reload_follows_ssh_config_to_another_machine_and_lets_agents_finish(
    launch: Launch, beta: Server, record: Path, tmp_path: Path, gate: Path
) -> None:
    config = tmp_path / "ssh_config"

    def lead(server: Server) -> None:
        config.write_text(
            f"Host name\n HostName 127.0.0.1\n Port {server.port}\n User root\n"
            f" IdentityFile {server.user_key.path}\n UserKnownHostsFile {server.known_hosts}\n"
        )

    lead(beta)
    table = '[hosts.beta]\ntransport = "ssh"\naddress = "name"\n'
    daemon = launch(ALPHA + table + agent("rec", rec(record), slots=2), ssh={"ssh_config": str(config)})
    reached(daemon)
    held = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}", jq_host="beta")
    await_lines(daemon, record, 1)
    with serving(tmp_path / "other") as other:
        daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
        lead(other)
        daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
        reached(daemon, times=2)
        daemon.wait(daemon.insert(jq_type="rec", jq_args="two", jq_host="beta"))
        assert at_work(other)
        assert at_work(beta)
        gate.touch()
        assert daemon.wait(held)["jq_interruptions"] == 0
        daemon.until(lambda: not below(beta.process.pid), what="something is left where the name led before")
    assert hosts(record) == {"beta": 2}


@pytest.mark.slow
def test_a_reload_has_a_host_tried_at_once_that_is_down(
    launch: Launch, beta: Server, record: Path, tmp_path: Path
) -> None:
    (config := tmp_path / "ssh_config").write_text("ProxyCommand none\nPort x\n")
    slow = {"ssh_config": str(config), "retry_base_s": 3000.0, "retry_max_s": 3000.0}
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record)), ssh=slow)
    assert daemon.until(lambda: f"{config} line 2: Bad port 'x'" in daemon.stderr(), what="the line is not named")
    config.write_text("")
    daemon.insert(jq_type="command", jq_args="reload", role="drover_operator")
    reached(daemon)


@pytest.mark.slow
def test_a_host_that_becomes_silent_is_lost_and_reconnected_c56_j73(
    launch: Launch, record: Path, tmp_path: Path, gate: Path
) -> None:
    need("netns")
    need("sshd")
    with cabled() as net, serving(tmp_path / "far", address=net.address, inside=net.inside, port=2222) as server:
        daemon = launch(ALPHA + table("beta", server) + agent("rec", rec(record)), ssh=SOON)
        bound = daemon.insert(jq_type="rec", jq_args=f"gate:{gate}", jq_host="beta")
        daemon.wait(bound, "running")
        await_lines(daemon, record, 1)
        net.cut()
        daemon.wait(daemon.insert(jq_type="rec", jq_args="near"))
        daemon.until(
            lambda: "host beta is down" in daemon.why(bound), timeout=LONG_PATIENCE_S, what="the silence is not noticed"
        )
        net.mend()
        gate.touch()
        assert daemon.wait(bound, timeout=LONG_PATIENCE_S)["jq_interruptions"] == 1
    assert hosts(record) == {"beta": 2, "alpha": 1}
