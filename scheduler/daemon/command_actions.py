"""The actions of commands: what carries out each verb that takes more than one query, by the name in its entry.

A job in hand is changed by the core, any other in its row. After a change of a host, a type or a queue the core follows
before the command ends, so that nothing is started that the change forbids; other daemons are notified. A query that
returns no row found that the group is no longer ours: another scheduler reads the command.
"""

import json
from collections.abc import Callable
from signal import Signals
from typing import Any, Final

import attrs

from scheduler.daemon.command_context import (
    PAUSE_S,
    Action,
    CommandRow,
    Context,
    Done,
    FlushPass,
    GoesOn,
    Later,
    Outcome,
    job_of,
    parents_of,
    text_of,
)
from scheduler.drivers.steps import Steps
from scheduler.model.commands import SEE_RESULT, Command, CommandError, filter_of
from scheduler.model.config import Config
from scheduler.model.filters import FILTERS, letters_matching
from scheduler.model.jobs import Cells
from scheduler.model.states import CANCELLED, HELD, IN_HAND, SKIPPED, TERMINAL, states_before

# ---- jobs in hand


def kill(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Kill the agents of a job, which fails."""
    pk = job_of(row, command)
    if row.state in IN_HAND:
        return (yield from _want(context, row, "kill", lambda: context.core.kill(pk, context.now())))
    if row.state == "failed" and row.took_effect:
        return Done(f"job {pk}: killed")
    raise CommandError(f"job {pk} is not being worked: it is {row.state}")


def cancel(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """End a job that has not ended."""
    pk, text = job_of(row, command), str(command.values["text"] or "cancelled")
    if row.state in IN_HAND:
        return (yield from _want(context, row, f"cancel {text}", lambda: context.core.cancel(pk, text, context.now())))
    if row.state in states_before(CANCELLED):
        rows = yield from context.ask("cancel_job", command=row.pk, job=pk, text=text)
        return _ended(context, row, "cancelled", rows)
    if row.state == "cancelled" and row.took_effect:
        return _ended_before(context, row, "cancelled")
    raise CommandError(f"job {pk} has ended: it is {row.state}")


def _want(context: Context, row: CommandRow, wanted: str, act: Callable[[], bool]) -> Steps[Outcome]:
    """Write down what is wanted of a job in hand, then do it."""
    if not row.is_ours:
        return Later()
    rows = yield from context.ask("set_wanted", command=row.pk, job=row.job, wanted=wanted)
    if not (rows and act()):
        return Later()
    said = "killed" if wanted == "kill" else "cancelled"
    return Done(f"job {row.job}: is being {said}", {"job": row.job, "was": row.state})


def signal(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Send signals to the agents of jobs; of several, the answer says for each whether it runs here."""
    pk, more = job_of(row, command), command.values["more"] or ()
    assert isinstance(more, tuple)
    words = [str(pk), str(command.values["signal"]), *map(str, more)]
    if len(words) == 2:
        return _signal_one(context, row, _signal_number(words[1]))
    if len(words) % 2:
        raise CommandError(f"a signal is wanted for job {words[-1]}")
    if wrong := next((word for word in words[::2] if not word.isdecimal()), None):
        raise CommandError(f"the number of a job is wanted (got {wrong!r}): signal JOB SIGNAL [JOB SIGNAL...]")
    pairs = [(int(job), _signal_number(name)) for job, name in zip(words[::2], words[1::2], strict=True)]
    sent = {str(job): bool(context.core.signal(job, number)) for job, number in pairs}
    text = f"{sum(sent.values())} of {len(sent)} jobs are running and were told"
    return Done(text, sent, ok=any(sent.values()))


def _signal_one(context: Context, row: CommandRow, number: int) -> Done:
    agents = context.core.signal(row.job or 0, number) if row.state in IN_HAND and row.is_ours else 0
    if not agents:
        raise CommandError(f"job {row.job} is not running: it is {row.state}")
    text = f"job {row.job}: {Signals(number).name} to {agents} agent{'s' * (agents > 1)}"
    return Done(text, {str(row.job): True})


def _signal_number(word: str) -> int:
    """Read `TERM`, `SIGTERM` or `15`. Errors: CommandError."""
    try:
        return Signals(int(word)) if word.isdecimal() else Signals["SIG" + word.upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        raise CommandError(f"no signal {word!r}: a name such as TERM, or a number, is wanted") from None


# ---- jobs not in hand


def release(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Let a held job go, and all that wait for it."""
    pk = job_of(row, command)
    if row.state != "held":
        what = "has ended" if row.state in TERMINAL else "is released already"
        return Done(f"job {pk} {what}: it is {row.state}", {"job": pk, "released": 0})
    rows = yield from context.ask("release_job", job=pk, command=row.pk)
    count, is_manual = (text_of(cell) for cell in rows[0])
    if is_manual == "t":
        return Done(f"job {pk} is manual: run {pk}", ok=False)
    if count == "0":
        return Later()
    below = "" if count == "1" else f", and {int(count) - 1} that wait for it"
    return Done(f"job {pk}: released{below}", {"job": pk, "released": int(count)})


def hold(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Keep a job from being started."""
    pk = job_of(row, command)
    if row.state == "held":
        return Done(f"job {pk}: held")
    if row.state in states_before(HELD):
        return _ended(context, row, "held", (yield from context.ask("hold_job", job=pk)))
    what = "is in hand" if row.state in IN_HAND else "has ended"
    raise CommandError(f"job {pk} {what}: it is {row.state}")


def ice(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Skip a job as if it had been done."""
    pk = job_of(row, command)
    if row.state in states_before(SKIPPED):
        return _ended(context, row, "on ice", (yield from context.ask("ice_job", command=row.pk, job=pk)))
    if row.state == "skipped" and row.took_effect:
        return _ended_before(context, row, "on ice")
    raise CommandError(f"job {pk} is neither held nor queued: it is {row.state}")


def retry(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Queue a failed job anew."""
    pk = job_of(row, command)
    if row.took_effect:
        return Done(f"job {pk}: queued again")
    if row.state != "failed":
        anew = "; drover resubmit queues it as another job" if row.state in TERMINAL else ""
        raise CommandError(f"job {pk} has not failed: it is {row.state}{anew}")
    rows = yield from context.ask("retry_job", command=row.pk, job=pk)
    if not rows:
        return Later()
    refusal = text_of(rows[0][0])
    return Done(f"job {pk}: {refusal or 'queued again'}", ok=not refusal)


def unblock(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Look again at a job that is blocked, or at all that are for a reason."""
    named = command.values["job"]
    condition = named if isinstance(named, str) else None
    pk = job_of(row, command) if condition is None or row.is_command else None
    rows = yield from context.ask("unblock", command=row.pk, job=pk, condition=condition)
    wanted, done = (int(cell or 0) for cell in rows[0])
    if done < wanted:
        return Later()
    if condition:
        return Done(f"{done} jobs were blocked on {condition}", {"unblocked": done})
    if done or row.took_effect:
        return Done(f"job {pk}: not blocked any more", {"unblocked": 1})
    return Done(f"job {pk} is not blocked: it is {row.state}", ok=False)


def _ended(context: Context, row: CommandRow, what: str, rows: list[Cells]) -> Outcome:
    """Have the children of a job settled that was changed; without rows it was not."""
    if not rows:
        return Later()
    context.settle(parents_of(rows))
    return Done(f"job {row.job}: {what}")


def _ended_before(context: Context, row: CommandRow, what: str) -> Outcome:
    """A job was changed, and the command did not end: the answer was lost, or the daemon that did it."""
    context.core.settle([row.job or 0])
    return Done(f"job {row.job}: {what}")


def run(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Queue held jobs; the command ends when all of them have ended (query `close_runs`)."""
    rows = yield from context.ask("begin_run", command=row.pk, jobs=command.values["job"])
    if not rows:
        return Later()
    count, errors, parents = (text_of(cell) for cell in rows[0])
    context.settle(pk.encode() for pk in parents.split(",") if pk)
    if count != "0":
        return GoesOn()
    found = json.loads(errors)
    return Done("; ".join(found.values()), {"jobs": {}, "errors": found}, ok=False)


# ---- hosts, agent types, queues, what is long over


def set_host(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Let a host take agents, or none, or so many, or for certain jobs only."""
    name, words = str(command.values["name"]), command.values.get("filter") or ()
    assert isinstance(words, tuple)
    filters: dict[str, Any] = dict(filter_of(str(word)) for word in words)
    _refuse_idle_types(context.core.config, name, filters)
    letters = "".join(sorted(letters_matching(filters.get("priorities", ""))))
    rows = yield from context.ask(
        "set_host",
        name=name,
        enabled={"host-enable": True, "host-disable": False}.get(command.verb),
        most=command.values.get("max"),
        urgent=command.values.get("urgent"),
        letters=letters if filters.get("priorities") else None,
        **dict.fromkeys(FILTERS) | filters,
    )
    if rows and (missing := text_of(rows[0][1])):
        return Done(f"no such queue: {missing}", ok=False)
    return (yield from _changed(context, f"host {name}", rows))


def _refuse_idle_types(config: Config, name: str, filters: dict[str, Any]) -> None:
    """A type that no host took any more would be a mistake in the configuration too. Errors: CommandError."""
    if name in config.hosts:
        hosts = config.hosts | {name: attrs.evolve(config.hosts[name], **filters)}
        new = attrs.evolve(config, hosts=hosts)
        if idle := [kind for kind in config.agents if config.hosts_of(kind) and not new.hosts_of(kind)]:
            raise CommandError(f"no host would take agents of type {', '.join(idle)}")


def set_type(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Serve an agent type, or not."""
    name, enabled = str(command.values["name"]), command.verb == "agent-enable"
    rows = yield from context.ask("set_type", name=name, enabled=enabled)
    if rows and enabled:
        context.core.thaw(name, context.now())
    return (yield from _changed(context, f"agent type {name}", rows))


def _changed(context: Context, what: str, rows: list[Cells]) -> Steps[Outcome]:
    if not rows:
        return Later()
    if rows[0][0] is None:
        return Done(f"no {what}", ok=False)
    yield from context.follow_tables()
    return Done(f"{what}: {text_of(rows[0][0])}")


def pause(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Start no more jobs of queues, or go on."""
    paused = command.verb == "pause"
    word = "paused" if paused else "running"
    rows = yield from context.ask("pause_queues", names=command.values["queue"] or (), paused=paused)
    if not rows:
        return Later()
    missing, now, before = (text_of(cell) for cell in rows[0])
    if missing:
        return Done(f"no queue {missing}", ok=False)
    yield from context.follow_tables()
    return Done("; ".join([f"{word}: {now}"] * bool(now) + [f"{word} already: {before}"] * bool(before)))


def add_queue(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Make a queue of our group."""
    name, concurrency = command.values["queue"], command.values["concurrency"]
    if not row.took_effect:
        rows = yield from context.ask("add_queue", command=row.pk, name=name, concurrency=concurrency)
        if not rows:
            return Later()
        if rows[0][0] != b"t":
            return Done(f"there is a queue {name} already", ok=False)
    yield from context.follow_tables()
    return Done(f"queue {name}: concurrency {concurrency}")


def remove_queue(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Remove a queue that is empty."""
    name, verdict = command.values["queue"], "removed"
    if not row.took_effect:
        rows = yield from context.ask("remove_queue", command=row.pk, name=name)
        if not rows:
            return Later()
        verdict = text_of(rows[0][0])
    return Done(_REMOVALS[verdict].format(name), ok=verdict == "removed")


_REMOVALS: Final = {
    "removed": "queue {}: removed", "unknown": "no queue {}", "own": "queue {} is a group's own",
    "used": "queue {} is not empty",
}  # fmt: skip


def flush(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Remove what is long over, piece by piece."""
    days, failed_too = command.values["days"], command.values["failed"] is not None
    assert isinstance(days, int)
    each = context.flushes.setdefault(row.pk, FlushPass(days, failed_too=failed_too, command=row.pk))
    if not (yield from each.remove_piece(context.ask)):
        return Later()
    return Done(str(each), each.removed) if each.is_over else Later(PAUSE_S)


def status(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Answer with what is in hand."""
    if (group := command.values["group"]) in (None, context.core.config.scheduler.group):
        return Done(SEE_RESULT, context.core.report.overview())
    return Done(f"no scheduler serves group {group}", ok=False)  # it has no active scheduler, or is none


ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action
    for action in (
        kill, cancel, signal, release, hold, ice, retry, unblock, run, set_host, set_type, pause, add_queue,
        remove_queue, flush, status,
    )
}  # fmt: skip
