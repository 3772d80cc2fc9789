"""The directory in which the daemon was started is removed: agents, SSH processes and a new program start in it."""

import os
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.cli_tools import Drover
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, agent, rec
from tests.integration.ssh_tools import reached, table
from tests.patience import LONG_PATIENCE_S
from tests.ssh.sshd import Server

RUN_ELSEWHERE = ["sh", "-c", 'cd "$0" && exec "$@"']
CWD = ["sh", "-c", "pwd"]


@pytest.mark.slow
def test_daemon_in_a_removed_directory_starts_agents_reloads_and_is_executed_anew(
    launch: Launch, record: Path, tmp_path: Path
) -> None:
    place, prelude = tmp_path / "place", tmp_path / "prelude"
    place.mkdir()
    prelude.touch(0o644)
    types = agent("late", rec(record)) + agent("cwd", CWD, kind="exec", prelude=str(prelude))
    daemon = launch("[hosts.local]\n" + types, program=[*RUN_ELSEWHERE, str(place), *RUN])
    place.rmdir()
    daemon.wait_all([daemon.insert(jq_type="late"), daemon.insert(jq_type="cwd")])
    for word in ("reload", "reexec", "reload"):
        daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args=word), timeout=LONG_PATIENCE_S)
    pk = daemon.wait_all([daemon.insert(jq_type="late"), daemon.insert(jq_type="cwd")])[1]["jq_pk"]
    assert daemon.value("select out_data from drover.output where out_jq_fk = %s", pk) == "/tmp\n"


@pytest.mark.slow
def test_ssh_process_of_a_daemon_in_a_removed_directory_is_started_again(
    launch: Launch, record: Path, tmp_path: Path, beta: Server
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    types = agent("rec", rec(record), hosts=["beta"])
    daemon = launch(table("beta", beta) + types, program=[*RUN_ELSEWHERE, str(place), *RUN])
    reached(daemon)
    place.rmdir()
    (ssh_process,) = daemon.agent_pids()
    os.kill(ssh_process, SIGKILL)
    reached(daemon, times=2)
    assert daemon.wait(daemon.insert(jq_type="rec"))


@pytest.mark.parametrize("words", [["agent", "run", "./program", "x"], ["-d", "embedded:place", "ls"], ["demo", "."]])
def test_command_with_a_relative_name_in_a_removed_directory_says_that(
    drover: Drover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    done = drover(*words)
    assert (done.status, done.err) == (2, "drover: the directory you are in was removed; go to another\n")
