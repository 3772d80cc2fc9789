"""Command rows: read on the watch connection, so that no full host, paused queue or lock on a job holds one back.

A command is done before its row ends. What its end says is kept until the row has ended, and said again if the answer
was lost; one that was cut off before is done again: each may be repeated. A command for every scheduler is acknowledged
by each; whoever sees that all have acted ends the row. Between two commands others may use the connection, and one that
is refused or finds what it needs locked comes again later, after those behind it.

The command to step down is ended by whoever takes the group over: by when that was it sees that the command is obeyed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import Signals
from typing import Final, NamedTuple

from scheduler.drivers.sql import to_json
from scheduler.model.commands import ANY, EVERY, GROUP, HOST, JOB, TYPE, VERBS, CommandError, Order, about, parse
from scheduler.model.jobs import Cells
from scheduler.policy import status
from scheduler.policy.core import Core

Ask = Callable[[str, Mapping[str, object], Callable[[list[Cells]], object], Callable[[], object]], None]
Tell = Callable[[str, bool], object]  # a word on what was done, and whether it was
Act = Callable[[Order, Tell], object]  # does what a scheduler as a whole is to do, and tells, at once or later

ONE_READ: Final = 100  # commands that query `read_commands` gives at most
AGAIN_S: Final = 0.2  # until a job that is between two states, or a row that is locked, is looked at again
REFUSED_S: Final = 1.0  # until a command is tried again whose statement was refused
WORKED: Final = ("claimed", "running")
UNWORKED: Final = ("held", "queued", "blocked")
VERBS_ABOUT: Final[dict[str, object]] = {
    "every": about(EVERY), "about_jobs": about(JOB), "about_hosts": about(HOST), "about_types": about(TYPE),
    "about_groups": about(GROUP),
}  # fmt: skip


class Row(NamedTuple):
    """A command row, and the job that it names."""

    pk: int
    text: str
    state: str | None  # of that job; None: there is none
    is_ours: bool  # we work on it
    is_command: bool


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
        self._core, self._run, self._again, self._go_on, self._acts = core, ask, again, go_on, acts
        self._clock = clock
        self._rows: deque[Row] = deque()
        self._is_more = False  # there may be others than these
        self._has_acted = False  # on one for every scheduler
        self._pk = 0  # of the one that is being done
        self._passed: dict[int, float] = {}  # those that are not read again, until when
        self._cancels: set[int] = set()  # commands that were about to cancel a job
        self._ends: dict[int, Mapping[str, object]] = {}  # what is to be said of commands that were done
        self._obeyed: set[int] = set()  # of the commands to shut down and to step down
        self._owed: Callable[[], object] = _nothing  # such a one that is being acknowledged

    def read(self) -> None:
        """Ask for the commands that are for us, and do them; those that were read come first."""
        if self._rows:
            self._is_more = True
            self.do_next()
        else:
            now = self._clock()
            self._passed = {pk: until for pk, until in self._passed.items() if until > now}
            if self._passed:
                self._again(min(self._passed.values()) - now)
            self._run("read_commands", {**VERBS_ABOUT, "passed": list(self._passed)}, self._found, _nothing)

    def do_next(self) -> None:
        """Do the next of those that were read."""
        if not self._rows:
            return
        row = self._rows.popleft()
        self._pk = row.pk
        if row.pk in self._ends:
            self._say_end(row.pk)
            return
        try:
            order = parse(row.text)
            _DOERS[VERBS[order.verb].about](self, row, order)
        except CommandError as mistake:
            self._end(row, str(mistake), ok=False)

    def cut_off(self) -> None:
        """The connection or the group was lost: all is to be read anew."""
        self._rows.clear()
        self._pay()

    def refused(self) -> None:
        """A statement for a command was refused: the others have their turn."""
        self._pay()
        self._pass_over(REFUSED_S)
        self._go_on()

    def _ask(self, name: str, values: Mapping[str, object], then: Callable[[list[Cells]], object]) -> None:
        self._run(name, values, then, self.refused)

    def _found(self, rows: Sequence[Cells]) -> None:
        self._rows = deque(map(_row, rows))
        self._is_more = len(rows) >= ONE_READ
        if not self._is_more:
            pks = {*self._passed, *(row.pk for row in self._rows)}
            self._ends = {pk: values for pk, values in self._ends.items() if pk in pks}
            self._cancels &= pks
        self._next()

    def _next(self) -> None:
        if self._rows:
            self._go_on()
            return
        if self._is_more:
            self._again(0.0)
        if self._has_acted or not self._is_more:  # it looks at all that wait
            self._close(_nothing)

    def _end(self, row: Row, text: str, result: object = True, *, ok: bool = True) -> None:
        """End a command with a word and an answer."""
        self._ends[row.pk] = {"command": row.pk, "ok": ok, "text": text, "result": to_json(result) if ok else None}
        self._say_end(row.pk)

    def _say_end(self, pk: int) -> None:
        def ended(rows: Sequence[Cells]) -> None:
            if not rows:
                self._later()
                return
            del self._ends[pk]
            self._settle(each for each, is_parent in rows if is_parent == b"t")
            self._next()

        self._ask("end_command", self._ends[pk], ended)

    def _close(self, then: Callable[[], object]) -> None:
        """End what all have acted on."""

        def closed(rows: Sequence[Cells]) -> None:
            self._settle(pk for (pk,) in rows)
            then()

        self._has_acted = False
        self._run("close_commands", {"every": VERBS_ABOUT["every"]}, closed, self._pay)

    def _settle(self, parents: Iterable[bytes | None]) -> None:
        """Others may wait for what has ended."""
        if pks := [int(pk or 0) for pk in parents]:
            self._core.settle(pks)

    def _later(self) -> None:
        """Leave a command as it is: what it names is on its way from one state to another."""
        self._pass_over(AGAIN_S)
        self._next()

    def _pass_over(self, seconds: float) -> None:
        self._passed[self._pk] = self._clock() + seconds
        self._again(seconds)

    # ---- for every scheduler

    def _do_here(self, row: Row, order: Order) -> None:
        act = self._acts[order.verb]
        if order.verb == "shutdown":
            self._shut_down(row, lambda: act(order, _nothing))
            return
        act(order, lambda text, ok: self._acknowledge(row, text, self._next, ok=ok))

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
        self._ask("acknowledge", {"command": row.pk, "ok": ok, "text": text}, lambda _: then())

    # ---- about a job

    def _do_to_job(self, row: Row, order: Order) -> None:
        job = _number(order, "job")
        if row.state is None:
            raise CommandError(f"no job {job}")
        if row.is_command:
            raise CommandError(f"job {job} is a command")
        _JOB_DOERS[order.verb](self, row, order, job)

    def _kill(self, row: Row, order: Order, job: int) -> None:
        if row.state not in WORKED:
            raise CommandError(f"job {job} is not being worked: it is {row.state}")
        self._want(row, job, "kill", lambda: self._core.kill(job, self._clock()))

    def _cancel(self, row: Row, order: Order, job: int) -> None:
        text = str(order.values["text"] or "cancelled")
        if row.state in WORKED:
            self._want(row, job, f"cancel {text}", lambda: self._core.cancel(job, text, self._clock()))
        elif row.state in UNWORKED:
            self._cancels.add(row.pk)
            self._ask("cancel_job", {"job": job, "text": text}, lambda rows: self._cancelled(row, job, rows))
        elif row.state == "cancelled" and row.pk in self._cancels:  # and the answer was lost
            self._core.settle([job])
            self._end(row, f"job {job}: cancelled")
        else:
            raise CommandError(f"job {job} has ended: it is {row.state}")

    def _cancelled(self, row: Row, job: int, rows: Sequence[Cells]) -> None:
        if not rows:
            self._later()
            return
        self._settle(pk for pk, is_parent in rows if is_parent == b"t")
        self._end(row, f"job {job}: cancelled")

    def _want(self, row: Row, job: int, wanted: str, act: Callable[[], bool]) -> None:
        """Write down what is wanted of a job that we work on, then do it."""

        def written(rows: Sequence[Cells]) -> None:
            if rows and act():
                self._end(row, f"job {job}: {wanted}", {"job": job, "was": row.state})
            else:
                self._later()

        if row.is_ours:
            self._ask("want", {"job": job, "wanted": wanted}, written)
        else:
            self._later()

    def _signal(self, row: Row, order: Order, job: int) -> None:
        number = _signal_number(str(order.values["signal"]))
        told = self._core.signal(job, number) if row.state in WORKED and row.is_ours else 0
        if told:
            name = Signals(number).name
            self._end(row, f"job {job}: {name} to {told} agents", {str(job): True})
        else:
            raise CommandError(f"job {job} is not running: it is {row.state}")

    # ---- about a host or a type

    def _do_to_host(self, row: Row, order: Order) -> None:
        name = str(order.values["name"])
        enabled = {"host-enable": True, "host-disable": False}.get(order.verb)
        values = {
            "name": name,
            "enabled": enabled,
            "most": order.values.get("max"),
            "urgent": order.values.get("urgent"),
        }
        self._ask("set_host", values, lambda rows: self._changed(row, f"host {name}", rows))

    def _do_to_type(self, row: Row, order: Order) -> None:
        name, enabled = str(order.values["name"]), order.verb == "agent-enable"

        def changed(rows: Sequence[Cells]) -> None:
            if rows and enabled:
                self._core.thaw(name, self._clock())
            self._changed(row, f"agent type {name}", rows)

        self._ask("set_type", {"name": name, "enabled": enabled}, changed)

    def _changed(self, row: Row, what: str, rows: Sequence[Cells]) -> None:
        if not rows:
            self._later()  # the group is no longer ours: another scheduler reads this command
        elif (said := rows[0][0]) is not None:
            self._end(row, f"{what}: {said.decode()}")
        else:
            self._end(row, f"no {what}", ok=False)

    # ---- about a group

    def _do_to_group(self, row: Row, order: Order) -> None:
        values = {"command": row.pk, "name": order.values["group"]}
        self._ask("may_step_down", values, lambda rows: self._step_down(row, order, rows))

    def _step_down(self, row: Row, order: Order, rows: Sequence[Cells]) -> None:
        verdict, us = ((cell or b"").decode() for cell in rows[0]) if rows else ("elsewhere", "")
        if verdict == "past":
            again = ", for nobody else took it" if row.pk in self._obeyed else ""
            self._end(row, f"served by {us}{again}", ok=not again)
        elif verdict == "elsewhere" or row.pk in self._obeyed:
            self._later()
        elif verdict:
            self._end(row, _REFUSALS[verdict], ok=False)
        else:
            self._obeyed.add(row.pk)
            self._acts[order.verb](order, lambda text, ok: self._later() if ok else self._end(row, text, ok=False))

    # ---- about nothing in particular

    def _answer(self, row: Row, order: Order) -> None:
        self._end(row, "see jq_result", status.overview(self._core.world))


_DOERS: Final[dict[str, Callable[[Commands, Row, Order], None]]] = {
    EVERY: Commands._do_here,
    JOB: Commands._do_to_job,
    HOST: Commands._do_to_host,
    TYPE: Commands._do_to_type,
    GROUP: Commands._do_to_group,
    ANY: Commands._answer,
}
_REFUSALS: Final = {
    "unknown": "no such group", "several": "there are several groups: step-down GROUP",
    "alone": "no other scheduler of the group stands by",
}  # fmt: skip
_JOB_DOERS: Final[dict[str, Callable[[Commands, Row, Order, int], None]]] = {
    "killjob": Commands._kill,
    "cancel": Commands._cancel,
    "signal": Commands._signal,
}


def _nothing(*_: object) -> None:
    """Do nothing."""


def _row(cells: Cells) -> Row:
    pk, text, state, is_ours, is_command = (
        None if cell is None else cell.decode("utf-8", "backslashreplace") for cell in cells
    )
    return Row(int(pk or 0), text or "", state, is_ours == "t", is_command == "t")


def _number(order: Order, name: str) -> int:
    value = order.values[name]
    assert isinstance(value, int)
    return value


def _signal_number(word: str) -> int:
    """Read `TERM`, `SIGTERM` or `15`. Errors: CommandError."""
    try:
        return Signals(int(word)) if word.isdecimal() else Signals["SIG" + word.upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        raise CommandError(f"no signal {word!r}: a name such as TERM, or a number, is wanted") from None
