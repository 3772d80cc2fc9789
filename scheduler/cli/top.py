"""`drover top`: a live screen of slots, rates, queues, blocked conditions and jobs, with keys to act on them.

Drawn anew when something is announced, and every two seconds. Keys give the same commands as `drover pause`,
`continue` and `kill`, so they can do what the role may do. The screen as lines is a pure function of the rows that were
read and of the state that keys set.
"""

import os
import re
import select
import sys
import termios
import tty
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, Literal

import psycopg
from rich.text import Text

from scheduler.cli.answers import send
from scheduler.cli.columns import padded
from scheduler.cli.database_session import Session, connect
from scheduler.cli.health import (
    CRITICAL,
    Limits,
    Row,
    by_urgency,
    database_warnings,
    group_warnings,
    headline,
    level_of,
    read_group,
    sentence,
)  # fmt: skip
from scheduler.cli.job_totals import ENDED, is_idle, jobs_line, slots_line, totals
from scheduler.cli.output import cell, clipped, printable
from scheduler.cli.status import shares
from scheduler.cli.terminal import STYLES
from scheduler.errors import ConfigError, DroverError
from scheduler.model.config import Config
from scheduler.model.list_bounds import LISTED

LOOK_S: Final = 2.0
DATABASE_S: Final = 10.0  # between two looks for what is wrong with the database
LEAST_S: Final = 0.5  # between two looks, whatever is announced
ANSWER_S: Final = 5.0  # that a command may take
JOBS: Final = 200
ENTER, LEAVE, HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"  # the second screen, without a cursor
END_LINE, END_SCREEN = "\x1b[K\r\n", "\x1b[K\x1b[J"
WANTED: Final = {"p": "queue", "K": "job", "w": "job"}  # what a key is for
KEY: Final = re.compile(r"\x1b[\[O].|.", re.DOTALL)  # one of those that were read together, as when one is held down
STEPS: Final = {"j": 1, "k": -1, "\x1b[B": 1, "\x1b[A": -1, "\x1bOB": 1, "\x1bOA": -1}

LETTERS: Final = {  # of the states of slots
    "ST_RUNNING": "R", "ST_READY": "r", "ST_SPAWNED": "s", "ST_PREP": "p", "ST_FREEING": "k", "ST_FREE": ".",
    "ST_FAIL": "F",
}  # fmt: skip
URGENCY: Final = "?FkspRr."  # order of the letters; rows are sorted by the most urgent letter that they have
LETTER_STYLES: Final = {"R": "green", "F": "bold red", ".": "dim", "k": "yellow"}
LEGEND: Final = "R ST_RUNNING  r ST_READY  s ST_SPAWNED  p ST_PREP  k ST_FREEING  . ST_FREE  F ST_FAIL"
KEYS: Final = "arrows choose  w why  p pause/continue queue  K kill job  q quit"
NAME_WIDTH: Final = 24
PART_LINES: Final = 2  # a title and an empty line
LEAST_ROWS: Final = 2

Kind = Literal["queue", "job"]
Chosen = tuple[Kind, str | int]


@dataclass(frozen=True, slots=True)
class View:
    """The rows read at one moment; rates are of the time since the reading before."""

    headline: str
    warnings: Sequence[Row]
    counts: Mapping[str, int]  # jobs of each kind, see cli/job_totals.py
    ended_per_s: float
    items_per_s: float
    slots: Sequence[Mapping[str, Any]]
    queues: Sequence[Mapping[str, Any]]
    conditions: Sequence[Mapping[str, Any]]
    jobs: Sequence[Mapping[str, Any]]

    def choices(self) -> list[Chosen]:
        """Return all that can be chosen, in the order of the screen."""
        return [("queue", row["queue"]) for row in self.queues] + [("job", row["job"]) for row in self.jobs]


@dataclass(slots=True)
class Choice:
    """State set by keys: the row that is chosen, the answer to the last command, and the job that `y` would kill."""

    at: Chosen | None = None
    place: int = 0  # its index among all that can be chosen
    message: str = ""
    to_kill: int | None = field(default=None)

    def tell(self, message: str) -> None:
        """Show a message until the next key."""
        self.message = message

    def ask_to_kill(self, job: int) -> None:
        """Ask whether a job is to be killed; the next key is the answer."""
        self.to_kill, self.message = job, f"kill job {job}? y, or any other key"

    def take_to_kill(self) -> int | None:
        """Return the job that was asked about, which is forgotten."""
        job, self.to_kill = self.to_kill, None
        return job

    def move(self, choices: Sequence[Chosen], step: int) -> None:
        """Choose another row; the first if none is chosen, the one in its place if the chosen one is gone."""
        place = choices.index(self.at) + step if self.at in choices else self.place
        self.place = max(0, min(place, len(choices) - 1))
        self.at = choices[self.place] if choices else None


