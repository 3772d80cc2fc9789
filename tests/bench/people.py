"""What people look at: each command and page, beside many rows and beside few; each as they run it, its start included.

The database stays the same meanwhile: no daemon runs, and nothing is commanded.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPMessage
from typing import Final

from psycopg.conninfo import make_conninfo

from scheduler.cli.command_table import SORTS
from scheduler.model.states import JOB_STATES
from tests import warm
from tests.bench import crowd
from tests.bench.place import Place
from tests.terminal_tools import on_terminal

FEW: Final = (9_000, 1_000)  # jobs that have ended and that wait, of the database that others are compared with
MOST_S: Final = 60.0  # that an answer may take; one that does not come, or is an error, counts as much
DROVER: Final = (sys.executable, "-m", "scheduler.cli.main")
SAID: Final = {"health": (0, 1, 2)}  # exit statuses of a command that could look, if not 0
DONE: Final = 40  # a job that is done and has a log, output and events
OWNER: Final = "ann"  # who sees only her own jobs
FACTS: Final = """
select (select max(jdep_jq_fk) from drover.jobdepends) as unmet,
       (select max(blocked_jq_fk) from drover.blocked) as blocked,
       (select min(hand_jobs[1]) from drover.in_hand) as in_hand,
       (select min(claim_first) from drover.claimable) as waiting
"""

Look = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Beside:
    """A database that is looked at, and some of its jobs."""

    place: Place
    jobs: Mapping[str, int]
    dashboard: "Dashboard"

    def looks(self) -> dict[str, Look]:
        """Return all that people look at, by what they ask for."""
        commands = {words: partial(command, self.place, words.split()) for words in self._commands()}
        own = {f"{words} as {OWNER}": partial(command, self.place, words.split(), OWNER) for words in self._own()}
        pages = {f"page {path}": partial(page, self.dashboard, path) for path in self._pages()}
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
            *(f"why {pk[name]}" for name in ("waiting", "unmet", "blocked", "in_hand", "done")),
            *(f"show {pk[name]}" for name in ("waiting", "in_hand", "done")), f"wait {pk['done']}",
            f"exit {pk['done']}", f"out {pk['done']}", f"items {pk['done']}",
            "log", f"log {pk['done']}", "events", f"events {pk['done']}", "metrics --textfile -",
        ]  # fmt: skip

    def _own(self) -> list[str]:
        return ["ls", "ls --all", "why --all", f"why {self.jobs['own']}", f"show {self.jobs['own']}", "stats"]

    def _pages(self) -> list[str]:
        filters = [
            "type=type1", "queue=queue3", "host=host1", f"by={OWNER}", "by=nobody", "group=1", "since=1h",
            "text=single", *(f"state={state}" for state in JOB_STATES), f"before={self.jobs['waiting']}",
        ]  # fmt: skip
        jobs = [f"/jobs/{self.jobs[name]}" for name in ("waiting", "unmet", "in_hand", "done")]
        logs = ["/log", "/log?kind=ERROR", "/log?text=argument", f"/log?job={self.jobs['done']}"]
        return ["/", "/jobs", *(f"/jobs?{query}" for query in filters), *jobs, *logs, "/conditions", "/schedules"]


@contextmanager
def beside(place: Place) -> Iterator[Beside]:
    """Yield a filled database with its dashboard."""
    place.login(OWNER, "drover_frontend")
    with place.database() as database, dashboard(place) as pages:
        cursor = database.execute(FACTS.encode())
        jobs = dict(zip((column.name for column in cursor.description or ()), cursor.fetchone() or (), strict=True))
        yield Beside(place, jobs | {"own": 1, "done": DONE}, pages)


def filled(place: Place, name: str, ended: int, waiting: int) -> Place:
    """Make a database of that name with so many jobs that have ended and that wait."""
    made = place.in_database(name)
    with made.database() as database:
        crowd.fill(database, ended, waiting)
    return made


# ---- one look


def command(place: Place, words: Sequence[str], user: str = "") -> float:
    """Return the seconds that a command takes, without those to import it."""
    begun = time.monotonic()
    done = warm.run([*DROVER, *words], env=_environment(place, user))
    if done.returncode in SAID.get(words[0], (0,)):
        return time.monotonic() - begun
    sys.stderr.write(f"drover {' '.join(words)}: status {done.returncode}: {done.stderr[-500:]}\n")
    return MOST_S


def top(place: Place) -> float:
    """Return the seconds until `drover top` has drawn its screen."""
    begun = time.monotonic()
    with on_terminal([*DROVER, "top"], _environment(place), 50, 160) as (terminal, _), suppress(AssertionError):
        terminal.until("quit")
        return time.monotonic() - begun
    return MOST_S


def page(dashboard: "Dashboard", path: str) -> float:
    """Return the seconds that a page takes."""
    begun = time.monotonic()
    with suppress(OSError):
        status, _ = dashboard.ask("GET", path)
        if status == HTTPStatus.OK:
            return time.monotonic() - begun
        sys.stderr.write(f"{path}: status {status}\n")
    return MOST_S


class Dashboard:
    """A dashboard, and one who has signed in."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._cookie = port, ""
        _, headers = self.ask("POST", "/sign-in", f"role=&password={key}")
        self._cookie = headers.get("set-cookie", "").partition(";")[0]
        assert self._cookie, "the dashboard refuses its key"

    def ask(self, method: str, path: str, form: str = "") -> "tuple[int, HTTPMessage]":
        """Return status and headers of the answer. Errors: OSError."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=MOST_S)) as connection:
            headers = {"content-type": "application/x-www-form-urlencoded"} if form else {"cookie": self._cookie}
            connection.request(method, path, form or None, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers


@contextmanager
def dashboard(place: Place) -> Iterator[Dashboard]:
    """Run a dashboard on a terminal, where it shows its key, and sign in."""
    with on_terminal([*DROVER, "web", "--port", "0"], _environment(place), 50, 200) as (terminal, _):
        terminal.until("a secret of this run")
        found = re.search(r":(\d+)/sign-in#([\w-]+)", terminal.text)
        assert found, terminal.text
        yield Dashboard(int(found[1]), found[2])


def _environment(place: Place, user: str = "") -> dict[str, str]:
    limit = f"-c statement_timeout={MOST_S:.0f}s"
    conninfo = make_conninfo(place.conninfo, options=limit, **({"user": user} if user else {}))
    return os.environ | {"DROVER_DATABASE_URL": conninfo}


def _words(said: str) -> list[str]:
    """Return the words of a command or a page, numbers apart."""
    return said.replace("/jobs/", "/jobs/ ").replace("job=", "job= ").replace("before=", "before= ").split()
