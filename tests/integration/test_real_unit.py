"""keep-agents.conf under systemd itself, which runs as the first process of namespaces of its own; needs root."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from scheduler.daemon import fd_store_handover
from scheduler.package_data import etc_dir
from tests.integration.daemon import BASE, RUN, agent
from tests.integration.puppets import Meeting, puppet, settings
from tests.integration.unit_tools import groups
from tests.needs import need
from tests.patience import LONG_PATIENCE_S, PATIENCE_S

LOOK_S = 0.05
ROOT = Path(__file__).parents[2]
START = Path(__file__).with_name("namespace_systemd.sh")
TARGET = "[Unit]\nDefaultDependencies=no\nWants=drover.service\n"
UNIT = """
[Unit]
DefaultDependencies=no
[Service]
Type=notify
NotifyAccess=main
Restart=on-failure
RestartSec=0.1
TimeoutStopSec=40
WorkingDirectory={root}
Environment="DROVER_DATABASE_URL={url}"
ExecStart=/bin/sh -c 'exec "$$0" "$$@"' {argv}
StandardOutput=append:{log}
StandardError=append:{log}
{more}
"""
# What the shipped unit says of procfs, and another user; that one may read files, wherever the tests are.
SANDBOX = """
User=nobody
NoNewPrivileges=yes
AmbientCapabilities=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
Environment=DROVER_BOOT_ID=%b
"""


def agents(spool: Path) -> str:
    """Return the configuration of agents that live long, and of commands that are detached."""
    host = f'[hosts.local]\nmax = 8\nspool = "{spool}"\n'
    return host + puppet(slots=2) + agent("long", ["sh", "-c", "{args}"], kind="exec", detached=True)


class Machine:
    """A systemd that has one service, drover.service with the shipped drop-in."""

    def __init__(self, folder: Path, spool: Path, database: str, more: str) -> None:
        place = groups()
        assert place is not None
        self.log = folder / "log"
        self._group = place / f"drover-machine-{uuid4().hex}"
        units = folder / "units"
        (units / "drover.service.d").mkdir(parents=True)
        (folder / "drover.toml").write_text(BASE)
        (folder / "conf.d").mkdir()
        (folder / "conf.d" / "test.toml").write_text(settings(keep_agents=True, lease=30) + agents(spool))
        url = make_conninfo(database, user="drover_scheduler").replace("%", "%%")
        argv = shlex.join([sys.executable, *RUN[1:], "-c", str(folder / "drover.toml")])
        (units / "min.target").write_text(TARGET)
        (units / "drover.service").write_text(UNIT.format(root=ROOT, url=url, argv=argv, log=self.log, more=more))
        (units / "drover.service.d" / "keep-agents.conf").write_text((etc_dir() / "keep-agents.conf").read_text())
        self._said = (folder / "systemd").open("wb")
        self._process = subprocess.Popen(
            [str(START), str(self._group), str(units)], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said
        )
        self.database = psycopg.connect(database, autocommit=True, row_factory=dict_row)

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # with its namespace all in it dies
        self._process.wait()
        self.database.close()
        self._said.close()
        for group in sorted(self._group.rglob("*"), reverse=True):
            if group.is_dir():
                self.until(lambda group=group: _removed(group), "the control group stays")
        self.until(lambda: _removed(self._group), "the control group stays")

    def systemctl(self, *words: str) -> str:
        """Give a command to the service manager."""
        enter = ["nsenter", f"--target={self._init}", "--pid", "--mount", "--cgroup"]
        done = subprocess.run(
            [*enter, "systemctl", *words], check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def _init(self) -> int:
        (pid,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(pid)

    def show(self, name: str) -> str:
        return self.systemctl("show", "--value", f"--property={name}", "drover.service")

    def said(self, text: str, count: int = 1) -> None:
        """Wait until the daemon has said something so often."""
        self.until(lambda: self.log.exists() and self.log.read_text().count(text) >= count, f"it did not say {text}")

    def insert(self, script: str, type: str = "puppet") -> int:
        query = "insert into drover.jobqueue (jq_type, jq_args) values (%s, %s) returning jq_pk"
        row = self.database.execute(query, [type, script]).fetchone()
        assert row is not None
        return int(row["jq_pk"])

    def wait(self, pk: int) -> dict[str, Any]:
        """Wait until a job is done, and return its row."""

        def look() -> Any:
            row = self.database.execute("select * from drover.jobs where jq_pk = %s", [pk]).fetchone()
            return row if row is not None and row["jq_state"] == "done" else None

        found: dict[str, Any] = self.until(look, f"job {pk} is not done")
        return found

    def pids(self) -> list[str]:
        """Return what runs in the control group of the service, which systemd removes behind the last process."""
        with suppress(OSError):
            return [pid for path in self._group.rglob("drover.service/cgroup.procs") for pid in _words(path)]
        return []

    def until(self, look: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + LONG_PATIENCE_S
        while not (found := look()):
            said = self.log.read_text()[-3000:] if self.log.exists() else ""
            assert time.monotonic() < deadline, f"{what}\n{said}"
            time.sleep(LOOK_S)
        return found


def _words(path: Path) -> list[str]:
    return path.read_text().split()


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture(params=["", SANDBOX], ids=["root", "nobody"])
def machine(request: pytest.FixtureRequest, database_with_roles: str, tmp_path: Path) -> Iterator[Machine]:
    need("systemd in namespaces")
    with TemporaryDirectory() as spool:
        Path(spool).chmod(0o1777)  # commands have no capabilities, and nobody else may move the spool
        with Machine(tmp_path, Path(spool) / "spool", database_with_roles, request.param) as machine:
            machine.said("serving group")
            yield machine


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    """Meet agents of any user: they have no capabilities."""
    with TemporaryDirectory() as folder, Meeting(Path(folder)) as meeting:
        Path(folder).chmod(0o755)
        for pipe in Path(folder).iterdir():
            pipe.chmod(0o666)
        yield meeting


def work(machine: Machine, meeting: Meeting, type: str = "puppet") -> tuple[int, int]:
    """Let an agent begin a job that waits; return the job, and the agent's pid in its namespace."""
    pk = machine.insert(f"{meeting.tell('$$')}; {meeting.wait}; {meeting.tell('$$')}", type)
    return pk, int(meeting.hear())