def show_top(options: Namespace, config: Config) -> int:
    """Show it until q. Errors: ConfigError if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("drover top needs a terminal; drover status --watch needs none, nor does drover stats --json")
    with connect(config) as session, _screen():
        session.listen("drover_event", "drover_queue", "drover_change")
        _Top(session, options.group or config.scheduler.group).run()
    return 0


@contextmanager
def _screen() -> Iterator[None]:
    """Use the second screen of the terminal, and read keys one by one."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        _write(ENTER)
        yield
    finally:
        _write(LEAVE)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Top:
    """The loop: read, draw, wait for a key or a notification."""

    def __init__(self, session: Session, group: str) -> None:

        self._session, self._group, self._choice = session, group, Choice()
        self._keys: list[str] = []  # typed, and not handled yet
        self._before: tuple[float, int, int] | None = None  # when, and how many jobs and items had ended
        self._database: tuple[float, Sequence[Row]] = (-inf, ())  # when it was looked at, and what is wrong with it

    def run(self) -> None:
        while True:
            view = self._look()
            if self._choice.at not in view.choices():
                self._choice.move(view.choices(), 0)
            looked_at, is_current = monotonic(), True
            while is_current:
                _draw(view, self._choice)
                key = self._key(looked_at)
                if key == "q":
                    return
                is_current = bool(key) and not self._handle(key, view)

    def _look(self) -> "View":
        """Read everything as of one moment."""

        session, name = self._session, self._group
        with session.connection.transaction():
            session.run("one_moment")
            group = read_group(session, name)
            counts = totals(session.rows("waiting_counts"))
            slots = session.records("slots", group=name)
            jobs_per_s, items_per_s = self._rates(sum(counts[state] for state in ENDED), slots)
            return View(
                headline(group), by_urgency([*group_warnings(session, name), *self._database_warnings()]),
                counts, jobs_per_s, items_per_s, slots,
                session.first(LISTED, "", "queues", group=name).records(),
                session.first(LISTED, "", "conditions").records(),
                session.records("top_jobs", limit=JOBS),
            )  # fmt: skip

    def _database_warnings(self) -> Sequence[Row]:
        """Return what is wrong with the database, which is looked for a few times a minute."""
        looked_at, _ = self._database
        if monotonic() - looked_at >= DATABASE_S:
            self._database = monotonic(), [*database_warnings(self._session, Limits())]
        return self._database[1]

    def _rates(self, ended: int, slots: list[dict[str, Any]]) -> tuple[float, float]:
        """Return how many jobs and items have ended a second, since the look before."""
        now, items = monotonic(), sum(slot["items"] for slot in slots)
        then, ended_then, items_then = self._before or (now, ended, items)
        self._before = now, ended, items
        passed = max(now - then, 1e-9)
        return max(ended - ended_then, 0) / passed, max(items - items_then, 0) / passed

    def _key(self, looked_at: float) -> str:
        """Return the next key; nothing once it is time to look again, or something is announced, but not at once."""
        if self._keys:
            return self._keys.pop(0)
        keyboard, connection = sys.stdin.fileno(), self._session.connection
        for watched, until in (([keyboard], LEAST_S), ([keyboard, connection.fileno()], LOOK_S)):
            if keyboard in _ready(watched, max(looked_at + until - monotonic(), 0.0)):
                self._keys = KEY.findall(os.read(keyboard, 64).decode(errors="replace"))
                return self._keys.pop(0) if self._keys else "q"  # the terminal is gone
        for _ in connection.notifies(timeout=0):
            pass
        return ""

    def _handle(self, key: str, view: "View") -> bool:
        """Do what a key says; return whether to look again at once."""
        choice = self._choice
        if (job := choice.take_to_kill()) is not None:
            choice.tell("" if key != "y" else self._command(f"killjob {job}"))
            return key == "y"
        if key in STEPS:
            choice.move(view.choices(), STEPS[key])
            choice.tell("")
            return False
        return self._act(key, view) if choice.at else False

    def _act(self, key: str, view: "View") -> bool:
        """Do to the row that is chosen what a key says; return whether to look again at once."""
        choice = self._choice
        assert choice.at
        match key, choice.at:
            case "p", ("queue", name):
                is_paused = next((row["paused"] for row in view.queues if row["queue"] == name), False)
                choice.tell(self._command(f"{'continue' if is_paused else 'pause'} {name}"))
                return True
            case "K", ("job", int(job)):
                choice.ask_to_kill(job)
            case (("w" | "\n" | "\r"), ("job", job)):
                reasons = self._session.rows("job_reason", job=job)
                choice.tell(f"job {job}: {reasons[0][0]}" if reasons else f"no job {job}")
            case _ if key in WANTED:
                choice.tell(f"choose a {WANTED[key]} first, with the arrows")
        return False

    def _command(self, words: str) -> str:
        """Insert a command; return the answer of the scheduler."""
        try:
            sent = send(self._session, [words], ANSWER_S, patience_s=ANSWER_S)
        except (DroverError, psycopg.Error) as error:
            return " ".join(str(error).split())
        return sent.answers[0].text if sent.answers else f"{words}: {sent.left}"


def _ready(watched: Sequence[int], timeout_s: float) -> list[int]:
    """Return which of these descriptors can be read, once one can or the time is over."""
    poll = select.poll()
    for each in watched:
        poll.register(each, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1000)]


