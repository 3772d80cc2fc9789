"""The daemon executes another program in its place: its agents, jobs and queries go on as if nothing had been."""

import os
import re
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from tests.cli_tools import DROVER
from tests.faults import reexecs
from tests.integration.conftest import Launch, Serve
from tests.integration.daemon import RUN, Daemon, agent, rec
from tests.integration.puppets import ASKING, LOCAL, Meeting, each, puppet, rows, settings
from tests.integration.ssh_tools import table
from tests.integration.upgrade_tools import GOES_ON, change, replace
from tests.notify_tools import Ear
from tests.patience import LONG_PATIENCE_S, PATIENCE_S
from tests.ssh.sshd import Server

ASKED = """
select count(*) from pg_locks where locktype = 'advisory' and not granted
   and database = (select oid from pg_database where datname = current_database())
"""


def command(daemon: Daemon) -> int:
    """Insert the command, as an operator does."""
    return daemon.insert(role="drover_operator", jq_type="command", jq_args="reexec")


def reexec(daemon: Daemon) -> str:
    """Let the daemon execute its program again, and return what the command says."""
    return str(daemon.wait(command(daemon))["jq_endtext"])


def refused(daemon: Daemon) -> str:
    """Return why the daemon goes on as the old program: up to three programs were started for that."""
    return str(daemon.wait(command(daemon), "failed", timeout=LONG_PATIENCE_S)["jq_endtext"])


def work(daemon: Daemon, meeting: Meeting) -> int:
    """Let an agent begin a job that waits; return the job."""
    pk = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    return pk


def ends_once(daemon: Daemon, pk: int, meeting: Meeting, agents: list[int]) -> None:
    """Let the job go on: its agent is the same, and so is its attempt."""
    meeting.let_go()
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (1, 0)
    assert daemon.agent_pids() == agents


@pytest.mark.slow
def test_a_load_over_several_executions_loses_and_repeats_nothing(launch: Launch, record: Path) -> None:
    daemon = launch(reexecs.config(record))
    outcome = reexecs.load(daemon, record, 300, 150, 2, lambda text: None)
    assert (outcome.twice, outcome.lost, outcome.restarted, outcome.attempts) == (0, 0, 0, 0)
    assert "bug" not in daemon.stderr()


@pytest.mark.slow
def test_the_command_ends_when_the_new_program_has_come_up(
    serve: Serve,
    program: Path,
    meeting: Meeting,
) -> None:
    daemon = serve()
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    replace(program)
    assert reexec(daemon).endswith("version new 0.1.0 has taken over from 0.1.0")
    ends_once(daemon, pk, meeting, agents)
    assert daemon.value("select scheduler_version from drover.scheduler").startswith("new 0")
    assert daemon.stop() == 0