@pytest.mark.slow
def test_systemctl_restart_keeps_the_agent_and_its_item(machine: Machine, meeting: Meeting) -> None:
    pk, pid = work(machine, meeting)
    before = machine.show("MainPID")
    machine.systemctl("restart", "drover.service")
    machine.said("the daemon was started anew:")
    meeting.let_go()
    row = machine.wait(pk)
    assert (int(meeting.hear()), row["jq_attempt"], row["jq_interruptions"]) == (pid, 1, 0)
    assert machine.show("MainPID") != before
    assert machine.show("ActiveState") == "active"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends", [("restart",), ("kill", "--kill-whom=main", "--signal=SIGKILL")], ids=lambda words: words[0]
)
def test_a_detached_job_goes_on_over_a_restart_and_a_crash_under_systemd_c41(
    machine: Machine, meeting: Meeting, ends: tuple[str, ...]
) -> None:
    pk, pid = work(machine, meeting, "long")
    machine.systemctl(*ends, "drover.service")
    machine.said(f"job={pk}: adopted")
    meeting.let_go()
    row = machine.wait(pk)
    assert (int(meeting.hear()), row["jq_attempt"], row["jq_interruptions"], row["jq_exitcode"]) == (pid, 1, 0, 0)


@pytest.mark.slow
def test_a_crash_under_systemd_keeps_an_idle_agent_and_kills_a_busy_one(machine: Machine, meeting: Meeting) -> None:
    idle = machine.insert(meeting.tell("$$"))
    kept = int(meeting.hear())
    machine.wait(idle)
    # five of the agent, the page and the lifeline; a look later the agent is marked
    machine.until(lambda: machine.show("NFileDescriptorStore") == "7", "the agent is not stored")
    marked = time.monotonic() + 2 * fd_store_handover.LOOK_S
    machine.until(lambda: time.monotonic() > marked, "time stands still")
    machine.systemctl("kill", "--kill-whom=main", "--signal=SIGKILL", "drover.service")
    machine.said("which had nothing in hand: puppet")
    machine.said("serving group", 2)
    again = machine.insert(meeting.tell("$$"))
    assert int(meeting.hear()) == kept
    machine.wait(again)
    pk, busy = work(machine, meeting)
    machine.systemctl("kill", "--kill-whom=main", "--signal=SIGKILL", "drover.service")
    other = int(meeting.hear())
    meeting.let_go()
    assert (machine.wait(pk)["jq_attempt"], other != busy) == (2, True)


@pytest.mark.slow
def test_a_crash_under_systemd_logs_which_agent_has_which_job_f58(machine: Machine, meeting: Meeting) -> None:
    pk, busy = work(machine, meeting)
    machine.systemctl("kill", "--kill-whom=main", "--signal=SIGSEGV", "drover.service")
    line = f" ST_RUNNING agent=puppet host=local pid={busy} items=0 job={pk}\n"
    machine.said(line)
    told = machine.log.read_text()
    assert told.index("Fatal Python error") < told.index(line)


@pytest.mark.slow
def test_systemctl_stop_leaves_nothing_in_the_store_nor_in_the_control_group(
    machine: Machine, meeting: Meeting
) -> None:
    pk, _ = work(machine, meeting)
    machine.systemctl("stop", "drover.service")
    row = machine.database.execute("select * from drover.jobs where jq_pk = %s", [pk]).fetchone()
    assert row is not None
    assert (row["jq_state"], row["jq_interruptions"]) == ("queued", 0)
    machine.until(lambda: machine.show("NFileDescriptorStore") == "0", "descriptors are kept")
    machine.until(lambda: not machine.pids(), "processes are left")
    assert machine.show("ActiveState") == "inactive"


@pytest.mark.slow
def test_a_daemon_that_leaves_and_is_not_started_again_leaves_no_agent(machine: Machine, meeting: Meeting) -> None:
    work(machine, meeting)
    machine.systemctl("kill", "--kill-whom=main", "--signal=SIGRTMIN+1", "drover.service")
    machine.until(lambda: machine.show("ActiveState") == "inactive", "it does not end")
    assert machine.until(lambda: not machine.pids(), "processes are left")