def _draw(view: "View", choice: "Choice") -> None:
    from rich.console import Console

    size = os.get_terminal_size(sys.stdout.fileno())
    console = Console(width=size.columns, height=size.lines, force_terminal=True)
    lines = []
    for line in draw(view, choice, size.lines, size.columns):
        with console.capture() as captured:
            console.print(line, end="", no_wrap=True, overflow="crop")
        lines.append(captured.get())
    _write(HOME + END_LINE.join(lines) + END_SCREEN)


# ---- the screen, as lines


def draw(view: View, choice: Choice, lines: int, columns: int) -> list[Text]:
    """Return at most `lines` lines of at most `columns` characters; rows without room are left out, and counted."""
    head = [*_head(view)]
    foot = [Text(choice.message, "bold") if choice.message else Text(LEGEND, "dim"), Text(KEYS, "dim")]
    parts = [part for part in (_slots(view), _conditions(view), _queues(view, choice), _jobs(view, choice)) if part[1:]]
    rooms = shares([len(part) - 1 for part in parts], lines - len(head) - len(foot), PART_LINES)
    body = [line for part, rows in zip(parts, rooms, strict=True) for line in _cut(part, max(rows, LEAST_ROWS))]
    shown = [*head[: max(lines - 2, 1)], *body][: lines - len(foot)] + foot
    for line in shown:
        line.truncate(columns)
    return shown[-lines:]


def _head(view: View) -> Iterator[Text]:
    yield Text(view.headline, "bold")
    for row in view.warnings[:3]:
        yield Text(printable(": ".join(sentence(row))), "red" if level_of(row) == CRITICAL else "yellow")
    yield Text(f"{view.ended_per_s:,.1f} jobs/s  {view.items_per_s:,.1f} items/s   {jobs_line(view.counts)}")
    if slots := slots_line(view.slots):
        yield Text(slots)


def _cut(part: Sequence[Text], rows: int) -> Iterator[Text]:
    """Yield an empty line, the title, and as many rows as there is room for."""
    title, *rest = part
    yield Text()
    more = len(rest) - rows
    yield Text(f"{title.plain} (and {more:,} more)" if more > 0 else title.plain, "bold")
    yield from rest[:rows]


def _slots(view: View) -> list[Text]:
    """Return a row for each type on each host that is not idle, a letter for each slot; failed ones come first."""
    places: dict[tuple[str, str], list[str]] = {}
    busy = {(slot["host"], slot["agent"]) for slot in view.slots if not is_idle(slot)}
    for slot in view.slots:
        if (place := (slot["host"], slot["agent"])) in busy:
            places.setdefault(place, []).append(LETTERS.get(slot["state"], "?"))
    rows = [Text("Slots")]
    for (host, agent), letters in sorted(places.items(), key=lambda place: min(map(URGENCY.find, place[1]))):
        row = Text(f"  {padded(printable(host), 14)} {padded(printable(agent), 14)} ")
        for letter in letters:
            row.append(letter, LETTER_STYLES.get(letter, ""))
        rows.append(row)
    return rows


def _conditions(view: View) -> list[Text]:
    return [Text("Blocked")] + [
        Text(f"  {row['jobs']:>7,} on {printable(row['condition'])}, next check {cell(row['next_check'])}", "yellow")
        for row in view.conditions
    ]


def _queues(view: View, choice: Choice) -> list[Text]:
    rows = [Text("Queues")]
    for row in view.queues:
        limit = f" of {row['concurrency']}" if row["concurrency"] else ""
        name, is_paused = _cell(row["queue"], NAME_WIDTH), "  paused" if row["paused"] else ""
        in_hand = f"{row['in_hand']:,}{limit}"
        waits = f" {row['queued'] - row['could_start']:>9,} wait" if row["queued"] > row["could_start"] else ""
        text = f"{name} {in_hand:>12} in hand {row['could_start']:>9,} could start{waits}{is_paused}"
        rows.append(_row(text, choice.at == ("queue", row["queue"])))
    return rows


def _jobs(view: View, choice: Choice) -> list[Text]:
    rows = [Text("Jobs in hand or blocked")]
    if view.jobs:
        rows.append(Text(f"  {'job':>9} {'type':14} {'state':8} {'for':>10} {'host':12} parameter", "dim"))
    for row in view.jobs:
        kind, where = _cell(row["type"], 14), padded(printable(row["host"] or "-"), 12)
        text = f"{row['job']:>9} {kind} {row['state']:8} {cell(row['since']):>10} {where} "
        what = ": ".join(filter(None, (row["progress"], row["args"])))
        rows.append(_row(text + printable(what), choice.at == ("job", row["job"]),
                         STYLES.get(row["state"], "")))  # fmt: skip
    return rows


def _cell(text: str, width: int) -> str:
    return padded(clipped(text, width), width)


def _row(text: str, is_chosen: bool, style: str = "") -> Text:
    return Text(f"> {text}", "reverse") if is_chosen else Text(f"  {text}", style)