@pytest.mark.slow
def test_two_commands_are_one_execution(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    pks = daemon.insert_all([{"jq_type": "command", "jq_args": "reexec"}] * 2, role="drover_operator")
    assert [row["jq_end_bits"] for row in daemon.wait_all(pks)] == [1, 1]
    assert daemon.stderr().count("the new program goes on") == 1


@pytest.mark.slow
def test_a_program_that_cannot_be_imported_fails_the_command(
    serve: Serve,
    program: Path,
    meeting: Meeting,
) -> None:
    daemon = serve()
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    change(program, "daemon/wiring.py", "class Daemon:", "class Daemon(Missing):")
    assert "the new program cannot go on: NameError: name 'Missing'" in refused(daemon)
    ends_once(daemon, pk, meeting, agents)


@pytest.mark.slow
def test_a_program_that_knows_another_version_of_the_state_only_is_not_executed(
    serve: Serve,
    program: Path,
    meeting: Meeting,
) -> None:
    daemon = serve()
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    change(program, "policy/handover.py", "READ: Final = (VERSION,)", "READ: Final = (VERSION + 7,)")
    assert "the state has version 1, this program reads 8" in refused(daemon)
    ends_once(daemon, pk, meeting, agents)


@pytest.mark.slow
def test_a_program_that_fails_at_its_first_turn_hands_back(
    serve: Serve,
    program: Path,
    meeting: Meeting,
) -> None:
    daemon = serve(reexec=True, status_interval=1.0)
    pk, agents, pid = work(daemon, meeting), daemon.agent_pids(), daemon.pid
    change(program, "daemon/wiring.py", "    def turn(self) -> None:\n", "    def turn(self) -> None:\n        1 / 0\n")
    assert "ZeroDivisionError" in refused(daemon)
    assert "the old one goes on" in daemon.stderr()
    assert daemon.pid == pid
    ends_once(daemon, pk, meeting, agents)
    assert reexec_after_repair(daemon, program).endswith("has taken over from 0.1.0")
    assert daemon.agent_pids() == agents
    assert daemon.stop() == 0


def reexec_after_repair(daemon: Daemon, program: Path) -> str:
    change(program, "daemon/wiring.py", "        1 / 0\n", "")
    return reexec(daemon)


@pytest.mark.slow
def test_a_program_that_hangs_hands_back_at_its_deadline(
    serve: Serve,
    program: Path,
    meeting: Meeting,
) -> None:
    daemon = serve(reexec=True, reexec_limit=0.3, status_interval=1.0)
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    change(
        program, "daemon/wiring.py", "    def run(self) -> int:\n", "    def run(self) -> int:\n        import time\n"
        "        time.sleep(1000)\n",
    )  # fmt: skip
    assert "nothing came of it in 0.3 s" in refused(daemon)
    ends_once(daemon, pk, meeting, agents)


@pytest.mark.slow
def test_a_signal_to_end_before_the_new_program_is_up_ends_it_in_order(
    serve: Serve, program: Path, meeting: Meeting
) -> None:
    daemon = serve()
    pk = work(daemon, meeting)
    connects = "            self.connections.open()\n"
    change(program, "daemon/wiring.py", connects, f"{connects}            os.kill(os.getpid(), 15)\n")
    command(daemon)
    assert daemon.wait_exit() == 0
    assert GOES_ON in daemon.stderr()
    assert daemon.row(pk)["jq_state"] == "queued"


def test_a_state_that_has_no_room_replaces_nothing(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet())
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    subprocess.run(["prlimit", "--pid", str(daemon.pid), "--fsize=100:unlimited"], check=True)
    # the log is a file too: what cannot be written there is lost, and the command says it
    assert "the state is not written: File too large" in refused(daemon)
    subprocess.run(["prlimit", "--pid", str(daemon.pid), "--fsize=unlimited:unlimited"], check=True)
    ends_once(daemon, pk, meeting, agents)


def test_a_daemon_that_reads_its_jobs_is_not_executed_anew(launch: Launch, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    daemon = launch(
        LOCAL + puppet(), options=["-I"], stdin=f"puppet | while ! test -e {gate}; do sleep 0.02; done\n".encode()
    )
    assert "(-I) is not executed anew" in refused(daemon)
    gate.touch()
    assert daemon.wait_exit() == 0


@pytest.mark.slow
def test_agents_started_later_get_three_descriptors(launch: Launch, meeting: Meeting) -> None:
    see = agent("see", each("echo LOG $(ls /proc/self/fd | tr '\\n' ' ')"))
    daemon = launch(LOCAL + puppet() + see)
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    reexec(daemon)
    seen = daemon.insert(jq_type="see", jq_args="x")
    daemon.wait(seen)
    assert re.search(r"^LOG 0 1 2 \d+$", daemon.log_text(seen).strip(), re.MULTILINE)  # and the folder itself
    meeting.let_go()
    assert daemon.wait(pk)["jq_attempt"] == 1
    assert set(agents) < set(daemon.agent_pids())


@pytest.mark.slow
def test_output_of_a_command_is_captured_across_the_exec(launch: Launch, meeting: Meeting) -> None:
    script = f"printf 'one\\ntw'; printf 'half' >&2; {meeting.tell('here')}; {meeting.wait}; printf 'o\\n'; exit 3"
    daemon = launch(LOCAL + agent("run", ["sh", "-c", script], kind="exec"))
    pk = daemon.insert(jq_type="run", jq_args="x")
    assert meeting.hear() == "here"
    reexec(daemon)
    meeting.let_go()
    row = daemon.wait(pk, "failed")
    texts = daemon.execute("select out_stream, string_agg(out_data, '' order by out_part) as text from drover.output "
                           "where out_jq_fk = %s group by 1 order by 1", pk)  # fmt: skip
    assert [(each["out_stream"], each["text"]) for each in texts] == [("err", "half"), ("out", "one\ntwo\n")]
    assert (row["jq_exitcode"], row["jq_attempt"]) == (3, 1)


@pytest.mark.slow
def test_half_a_line_of_an_agent_is_kept(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet())
    script = f"printf 'LOG be'; {meeting.tell('here')}; {meeting.wait}; echo fore"
    pk = daemon.insert(jq_type="puppet", jq_args=script)
    assert meeting.hear() == "here"
    reexec(daemon)
    meeting.let_go()
    daemon.wait(pk)
    assert "LOG before" in daemon.log_text(pk)


@pytest.mark.slow
def test_rows_of_a_query_without_a_key_travel(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + rows("rows", f'test "$n" != 1 || {{ {meeting.tell("here")}; {meeting.wait}; }}'))
    pk = daemon.insert(jq_type="rows", jq_args="select n from generate_series(1, 5000) n", jq_msq=True)
    assert meeting.hear() == "here"
    reexec(daemon)
    meeting.let_go()
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_itemsprocessed"], row["jq_itemstotal"]) == (1, 5000, 5000)


@pytest.mark.slow
def test_a_long_query_without_a_key_is_waited_for(launch: Launch, record: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    daemon = launch(LOCAL + agent("rows", rec(record)))  # a shell would read lines as wide as these for 10 seconds
    wide = f"select 'gate:{gate}' as act, repeat('x', 60000) as t from generate_series(1, 400) n"
    pk = daemon.insert(jq_type="rows", jq_args=wide, jq_msq=True)
    daemon.wait(pk, "running")
    asked = command(daemon)
    daemon.until(lambda: f"reexec: job {pk} has a query without a key" in daemon.stderr(), what="it does not say so")
    daemon.until(lambda: "more rows left than can travel" in str(daemon.vitals()), what="status does not say so")
    gate.touch()
    assert daemon.wait(asked)["jq_end_bits"] == 1
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_itemsprocessed"]) == (1, 400)


@pytest.mark.slow
def test_items_in_hand_of_a_keyed_query_are_not_given_out_again(launch: Launch, meeting: Meeting) -> None:
    script = f'echo LOG $n; test "$n" -gt 2 || {{ {meeting.tell("here")}; {meeting.wait}; }}'
    daemon = launch(settings(fetch_rows=7) + LOCAL + rows("rows", script, slots=2))
    pk = daemon.insert(jq_type="rows", jq_args="select n from generate_series(1, 60) n", jq_key="n", jq_msq=True)
    assert [meeting.hear(), meeting.hear()] == ["here", "here"]
    reexec(daemon)
    reexec(daemon)
    meeting.let_go(2)
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_itemsprocessed"], row["jq_itemstotal"]) == (1, 60, 60)
    logged = sorted(int(each["log_message"]) for each in daemon.log_rows(pk) if each["log_type"] == "LOG")
    assert logged == list(range(1, 61))


@pytest.mark.slow
def test_an_answer_that_an_agent_waits_for_comes_before_the_exec(launch: Launch) -> None:
    daemon = launch(LOCAL + agent("ask", ASKING, db="sql"))
    with psycopg.connect(daemon.database, autocommit=True) as other:
        other.execute("select pg_advisory_lock(7)")
        pk = daemon.insert(jq_type="ask", jq_args="select pg_advisory_lock(7), 7 as x;")
        daemon.until(lambda: daemon.value(ASKED), what="it does not ask")
        order = command(daemon)
        daemon.until(lambda: "a statement of it is running" in str(daemon.vitals()), what="nothing is waited for")
        other.execute("select pg_advisory_unlock(7)")
    daemon.wait(order)
    row = daemon.wait(pk, "failed")
    assert 'x="7"' in row["jq_endtext"]
    assert row["jq_attempt"] == 1


@pytest.mark.slow
def test_changed_configuration_is_followed_by_the_new_program(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet())
    pk, agents = work(daemon, meeting), daemon.agent_pids()
    (daemon.folder / "conf.d" / "more.toml").write_text(puppet("more"))
    reexec(daemon)
    assert daemon.wait(daemon.insert(jq_type="more", jq_args="true"))["jq_attempt"] == 1
    meeting.let_go()
    assert daemon.wait(pk)["jq_attempt"] == 1
    assert set(agents) < set(daemon.agent_pids())


@pytest.mark.slow
def test_limits_that_commands_have_set_hold_in_the_new_program(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(slots=3))
    work(daemon, meeting)
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="pause default"))
    waiting = daemon.insert(jq_type="puppet", jq_args="true")
    reexec(daemon)
    assert "paused" in daemon.why(waiting)
    meeting.let_go()
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="continue default"))
    assert daemon.wait(waiting)["jq_attempt"] == 1


