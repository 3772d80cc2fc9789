"""Agents that became another user's by a setuid program: a daemon that is not root may not signal them, and says so."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from scheduler.drivers.keeper_scripts import release_words, words_of
from scheduler.model.events_and_effects import Keeper
from tests.cli_tools import DROVER
from tests.drivers.test_processes import debugger
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import RUN, Daemon, agent, python
from tests.integration.daemon import is_gone as has_ended
from tests.integration.puppets import settings
from tests.integration.ssh_tools import table
from tests.needs import need
from tests.other_user import setuid_program
from tests.patience import LONG_PATIENCE_S
from tests.ssh.accounts import for_user_1
from tests.ssh.sshd import Server, serving

SHOWN = settings(status_interval=1)  # what is left is shown with the status
HOST = "[hosts.local]\n"
# The daemon is user 1; the capability, which agents do not get, is for the files of this test.
USER_1 = ["setpriv", "--reuid=1", "--regid=1", "--clear-groups", "--"]
AS_USER_1 = ["setpriv", "--reuid=1", "--regid=1", "--clear-groups", "--inh-caps=+dac_read_search",
             "--ambient-caps=+dac_read_search", "--", *RUN]  # fmt: skip
DEAF = "trap '' HUP; echo OK; read -r line; exec sleep 1000"
ANSWER = "echo OK; read -r line"
POLITE = "trap '' HUP; echo OK; read -r line; read -r line"
MUTE = "trap '' HUP; echo OK; read -r line; exec >&- 2>&-; exec sleep 1000"
TRACEABLE = """
import ctypes, signal
ctypes.CDLL(None).prctl(0x59616D61, -1)  # anybody may trace it (PR_SET_PTRACER)
print('OK')
input()
signal.pause()
"""
LIVES_ON = "protocol violation: it closed its output and lives on"
KILLED = "killed by command of drover_operator"
LEFT = "its process {} runs as user bin and could not be ended: it is left"


class Site:
    """Daemons whose agents become user 2 by a setuid program; all is killed at the end."""

    def __init__(self, become: list[str], launch: Launch) -> None:
        self.folder = Path(become[0]).parent
        self._become, self._launch = become, launch
        self._left: list[tuple[int, int]] = []  # pids with their pidfds

    def foreign(self, name: str, script: str, **keys: Any) -> str:
        """Return a type whose agents run a script as user 2."""
        return agent(name, [*self._become, script], **keys)

    def command(self, script: str) -> list[bytes]:
        """Return the words that run a script as user 2."""
        return [each.encode() for each in (*self._become, script)]

    @property
    def word(self) -> str:
        """Return what stands before a script in a shell, so that it runs as user 2."""
        return " ".join(self._become)

    def serve(self, types: str) -> Daemon:
        return self._launch(SHOWN + HOST + types, program=AS_USER_1)

    def serve_over_ssh(self, server: Server, types: str) -> Daemon:
        return self._launch(SHOWN + table("alpha", server, user="daemon") + types)

    def working(self, daemon: Daemon, name: str) -> tuple[int, int]:
        """Let an agent that cannot be ended begin a job; return the job and the process."""
        pk = daemon.insert(jq_type=name)
        daemon.wait(pk, "running")
        pid = int(daemon.until(lambda: self.pids(daemon, pk))[0])
        self.watch(pid)
        return pk, pid

    def watch(self, pid: int) -> None:
        """Kill a process at the end."""
        self._left.append((pid, os.pidfd_open(pid)))

    @staticmethod
    def pids(daemon: Daemon, pk: int) -> list[int]:
        found = daemon.execute("select status_pid from drover.scheduler_status where status_jq_fk = %s", pk)
        return [row["status_pid"] for row in found if row["status_pid"]]

    def end(self, daemon: Daemon, number: int) -> int:
        """End a daemon that must leave something; its status."""
        daemon.signal(number)
        return daemon.process.wait(LONG_PATIENCE_S)

    def kill_left(self) -> None:
        """Kill the processes of all jobs; they lead their groups, and are not reaped before they are dead."""
        for pid, fd in self._left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, SIGKILL)
            assert has_ended(fd), f"process {pid} lives on"
        self._left.clear()


@pytest.fixture
def site(launch: Launch) -> Iterator[Site]:
    with setuid_program() as become:
        site = Site(become, launch)
        try:
            yield site
        finally:
            site.kill_left()


@pytest.fixture
def serving_user_1(tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path / "server", **for_user_1(tmp_path)) as server:
        yield server


def killed(daemon: Daemon, pk: int) -> str:
    """Kill a job as an operator does; return how it ended."""
    daemon.insert(role="drover_operator", jq_type="command", jq_args=f"killjob {pk}")
    return str(daemon.wait(pk, "failed")["jq_endtext"])


def troubles(daemon: Daemon) -> list[str]:
    """Return what the daemon shows of processes that are left."""
    return [f"{each['what']}: {each['reason']}" for each in daemon.vitals()["troubles"] if "left" in each]


def test_killed_job_ends_and_says_which_process_is_left(site: Site, ask: Ask) -> None:
    daemon = site.serve(site.foreign("deaf", DEAF))
    pk, pid = site.working(daemon, "deaf")
    assert killed(daemon, pk) == f"{KILLED}; {LEFT.format(pid)}"
    refused = f"SIGHUP is refused: its process {pid} runs as user bin by now, and may not be signalled"
    assert daemon.log_text(pk).splitlines()[:2] == [f"WARNING {refused}", f"ERROR {LEFT.format(pid)}"]
    assert daemon.stderr().count("ST_FREEING -> ST_FREEING") == 1
    assert "ST_FREEING -> ST_FREE " in daemon.stderr()
    daemon.until(lambda: troubles(daemon) == [f"agent deaf: {LEFT.format(pid)}"])
    assert re.search(rf"process left +agent deaf, for [0-9:]+: {LEFT.format(pid)}; next: ", ask("status").out)
    told = re.sub(" at [0-9:]{5};", ";", ask(f"why {pk}").out)
    assert told.split("failed ")[1] == f"(killed): {KILLED}; {LEFT.format(pid)}\n"


def test_process_that_is_left_is_shown_until_it_ends_over_a_reexec(site: Site) -> None:
    daemon = site.serve(site.foreign("deaf", DEAF))
    pk, pid = site.working(daemon, "deaf")
    killed(daemon, pk)
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="reexec"), timeout=LONG_PATIENCE_S)
    daemon.until(lambda: troubles(daemon) == [f"agent deaf: {LEFT.format(pid)}"])
    site.kill_left()
    daemon.until(lambda: troubles(daemon) == [])
    assert pid not in daemon.agent_pids()


def test_command_that_is_left_fails_with_that_reason(site: Site) -> None:
    daemon = site.serve(site.foreign("slow", "trap '' HUP; echo begun; exec sleep 1000", kind="exec", item_timeout=1))
    pk, pid = site.working(daemon, "slow")
    assert daemon.wait(pk, "failed")["jq_endtext"] == f"item took longer than 1 s; {LEFT.format(pid)}"
    assert daemon.value("select out_data from drover.output where out_jq_fk = %s", pk) == "begun\n"


def test_detached_command_that_cannot_be_killed_is_left(site: Site) -> None:
    with TemporaryDirectory(prefix="spool-") as spool:
        os.chown(spool, 1, 1)
        kind = site.foreign("kept", "trap : HUP; echo $$; exec sleep 1000", kind="exec", detached=True)
        daemon = site.serve(f'spool = "{spool}"\n{kind}')
        pk, _ = site.working(daemon, "kept")
        printed = "select out_data from drover.output where out_jq_fk = %s"
        pid = int(daemon.until(lambda: daemon.execute(printed, pk))[0]["out_data"])
        site.watch(pid)
        left = LEFT.format(pid)
        assert killed(daemon, pk) == f"{KILLED}; {left}"
        assert daemon.row(pk)["jq_end_code"] == "killed"
        assert f"ERROR {left}" in daemon.log_text(pk)
        daemon.until(lambda: troubles(daemon) == [f"agent kept: {left}"])
        site.kill_left()
        daemon.until(lambda: not list(Path(spool).glob("*/*.*")), what="its entry is not removed")


def test_a_release_looks_seldom_at_a_command_that_it_may_not_end(site: Site) -> None:
    with TemporaryDirectory(prefix="spool-", ignore_cleanup_errors=True) as spool, TemporaryDirectory() as folder:
        os.chown(spool, 1, 1)
        os.chown(folder, 1, 1)
        nap = Path(folder) / "sleep"
        nap.write_text('#!/bin/sh\necho >>"$0.log"\nexec /bin/sleep "$@"\n')
        nap.chmod(0o755)
        command = site.command("trap : HUP; echo $$; exec sleep 1000")
        words = words_of(Keeper("start", "site", spool, 0, 1 << 20, grace=1), 7, 1, command)
        attached = subprocess.Popen([*USER_1, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert attached.stdout is not None
        attached.stdout.readline()  # the pid of its keeper
        site.watch(int(attached.stdout.readline()))
        attached.kill()
        attached.communicate()
        release = release_words(spool, "site", [(7, 1)], grace=1)
        path = f"{folder}:{os.environ['PATH']}"
        done = subprocess.run([*USER_1, *release], env={"PATH": path}, stdout=subprocess.PIPE, check=False)
        assert (done.returncode, done.stdout) == (1, b"7.1\n")
        assert Path(f"{nap}.log").read_text().count("\n") <= 2
        site.kill_left()


def test_agent_that_closed_its_output_and_cannot_be_killed_is_left(site: Site) -> None:
    daemon = site.serve(site.foreign("mute", MUTE))
    text = daemon.wait(daemon.insert(jq_type="mute"), "failed")["jq_endtext"]
    found = re.fullmatch(f"{LIVES_ON}; {LEFT.format('([0-9]+)')}", text)
    assert found is not None, text
    site.watch(int(found[1]))


def test_agent_that_ends_with_its_input_leaves_nothing(site: Site) -> None:
    daemon = site.serve(site.foreign("polite", POLITE))
    pk, _ = site.working(daemon, "polite")
    assert killed(daemon, pk) == KILLED
    daemon.stop()


def test_shutdown_ends_in_time_and_names_the_process_that_is_left(site: Site) -> None:
    daemon = site.serve(site.foreign("deaf", DEAF))
    pk, pid = site.working(daemon, "deaf")
    assert site.end(daemon, SIGTERM) == 0
    assert daemon.row(pk)["jq_state"] == "queued"
    said = daemon.stderr()
    assert "the database" not in said
    assert f"WARNING agent deaf: {LEFT.format(pid)}" in said
    assert f"processes that could not be ended: 1\npid={pid} " in said


@pytest.mark.slow
def test_shutdown_in_which_a_process_does_not_die_blames_that_and_not_the_database(launch: Launch) -> None:
    daemon = launch(HOST + agent("traced", python(TRACEABLE)))
    pk = daemon.insert(jq_type="traced")
    daemon.wait(pk, "running")
    (pid,) = daemon.agent_pids()
    with debugger(pid):  # that holds its end
        daemon.signal(SIGTERM)
        assert daemon.process.wait(LONG_PATIENCE_S) == 0
    said = daemon.stderr()
    assert f"ERROR not dead in time: agent traced on host local, process {pid}; the next scheduler" in said
    assert "the database" not in said


def test_guardian_of_a_killed_daemon_names_the_process_that_is_left(site: Site) -> None:
    daemon = site.serve(site.foreign("deaf", DEAF))
    _, pid = site.working(daemon, "deaf")
    site.end(daemon, SIGKILL)
    assert f"processes that could not be ended: 1\npid={pid} " in daemon.stderr()


def test_member_of_a_group_that_cannot_be_killed_is_named(site: Site) -> None:
    script = f"{site.word} 'trap : HUP; echo $$; exec sleep 1000' & sleep 1000 & wait"
    daemon = site.serve(agent("mixed", ["sh", "-c", script], kind="exec"))
    pk, _ = site.working(daemon, "mixed")
    printed = "select out_data from drover.output where out_jq_fk = %s"
    pid = int(daemon.until(lambda: daemon.execute(printed, pk))[0]["out_data"])
    site.watch(pid)
    assert killed(daemon, pk) == KILLED
    daemon.until(lambda: f"WARNING agent mixed: {LEFT.format(pid)}" in daemon.stderr())
    daemon.until(lambda: troubles(daemon) == [f"agent mixed: {LEFT.format(pid)}"])


def test_job_ends_though_the_host_of_its_agent_may_not_kill_that(site: Site, serving_user_1: Server) -> None:
    daemon = site.serve_over_ssh(serving_user_1, site.foreign("deaf", DEAF))
    pk, pid = site.working(daemon, "deaf")
    left = f"its process {pid} on host alpha runs as another user and could not be ended: it is left"
    assert killed(daemon, pk) == f"{KILLED}; {left}"
    assert f"ERROR {left}" in daemon.log_text(pk)
    assert f"host alpha: SIGHUP is refused: process {pid} runs as another user by now" in daemon.stderr()
    assert "ST_FREEING -> ST_FREE " in daemon.stderr()
    assert site.end(daemon, SIGTERM) == 0


def test_author_is_told_of_an_agent_that_cannot_be_killed(site: Site) -> None:
    program = site.folder / "agent"
    program.write_text(f"#!/bin/sh\necho $$ >&2\nexec {site.word} 'trap : HUP; {ANSWER}; {ANSWER}; exec sleep 1000'\n")
    program.chmod(0o755)
    words = [*AS_USER_1[: -len(RUN)], *DROVER, "agent", "run", str(program), "x"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONG_PATIENCE_S)
    pid = next(int(line) for line in done.stderr.splitlines() if line.isdecimal())
    os.kill(pid, SIGKILL)
    assert LEFT.format(pid) in done.stderr


def test_refused_signal_of_an_operator_is_logged(site: Site) -> None:
    daemon = site.serve(site.foreign("deaf", DEAF))
    pk, pid = site.working(daemon, "deaf")
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args=f"signal {pk} USR1"))
    refused = f"WARNING SIGUSR1 is refused: its process {pid} runs as user bin by now, and may not be signalled"
    assert daemon.until(lambda: refused in daemon.log_text(pk))
