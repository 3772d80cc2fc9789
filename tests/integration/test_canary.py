"""A daemon that tries a new program of an agent type in one slot first: better and worse ones, and what people want."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli_tools import run_as
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.integration.ssh_tools import reached, table
from tests.needs import need
from tests.ssh.sshd import Server, serving

LOCAL = "[scheduler]\nstatus_interval = 0.1\n[hosts.alpha]\n"
FINE, FAILING, SLOW = "", "echo FAIL cannot; ", "sleep 1; "
USUAL = "sleep 0.1; "  # so that a busy machine makes no program slower than another
Serve = Callable[..., Daemon]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of an agent's program, which says what it is."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    return write(tmp_path / "own-agent", "old")


def write(path: Path, what: str, first: str = FINE, start: str = "echo OK") -> Path:
    """Replace the program of an agent by one that logs what it is."""
    new = path.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{start}; while read -r line; do {USUAL}echo LOG {what}; {first}echo OK; done\n")
    new.chmod(0o755)
    new.rename(path)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def serve(launch: Launch, own: Path) -> Serve:
    """Start a daemon whose agents have done some items with the old program."""

    def run(items: int = 12, **keys: object) -> Daemon:
        daemon = launch(LOCAL + agent("own", [str(own)], **({"slots": 2, "canary": 3} | keys)))
        work(daemon, items)
        return daemon

    return run


def work(daemon: Daemon, count: int) -> list[str]:
    """Let so many jobs be done; return which programs did them."""
    pks = daemon.insert_all([{"jq_type": "own", "jq_args": f"item {n}"} for n in range(count)])
    daemon.wait_all(pks)
    rows = daemon.execute("select log_message from drover.log where log_jq_fk = any (%s) and log_type = 'LOG'", pks)
    return [str(row["log_message"]) for row in rows]


def until_said(daemon: Daemon, text: str) -> None:
    daemon.until(lambda: text in daemon.stderr(), what=f"the log does not say: {text}")


def tried_again(daemon: Daemon, own: Path, what: str) -> None:
    """Replace the program once more, and wait until the log says so once more."""
    tried = daemon.stderr().count("all others stay with")
    write(own, what)
    daemon.until(lambda: daemon.stderr().count("all others stay with") > tried, what="it is not tried")


def work_until(daemon: Daemon, text: str) -> list[str]:
    """Work until the log says something; return which programs did the jobs."""
    did: list[str] = []

    def has_said() -> bool:
        did.extend(work(daemon, 4))
        return text in daemon.stderr()

    daemon.until(has_said, what=f"the log does not say: {text}")
    return did


def test_a_new_program_that_is_not_worse_follows_in_all_slots(serve: Serve, own: Path) -> None:
    daemon = serve()
    write(own, "new")
    until_said(daemon, "is tried in one slot with 3 items")
    did = work_until(daemon, "passed its trial, 0 of 3 failed")
    assert set(did) == {"old", "new"}
    assert set(work(daemon, 6)) == {"new"}
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("first", "start", "why"),
    [
        (FAILING, "echo OK", "failed its trial: 1 of 1 failed, of the program in use 0 of"),
        ("exit 3; ", "echo OK", "failed its trial: 1 of 1 failed, of the program in use 0 of"),
        (SLOW, "echo OK", "failed its trial: it is slower: 0 of 3 failed"),
        (FINE, "exit 7", "failed its trial: agent terminated prematurely, with exit status 7"),
    ],
)
def test_a_worse_program_is_stopped_and_no_job_is_lost_to_it(
    serve: Serve, own: Path, first: str, start: str, why: str
) -> None:
    daemon = serve()
    write(own, "new", first, start)
    until_said(daemon, "is tried in one slot with 3 items")
    work_until(daemon, why)
    assert set(work(daemon, 8)) == {"old"}
    assert daemon.value("select count(*) from drover.jobqueue where jq_state <> 'done'") == 0
    assert daemon.stop() == 0


def test_the_program_in_use_is_started_again_while_the_file_has_another(serve: Serve, own: Path) -> None:
    daemon = serve()
    write(own, "new", FAILING)
    until_said(daemon, "is tried in one slot with 3 items")
    work_until(daemon, "failed its trial: 1 of 1 failed")
    pids = daemon.agent_pids()
    for pid in pids:
        with suppress(ProcessLookupError):  # one on trial has ended
            os.kill(pid, signal.SIGKILL)
    shown = "select count(*) from drover.scheduler_status where status_pid = any (%s)"
    daemon.until(lambda: daemon.value(shown, pids) == 0, what="their ends are not noticed")
    assert set(work(daemon, 8)) == {"old"}
    copies = Path(os.environ["STATE_DIRECTORY"], "programs", "own")
    assert len(list(copies.iterdir())) == 2


@pytest.mark.slow
def test_commands_of_a_new_program_are_tried_one_at_a_time(launch: Launch, own: Path) -> None:
    one = "#!/bin/sh\necho LOG {}; exit {}\n"
    own.write_text(one.format("old", 0))
    daemon = launch(LOCAL + agent("own", [str(own), "{args}"], kind="exec", slots=2, canary=3))
    work_exec(daemon, 6)
    new = own.with_suffix(".new")
    new.write_text(one.format("new", 1))
    new.chmod(0o755)
    new.rename(own)
    until_said(daemon, "is tried in one slot with 3 items")
    work_exec(daemon, 6)
    until_said(daemon, "failed its trial: 1 of 1 failed")
    assert daemon.value("select count(*) from drover.jobqueue where jq_state <> 'done'") == 0


def work_exec(daemon: Daemon, count: int) -> None:
    daemon.wait_all(daemon.insert_all([{"jq_type": "own", "jq_args": str(n)} for n in range(count)]))


@pytest.mark.slow
def test_people_promote_roll_back_and_try_again(serve: Serve, own: Path, config: Path) -> None:
    daemon = serve()

    def told(verb: str) -> str:
        done = run_as(daemon.database, config, "operator", f"agent {verb} own")
        return done.out + done.err

    assert "no other program is known than that in use" in told("promote")
    write(own, "new")
    until_said(daemon, "is tried in one slot with 3 items")
    assert "stays" in told("rollback")
    assert set(work(daemon, 6)) == {"old"}
    assert "is tried with 3 items" in told("canary")
    work_until(daemon, "passed its trial, 0 of 3 failed")
    tried_again(daemon, own, "third")
    assert "in all slots" in told("promote")
    daemon.until(lambda: set(work(daemon, 2)) == {"third"}, what="others work")


@pytest.mark.slow
def test_a_program_that_failed_is_not_started_after_a_restart(launch: Launch, serve: Serve, own: Path) -> None:
    daemon = serve()
    write(own, "new", FAILING)
    until_said(daemon, "is tried in one slot with 3 items")
    work_until(daemon, "failed its trial: 1 of 1 failed")
    is_kept = "select agent_trial ->> 'state' from drover.agent where agent_type = 'own'"
    daemon.until(lambda: daemon.value(is_kept) == "HELD_BACK", what="it is not written down")
    daemon.kill()
    again = launch(LOCAL + agent("own", [str(own)], slots=2, canary=3))
    assert set(work(again, 8)) == {"old"}
    until_said(again, "as before, the new program")
    write(own, "better")
    until_said(again, "is tried in one slot with 3 items")
    work_until(again, "passed its trial, 0 of 3 failed")


@pytest.mark.slow
def test_a_program_that_changed_while_no_daemon_ran_is_tried_first(launch: Launch, serve: Serve, own: Path) -> None:
    daemon = serve()
    is_known = "select agent_trial ->> 'state' from drover.agent where agent_type = 'own'"
    daemon.until(lambda: daemon.value(is_known) == "STEADY", what="it is not written down")
    assert daemon.stop() == 0
    write(own, "new", "exit 3; ")
    again = launch(LOCAL + agent("own", [str(own)], slots=2, canary=3))
    work(again, 8)
    until_said(again, "failed its trial: 1 of 1 failed, of the program in use 0 of")
    assert again.value("select count(*) from drover.jobqueue where jq_state <> 'done'") == 0


@pytest.mark.slow
def test_a_trial_that_failed_is_told_by_status_list_why_and_an_alert(serve: Serve, own: Path, config: Path) -> None:
    daemon = serve()
    daemon.execute("insert into drover.subscription (sub_scope, sub_of, sub_kind) values ('site', '', 'alert')")
    write(own, "new", FAILING)
    until_said(daemon, "is tried in one slot with 3 items")
    work_until(daemon, "failed its trial: 1 of 1 failed")
    text = "failed its trial: 1 of 1 failed, of the program in use 0 of"
    alert = "select ev_text from drover.event where ev_kind = 'alert'"
    daemon.until(lambda: daemon.execute(alert), what="no alert")
    assert text in daemon.value(alert)
    status = " ".join(run_as(daemon.database, config, "operator", "status").out.split())
    assert text in status
    assert "drover agent canary own tries it again" in status
    assert text in run_as(daemon.database, config, "operator", "agent --json").out
    assert text in daemon.value("select log_message from drover.log where log_type = 'ALERT'")


def programs_of(daemon: Daemon) -> set[tuple[str, str]]:
    """Return which programs agents run that are up, by host."""
    rows = daemon.execute(
        "select status_host, status_program from drover.scheduler_status where status_slot >= 0 and status_state > 3"
    )
    return {(row["status_host"], row["status_program"]) for row in rows}


@pytest.mark.slow
def test_the_slots_say_which_program_they_run(serve: Serve, own: Path, config: Path) -> None:
    daemon = serve()
    daemon.until(lambda: len(programs_of(daemon)) == 1)
    ((_, old),) = programs_of(daemon)
    write(own, "new")
    until_said(daemon, "is tried in one slot with 3 items")
    daemon.until(lambda: len(programs_of(daemon)) == 2, what="no slot has another program")
    ((_, new),) = programs_of(daemon) - {("alpha", old)}
    assert f"program {new} is tried" in daemon.stderr()
    slots = run_as(daemon.database, config, "operator", "status -v").out
    assert (old in slots, new in slots) == (True, True)


@pytest.mark.slow
def test_a_type_on_hosts_over_ssh_alone_has_no_trial(launch: Launch, own: Path, server: Server) -> None:
    daemon = launch("[scheduler]\nstatus_interval = 0.1\n" + table("beta", server) + agent("own", [str(own)], canary=3))
    assert set(work(daemon, 3)) == {"old"}
    write(own, "new")
    until_said(daemon, "no trial of its new program: none of its agents run on this machine")
    assert set(work(daemon, 3)) == {"new"}


@pytest.mark.slow
def test_agents_on_a_host_over_ssh_are_left_alone_until_a_program_has_passed(
    launch: Launch, own: Path, server: Server
) -> None:
    daemon = launch(LOCAL + table("beta", server) + agent("own", [str(own)], slots=1, canary=3))
    reached(daemon)
    until_both(daemon, "old")
    write(own, "bad", FAILING)
    until_said(daemon, "is tried in one slot with 3 items")
    work_until(daemon, "failed its trial: 1 of 1 failed")
    until_both(daemon, "old")
    assert daemon.value("select count(*) from drover.jobqueue where jq_state <> 'done'") == 0
    tried_again(daemon, own, "better")
    work_until(daemon, "passed its trial, 0 of 3 failed")
    until_both(daemon, "better")


def until_both(daemon: Daemon, program: str) -> None:
    """Work until agents on both hosts do jobs, and see that they run this program alone."""
    hosts: set[str] = set()

    def both_worked() -> bool:
        rows = daemon.wait_all(daemon.insert_all([{"jq_type": "own", "jq_args": f"item {n}"} for n in range(8)]))
        hosts.update(row["jq_done_host"] for row in rows)
        return len(hosts) == 2

    daemon.until(both_worked, what="one host does no jobs")
    assert set(work(daemon, 8)) == {program}
