"""Reads the command rows that people insert, has each carried out, and ends its row with what came of it.

Commands use the watch connection, so that no full host, paused queue or lock on a job delays one.

A command is noted as taken before it is carried out, so that whoever gave it either withdraws it or finds that it was
taken. One whose latest start (jq_not_after) has passed by then ends as failed. If it has one and can make no headway
for as long as that left it, it ends as failed with the reason.

A command is carried out before its row ends. How it ends is kept until the row has ended, and written again if the
answer was lost; a command that was cut off before is carried out again, here or by another daemon: each may be
repeated, or its row is marked by the statement with the effect. A command for every scheduler is acknowledged by each;
the daemon that finds that all have acknowledged ends the row (acknowledgements.py). Between two commands the connection
is free for others, and one that is refused or finds what it needs locked is tried again later, after those behind it.

The entry of a verb in model/verbs.py names what carries it out: an action (command_actions.py) or a query. A command
`run` goes on by itself once it has begun: it is not read again, and query `close_runs` ends it when its jobs have
ended. The command to step down is ended by the daemon that takes the group over: the time of that shows it that the
command is obeyed.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from scheduler.daemon.acknowledgements import LOOK_S, Acknowledgements
from scheduler.daemon.log import log_line
from scheduler.drivers.host_scripts import HostScripts
from scheduler.drivers.loop import ConnectionLostError, Steps
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import to_json
from scheduler.model.counters import Counted
from scheduler.model.events_and_effects import TablesRead
from scheduler.model.queue_requests import Cells
from scheduler.model.verbs import ALL, EVERY, GROUP, HOST, JOB, TYPE, VERBS, Command, CommandError, about, parse
from scheduler.policy.core import Core

TOO_LATE: Final = "no scheduler took it in time: nothing was done"
LOCKED: Final = "what it names is locked by another session, or changes just now"
AGAIN_S: Final = 0.2  # until a job that is between two states, or a row that is locked, is tried again
REFUSED_S: Final = 1.0  # until a command is tried again whose statement was refused
ONE_READ: Final = 100  # commands that query `read_commands` returns at most
MOVES_OTHERS: Final = frozenset(("release", "run"))  # jobs that they do not name, or more than one
VERBS_ABOUT: Final[dict[str, object]] = {
    "every": about(EVERY), "about_jobs": about(JOB), "about_hosts": about(HOST), "about_types": about(TYPE),
    "about_groups": about(GROUP),
}  # fmt: skip
_WORDS: Final = {word.strip("[].").partition("|")[0].lower() for verb in VERBS.values() for word in verb.usage.split()}
_NO_WORDS: Final = dict.fromkeys(_WORDS - {"group"})  # in a query, `group` is always ours
BULK: Final = "change_all"  # the action of every command about the jobs that a filter finds
WAITS_FOR_OTHERS: Final = frozenset(about(EVERY, GROUP))  # each such verb has a limit of its own
_NO_STEP_DOWN: Final = {
    "unknown": "no such group", "several": "there are several groups: step-down GROUP",
    "alone": "no other scheduler of the group stands by",
}  # fmt: skip


class CommandRow(NamedTuple):
    """A command row, and the job that it names."""

    pk: int
    text: str
    job: int | None  # None: there is none
    state: str | None  # of that job
    ending: str  # the text of a job that the command ends: who gave it, and why
    is_ours: bool  # the job is in hand here
    is_command: bool
    took_effect: bool  # it was done, or begun, and its row did not end: so "done already" is done
    of_operator: bool  # these come before all others
    progress: object = None  # what the last try left


@dataclass(frozen=True, slots=True)
class Done:
    """The command ends: with a text and an answer; one that failed has no answer unless one is given."""

    text: str
    result: object = True
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Later:
    """The command is tried again after so many seconds: what it names changes just now, or is locked."""

    seconds: float = AGAIN_S
    progress: object = None  # for the next try, unless another daemon makes it
    has_moved: bool = False  # a part was done in this try


@dataclass(frozen=True, slots=True)
class GoesOn:
    """The command has begun; another statement ends it."""


class NoRowError(Exception):
    """A query changed nothing: the row is locked or has changed, or the group is not ours. Try the command later."""


Outcome = Done | Later | GoesOn
Ask = Callable[..., Steps[list[Cells]]]  # a named query and its values; returns rows


class DaemonControl(Protocol):
    """The daemon, as far as commands and the watch connection are about it; see wiring.py."""

    host_scripts: HostScripts

    def stop(self) -> None: ...
    def drain(self) -> None: ...
    def step_down(self) -> bool: ...
    def reload(self) -> Steps[str]: ...
    def catch_up(self) -> Steps[None]: ...
    def role_changed(self) -> None: ...
    def reexec(self, command: int) -> tuple[bool, str] | None: ...
    def troubles(self) -> list[dict[str, Any]]: ...
    def take_counted(self) -> Counted: ...


@dataclass(frozen=True, slots=True)
class Context:
    """The core, the statements and the daemon, as the actions of verbs use them."""

    core: Core
    now: Callable[[], float]  # monotonic seconds
    ask: Ask
    rescan: Callable[[], None]
    start_schedules_in: Callable[[float], None]  # seconds
    daemon: DaemonControl
    is_gone: Callable[[Cells], bool]  # the process of another daemon; see Acknowledgements

    def change(self, query: str, **values: object) -> Steps[Cells]:
        """Run a query that changes something, and return its row. Errors: NoRowError."""
        rows = yield from self.ask(query, **values)
        if not rows:
            raise NoRowError
        return rows[0]

    def settle(self, ended: Iterable[Cells]) -> None:
        """Settle the children of jobs that ended, given by number and whether they have children."""
        if pks := [int(pk or 0) for pk, is_parent in ended if is_parent == b"t"]:
            self.core.settle(pks)

    def settle_listed(self, parents: bytes | None, *, is_late: bool = False) -> None:
        """Settle the children of jobs that ended, given as `number,number`; late ones were found by a rescan."""
        if parents:
            settle = self.core.settle_late if is_late else self.core.settle
            settle([int(pk) for pk in parents.split(b",")])

    def follow_tables(self) -> Steps[dict[str, str]]:
        """Read the tables of hosts, types and queues again, and pass them to the core.

        Return the queues whose rate limit has changed since jobs were put off, each with the instant of that.
        """
        ((*tables, seconds),) = yield from self.ask("read_shared_settings")
        event = TablesRead(*(json.loads(cell or b"[]") for cell in tables))
        self.core.handle(event, self.now())
        if seconds is not None:
            self.start_schedules_in(float(seconds))
        yield from self.install_queue_filters()
        changed = {row["name"]: row.get("rate_changed") for row in event.queues}
        return {name: since for name, since in changed.items() if since is not None}

    def install_queue_filters(self) -> Steps[None]:
        """Have the database make a function of the filters of queues, if they have changed, which inserts go by.

        What fails is tried again when tables are read, at each rescan.
        """
        for (failure,) in (yield from self.ask("install_routes")):
            if failure is None:
                log_line("info", "the filters of queues are installed")
            else:
                log_line("warning", f"the filters of queues are not installed yet: {text_of(failure)}")


# One that asks nothing returns its outcome at once.
Action = Callable[[Context, CommandRow, Command], Steps[Outcome] | Outcome]


def job_of(row: CommandRow, command: Command) -> int:
    """Return the job that a command names. Errors: CommandError, there is none."""
    if row.job is None:
        raise CommandError(f"no job {command.values['job']}")
    if row.is_command:
        raise CommandError(f"job {row.job} is a command")
    return row.job


def text_of(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "backslashreplace")


class Commands:
    """Reads the commands for this daemon, and carries out one after the other.

    `read_in` has `read` called after so many seconds, and `go_on` has `carry_out_next` called as soon as nothing older
    is due.
    """

    def __init__(
        self, context: Context, actions: dict[str, Action], read_in: Callable[[float], None], go_on: Callable[[], None]
    ) -> None:
        self._context, self._now, self._ask, self._actions = context, context.now, context.ask, actions
        self._read_in, self._go_on = read_in, go_on
        self._rows: deque[CommandRow] = deque()
        self._is_more = False  # there may be others than these
        self._is_read = False  # the last read was answered
        self._moved: set[int] = set()  # jobs that commands were about since these were read
        self._moved_others = False  # and jobs that they did not name
        self.acknowledgements = Acknowledgements(self._ask, context.settle, context.is_gone)
        self._passed: dict[int, float] = {}  # those that are not read again, until when
        self._ends: dict[int, Done] = {}  # how commands end that were carried out
        self._progress: dict[int, object] = {}  # of those that take several tries
        self._obeyed: set[int] = set()  # commands to shut down and to step down
        self._patience: dict[int, float] = {}  # of those that are taken: for how many seconds each is tried in vain
        self._stuck: dict[int, float] = {}  # since when these are

    @property
    def is_caught_up(self) -> bool:
        """Return whether all commands were carried out, or passed over, that were there when they were read last."""
        return self._is_read and not self._rows and not self._is_more

    def forget(self) -> None:
        """Forget what was read: the connection or the group was lost, or we have just taken the group."""
        self._rows.clear()
        self._is_read = False

    # ---- one after the other

    def read(self) -> Steps[None]:
        """Read the commands that are for us.

        Those of operators that were read already are carried out first. All others are read again, for an operator may
        have given one meanwhile, which does not wait for them. Those that were passed over come again after all others,
        however long these take: else the first ones, if they are many, would be read again and again.
        """
        if self._rows and self._rows[0].of_operator:
            self._is_more = True
            yield from self.carry_out_next()
            return
        now = self._now()
        if not self._is_more:
            self._passed = {pk: until for pk, until in self._passed.items() if until > now}
        if self._passed:
            self._read_in(max(min(self._passed.values()) - now, AGAIN_S if self._is_more else 0.0))
        self._is_read = False
        rows = yield from self._ask("read_commands", **VERBS_ABOUT, passed=list(self._passed))
        self._is_read = True
        self._rows = deque(map(_row, rows))
        self._moved, self._moved_others = set(), False
        self._is_more = len(rows) >= ONE_READ
        if not self._is_more:
            waiting = {*self._passed, *(row.pk for row in self._rows)}
            self._ends = {pk: end for pk, end in self._ends.items() if pk in waiting}
            self._progress = {pk: progress for pk, progress in self._progress.items() if pk in waiting}
            self._patience = {pk: seconds for pk, seconds in self._patience.items() if pk in waiting}
            self._stuck = {pk: since for pk, since in self._stuck.items() if pk in waiting}
        # The commands whose jobs have all ended, however many others there are to carry out.
        if (yield from self._close_runs()):
            yield from self._next()

    def carry_out_next(self) -> Steps[None]:
        """Carry out the next of those that were read."""
        if not self._rows:
            return
        row = self._rows.popleft()
        if row.job is not None and (self._moved_others or row.job in self._moved):
            self._rows.clear()  # its job may be in another state by now
            yield from self.read()
            return
        try:
            yield from self._carry_out(row)
        except RefusedError as error:
            if row.pk not in self._ends and (end := self._given_up(row, str(error))):
                self._ends[row.pk] = end
            self._pass_over(row.pk, REFUSED_S)
            self._go_on()
            return
        yield from self._next()

    def _next(self) -> Steps[None]:
        """Go on with the next; what an operator commanded of every scheduler is ended before that of others."""
        if self._rows and (self._rows[0].of_operator or not self.acknowledgements.has_new):
            self._go_on()
        elif self._rows:
            yield from self._close_acknowledged()
            self._go_on()
        else:
            if self._is_more:
                self._read_in(0.0)
            if self.acknowledgements.has_new or not self._is_more:  # the statement looks at all that wait
                yield from self._close_acknowledged()

    def _close_acknowledged(self) -> Steps[None]:
        """End the commands that all schedulers have acknowledged; look again soon at those that wait for others."""
        try:
            if (yield from self.acknowledgements.close()):
                self._read_in(LOOK_S)
        except RefusedError:
            self._read_in(REFUSED_S)
            self._go_on()

    def _close_runs(self) -> Steps[bool]:
        """End the commands `run` that are over; return False if that was refused, and the next is carried out."""
        try:
            self._context.settle((yield from self._ask("close_runs")))
        except RefusedError:
            self._read_in(REFUSED_S)
            self._go_on()
            return False
        return True

    # ---- one of them

    def _carry_out(self, row: CommandRow) -> Steps[None]:
        if row.pk not in self._ends:
            outcome = (yield from self._take(row)) or (yield from self._outcome(row))
            if isinstance(outcome, Later):
                self._progress[row.pk] = outcome.progress
                outcome = self._go_on_later(row, outcome)
            if not isinstance(outcome, Done):
                return
            self._ends[row.pk] = outcome
        end = self._ends[row.pk]
        result = to_json(end.result) if end.ok or end.result is not True else None
        rows = yield from self._ask("end_command", command=row.pk, ok=end.ok, text=end.text, result=result)
        if rows:
            del self._ends[row.pk]
            self._context.settle(rows)
        else:
            self._pass_over(row.pk, AGAIN_S)

    def _take(self, row: CommandRow) -> Steps[Outcome | None]:
        """Note that we have taken a command; return its outcome if it is not to be carried out, or not now."""
        if row.pk in self._patience:
            return None
        rows = yield from self._ask("begin_command", command=row.pk)
        if not rows:
            return Later()
        is_late, seconds = rows[0]
        if is_late == b"t":
            return Done(TOO_LATE, ok=False)
        self._patience[row.pk] = inf if seconds is None else float(seconds)
        return None

    def _go_on_later(self, row: CommandRow, outcome: Later) -> Outcome:
        """Pass a command over for a while; return its end if it is given up."""
        if outcome.has_moved:
            self._stuck.pop(row.pk, None)
        elif end := self._given_up(row, LOCKED):
            return end
        self._pass_over(row.pk, outcome.seconds)
        return outcome

    def _given_up(self, row: CommandRow, why: str) -> Done | None:
        """Return the end of a command that has made no headway for as long as it is to be tried."""
        patience = self._patience.get(row.pk, inf)
        name = row.text.split(maxsplit=1)[0] if row.text.strip() else ""
        if self._now() - self._stuck.setdefault(row.pk, self._now()) < patience or name in WAITS_FOR_OTHERS:
            return None
        so_far = f"; {row.progress}" if (row := row._replace(progress=self._progress.get(row.pk))).progress else ""
        return Done(f"given up after {patience:g} s: {why}{so_far}", ok=False)

    def _outcome(self, row: CommandRow) -> Steps[Outcome]:
        try:
            command = parse(row.text)
            is_bulk = command.values.get("job") == ALL
            self._moved_others = self._moved_others or is_bulk or command.verb in MOVES_OTHERS
            if row.job is not None:
                self._moved.add(row.job)
            if command.verb == "step-down":
                return (yield from self._step_down(row, command))
            if command.verb == "shutdown":
                yield from self._shut_down(row, command)
                return GoesOn()
            outcome = yield from self._act(row, command)
            if VERBS[command.verb].about != EVERY or isinstance(outcome, Later):
                return outcome
            if isinstance(outcome, Done):
                yield from self._acknowledge(row, outcome)
            return GoesOn()
        except CommandError as mistake:
            return Done(str(mistake), ok=False)

    def _act(self, row: CommandRow, command: Command) -> Steps[Outcome]:
        name = BULK if command.values.get("job") == ALL else VERBS[command.verb].carried_out_by
        action, progress = self._actions.get(name, _run_query), self._progress.get(row.pk)
        try:
            outcome = action(self._context, row._replace(progress=progress), command)
            return outcome if isinstance(outcome, Done | Later | GoesOn) else (yield from outcome)
        except NoRowError:
            return Later(progress=progress)

    def _shut_down(self, row: CommandRow, command: Command) -> Steps[None]:
        """Acknowledge, obey, and only then end the row: no job is begun after the row of a shutdown has ended.

        Nothing can be acknowledged once we have obeyed. A shutdown is obeyed once, acknowledged or not.
        """
        is_new = row.pk not in self._obeyed
        self._obeyed.add(row.pk)
        self.acknowledgements.obeys_shutdown = True
        try:
            yield from self._acknowledge(row, Done("shutting down"))
        except (RefusedError, ConnectionLostError):
            if is_new:
                yield from self._act(row, command)
            raise
        if is_new:
            yield from self._act(row, command)
        yield from self._close_acknowledged()

    def _acknowledge(self, row: CommandRow, done: Done) -> Steps[None]:
        yield from self.acknowledgements.acknowledge(row.pk, done.text, ok=done.ok)

    def _step_down(self, row: CommandRow, command: Command) -> Steps[Outcome]:
        rows = yield from self._ask("may_step_down", command=row.pk, name=command.values["group"])
        verdict, us = map(text_of, rows[0]) if rows else ("elsewhere", "")
        if verdict == "past":
            again = ", for no other scheduler took the group over" if row.pk in self._obeyed else ""
            return Done(f"served by {us}{again}", ok=not again)
        if verdict == "elsewhere" or row.pk in self._obeyed:
            return Later()
        if verdict:
            return Done(_NO_STEP_DOWN[verdict], ok=False)
        self._obeyed.add(row.pk)
        outcome = yield from self._act(row, command)
        return outcome if isinstance(outcome, Done) and not outcome.ok else Later()

    def _pass_over(self, pk: int, seconds: float) -> None:
        self._passed[pk] = self._now() + seconds
        self._read_in(seconds)


def _run_query(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Carry out a verb by the query that its entry names; see model.verbs.Verb."""
    verb = VERBS[command.verb]
    job = job_of(row, command) if verb.about == JOB else None
    values = _NO_WORDS | dict(command.values) | {"command": row.pk, "job": job}
    ok, text = yield from context.change(verb.carried_out_by, **values)
    if ok == b"t":
        yield from context.follow_tables()
    return Done(text_of(text), ok=ok == b"t")


def _row(cells: Cells) -> CommandRow:
    pk, text, job, state, ending, *flags = (None if cell is None else text_of(cell) for cell in cells)
    number = int(job) if job else None
    return CommandRow(int(pk or 0), text or "", number, state, ending or "", *(flag == "t" for flag in flags))
