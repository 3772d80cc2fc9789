"""A run of `drover map`: queue its commands, print what they print, and say how far they are.

Commands are rows of a table, and a job of SQL has the next some thousand of them as its items: to the daemon a command
costs what an item costs. Agents append a line to a file when a command has ended, which this process reads. The
database is asked only for what that file lacks, when nothing has come for a while.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from select import select
from shlex import join
from time import monotonic
from typing import Final

import psycopg

from scheduler.cli.database_session import translated_errors
from scheduler.cli.map_items import Items
from scheduler.cli.map_runs import Daemon, Interrupts, Run, alone, home
from scheduler.cli.map_words import Command, counted
from scheduler.cli.output import warn
from scheduler.cli.wait import Progress
from scheduler.database import embedded, migrate
from scheduler.errors import WorldError

TABLE: Final = """
    create table map_item (run integer, n bigint, words text not null, primary key (run, n));
    grant select on map_item to drover_msq
"""
COPY: Final = "copy map_item (run, n, words) from stdin"
NEW_GROUP: Final = "insert into drover.job (job_name) values (%s) returning job_pk"
QUEUE: Final = """
    insert into drover.jobqueue (jq_type, jq_queue, jq_job_fk, jq_msq, jq_key, jq_tolerate, jq_args)
    values (%s, %s, %s, true, 'n', 2147483647, %s)
"""
ITEMS: Final = "select n, words from map_item where run = {} and n between {} and {}"
TOTAL: Final = "select count(*) from map_item where run = %s"
OPEN_JOBS: Final = "select count(*) from drover.jobqueue where jq_job_fk = %s and jq_endtime is null"
LOST: Final = """
    select n, item_reason, words
      from drover.item_failure join drover.jobqueue on jq_pk = item_jq_fk
      join map_item on run = %s and n = substring(item_line from '^n="([0-9]+)"')::bigint where jq_job_fk = %s
"""
ENDS_OF_JOBS: Final = "select string_agg(distinct jq_endtext, '; ') from drover.jobqueue where jq_job_fk = %s"
FORGET: Final = """
    with i as (delete from map_item where run = %(run)s),
         q as (delete from drover.queue where queue_name = %(name)s),
         h as (delete from drover.host where host_name = %(name)s),
         a as (delete from drover.agent where agent_group = %(name)s),
         s as (delete from drover.scheduler where scheduler_group = %(name)s)
    delete from drover.scheduler_group where group_name = %(name)s