@pytest.mark.slow
def test_a_standby_is_executed_anew_too(launch: Launch) -> None:
    text = settings(lease=30) + LOCAL + puppet()
    first = launch(text)
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr(), what="it does not stand by")
    told = reexec(first)
    assert told.count("has taken over") == 2
    first.stop()
    assert second.wait(second.insert(jq_type="puppet", jq_args="true"))["jq_attempt"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("ms", [0, 100, 300, 450, 600, 800])
def test_a_daemon_that_is_killed_on_its_way_is_rescued_as_ever(launch: Launch, record: Path, ms: int) -> None:
    daemon = launch(reexecs.config(record))
    pks = [row["jq_pk"] for row in daemon.execute(reexecs.JOBS % (0.001, 200))]
    daemon.until(record.exists, what="no agent works")
    command(daemon)
    subprocess.run(["sleep", str(ms / 1000)], check=True)
    daemon.kill()
    other = launch(reexecs.config(record))
    assert {row["jq_state"] for row in other.wait_all(pks)} == {"done"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param("daemon/upgrade.py", "            self._daemon.freeze()\n", id="held"),
        pytest.param("daemon/upgrade.py", "            self._execute()\n", id="saved"),
        pytest.param("daemon/upgrade.py", "            hold_signals()\n", id="written-down"),
        pytest.param(
            "cli/run.py", "        return takeover, config_to_go_on(takeover.document, config)\n", id="executed"
        ),
        pytest.param("daemon/wiring.py", "            self._takeover.set_no_alarm()\n", id="restored"),
        pytest.param("daemon/wiring.py", "        takeover.finish()\n", id="up"),
    ],
)
@pytest.mark.slow
def test_a_daemon_that_is_killed_at_any_point_of_it_is_rescued_as_ever(
    serve: Serve, launch: Launch, program: Path, meeting: Meeting, name: str, line: str
) -> None:
    indent = line[: -len(line.lstrip())]
    change(program, name, line, f"{indent}__import__('os').kill(__import__('os').getpid(), 9)\n{line}")
    daemon = serve()
    pk = work(daemon, meeting)
    command(daemon)
    assert daemon.wait_exit() != 0
    other = launch(LOCAL + puppet())
    assert meeting.hear() == "here"
    meeting.let_go()
    assert other.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
