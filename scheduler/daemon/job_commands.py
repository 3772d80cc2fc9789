"""What commands do to jobs: one that we work on is told to its agents, another is changed where it stands.

Each query changes a job only if it is still in the state that was read, and waits for no lock: with no rows the command
is looked at again.
"""

import json
from collections.abc import Callable
from signal import Signals
from typing import Final

from scheduler.daemon.command_rows import Desk, Doer, Row, parents_of, text_of
from scheduler.model.commands import CommandError, Order
from scheduler.model.jobs import Cells
from scheduler.model.states import TERMINAL

WORKED: Final = ("claimed", "running")
UNWORKED: Final = ("held", "queued", "blocked")


def to_job(desk: Desk, row: Row, order: Order) -> None:
    """Do what a command says about one job. Errors: CommandError."""
    named = order.values["job"]
    if row.job is None and not (order.verb == "unblock" and isinstance(named, str)):
        raise CommandError(f"no job {named}")
    if row.is_command:
        raise CommandError(f"job {row.job} is a command")
    _JOB_DOERS[order.verb](desk, row, order)


# ---- in hand


def _kill(desk: Desk, row: Row, order: Order) -> None:
    if row.state in WORKED:
        _want(desk, row, "kill", lambda job: desk.core.kill(job, desk.now()))
    elif row.state == "failed" and row.took_effect:
        desk.end(row, f"job {row.job}: killed")
    else:
        raise CommandError(f"job {row.job} is not being worked: it is {row.state}")


def _cancel(desk: Desk, row: Row, order: Order) -> None:
    text = str(order.values["text"] or "cancelled")
    if row.state in WORKED:
        _want(desk, row, f"cancel {text}", lambda job: desk.core.cancel(job, text, desk.now()))
    elif row.state in UNWORKED:
        values = {"command": row.pk, "job": row.job, "text": text}
        desk.ask("cancel_job", values, lambda rows: _ended(desk, row, "cancelled", rows))
    elif row.state == "cancelled" and row.took_effect:
        _ended_before(desk, row, "cancelled")
    else:
        raise CommandError(f"job {row.job} has ended: it is {row.state}")


def _want(desk: Desk, row: Row, wanted: str, act: Callable[[int], bool]) -> None:
    """Write down what is wanted of a job that we work on, then do it."""
    job = row.job or 0

    def written(rows: list[Cells]) -> None:
        if rows and act(job):
            said = "killed" if wanted == "kill" else "cancelled"
            desk.end(row, f"job {job}: is being {said}", {"job": job, "was": row.state})
        else:
            desk.later()

    if row.is_ours:
        desk.ask("set_wanted", {"command": row.pk, "job": job, "wanted": wanted}, written)
    else:
        desk.later()


def _signal(desk: Desk, row: Row, order: Order) -> None:
    """Send signals to several jobs, one each; the answer says for each whether it runs here."""
    more = order.values["more"] or ()
    assert isinstance(more, tuple)
    if not more:
        _signal_one(desk, row, _signal_number(str(order.values["signal"])))
        return
    words = [str(row.job), str(order.values["signal"]), *map(str, more)]
    if len(words) % 2:
        raise CommandError(f"a signal is wanted for job {words[-1]}")
    if wrong := next((word for word in words[::2] if not word.isdecimal()), None):
        raise CommandError(f"the number of a job is wanted (got {wrong!r}): signal JOB SIGNAL [JOB SIGNAL...]")
    pairs = [(int(job), _signal_number(name)) for job, name in zip(words[::2], words[1::2], strict=True)]
    told = {str(job): bool(desk.core.signal(job, number)) for job, number in pairs}
    desk.end(row, f"{sum(told.values())} of {len(told)} jobs are running and were told", told, ok=any(told.values()))


def _signal_one(desk: Desk, row: Row, number: int) -> None:
    told = desk.core.signal(row.job or 0, number) if row.state in WORKED and row.is_ours else 0
    if not told:
        raise CommandError(f"job {row.job} is not running: it is {row.state}")
    desk.end(row, f"job {row.job}: {Signals(number).name} to {told} agent{'s' * (told > 1)}", {str(row.job): True})


