"""Claims about detached jobs under the real daemon: they outlive it, are adopted by the next, and end once."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli_tools import run_as
from tests.drivers.test_keeper import await_death
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.integration.puppets import settings
from tests.integration.ssh_tools import SOON, reached, table
from tests.needs import need
from tests.patience import LONG_PATIENCE_S, PATIENCE_S
from tests.spool_tools import end_kept
from tests.ssh.sshd import Server, serving

SHELL = ("sh", "-c", "{args}")
COUNTED = (
    "echo $DROVER_JOB.$DROVER_ATTEMPT >>{count}; echo one; "
    "while [ ! -e {go} ]; do sleep 0.1; done; echo two; exit {code}"
)

CANCEL = """
update drover.jobqueue
   set jq_state = 'cancelled', jq_endtime = now(), jq_end_bits = 2, jq_owner = null, jq_schedinfo = null
 where jq_pk = %s
"""


class Site:
    """A spool, the files by which jobs are told to go on, and the configuration of daemons that share them."""

    def __init__(self, path: Path) -> None:
        self.spool, self.go, self.count = path / "spool", path / "go", path / "count"

    def config(self, **keys: Any) -> str:
        """Return the configuration of a daemon; keys are those of the agent type."""
        host = f'[hosts.local]\nmax = 8\nspool = "{self.spool}"\n'
        timers = settings(lease=2.0, lease_renewal=0.5, kill_grace=1.0)
        return timers + host + agent("long", list(SHELL), kind="exec", detached=True, **{"slots": 4, **keys})

    def script(self, code: int = 0) -> str:
        return COUNTED.format(count=self.count, go=self.go, code=code)

    @property
    def starts(self) -> list[str]:
        """What has begun: job.attempt each time."""
        return self.count.read_text().split() if self.count.exists() else []

    def entries(self) -> list[Path]:
        return list(self.spool.glob("*/*.*"))

    def end(self) -> None:
        end_kept(self.spool.glob("*/*/*"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.end()


def begun(daemon: Daemon, site: Site, pk: int) -> None:
    """Wait until the command of a job runs, and its row says so."""
    daemon.wait(pk, "running")
    daemon.until(lambda: site.starts)


def named(site: Site, link: str) -> int:
    """Return the pid that a link of the only entry names."""
    (entry,) = site.entries()
    return int(os.readlink(entry / link).split()[0])


def end(daemon: Daemon, number: int) -> None:
    """Send a signal to a daemon that ends; its keepers live on."""
    daemon.signal(number)
    daemon.process.wait(PATIENCE_S)


def output(daemon: Daemon, pk: int) -> str:
    rows = daemon.execute("select out_data from drover.output where out_jq_fk = %s order by out_part", pk)
    return "".join(row["out_data"] for row in rows)


@pytest.mark.slow
def test_detached_job_ends_like_any_other_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    site.go.touch()
    row = daemon.wait(daemon.insert(jq_type="long", jq_args=site.script()))
    assert row["jq_exitcode"] == 0
    assert output(daemon, row["jq_pk"]) == "one\ntwo\n"
    daemon.until(lambda: not site.entries() and not daemon.execute("select * from drover.detached"))


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_job_goes_on_when_its_daemon_is_killed_and_is_adopted_c41(launch: Launch, site: Site, code: int) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script(code))
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    second = launch(site.config())
    second.until(lambda: "adopted by" in second.log_text(pk))
    assert second.row(pk)["jq_state"] == "running"
    site.go.touch()
    row = second.wait(pk, {"done", "failed"})
    assert (row["jq_attempt"], row["jq_exitcode"], row["jq_interruptions"]) == (1, code, 0)
    assert output(second, pk) == "one\ntwo\n"
    assert site.starts == [f"{pk}.1"]
    second.until(lambda: not site.entries())


@pytest.mark.slow
def test_job_goes_on_over_an_orderly_end_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    end(first, signal.SIGTERM)
    second = launch(site.config())
    assert second.row(pk)["jq_state"] == "running"
    site.go.touch()
    assert second.wait(pk)["jq_attempt"] == 1
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_standby_adopts_a_job_of_a_daemon_that_was_stopped_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    second = launch(site.config(), wait=False)
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    os.kill(first.pid, signal.SIGSTOP)
    second.until(lambda: "adopted by" in second.log_text(pk))
    os.kill(first.pid, signal.SIGCONT)
    first.until(lambda: "standing by" in first.stderr())
    site.go.touch()
    assert second.wait(pk)["jq_attempt"] == 1
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_daemon_that_is_executed_anew_adopts_its_jobs_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    daemon.insert(jq_type="command", jq_args="reexec", role="drover_operator")
    daemon.until(lambda: "adopted by" in daemon.log_text(pk), timeout=LONG_PATIENCE_S)
    site.go.touch()
    assert daemon.wait(pk, timeout=LONG_PATIENCE_S)["jq_attempt"] == 1
    assert output(daemon, pk) == "one\ntwo\n"
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["cancel", "killjob"])
def test_commands_reach_an_adopted_job_c41(launch: Launch, site: Site, verb: str) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    second = launch(site.config())
    second.until(lambda: "adopted by" in second.log_text(pk))
    second.insert(jq_type="command", jq_args=f"{verb} {pk}", role="drover_operator")
    assert second.wait(pk, {"cancelled", "failed"})["jq_attempt"] == 1
    second.until(lambda: not site.entries())


@pytest.mark.slow
def test_time_limit_of_an_adopted_job_runs_from_its_start_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script(), jq_timeout="8 s")
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    second = launch(site.config())
    row = second.wait(pk, "failed")
    assert "timeout" in row["jq_endtext"]
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_reboot_of_the_host_is_an_interruption_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    (entry,) = site.entries()
    site.end()
    pid, began, _ = os.readlink(entry / "state").split()
    (entry / "state").unlink()
    (entry / "state").symlink_to(f"{pid} {began} 00000000-0000-0000-0000-000000000000")
    site.go.touch()
    second = launch(site.config())
    row = second.wait(pk)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (2, 1)
    assert site.starts == [f"{pk}.1", f"{pk}.2"]


@pytest.mark.slow
def test_command_that_ended_without_its_keeper_is_not_begun_again_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script(3))
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    command = named(site, "pid")
    os.kill(named(site, "state"), signal.SIGKILL)
    site.go.touch()
    await_death(command)
    second = launch(site.config())
    row = second.wait(pk, "failed")
    assert (row["jq_attempt"], row["jq_exitcode"], row["jq_interruptions"]) == (1, 3, 0)
    assert output(second, pk) == "one\ntwo\n"
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_command_runs_fully_once_though_its_keeper_is_killed_in_a_reexec_c41(launch: Launch, site: Site) -> None:
    """It ends as soon as its keeper is gone, which nobody watches while the program is executed anew."""
    daemon = launch(site.config())
    gone = "while [ ! -e {go} ] || kill -0 $(cat {go}); do sleep 0.01; done 2>/dev/null"
    waits = f"echo begin >>{site.count}; {gone.format(go=site.go)}; echo end >>{site.count}"
    pk = daemon.insert(jq_type="long", jq_args=waits)
    begun(daemon, site, pk)
    keeper = named(site, "state")
    (site.go.parent / "named").write_text(str(keeper))
    (site.go.parent / "named").rename(site.go)  # the command must not read half of it
    daemon.insert(jq_type="command", jq_args="reexec", role="drover_operator")
    daemon.until(lambda: not daemon.agent_pids())
    os.kill(keeper, signal.SIGKILL)
    daemon.wait(pk, timeout=LONG_PATIENCE_S)
    assert site.starts.count("end") == 1


@pytest.mark.slow
def test_job_whose_row_says_running_and_that_never_began_goes_back_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    daemon.stop()
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    daemon.execute("delete from drover.claimable")
    daemon.execute(
        "update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_owner = gen_random_uuid(),"
        " jq_starttime = now() where jq_pk = %s", pk,
    )  # fmt: skip
    daemon.execute("update drover.jobqueue set jq_state = 'running' where jq_pk = %s", pk)
    values = (pk, str(site.spool))
    daemon.execute("insert into drover.detached values (%s, 1, 'default', 'local', %s)", *values)
    site.go.touch()
    second = launch(site.config())
    assert second.wait(pk)["jq_attempt"] == 2
    assert site.starts == [f"{pk}.2"]


@pytest.mark.slow
def test_keeper_without_a_job_is_told_to_end_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    first.execute("delete from drover.detached")
    first.execute(CANCEL, pk)
    second = launch(site.config())
    second.until(lambda: not site.entries())
    assert second.row(pk)["jq_state"] == "cancelled"


def reason(daemon: Daemon, pk: int) -> str:
    return str(daemon.value("select reason from drover.why where jq_pk = %s", pk))


def keeper(site: Site) -> int:
    return named(site, "state")


def test_why_says_where_a_detached_job_runs_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    says = f"running detached on host local, keeper pid {keeper(site)}, since "
    daemon.until(lambda: reason(daemon, pk).startswith(says) and reason(daemon, pk).endswith(", attached"))
    assert daemon.row(pk)["jq_done_pid"] == keeper(site)


def test_why_and_status_say_that_no_scheduler_is_attached_c41(launch: Launch, site: Site, config: Path) -> None:
    daemon = launch(site.config())
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    end(daemon, signal.SIGTERM)
    assert reason(daemon, pk).endswith(", not attached: no scheduler is active for group default")
    status = run_as(daemon.database, config, "operator", "status").out
    assert "Detached jobs" in status
    assert "no scheduler is active for group default" in status


@pytest.mark.slow
def test_show_lists_what_hosts_keep_of_a_job_c41(launch: Launch, site: Site, config: Path) -> None:
    daemon = launch(site.config())
    pk = daemon.insert(role="drover_frontend", jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    daemon.execute("insert into drover.detached values (%s, 7, 'default', 'gone', '/far')", pk)
    (entry,) = site.entries()
    told = json.loads(run_as(daemon.database, config, "operator", f"show {pk} --json").out)["keepers"]
    here, gone = told
    assert (here["attempt"], here["host"], here["entry"]) == (1, "local", str(entry))
    assert (gone["attempt"], gone["attached"], gone["waits_for"]) == (7, False, "its entry is to be removed")
    assert "Kept on hosts" in run_as(daemon.database, config, "frontend", f"show {pk}").out


@pytest.mark.slow
def test_adopted_job_waits_for_a_slot_and_why_says_so_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pks = [first.insert(jq_type="long", jq_args=site.script()) for _ in range(2)]
    for pk in pks:
        begun(first, site, pk)
    first.until(lambda: len(site.starts) == 2)
    end(first, signal.SIGKILL)
    second = launch(site.config(slots=1))
    waits = ", not attached: agent type long has no free slot on host local"
    second.until(lambda: any(reason(second, pk).endswith(waits) for pk in pks))
    site.go.touch()
    assert {second.wait(pk)["jq_attempt"] for pk in pks} == {1}
    assert len(site.starts) == 2


def test_job_goes_on_when_guardian_and_daemon_are_killed_c41(launch: Launch, site: Site) -> None:
    first = launch(site.config())
    pk = first.insert(jq_type="long", jq_args=site.script())
    begun(first, site, pk)
    daemon = first.pid
    first.process.kill()  # the guardian: then the daemon stops in order
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGKILL)
    first.process.wait(PATIENCE_S)
    second = launch(site.config())
    second.until(lambda: "adopted by" in second.log_text(pk))
    site.go.touch()
    assert second.wait(pk)["jq_attempt"] == 1
    assert site.starts == [f"{pk}.1"]


def test_job_whose_spool_cannot_be_written_fails_and_says_why_c41(launch: Launch, site: Site) -> None:
    site.spool.mkdir(mode=0o755)
    daemon = launch(site.config())
    row = daemon.wait(daemon.insert(jq_type="long", jq_args=site.script()), "failed")
    assert "could not keep it: its error output says why" in row["jq_endtext"]
    errors = daemon.execute("select out_data from drover.output where out_jq_fk = %s", row["jq_pk"])
    assert "must be ours, and its mode 0700" in errors[0]["out_data"]
    assert site.starts == []


@pytest.mark.slow
def test_attached_process_that_is_killed_is_replaced_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    for pid in daemon.agent_pids():
        os.kill(pid, signal.SIGKILL)
    daemon.until(lambda: "adopted by" in daemon.log_text(pk), timeout=LONG_PATIENCE_S)
    site.go.touch()
    assert daemon.wait(pk)["jq_attempt"] == 1
    assert site.starts == [f"{pk}.1"]


def test_sql_of_a_detached_type_is_refused_c41(launch: Launch, site: Site) -> None:
    daemon = launch(site.config())
    row = daemon.wait(daemon.insert(jq_type="long", jq_args="select 1 as a", jq_msq=True), "failed")
    assert "one parameter" in row["jq_endtext"]


# ---------------------------------------------------------------- over SSH


def far(site: Site, server: Server) -> str:
    """Return the configuration of a daemon whose only host is reached over SSH."""
    timers = settings(lease=2.0, lease_renewal=0.5, kill_grace=1.0)
    spool = f'spool = "{site.spool}"\n'
    return timers + table("beta", server) + spool + agent("long", list(SHELL), kind="exec", detached=True, slots=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path) as server:
        yield server


@pytest.mark.slow
def test_job_on_another_host_outlives_the_daemon_c41(launch: Launch, site: Site, server: Server) -> None:
    first = launch(far(site, server))
    pk = first.insert(jq_type="long", jq_args=site.script(5))
    begun(first, site, pk)
    end(first, signal.SIGKILL)
    second = launch(far(site, server))
    second.until(lambda: "adopted by" in second.log_text(pk))
    site.go.touch()
    row = second.wait(pk, "failed")
    assert (row["jq_attempt"], row["jq_exitcode"], row["jq_endtext"]) == (1, 5, "exit status 5")
    assert output(second, pk) == "one\ntwo\n"
    assert site.starts == [f"{pk}.1"]
    second.until(lambda: not site.entries())


@pytest.mark.slow
def test_job_goes_on_when_its_connection_is_cut_c41(launch: Launch, site: Site, server: Server) -> None:
    daemon = launch(far(site, server), ssh=SOON)
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    server.kill()
    daemon.until(lambda: "no process is attached to it any more" in daemon.stderr())
    assert daemon.row(pk)["jq_state"] == "running"
    site.go.touch()
    server.begin()
    row = daemon.wait(pk, timeout=LONG_PATIENCE_S)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (1, 0)
    assert output(daemon, pk) == "one\ntwo\n"
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_job_on_a_host_that_is_down_can_be_cancelled_c41(launch: Launch, site: Site, server: Server) -> None:
    daemon = launch(far(site, server), ssh=SOON)
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    begun(daemon, site, pk)
    server.kill()
    daemon.until(lambda: "adopted, detached" in daemon.stderr())
    daemon.insert(jq_type="command", jq_args=f"cancel {pk} enough", role="drover_operator")
    assert daemon.wait(pk, "cancelled")["jq_endtext"] == "cancelled by drover_operator: enough"
    server.begin()
    daemon.until(lambda: not site.entries(), timeout=LONG_PATIENCE_S)
    assert site.starts == [f"{pk}.1"]


@pytest.mark.slow
def test_start_whose_connection_is_lost_on_its_way_runs_once_c41(launch: Launch, site: Site, server: Server) -> None:
    """The connection is lost while the host has not said yet that the command runs: it runs, or is refused later."""
    daemon = launch(far(site, server), ssh=SOON)
    reached(daemon)
    pk = daemon.insert(jq_type="long", jq_args=site.script())
    daemon.until(lambda: daemon.execute("select * from drover.detached where det_jq_fk = %s", pk))
    server.kill()
    daemon.until(lambda: "no process is attached to it any more" in daemon.stderr())
    site.go.touch()
    server.begin()
    row = daemon.wait(pk, timeout=LONG_PATIENCE_S)
    assert site.starts in ([f"{pk}.1"], [f"{pk}.2"])
    assert row["jq_interruptions"] == 0
    assert f"{pk}.{row['jq_attempt']}" == site.starts[0]
