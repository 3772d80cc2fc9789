"""Command rows: read on the watch connection, so that no full host, paused queue or lock on a job holds one back.

A command is done before its row ends. What its end says is kept until the row has ended, and said again if the answer
was lost; one that was cut off before is done again, by us or by another: each may be repeated, or its row is marked by
the statement with the effect. A command for every scheduler is acknowledged by each; whoever sees that all have acted
ends the row. Between two commands others may use the connection, and one that is refused or finds what it needs locked
comes again later, after those behind it.

What is done about a job is in command_jobs.py, about a host, a type or a queue in command_tables.py. A command `run`
goes on by itself once it has begun: it is not read again, and whoever sees that its jobs have ended ends it.

The command to step down is ended by whoever takes the group over: by when that was it sees that the command is obeyed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from scheduler.daemon.command_rows import Desk, Doer, Pass, Row, parents_of, text_of
from scheduler.daemon.job_commands import run, to_job
from scheduler.daemon.table_commands import QUEUES, flush, to_host, to_type
from scheduler.drivers.sql import to_json
from scheduler.model.commands import EVERY, GROUP, HOST, JOB, SEE_RESULT, TYPE, VERBS, CommandError, Order, about, parse
from scheduler.model.jobs import Cells
from scheduler.policy.core import Core

Ask = Callable[[str, Mapping[str, object], Callable[[list[Cells]], object], Callable[[], object]], None]
Tell = Callable[[str, bool], object]  # a word on what was done, and whether it was
Act = Callable[[Order, Tell], object]  # does what a scheduler as a whole is to do, and tells, at once or later

ONE_READ: Final = 100  # commands that query `read_commands` gives at most
AGAIN_S: Final = 0.2  # until a job that is between two states, or a row that is locked, is looked at again
REFUSED_S: Final = 1.0  # until a command is tried again whose statement was refused
MOVES_OTHERS: Final = frozenset(("release", "run"))  # jobs that they do not name, or more than one
VERBS_ABOUT: Final[dict[str, object]] = {
    "every": about(EVERY), "about_jobs": about(JOB), "about_hosts": about(HOST), "about_types": about(TYPE),
    "about_groups": about(GROUP),
}  # fmt: skip


class Commands:
    """Reads the commands for us, and does one after the other.

    `ask` runs a query and calls back with its rows, or when it was refused; it may be called again from there, and
    forgets the call when the connection is lost, which `cut_off` tells. `again` calls `read` after so many seconds, and
    `go_on` calls `do_next` as soon as nothing older is due. `acts` is what is to be done for the verbs about EVERY
    and GROUP.
    """

    def __init__(
        self,
        core: Core,
        ask: Ask,
        again: Callable[[float], None],
        go_on: Callable[[], None],
        acts: Mapping[str, Act],
        clock: Callable[[], float],
    ) -> None:
        self.core, self.now = core, clock
        self.passes: dict[int, Pass] = {}  # how far commands have come that are done piece by piece
        self._run, self._again, self._go_on, self._acts = ask, again, go_on, acts
        self._rows: deque[Row] = deque()
        self._is_more = False  # there may be others than these
        self._is_read = False  # the last read was answered
        self._moved: set[int] = set()  # jobs that commands were about since these were read
        self._moved_others = False  # and jobs that they did not name
        self._has_acted = False  # on one for every scheduler
        self._pk = 0  # of the one that is being done
        self._passed: dict[int, float] = {}  # those that are not read again, until when
        self._ends: dict[int, Mapping[str, object]] = {}  # what is to be said of commands that were done
        self._obeyed: set[int] = set()  # of the commands to shut down and to step down
        self._owed: Callable[[], object] = _nothing  # such a one that is being acknowledged

    def read(self) -> None:
        """Read the commands that are for us, and do them in order.

        Those of operators that were read already come first. All others are read again, for an operator may have given
        one meanwhile, which does not wait for them.
        """
        if self._rows and self._rows[0].of_operator:
            self._is_more = True
            self.do_next()
        else:
            now = self.now()
            self._passed = {pk: until for pk, until in self._passed.items() if until > now}
            if self._passed:
                self._again(min(self._passed.values()) - now)
            self._is_read = False
            self._run("read_commands", {**VERBS_ABOUT, "passed": list(self._passed)}, self._found, _nothing)

    def do_next(self) -> None:
        """Do the next of those that were read."""
        if not self._rows:
            return
        row = self._rows.popleft()
        if row.job is not None and (self._moved_others or row.job in self._moved):
            self._rows.clear()  # its job may be in another state by now
            self.read()
            return
        self._pk = row.pk
        if row.pk in self._ends:
            self._say_end(row.pk)
            return
        try:
            self._do(row, parse(row.text))
        except CommandError as mistake:
            self.end(row, str(mistake), ok=False)

    def _do(self, row: Row, order: Order) -> None:
        about_what = VERBS[order.verb].about
        self._moved_others = self._moved_others or order.verb in MOVES_OTHERS
        if row.job is not None:
            self._moved.add(row.job)
        if about_what == EVERY:
            self._do_here(row, order)
        elif order.verb == "step-down":
            self._do_to_group(row, order)
        else:
            (_BY_VERB.get(order.verb) or _BY_KIND[about_what])(self, row, order)

    @property
    def is_caught_up(self) -> bool:
        """Say whether all commands were carried out, or passed over, that were there when they were read last."""
        return self._is_read and not self._rows and not self._is_more

    def begin(self) -> None:
        """Forget that they were read: there may be some that nobody carried out while the group had no daemon."""
        self._is_read = False

    def cut_off(self) -> None:
        """The connection or the group was lost: all is to be read anew."""
        self._rows.clear()
        self._is_read = False
        self._pay()

    def refused(self) -> None:
        """A statement for a command was refused: the others have their turn."""
        self._pay()
        self._pass_over(REFUSED_S)
        self._go_on()

    def _found(self, rows: Sequence[Cells]) -> None:
        self._is_read = True
        self._rows = deque(map(_row, rows))
        self._moved, self._moved_others = set(), False
        self._is_more = len(rows) >= ONE_READ
        if not self._is_more:
            pks = {*self._passed, *(row.pk for row in self._rows)}
            self._ends = {pk: values for pk, values in self._ends.items() if pk in pks}
            self.passes = {pk: each for pk, each in self.passes.items() if pk in pks}
        self._close_runs()

    def _close_runs(self) -> None:
        """End the commands whose jobs have all ended, however many others there are to do."""

        def closed(rows: Sequence[Cells]) -> None:
            self.settle(parents_of(rows))
            self._next()

        self._run("close_runs", {}, closed, self._go_on)

    def _next(self) -> None:
        """Do the next command; what an operator commanded of every scheduler is ended before others have their turn."""
        if self._rows and (self._rows[0].of_operator or not self._has_acted):
            self._go_on()
        elif self._rows:
            self._close(self._go_on)
        else:
            if self._is_more:
                self._again(0.0)
            if self._has_acted or not self._is_more:  # it looks at all that wait
                self._close(_nothing)

    # ---- for those who carry commands out

    def ask(self, name: str, values: Mapping[str, object], then: Callable[[list[Cells]], object]) -> None:
        """Run a named query and go on with its rows."""
        self._run(name, values, then, self.refused)

    def end(self, row: Row, text: str, result: object = True, *, ok: bool = True) -> None:
        """End a command with a word and an answer; one that failed has no answer unless one is given."""
        answer = to_json(result) if ok or result is not True else None
        self._ends[row.pk] = {"command": row.pk, "ok": ok, "text": text, "result": answer}
        self._say_end(row.pk)

    def leave(self) -> None:
        """Leave a command that goes on by itself."""
        self._next()

    def _say_end(self, pk: int) -> None:
        def ended(rows: Sequence[Cells]) -> None:
            if not rows:
                self.later()
                return
            del self._ends[pk]
            self.settle(parents_of(rows))
            self._next()

        self.ask("end_command", self._ends[pk], ended)

    def _close(self, then: Callable[[], object]) -> None:
        """End what all have acted on."""

        def closed(rows: Sequence[Cells]) -> None:
            self.settle(parents_of(rows))
            then()

        def refused() -> None:
            self._pay()
            self._go_on()

        self._has_acted = False
        self._run("close_commands", {"every": VERBS_ABOUT["every"]}, closed, refused)

    def settle(self, parents: Iterable[bytes | None]) -> None:
        """Others may wait for what has ended."""
        if pks := [int(pk or 0) for pk in parents]:
            self.core.settle(pks)

    def later(self, seconds: float = AGAIN_S) -> None:
        """Leave a command as it is: what it names is on its way from one state to another."""
        self._pass_over(seconds)
        self._next()

    def _pass_over(self, seconds: float) -> None:
        self._passed[self._pk] = self.now() + seconds
        self._again(seconds)

    # ---- for every scheduler

    def _do_here(self, row: Row, order: Order) -> None:
        act = self._acts[order.verb]
        if order.verb == "shutdown":
            self._shut_down(row, lambda: act(order, _nothing))
        elif queues := order.values.get("queue"):
            self.ask("unknown_queues", {"names": queues}, lambda rows: self._poll(row, order, rows))
        else:
            act(order, lambda text, ok: self._acknowledge(row, text, self._next, ok=ok))

    def _poll(self, row: Row, order: Order, rows: Sequence[Cells]) -> None:
        """Look at the queue, unless one is named that is none."""
        if unknown := text_of(rows[0][0]):
            self._acknowledge(row, f"invalid target: {unknown}", self._next, ok=False)
        else:
            self._acts[order.verb](order, lambda text, ok: self._acknowledge(row, text, self._next, ok=ok))

    def _shut_down(self, row: Row, act: Callable[[], object]) -> None:
        """Nothing can be acknowledged after it; yet it is done whatever comes of the acknowledgement, and once."""

        def acknowledged() -> None:
            self._pay()
            self._next()

        if row.pk not in self._obeyed:
            self._obeyed.add(row.pk)
            self._owed = act
        self._acknowledge(row, "shutting down", lambda: self._close(acknowledged))

    def _pay(self) -> None:
        """Shut down, if that was to be."""
        owed, self._owed = self._owed, _nothing
        owed()

    def _acknowledge(self, row: Row, text: str, then: Callable[[], object], *, ok: bool = True) -> None:
        self._has_acted = True
        self.ask("acknowledge", {"command": row.pk, "ok": ok, "text": text}, lambda _: then())

    # ---- about a group

    def _do_to_group(self, row: Row, order: Order) -> None:
        values = {"command": row.pk, "name": order.values["group"]}
        self.ask("may_step_down", values, lambda rows: self._step_down(row, order, rows))

    def _step_down(self, row: Row, order: Order, rows: Sequence[Cells]) -> None:
        verdict, us = ((cell or b"").decode() for cell in rows[0]) if rows else ("elsewhere", "")
        if verdict == "past":
            again = ", for nobody else took it" if row.pk in self._obeyed else ""
            self.end(row, f"served by {us}{again}", ok=not again)
        elif verdict == "elsewhere" or row.pk in self._obeyed:
            self.later()
        elif verdict:
            self.end(row, _REFUSALS[verdict], ok=False)
        else:
            self._obeyed.add(row.pk)
            self._acts[order.verb](order, lambda text, ok: self.later() if ok else self.end(row, text, ok=False))


def _answer(desk: Desk, row: Row, order: Order) -> None:
    if (group := order.values["group"]) in (None, desk.core.config.scheduler.group):
        desk.end(row, SEE_RESULT, desk.core.report.overview())
    else:  # it has no active scheduler, or is none
        desk.end(row, f"no scheduler serves group {group}", ok=False)


_REFUSALS: Final = {
    "unknown": "no such group", "several": "there are several groups: step-down GROUP",
    "alone": "no other scheduler of the group stands by",
}  # fmt: skip
_BY_KIND: Final[dict[str, Doer]] = {JOB: to_job, HOST: to_host, TYPE: to_type}
_BY_VERB: Final[dict[str, Doer]] = {**QUEUES, "run": run, "flush": flush, "status": _answer}


def _nothing(*_: object) -> None:
    """Do nothing."""


def _row(cells: Cells) -> Row:
    pk, text, job, state, *flags = (
        None if cell is None else cell.decode("utf-8", "backslashreplace") for cell in cells
    )
    return Row(int(pk or 0), text or "", int(job) if job else None, state, *(flag == "t" for flag in flags))
