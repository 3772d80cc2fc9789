"""`drover top`: a live screen of slots, rates, queues, blocked conditions and jobs, with keys to act on them.

Drawn anew when something is announced, and every two seconds. Keys give the same commands as `drover pause`,
`continue` and `kill`, so they can do what the role may do. What the screen looks like is in top_screen.py.
"""

import os
import re
import select
import sys
import termios
import tty
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import psycopg

from scheduler.cli import admin
from scheduler.cli.health import group_warnings, headline
from scheduler.cli.session import Session, connect
from scheduler.errors import ConfigError, DroverError
from scheduler.model.config import Config
from scheduler.model.states import JOB_STATES

if TYPE_CHECKING:
    from scheduler.cli.top_screen import Choice, View

LOOK_S: Final = 2.0
LEAST_S: Final = 0.5  # between two looks, whatever is announced
ANSWER_S: Final = 5.0  # that a command may take
JOBS: Final = 200
ENDED: Final = ("done", "failed", "cancelled", "ignored", "skipped")
ENTER, LEAVE, HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"  # the second screen, without a cursor
END_LINE, END_SCREEN = "\x1b[K\r\n", "\x1b[K\x1b[J"
WANTED: Final = {"p": "queue", "K": "job", "w": "job"}  # what a key is for
KEY: Final = re.compile(r"\x1b[\[O].|.", re.DOTALL)  # one of those that were read together, as when one is held down
STEPS: Final = {"j": 1, "k": -1, "\x1b[B": 1, "\x1b[A": -1, "\x1bOB": 1, "\x1bOA": -1}


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
    """The loop: look, draw, wait for a key or news."""

    def __init__(self, session: Session, group: str) -> None:
        from scheduler.cli.top_screen import Choice  # only now: it needs rich

        self._session, self._group, self._choice = session, group, Choice()
        self._keys: list[str] = []  # typed, and not handled yet
        self._before: tuple[float, int, int] | None = None  # when, and how many jobs and items had ended

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
        from scheduler.cli.top_screen import View

        session, name = self._session, self._group
        with session.connection.transaction():
            session.run("one_moment")
            group = session.records("group", group=name)[0] | {"name": name}
            counts = Counter[str]()
            for kind, state, count in session.rows("job_counts"):
                counts[state] += count if kind != "command" else 0
            slots = session.records("slots", group=name)
            jobs_per_s, items_per_s = self._rates(sum(counts[state] for state in ENDED), slots)
            return View(
                headline(group), list(group_warnings(session, name)),
                {state: counts[state] for state in JOB_STATES if counts[state]}, jobs_per_s, items_per_s, slots,
                session.records("queues", group=name), session.records("conditions"),
                session.records("top_jobs", limit=JOBS),
            )  # fmt: skip

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
        if choice.to_kill is not None:
            job, choice.to_kill = choice.to_kill, None
            choice.message = "" if key != "y" else self._command(f"killjob {job}")
            return key == "y"
        if key in STEPS:
            choice.move(view.choices(), STEPS[key])
            choice.message = ""
            return False
        return self._act(key, view) if choice.at else False

    def _act(self, key: str, view: "View") -> bool:
        """Do to the row that is chosen what a key says; return whether to look again at once."""
        choice = self._choice
        assert choice.at
        match key, choice.at:
            case "p", ("queue", name):
                is_paused = next((row["paused"] for row in view.queues if row["queue"] == name), False)
                choice.message = self._command(f"{'continue' if is_paused else 'pause'} {name}")
                return True
            case "K", ("job", int(job)):
                choice.to_kill, choice.message = job, f"kill job {job}? y, or any other key"
            case (("w" | "\n" | "\r"), ("job", job)):
                reasons = self._session.rows("job_reason", job=job)
                choice.message = f"job {job}: {reasons[0][0]}" if reasons else f"no job {job}"
            case _ if key in WANTED:
                choice.message = f"choose a {WANTED[key]} first, with the arrows"
        return False

    def _command(self, words: str) -> str:
        """Insert a command; return the answer of the scheduler."""
        try:
            answers = admin.send(self._session, [words], ANSWER_S)
        except (DroverError, psycopg.Error) as error:
            return " ".join(str(error).split())
        return answers[0].text if answers else f"{words}: no answer yet; it stays in the queue"


def _ready(watched: Sequence[int], timeout_s: float) -> list[int]:
    """Return which of these descriptors can be read, once one can or the time is over."""
    poll = select.poll()
    for each in watched:
        poll.register(each, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1000)]


def _draw(view: "View", choice: "Choice") -> None:
    from rich.console import Console

    from scheduler.cli.top_screen import draw

    size = os.get_terminal_size(sys.stdout.fileno())
    console = Console(width=size.columns, height=size.lines, force_terminal=True)
    lines = []
    for line in draw(view, choice, size.lines, size.columns):
        with console.capture() as captured:
            console.print(line, end="", no_wrap=True, overflow="crop")
        lines.append(captured.get())
    _write(HOME + END_LINE.join(lines) + END_SCREEN)
