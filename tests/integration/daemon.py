"""The real daemon as a child process, on a real database; nothing here sleeps, every wait has a deadline.

`start(config_text, database)` gives a Daemon that serves; a test waits for rows through channel drover_event. What
the daemon leaves behind when it ends is an AssertionError.
"""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from tests import warm
from tests.patience import PATIENCE_S, Deadline, line_of, named

GONE_S = PATIENCE_S / 4  # for what a daemon leaves behind
LOOK_S = 0.02  # the longest time between two looks for what nobody announces
TERMINAL = frozenset({"done", "failed", "cancelled", "ignored", "skipped"})
# No rescan comes while a test waits, however long it waits on a busy machine, so that none passes because of one; a
# test that is about it sets the interval.
# Short are the lease, what is shown, limits of agents, and pauses before a retry: many tests are about them.
BASE = """
[scheduler]
log_level = "debug"
kill_grace = 1
exit_grace = 0.5
min_idle = 0.2
start_limit = 5
lease = 4
lease_renewal = 1
rescan = 3600
progress_interval = 0.1
status_interval = 1
retry_base = 0.1
blocked_delay = 0.2
reconnect_max = 0.5
"""
ERRORS = "stderr"
WAITING = "select jq_pk, jq_state::text, reason from drover.why where jq_state < 'done' limit 10"
REC = Path(__file__).parent / "rec_agent.py"
PYTHON = [sys.executable, "-S", "-E"]
RUN = [sys.executable, "-m", "scheduler.cli.main", "run", "--allow-root"]
ARMED_RUN = [sys.executable, "-m", "tests.faults.launcher", "run", "--allow-root"]

Row = dict[str, Any]


def rec(record: Path | str) -> str:
    """Return the `command` of an agent that writes all it gets into `record`, as TOML."""
    return json.dumps([*PYTHON, str(REC), str(record)])


