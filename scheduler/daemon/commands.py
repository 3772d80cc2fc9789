"""Command rows: read on the watch connection, so that no full host, paused queue or lock on a job holds one back.

A command is carried out before its row ends. How it ends is kept until the row has ended, and written again if the
answer was lost; a command that was cut off before is carried out again, here or by another daemon: each may be
repeated, or its row is marked by the statement with the effect. A command for every scheduler is acknowledged by each;
the daemon that finds that all have acknowledged ends the row. Between two commands the connection is free for others,
and one that is refused or finds what it needs locked is tried again later, after those behind it.

What carries a verb out is named by its entry in model/commands.py: an action, of command_actions.py or
daemon_commands.py, or else a query. A command `run` goes on by itself once it has begun: it is not read again, and
query `close_runs` ends it when its jobs have ended. The command to step down is ended by the daemon that takes the
group over: by when that was it finds that the command is obeyed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from scheduler.daemon.command_actions import ACTIONS
from scheduler.daemon.command_context import (
    AGAIN_S,
    Action,
    CommandRow,
    Context,
    Done,
    GoesOn,
    Later,
    Outcome,
    parents_of,
    run_query,
)
from scheduler.drivers.sql import to_json
from scheduler.drivers.statements import RefusedError
from scheduler.drivers.steps import ConnectionLostError, Steps
from scheduler.model.commands import EVERY, GROUP, HOST, JOB, TYPE, VERBS, Command, CommandError, about, parse
from scheduler.model.jobs import Cells

ONE_READ: Final = 100  # commands that query `read_commands` returns at most
REFUSED_S: Final = 1.0  # until a command is tried again whose statement was refused
MOVES_OTHERS: Final = frozenset(("release", "run"))  # jobs that they do not name, or more than one
VERBS_ABOUT: Final[dict[str, object]] = {
    "every": about(EVERY), "about_jobs": about(JOB), "about_hosts": about(HOST), "about_types": about(TYPE),
    "about_groups": about(GROUP),
}  # fmt: skip


class Commands:
    """Reads the commands for this daemon, and carries out one after the other.

    `read_in` has `read` called after so many seconds, and `go_on` has `carry_out_next` called as soon as nothing older
    is due. `actions` are those about the daemon as a whole.
    """

    def __init__(
        self,
        context: Context,
        read_in: Callable[[float], None],
        go_on: Callable[[], None],
        actions: dict[str, Action],
    ) -> None:
        self._context, self._now, self._ask = context, context.now, context.ask
        self._read_in, self._go_on = read_in, go_on
        self._actions = ACTIONS | actions
        self._rows: deque[CommandRow] = deque()
        self._is_more = False  # there may be others than these
        self._is_read = False  # the last read was answered
        self._moved: set[int] = set()  # jobs that commands were about since these were read
        self._moved_others = False  # and jobs that they did not name
        self._has_acknowledged = False  # a command for every scheduler
        self._passed: dict[int, float] = {}  # those that are not read again, until when
        self._ends: dict[int, Done] = {}  # how commands end that were carried out
        self._obeyed: set[int] = set()  # commands to shut down and to step down

    @property
    def is_caught_up(self) -> bool:
        """Return whether all commands were carried out, or passed over, that were there when they were read last."""
        return self._is_read and not self._rows and not self._is_more

    def begin(self) -> None:
        """Forget that they were read: there may be some that nobody carried out while the group had no daemon."""
        self._is_read = False

    def cut_off(self) -> None:
        """Forget what was read: the connection or the group was lost."""
        self._rows.clear()
        self._is_read = False

    # ---- one after the other

    def read(self) -> Steps[None]:
        """Read the commands that are for us.

        Those of operators that were read already are carried out first. All others are read again, for an operator may
        have given one meanwhile, which does not wait for them.
        """
        if self._rows and self._rows[0].of_operator:
            self._is_more = True
            yield from self.carry_out_next()
            return
        now = self._now()
        self._passed = {pk: until for pk, until in self._passed.items() if until > now}
        if self._passed:
            self._read_in(min(self._passed.values()) - now)
        self._is_read = False
        self._was_read((yield from self._ask("read_commands", **VERBS_ABOUT, passed=list(self._passed))))
        try:
            # The commands whose jobs have all ended, however many others there are to carry out.
            self._settle((yield from self._ask("close_runs")))
        except RefusedError:
            self._go_on()
            return
        yield from self._next()

    def _was_read(self, rows: Sequence[Cells]) -> None:
        self._is_read = True
        self._rows = deque(map(_row, rows))
        self._moved, self._moved_others = set(), False
        self._is_more = len(rows) >= ONE_READ
        if not self._is_more:
            pks = {*self._passed, *(row.pk for row in self._rows)}
            self._ends = {pk: end for pk, end in self._ends.items() if pk in pks}
            for pk in self._context.flushes.keys() - pks:
                del self._context.flushes[pk]

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
        except RefusedError:
            self._pass_over(row.pk, REFUSED_S)
            self._go_on()
            return
        yield from self._next()

    def _next(self) -> Steps[None]:
        """Go on with the next; what an operator commanded of every scheduler is ended before that of others."""
        if self._rows and (self._rows[0].of_operator or not self._has_acknowledged):
            self._go_on()
        elif self._rows:
            yield from self._close_acknowledged()
            self._go_on()
        else:
            if self._is_more:
                self._read_in(0.0)
            if self._has_acknowledged or not self._is_more:  # the statement looks at all that wait
                yield from self._close_acknowledged()

    def _close_acknowledged(self) -> Steps[None]:
        """End the commands that all schedulers have acknowledged."""
        self._has_acknowledged = False
        try:
            self._settle((yield from self._ask("close_commands", every=VERBS_ABOUT["every"])))
        except RefusedError:
            self._go_on()

    # ---- one of them

    def _carry_out(self, row: CommandRow) -> Steps[None]:
        if row.pk not in self._ends:
            outcome = yield from self._outcome(row)
            if isinstance(outcome, Later):
                self._pass_over(row.pk, outcome.seconds)
            if not isinstance(outcome, Done):
                return
            self._ends[row.pk] = outcome
        end = self._ends[row.pk]
        result = to_json(end.result) if end.ok or end.result is not True else None
        rows = yield from self._ask("end_command", command=row.pk, ok=end.ok, text=end.text, result=result)
        if rows:
            del self._ends[row.pk]
            self._settle(rows)
        else:
            self._pass_over(row.pk, AGAIN_S)

    def _outcome(self, row: CommandRow) -> Steps[Outcome]:
        try:
            command = parse(row.text)
            verb = VERBS[command.verb]
            self._moved_others = self._moved_others or command.verb in MOVES_OTHERS
            if row.job is not None:
                self._moved.add(row.job)
            if verb.about == EVERY:
                return (yield from self._act_and_acknowledge(row, command))
            if command.verb == "step-down":
                return (yield from self._step_down(row, command))
            return (yield from self._act(row, command))
        except CommandError as mistake:
            return Done(str(mistake), ok=False)

    def _act(self, row: CommandRow, command: Command) -> Steps[Outcome]:
        action = self._actions.get(VERBS[command.verb].carried_out_by, run_query)
        outcome = action(self._context, row, command)
        if isinstance(outcome, Done | Later | GoesOn):
            return outcome
        return (yield from outcome)

    def _act_and_acknowledge(self, row: CommandRow, command: Command) -> Steps[Outcome]:
        if command.verb == "shutdown":
            yield from self._shut_down(row, command)
            return GoesOn()
        outcome = yield from self._act(row, command)
        if isinstance(outcome, Done):
            yield from self._acknowledge(row, outcome)
        return GoesOn()

    def _shut_down(self, row: CommandRow, command: Command) -> Steps[None]:
        """Acknowledge and obey: nothing can be acknowledged after it, and it is done once, acknowledged or not."""
        is_new = row.pk not in self._obeyed
        self._obeyed.add(row.pk)
        try:
            yield from self._acknowledge(row, Done("shutting down"))
            yield from self._close_acknowledged()
        except (RefusedError, ConnectionLostError):
            if is_new:
                yield from self._act(row, command)
            raise
        if is_new:
            yield from self._act(row, command)

    def _acknowledge(self, row: CommandRow, done: Done) -> Steps[None]:
        self._has_acknowledged = True
        yield from self._ask("acknowledge", command=row.pk, ok=done.ok, text=done.text)

    def _step_down(self, row: CommandRow, command: Command) -> Steps[Outcome]:
        rows = yield from self._ask("may_step_down", command=row.pk, name=command.values["group"])
        verdict, us = ((cell or b"").decode() for cell in rows[0]) if rows else ("elsewhere", "")
        if verdict == "past":
            again = ", for nobody else took it" if row.pk in self._obeyed else ""
            return Done(f"served by {us}{again}", ok=not again)
        if verdict == "elsewhere" or row.pk in self._obeyed:
            return Later()
        if verdict:
            return Done(_NO_STEP_DOWN[verdict], ok=False)
        self._obeyed.add(row.pk)
        outcome = yield from self._act(row, command)
        return outcome if isinstance(outcome, Done) and not outcome.ok else Later()

    def _settle(self, ended: Iterable[Cells]) -> None:
        self._context.settle(parents_of(ended))

    def _pass_over(self, pk: int, seconds: float) -> None:
        self._passed[pk] = self._now() + seconds
        self._read_in(seconds)


_NO_STEP_DOWN: Final = {
    "unknown": "no such group", "several": "there are several groups: step-down GROUP",
    "alone": "no other scheduler of the group stands by",
}  # fmt: skip


def _row(cells: Cells) -> CommandRow:
    pk, text, job, state, *flags = (
        None if cell is None else cell.decode("utf-8", "backslashreplace") for cell in cells
    )
    return CommandRow(int(pk or 0), text or "", int(job) if job else None, state, *(flag == "t" for flag in flags))
