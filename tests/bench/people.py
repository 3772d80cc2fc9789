"""What people look at: each command and page, beside many rows and beside few; each as they run it, its start included.

The database stays the same meanwhile: no daemon runs, and nothing is commanded.
"""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from scheduler.cli.command_table import SORTS
from scheduler.model.states import JOB_STATES
from tests.bench import crowd
from tests.bench.place import PROJECT, START_S, Place

MOST_S: Final = 60.0  # that an answer may take; one that does not come, or is an error, counts as much
DROVER: Final = (sys.executable, "-m", "scheduler.cli.main")
SAID: Final = (0, 1, 2, 3)  # exit statuses of a command that could look; `health` has several
OWNER: Final = "ann"  # who sees only her own jobs
FACTS: Final = """
select (select max(jdep_jq_fk) from drover.jobdepends) as unmet, (select max(blocked_jq_fk) from drover.blocked) as blocked,
       (select min(hand_jobs[1]) from drover.in_hand) as in_hand, (select max(log_jq_fk) from drover.log) as logged,
       (select min(claim_first) from drover.claimable) as waiting, (select max(out_jq_fk) from drover.output) as printed
"""

Look = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Beside:
    """A database that is looked at: some of its jobs, and the port of its dashboard."""

    place: Place
    jobs: Mapping[str, int]
    port: int

    def looks(self) -> dict[str, Look]:
        """Return all that people look at, by what they ask for."""
        commands = {words: partial(command, self.place, words.split()) for words in self._commands()}
        own = {f"{words} as {OWNER}": partial(command, self.place, words.split(), OWNER) for words in self._own()}
        pages = {f"page {path}": partial(page, self.port, path) for path in self._pages()}
        named = {**commands, "top": partial(top, self.place), **own, **pages}
        numbers = {str(pk): name.upper() for name, pk in self.jobs.items()}
        return {" ".join(numbers.get(word, word) for word in _words(said)): look for said, look in named.items()}

    def _commands(self) -> list[str]:
        pk = self.jobs
        return [
            "status", "status -v", "health", "queue", "host", "agent", "stats", "stats --since 1d",
            "ls", "ls --all", *(f"ls --all --sort {sort}" for sort in SORTS if sort != "job"),
            *(f"ls -S {state}" for state in JOB_STATES), "ls --all --type type1", "ls --all --queue queue3",
            f"ls --all --by {OWNER}", "ls --all --by nobody", "ls --all --type nothing", "ls --all --group 1",
            "ls --all --since 1h", "why --all",
            *(f"why {pk[name]}" for name in ("waiting", "unmet", "blocked", "in_hand", "logged")),
            *(f"show {pk[name]}" for name in ("waiting", "in_hand", "logged")), f"wait {pk['logged']}",
            f"exit {pk['logged']}", f"out {pk['printed']}", f"items {pk['logged']}",
            "log", f"log {pk['logged']}", "events", f"events {pk['printed']}", "metrics --textfile -",
        ]  # fmt: skip

    def _own(self) -> list[str]:
        return ["ls", "ls --all", "why --all", f"why {self.jobs['own']}", f"show {self.jobs['own']}", "stats"]

    def _pages(self) -> list[str]:
        filters = [
            "type=type1", "queue=queue3", "host=host1", f"by={OWNER}", "by=nobody", "group=1", "since=1h", "text=single",
            *(f"state={state}" for state in JOB_STATES), f"before={self.jobs['logged']}",
        ]  # fmt: skip
        jobs = [f"/jobs/{self.jobs[name]}" for name in ("waiting", "unmet", "in_hand", "logged")]
        logs = ["/log", "/log?kind=ERROR", "/log?text=argument", f"/log?job={self.jobs['logged']}"]
        return ["/", "/jobs", *(f"/jobs?{query}" for query in filters), *jobs, *logs, "/conditions", "/schedules"]


@contextmanager
def beside(place: Place) -> Iterator[Beside]:
    """Yield a filled database with its dashboard."""
    place.login(OWNER, "drover_frontend")
    with place.database() as database, dashboard(place) as port:
        cursor = database.execute(FACTS.encode())
        jobs = dict(zip((column.name for column in cursor.description or ()), cursor.fetchone() or (), strict=True))
        yield Beside(place, jobs | {"own": 1}, port)


def filled(place: Place, name: str, ended: int, waiting: int) -> Place:
    """Make a database of that name with so many jobs that have ended and that wait."""
    made = place.in_database(name)
    crowd.fill(made, ended, waiting)
    return made


# ---- one look


def command(place: Place, words: Sequence[str], user: str = "") -> float:
    """Return the seconds that a command takes."""
    begun = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*DROVER, *words], cwd=PROJECT, env=_environment(place, user), capture_output=True, timeout=MOST_S
        )
        if done.returncode in SAID:
            return time.monotonic() - begun
        sys.stderr.write(f"drover {' '.join(words)}: status {done.returncode}: {done.stderr.decode()[-500:]}\n")
    return MOST_S


def top(place: Place) -> float:
    """Return the seconds until `drover top` has drawn its screen, on a terminal."""
    begun = time.monotonic()
    screen, terminal = pty.openpty()
    argv, environment = [*DROVER, "top"], _environment(place, "") | {"TERM": "xterm"}
    with subprocess.Popen(argv, cwd=PROJECT, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as shown:
        os.close(terminal)
        said = _read_until(screen, b"quit", begun + MOST_S)
        took = time.monotonic() - begun
        with suppress(OSError):
            os.write(screen, b"q")
        _read_until(screen, b"\x1b[?1049l", time.monotonic() + START_S)
        shown.kill()
    os.close(screen)
    return took if b"quit" in said else MOST_S


def page(port: int, path: str) -> float:
    """Return the seconds that a page of the dashboard takes."""
    begun = time.monotonic()
    connection = HTTPConnection("127.0.0.1", port, timeout=MOST_S)
    with suppress(OSError):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return time.monotonic() - begun
        sys.stderr.write(f"{path}: status {answer.status}\n")
    return MOST_S


@contextmanager
def dashboard(place: Place) -> Iterator[int]:
    """Run a dashboard; yield its port."""
    argv = [*DROVER, "web", "--port", "0"]
    with subprocess.Popen(argv, cwd=PROJECT, env=_environment(place, ""), stdout=subprocess.PIPE) as served:
        assert served.stdout is not None
        try:
            said = served.stdout.readline().decode()
            yield int(said.split("/ until", maxsplit=1)[0].rsplit(":", 1)[1])
        finally:
            served.terminate()


def _environment(place: Place, user: str) -> dict[str, str]:
    conninfo = make_conninfo(place.conninfo, **({"user": user} if user else {}))
    return os.environ | {"DROVER_DATABASE_URL": conninfo, "PYTHONPATH": str(PROJECT)}


def _read_until(file: int, word: bytes, deadline: float) -> bytes:
    said = b""
    while word not in said and (left := deadline - time.monotonic()) > 0:
        if not select.select([file], [], [], left)[0]:
            break
        try:
            said += os.read(file, 65_536)
        except OSError:  # nobody has the terminal any more
            break
    return said


def _words(said: str) -> list[str]:
    """Return the words of a command or a page, numbers apart."""
    return said.replace("/jobs/", "/jobs/ ").replace("job=", "job= ").replace("before=", "before= ").split()