def agent(name: str, command: Sequence[str] | str, **keys: Any) -> str:
    """Return a table of an agent type; `command` is TOML already, or an argv. It has one slot unless told otherwise."""
    keys = {"slots": 1} | keys
    text = command if isinstance(command, str) else json.dumps(command)
    lines = [f"[agents.{name}]", f"command = {text}", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"


def python(script: str) -> list[str]:
    """Return an argv that runs a Python script."""
    return [*PYTHON, "-u", "-c", script]


def records(record: Path) -> list[Row]:
    """Return what agents wrote into a record, in order; not the last line if that is being written."""
    text = record.read_text() if record.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def lines(record: Path, name: str | None = None) -> list[str]:
    """Return the lines that agents (of type `name`) were given, in order."""
    return [note["line"] for note in records(record) if note["event"] == "line" and name in (None, note["agent"])]


def await_lines(daemon: "Daemon", record: Path, count: int) -> None:
    """Wait until agents have noted so many lines in all; the row of a job may say earlier that it is running."""
    daemon.until(lambda: len(lines(record)) == count, what=f"{count} lines are not given out")


class Daemon:
    """A `drover run` and the database it serves; the test's own statements run as the owner of the database."""

    def __init__(
        self, process: "warm.Process | subprocess.Popen[bytes]", database: str, folder: "TemporaryDirectory[str]"
    ) -> None:
        self.process = process
        self.database = database
        self.folder = Path(folder.name)
        self._folder = folder
        self.rescan_helps = ""  # why it may; empty: it must not
        self._said: str | None = None
        self._pid: int | None = None
        self._owner = psycopg.connect(database, autocommit=True, row_factory=dict_row)
        self._owner.execute("listen drover_event")
        self._roles: dict[str, psycopg.Connection[Row]] = {}

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            if self.process.poll() is None:
                self.signal(SIGCONT)  # a test that failed may have left it stopped
                self.stop()
        finally:
            self.close()

    @property
    def pid(self) -> int:
        """Return the pid of the daemon: the first child of its guardian, which is the process that was started."""
        if self._pid is None and (children := _children(self.process.pid)):
            self._pid = children[0]
        return self._pid or self.process.pid

    # ---- the database

    def insert(self, *, role: str = "drover_frontend_sql", **columns: Any) -> int:
        """Queue a job as a front-end does and give its jq_pk; its parameter is a word unless another is given."""
        columns = {"jq_args": "x"} | columns
        query = sql.SQL("insert into drover.jobqueue ({}) values ({}) returning jq_pk").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(sql.Placeholder() * len(columns))
        )
        row = self.login(role).execute(query, list(columns.values())).fetchone()
        assert row is not None
        return int(row["jq_pk"])

    def insert_all(self, rows: Sequence[Row], *, role: str = "drover_frontend_sql") -> list[int]:
        """Queue several jobs in one transaction: the daemon sees them all at once."""
        with self.login(role).transaction():
            return [self.insert(role=role, **columns) for columns in rows]

    def execute(self, query: str, *values: Any, role: str | None = None) -> list[Row]:
        """Run one statement (as the owner, or as a role) and give its rows."""
        connection = self._owner if role is None else self.login(role)
        cursor = connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *values: Any) -> Any:
        """Return the one value that a query gives."""
        (row,) = self.execute(query, *values)
        (value,) = row.values()
        return value

    def vitals(self) -> dict[str, Any]:
        """Return what the daemon shows of itself; its first status may come after its first job."""
        query = "select status_parameter from drover.scheduler_status where status_slot = -1"
        (row,) = self.until(lambda: self.execute(query), what="it shows nothing of itself")
        vitals: dict[str, Any] = json.loads(row["status_parameter"])
        return vitals

    def row(self, pk: int) -> Row:
        """Return the row of a job, with the state that people are shown."""
        (row,) = self.execute("select * from drover.jobs where jq_pk = %s", pk)
        return row

    def log_rows(self, pk: int | None = None) -> list[Row]:
        """Return what drover.log says of a job, or of all."""
        where = "" if pk is None else "where log_jq_fk = %s"
        return self.execute(f"select * from drover.log {where} order by log_pk", *([] if pk is None else [pk]))

    def log_text(self, pk: int | None = None) -> str:
        """Return the same as text: `TYPE message` lines."""
        return "\n".join(f"{row['log_type']} {row['log_message']}" for row in self.log_rows(pk))

    def attempts(self, pk: int) -> list[Row]:
        """Return the history of a job."""
        return self.execute("select * from drover.attempt where att_jq_fk = %s order by att_attempt", pk)

    def why(self, pk: int) -> str:
        """Return the reason that drover.why gives."""
        return str(self.value("select reason from drover.why where jq_pk = %s", pk))

    def login(self, role: str) -> "psycopg.Connection[Row]":
        """Return the connection of a role, in autocommit."""
        if role not in self._roles:
            conninfo = make_conninfo(self.database, user=role)
            self._roles[role] = psycopg.connect(conninfo, autocommit=True, row_factory=dict_row)
        return self._roles[role]

    # ---- waiting

    def wait(self, pk: int, state: str | set[str] = "done", timeout: float = PATIENCE_S) -> Row:
        """Wait until the job is in (one of) the state(s) and give its row; any other end is an AssertionError."""
        wanted = {state} if isinstance(state, str) else state

        def there() -> Row | None:
            row = self.row(pk)
            if row["jq_state"] not in wanted and row["jq_state"] in TERMINAL:
                raise AssertionError(f"job {pk} is {row['jq_state']}: {row['jq_endtext']}\n{self._story()}")
            return row if row["jq_state"] in wanted else None

        found: Row = self.until(there, timeout, f"job {pk} is not {wanted}")
        return found

    def wait_all(self, pks: Sequence[int], state: str | set[str] = "done", timeout: float = PATIENCE_S) -> list[Row]:
        """Wait for several jobs, for each of them so long; their rows in the order of `pks`."""
        return [self.wait(pk, state, timeout) for pk in pks]

    def until(self, look: Callable[[], Any], timeout: float = PATIENCE_S, what: str = "") -> Any:
        """Look again at every event, or a moment later, until `look` gives something true, which is given.

        `what` names what is missing until then; without it that is the line of the caller.
        """
        deadline, frame = Deadline(timeout), sys._getframe(1)
        with named(lambda: what or line_of(frame), self._story):
            while not (found := look()):
                left = deadline.left
                assert left > 0, f"{what or line_of(frame)} within {timeout} s\n{self._story()}"
                list(self._owner.notifies(timeout=min(left, LOOK_S), stop_after=1))
        return found

    def _story(self) -> str:
        """For messages of failures: every job that has not ended and why, and the end of the daemon's own log."""
        waiting: list[Any] = ["what waits cannot be read"]
        with suppress(psycopg.Error):  # the wait may have been ended within a statement
            waiting = self.execute(WAITING)
        return "\n".join([*map(str, waiting), f"exit status {self.process.poll()}", self.stderr()[-3000:]])

    # ---- the process

    def stderr(self) -> str:
        """Return all that the daemon has said."""
        if self._said is not None:
            return self._said
        return (self.folder / ERRORS).read_text(errors="backslashreplace")

    def agent_pids(self) -> list[int]:
        """Return the children of the daemon."""
        return _children(self.pid)

    def most_agents(self, which: str, *, since: int = 0) -> int:
        """Return how many agents had a process at once, after `since` of them had ended; `which` is in their lines."""
        alive, ended, most = 0, 0, 0
        for line in self.stderr().splitlines():
            if which in line:
                alive += "ST_FREE -> ST_PREP" in line
                if "-> ST_FREE " in line:
                    alive, ended = alive - 1, ended + 1
                most = max(most, alive) if ended >= since else 0
        return most

    def signal(self, number: int) -> None:
        """Send the daemon a signal, not its guardian."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_exit(self, timeout: float = PATIENCE_S) -> int:
        """Wait until it has exited by itself; its status. Nothing of it may be left."""
        family = [watch(pid) for pid in below(self.process.pid)]
        try:
            status = self.process.wait(Deadline(timeout).left)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not exit within {timeout} s\n{self.stderr()[-3000:]}") from None
        finally:
            left = [pid for pid, fd in family if not is_gone(fd)]
        assert not left, f"processes outlived the daemon: {left}"
        self._assert_no_bug()
        self._assert_nothing_late()
        return status

    def stop(self, number: int = SIGTERM, timeout: float = PATIENCE_S) -> int:
        """End it with a signal; its status. It must leave no process behind, and have had no bug."""
        self.signal(number)
        return self.wait_exit(timeout)

    def kill(self) -> None:
        """kill -9; what it started must die with it."""
        self.stop(SIGKILL)

    def close(self) -> None:
        """Close the connections, and kill the process if it is still there."""
        if self.process.poll() is None:
            self.signal(SIGKILL)  # its guardian kills the rest
            self.process.wait()
        for connection in (self._owner, *self._roles.values()):
            connection.close()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._said = self.stderr()
        self._folder.cleanup()

    def forget(self, characters: int) -> None:
        """Keep only the end of what a daemon that was closed has said."""
        self._said = self.stderr()[-characters:]

    def _assert_no_bug(self) -> None:
        found = re.search(r"bug:|Traceback", self.stderr())
        assert found is None, self.stderr()[-6000:]

    def _assert_nothing_late(self) -> None:
        """Fail if only a rescan found something: a notification or an event was lost."""
        found = [line for line in self.stderr().splitlines() if "only a rescan found" in line]
        assert self.rescan_helps or not found, "\n".join([*found, self.stderr()[-3000:]])


def start(
    config_text: str,
    database: str,
    *,
    options: Sequence[str] = (),
    stdin: bytes | None = None,
    wait: bool = True,
    via: str = "",
    program: Sequence[str] = RUN,
    points: str = "",
    ssh: Mapping[str, float] | None = None,
    rescan_helps: str = "",
) -> Daemon:
    """Start a daemon with BASE and then this configuration, whose keys win; `wait` until it serves the group.

    It logs in to `database`, or to the same one by the conninfo `via`. With `stdin` its standard input is a pipe that
    gives these bytes and ends, and its standard output is one too. `points` are those of tests/faults/failpoints.py;
    `ssh` are other limits of hosts over SSH, fields of SshSettings. `rescan_helps` says why a rescan may have to find
    what nothing told of; without it that fails the test when the daemon exits.
    """
    temporary = TemporaryDirectory(prefix="drover-test-")
    folder = Path(temporary.name)
    (folder / "drover.toml").write_text(BASE)
    (folder / "conf.d").mkdir()
    (folder / "conf.d" / "test.toml").write_text(config_text)
    environment = os.environ | {"DROVER_DATABASE_URL": make_conninfo(via or database, user="drover_scheduler")}
    if points:
        program, environment["FAULTS_POINTS"] = ARMED_RUN, points
    if ssh:
        program, environment["FAULTS_SSH"] = ARMED_RUN, json.dumps(ssh)
    with (folder / ERRORS).open("wb") as errors:
        process = warm.begin(
            [*program, *options, "-c", str(folder / "drover.toml")],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stderr=errors, env=environment, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    daemon = Daemon(process, database, temporary)
    daemon.rescan_helps = rescan_helps
    if stdin is not None:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
    if wait:
        _wait_until_serving(daemon)
    return daemon


def _wait_until_serving(daemon: Daemon) -> None:
    def serving() -> bool:
        assert daemon.process.poll() is None, f"it ended at once:\n{daemon.stderr()}"
        return "serving group" in daemon.stderr()

    try:
        daemon.until(serving, what="it does not serve")
    except AssertionError:
        daemon.close()
        raise


# ---- processes


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(pid: int) -> Iterator[int]:
    """Yield every process below one, not itself."""
    for child in _children(pid):
        yield child
        yield from below(child)


def watch(pid: int) -> tuple[int, int]:
    """Return the pid and a pidfd, -1 if the process is gone already."""
    try:
        return pid, os.pidfd_open(pid)
    except ProcessLookupError:
        return pid, -1


def is_gone(fd: int, timeout: float = GONE_S) -> bool:
    """Wait for the end of a process, and close its pidfd."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(fd)