"""
WAKE_S: Final = 0.05  # between two looks at what has ended
QUIET_S: Final = 2.0  # without an end, after which the database is asked
MOST_OPEN: Final = 100_000  # commands that wait; more items are read later
MOST_LISTED: Final = 100
MORE: Final = 101  # the exit status for more failures than 100
INTERRUPTED: Final = 130


def follow(
    run: Run, daemon: Daemon, items: Items | None, halt: tuple[str, int] | None, interrupts: Interrupts
) -> int:  # fmt: skip
    """Queue the items, and follow a run to its end, or until it is interrupted; return the exit status."""
    with ExitStack() as stack:
        conninfo = stack.enter_context(embedded.join(home() / "pg", durable=True, say=warn))
        migrate.update(conninfo)
        stack.enter_context(translated_errors())
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        commands = Commands(connection, run)
        progress = stack.enter_context(RunProgress(commands))
        if items is None:
            commands.queue_again()
        following = Following(run, daemon, items, halt, interrupts, commands, progress)
        following.until_over()
        progress.clear()
        return _close(run, daemon, commands, interrupts, was_asked=following.was_asked)


class Commands:
    """The commands of a run: how many there are, which have ended, and which failed."""

    def __init__(self, connection: psycopg.Connection, run: Run) -> None:
        self._connection, self._run = connection, run
        self.ended: set[int] = set()
        self.failures: list[tuple[int, str, list[str]]] = []  # number, reason, words
        self.output = Output(run)
        self._ends = run.ends.open("rb")
        self._cut = b""  # the beginning of a line
        with alone():  # two that grant at once hinder each other
            ((is_there,),) = connection.execute("select to_regclass('map_item') is not null").fetchall()
            if not is_there:
                connection.execute(TABLE)
        ((self.total,),) = connection.execute(TOTAL, [run.number]).fetchall()
        self.read_ends()
        self.ended_before, self.failed_before = len(self.ended), len(self.failures)

    @property
    def are_open(self) -> bool:
        is_left: bool = len(self.ended) < self.total
        return is_left

    def queue(self, commands: list[Command]) -> None:
        """Queue commands as the items of one more job."""
        if not commands:
            return
        run, connection = self._run, self._connection
        if not run.facts.group:
            ((run.facts.group,),) = connection.execute(NEW_GROUP, [run.name]).fetchall()
            run.save()
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy(COPY) as copy:
                for command in commands:
                    copy.write_row((run.number, command.number, json.dumps(command.words)))
            self._queue_job(commands[0].number, commands[-1].number)
        self.total += len(commands)

    def queue_again(self) -> None:
        """Queue what is open once more if the jobs that had it have ended, as where no agent could start."""
        if self.are_open and not self._count_open_jobs():
            self._queue_job(1, self.total)  # agents leave out what has ended

    def _queue_job(self, first: int, last: int) -> None:
        run = self._run
        query = ITEMS.format(run.number, first, last)
        self._connection.execute(QUEUE, [run.name, run.name, run.facts.group, query])

    def _count_open_jobs(self) -> int:
        ((jobs,),) = self._connection.execute(OPEN_JOBS, [self._run.facts.group]).fetchall()
        return int(jobs)

    def read_ends(self) -> bool:
        """Note which commands have ended since the last look, and print what they printed; return whether any did."""
        *lines, self._cut = (self._cut + self._ends.read()).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # of a line that was cut when the machine died: that command is run again
                number, has_output, *failure = json.loads(line)
                self._end(number, has_output, *failure)
        return bool(lines)

    def look_up(self) -> bool:
        """Return whether jobs are open. If none is, note what their items lack in the file: their agents died."""
        if self._count_open_jobs():
            return True
        self.read_ends()
        lost = self._connection.execute(LOST, [self._run.number, self._run.facts.group])
        for number, reason, words in lost.fetchall():
            if number not in self.ended:
                self._end(number, True, reason, json.loads(words))
        return False

    def why_left(self) -> str:
        """Return how the jobs ended whose commands are open."""
        ((text,),) = self._connection.execute(ENDS_OF_JOBS, [self._run.facts.group]).fetchall()
        return str(text or "nothing was queued")

    def forget(self) -> None:
        """Remove what the database has of a run that is over; its jobs are removed some days later."""
        self._connection.execute(FORGET, {"run": self._run.number, "name": self._run.name})

    def _end(self, number: int, has_output: bool, reason: str = "", words: list[str] | None = None) -> None:
        if number in self.ended:
            return
        self.ended.add(number)
        if reason:
            self.failures.append((number, reason, words or []))
        self.output.ended(number, has_output)


class Output:
    """Prints what commands left in files, and removes these; with keep_order in the order of the items."""

    def __init__(self, run: Run) -> None:
        self._folder, self._keep_order = run.output, run.facts.keep_order
        self._next = 1
        self._waiting: dict[int, bool] = {}  # whether there is something to print
        self.before_print: Callable[[], None] = sys.stdout.flush

    def ended(self, number: int, has_output: bool) -> None:
        if not self._keep_order:
            self._print(number, has_output)
            return
        self._waiting[number] = has_output
        while self._next in self._waiting:
            self._print(self._next, self._waiting.pop(self._next))
            self._next += 1

    def _print(self, number: int, has_output: bool) -> None:
        for suffix, stream in (("out", sys.stdout.buffer), ("err", sys.stderr.buffer)) if has_output else ():
            path = f"{self._folder}/{number}.{suffix}"
            with suppress(FileNotFoundError), open(path, "rb") as file:  # it printed nothing there, or it was shown
                self.before_print()
                try:
                    shutil.copyfileobj(file, stream)
                    stream.flush()
                except BrokenPipeError:
                    raise
                except OSError as error:
                    raise WorldError(f"what a command printed cannot be written: {error.strerror}") from error
                os.unlink(path)


class RunProgress(Progress):
    """A line on a terminal: how many commands have ended and failed, at what rate, and the time left."""

    def __init__(self, commands: Commands) -> None:
        super().__init__(0, "commands", note=self._failed)
        self._commands = commands
        commands.output.before_print = self.clear

    def draw(self) -> None:
        commands = self._commands
        self._total = commands.total
        self.show(len(commands.ended) - commands.ended_before, commands.ended_before)

    def _failed(self) -> str:
        failed = len(self._commands.failures)
        return f"{failed:,} failed" if failed else ""


class Following:
    """Queues items and follows the ends of commands, until all have ended or the scheduler has."""

    def __init__(
        self, run: Run, daemon: Daemon, items: Items | None, halt: tuple[str, int] | None, interrupts: Interrupts,
        commands: Commands, progress: RunProgress,
    ) -> None:  # fmt: skip
        self._run, self._daemon, self._items, self._interrupts = run, daemon, items, interrupts
        self._commands, self._progress = commands, progress
        self._halt_when, self._halt_failures = halt or ("never", 0)
        self._asked = 0  # 1: it is to begin nothing, 2: it is to kill what runs

    @property
    def was_asked(self) -> bool:
        """Return whether it was to stop before its end."""
        return self._asked > 0

    def until_over(self) -> None:
        look_up_at = monotonic() + QUIET_S
        self._obey()  # an interrupt may have come before there was something to follow
        while self._reads() or self._commands.are_open:
            self._wait()
            if self._commands.read_ends() or self._reads():
                look_up_at = monotonic() + QUIET_S
            elif monotonic() >= look_up_at:
                if not self._commands.look_up():
                    return
                look_up_at = monotonic() + QUIET_S
            self._progress.draw()
            self._obey()
            if self._daemon.has_ended():
                self._commands.read_ends()
                return

    def _reads(self) -> bool:
        return self._items is not None and not self._items.is_over and not self._asked

    def _wait(self) -> None:
        """Wait a moment, or for items; queue the items that are there."""
        items = self._items if self._reads() and len(self._commands.ended) + MOST_OPEN > self._commands.total else None
        fds = [items.fd] if items is not None and items.fd is not None else []
        is_there = items is not None and not fds  # on our command line
        ready = [] if is_there else select(fds, [], [], WAKE_S)[0]
        if items is not None and (is_there or ready):
            self._commands.queue(items.some())
            if items.is_over:
                self._run.facts.is_read = True
                self._run.save()

    def _obey(self) -> None:
        """Stop as Ctrl-C and --halt ask for."""
        failures = len(self._commands.failures) - self._commands.failed_before
        is_halted = self._halt_failures and failures >= self._halt_failures
        wanted = max(min(self._interrupts.count, 2), (2 if self._halt_when == "now" else 1) if is_halted else 0)
        if wanted <= self._asked:
            return
        self._asked = wanted
        self._progress.clear()
        if wanted == 2:
            self._daemon.stop()
            return
        why = counted(failures, "failure") if is_halted else "interrupted"
        warn(f"{why}: nothing more is begun, and what runs is finished; Ctrl-C kills it, to be begun anew")
        self._daemon.drain()


def _close(run: Run, daemon: Daemon, commands: Commands, interrupts: Interrupts, *, was_asked: bool) -> int:
    """Print what failed, and how to go on if it is not over; return the exit status."""
    daemon.drain()
    failed = sorted(commands.failures)
    for _, reason, words in failed[:MOST_LISTED]:
        warn(f"{reason}: {join(words)}")
    if failed:
        warn(f"{len(failed):,} of {counted(commands.total, 'command')} failed")
    if not commands.are_open and run.facts.is_read:
        daemon.wait()
        commands.forget()
        run.remove()
        return min(len(failed), MORE)
    if not was_asked:
        why = f"its scheduler has ended: {daemon.last_words()}" if daemon.has_ended() else commands.why_left()
        raise WorldError(f"run {run.number} cannot go on: {why}")
    _say_how_to_go_on(run, commands)
    return INTERRUPTED if interrupts.count else min(len(failed), MORE)


def _say_how_to_go_on(run: Run, commands: Commands) -> None:
    ended = f"{len(commands.ended):,} of {counted(commands.total, 'command')} have ended"
    if not run.facts.is_read:
        ended += "; the items were not read to their end, and what was not read is lost"
    warn(f"{ended}; drover map --resume {run.number} goes on" if run.facts.group else "nothing was queued")