def test_a_program_that_fails_later_is_a_daemon_that_died(
    serve: Serve, launch: Launch, program: Path, meeting: Meeting
) -> None:
    daemon = serve()
    pk = work(daemon, meeting)
    finish = "        takeover.finish()\n"
    later = "        self.loop.at(self.loop.now + 0.5, lambda: __import__('os')._exit(7))\n"
    change(program, "daemon/wiring.py", finish, finish + later)
    command(daemon)
    assert daemon.wait_exit() != 0
    assert GOES_ON in daemon.stderr()
    other = launch(LOCAL + puppet())
    assert meeting.hear() == "here"
    meeting.let_go()
    assert other.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
def test_a_service_manager_sees_a_reload_of_the_same_process(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    with Ear(str(tmp_path / "notify")) as ear:
        monkeypatch.setenv("NOTIFY_SOCKET", ear.address)
        monkeypatch.setenv("WATCHDOG_USEC", "60000000")
        daemon = launch(settings(ready_file=str(ready)) + LOCAL + puppet())
        assert f"MAINPID={daemon.pid}" in ear.until("READY=1")
        command(daemon)
        ear.until("RELOADING=1")
        told = ear.until(f"MAINPID={daemon.pid}")
        assert ("READY=1" in told, "WATCHDOG=1" in told, "STOPPING=1" in told) == (True, True, False)
        assert ready.read_text() == f"{daemon.pid}\n"
        daemon.stop()


@pytest.mark.slow
def test_agents_over_ssh_live_through_the_exec(launch: Launch, beta: Server, meeting: Meeting) -> None:
    daemon = launch(puppet(slots=2) + table("beta", beta))
    pk = work(daemon, meeting)
    processes = daemon.agent_pids()
    reexec(daemon)
    reexec(daemon)
    meeting.let_go()
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (1, 0)
    assert daemon.agent_pids() == processes  # the SSH process of the host
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args="kill -9 $$"), "failed")["jq_attempt"] == 1
    assert daemon.stop() == 0


@pytest.mark.slow
def test_an_embedded_server_goes_on(tmp_path: Path) -> None:
    (tmp_path / "drover.toml").write_text(
        '[database]\nurl = "embedded:' + str(tmp_path / "pg") + '"\n' + LOCAL + puppet()
    )
    log = tmp_path / "log"
    environment = {name: text for name, text in os.environ.items() if name != "DROVER_DATABASE_URL"}
    with log.open("wb") as errors:
        daemon = subprocess.Popen([*RUN, "-c", str(tmp_path / "drover.toml")], stderr=errors, env=environment)
    try:
        said(log, "serving group")
        server = (tmp_path / "pg/data/postmaster.pid").read_text()
        for times in (1, 2):
            subprocess.run([*DROVER, "-c", str(tmp_path / "drover.toml"), "reexec"], env=environment, check=True)
            said(log, GOES_ON, times)
        assert (tmp_path / "pg/data/postmaster.pid").read_text() == server
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert not (tmp_path / "pg/data/postmaster.pid").exists()


def said(log: Path, text: str, times: int = 1) -> None:
    """Wait until the log has this."""
    deadline = time.monotonic() + 3 * PATIENCE_S
    while log.read_text().count(text) < times:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