def _signal_number(word: str) -> int:
    """Read `TERM`, `SIGTERM` or `15`. Errors: CommandError."""
    try:
        return Signals(int(word)) if word.isdecimal() else Signals["SIG" + word.upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        raise CommandError(f"no signal {word!r}: a name such as TERM, or a number, is wanted") from None


# ---- not in hand


def _release(desk: Desk, row: Row, order: Order) -> None:
    def released(rows: list[Cells]) -> None:
        count, is_manual = (text_of(cell) for cell in rows[0])
        if is_manual == "t":
            desk.end(row, f"job {row.job} is manual: run {row.job}", ok=False)
        elif count == "0":
            desk.later()
        else:
            below = "" if count == "1" else f", and {int(count) - 1} that wait for it"
            desk.end(row, f"job {row.job}: released{below}", {"job": row.job, "released": int(count)})

    if row.state == "held":
        desk.ask("release_job", {"job": row.job, "command": row.pk}, released)
    else:
        what = "has ended" if row.state in TERMINAL else "is released already"
        desk.end(row, f"job {row.job} {what}: it is {row.state}", {"job": row.job, "released": 0})


def _hold(desk: Desk, row: Row, order: Order) -> None:
    if row.state == "held":
        desk.end(row, f"job {row.job}: held")
    elif row.state in UNWORKED:
        desk.ask("hold_job", {"job": row.job}, lambda rows: _ended(desk, row, "held", rows))
    elif row.state in WORKED:
        raise CommandError(f"job {row.job} is in hand: it is {row.state}")
    else:
        raise CommandError(f"job {row.job} has ended: it is {row.state}")


def _ice(desk: Desk, row: Row, order: Order) -> None:
    if row.state in ("held", "queued"):
        desk.ask("ice_job", {"command": row.pk, "job": row.job}, lambda rows: _ended(desk, row, "on ice", rows))
    elif row.state == "skipped" and row.took_effect:
        _ended_before(desk, row, "on ice")
    else:
        raise CommandError(f"job {row.job} is neither held nor queued: it is {row.state}")


def _retry(desk: Desk, row: Row, order: Order) -> None:
    def retried(rows: list[Cells]) -> None:
        if not rows:
            desk.later()
        elif refusal := text_of(rows[0][0]):
            desk.end(row, f"job {row.job}: {refusal}", ok=False)
        else:
            desk.end(row, f"job {row.job}: queued again")

    if row.took_effect:
        desk.end(row, f"job {row.job}: queued again")
    elif row.state == "failed":
        desk.ask("retry_job", {"command": row.pk, "job": row.job}, retried)
    else:
        anew = "; drover resubmit queues it as another job" if row.state in TERMINAL else ""
        raise CommandError(f"job {row.job} has not failed: it is {row.state}{anew}")


def _unblock(desk: Desk, row: Row, order: Order) -> None:
    named = order.values["job"]
    is_word = isinstance(named, str)
    values = {"command": row.pk, "job": None if is_word else named, "condition": named if is_word else None}

    def unblocked(rows: list[Cells]) -> None:
        wanted, done = (int(cell or 0) for cell in rows[0])
        if done < wanted:
            desk.later()
        elif is_word:
            desk.end(row, f"{done} jobs were blocked on {named}", {"unblocked": done})
        elif done or row.took_effect:
            desk.end(row, f"job {named}: not blocked any more", {"unblocked": 1})
        else:
            desk.end(row, f"job {named} is not blocked: it is {row.state}", ok=False)

    desk.ask("unblock", values, unblocked)


def _ended(desk: Desk, row: Row, what: str, rows: list[Cells]) -> None:
    """A job was changed, and others may wait for it; without rows it was not."""
    if not rows:
        desk.later()
        return
    desk.settle(parents_of(rows))
    desk.end(row, f"job {row.job}: {what}")


def _ended_before(desk: Desk, row: Row, what: str) -> None:
    """A job was changed, and the command did not end: the answer was lost, or who did it."""
    desk.core.settle([row.job or 0])
    desk.end(row, f"job {row.job}: {what}")


# ---- by hand


def run(desk: Desk, row: Row, order: Order) -> None:
    """Queue held jobs; the command ends when all of them have ended (query `close_runs`)."""

    def begun(rows: list[Cells]) -> None:
        if not rows:
            desk.later()
            return
        count, errors, parents = (text_of(cell) for cell in rows[0])
        desk.settle(pk.encode() for pk in parents.split(",") if pk)
        if count != "0":
            desk.leave()
            return
        found = json.loads(errors)
        desk.end(row, "; ".join(found.values()), {"jobs": {}, "errors": found}, ok=False)

    desk.ask("begin_run", {"command": row.pk, "jobs": order.values["job"]}, begun)


_JOB_DOERS: Final[dict[str, Doer]] = {
    "killjob": _kill,
    "cancel": _cancel,
    "signal": _signal,
    "release": _release,
    "hold": _hold,
    "ice": _ice,
    "retry": _retry,
    "unblock": _unblock,
}
