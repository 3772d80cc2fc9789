"""The actions of commands: what carries out each verb that takes more than one query, by the name in its entry.

An action is steps (drivers/loop.py) that return an Outcome; one that asks nothing returns it at once. Each query of
theirs changes something only if it is still as it was read, and waits for no lock: with no row the command is tried
again later, here or by another scheduler. A refused statement or a lost connection ends an action; it begins anew when
the command is read again.

A job in hand is changed by the core, any other in its row. After a change of a host, a type or a queue the core follows
before the command ends, so that nothing is started that the change forbids; other daemons are notified.
"""

import json
import logging
from collections.abc import Callable, Mapping
from signal import Signals
from typing import Any, Final

import attrs

from scheduler.daemon import log
from scheduler.daemon.bulk_changes import change_all
from scheduler.daemon.command_rows import (
    Action,
    Ask,
    CommandRow,
    Context,
    Done,
    GoesOn,
    Later,
    Outcome,
    job_of,
    text_of,
)
from scheduler.drivers.loop import Steps
from scheduler.drivers.statements import to_json
from scheduler.errors import ConfigError
from scheduler.model.events_and_effects import Woken
from scheduler.model.host_filters import FILTERS, ranges_text
from scheduler.model.queue_filters import parse_filter
from scheduler.model.rate_limits import limits_in_words, read_limits
from scheduler.model.states import CANCELLED, HELD, IN_HAND, RUNNING, SKIPPED, TERMINAL, ProgramEvent, states_before
from scheduler.model.verbs import SEE_RESULT, Command, CommandError, filter_of

PIECE: Final = 1000  # rows that one statement of a flush looks at, which takes tens of milliseconds
SMALL_PIECE: Final = 100  # after a piece of which the database keeps rows, which takes milliseconds for each of them
PAUSE_S: Final = 0.05  # between two of them
STAGES: Final = {"jobs": "jobs", "groups": "job groups", "log": "log lines about no job"}  # as drover.prune_piece has
REMOVED: Final = {"done", "failed", "cancelled", "ignored", "skipped", "command", "log"}  # likewise


# ---- jobs in hand


def kill(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    pk = job_of(row, command)
    if row.state in IN_HAND:
        return (yield from _end_job(context, row, "kill", lambda: context.core.kill(pk, row.ending, context.now())))
    if row.state == "failed" and row.took_effect:
        return Done(f"job {pk}: killed")
    raise CommandError(f"job {pk} is not being worked: it is {row.state}")


def cancel(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    pk, text = job_of(row, command), row.ending
    if row.state in IN_HAND:
        return (
            yield from _end_job(context, row, f"cancel {text}", lambda: context.core.cancel(pk, text, context.now()))
        )
    if row.state in states_before(CANCELLED):
        context.settle([(yield from context.change("cancel_job", command=row.pk, job=pk, text=text))])
    elif row.state == "cancelled" and row.took_effect:
        context.core.settle([pk])
    else:
        raise CommandError(f"job {pk} has ended: it is {row.state}")
    return Done(f"job {pk}: cancelled")


def _end_job(context: Context, row: CommandRow, wanted: str, act: Callable[[], bool]) -> Steps[Outcome]:
    """Record in the row of a job in hand how the command ends it, then end it."""
    if not row.is_ours:
        return Later()
    yield from context.change("set_wanted", command=row.pk, job=row.job, wanted=wanted)
    if not act():
        return Later()
    said = "killed" if wanted == "kill" else "cancelled"
    return Done(f"job {row.job}: is being {said}", {"job": row.job, "was": row.state})


def signal(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Send signals to the agents of jobs; of several, the answer says for each whether it runs here."""
    pk, more = job_of(row, command), command.values["more"] or ()
    assert isinstance(more, tuple)
    words = [str(pk), str(command.values["signal"]), *map(str, more)]
    if len(words) == 2:
        number = _signal_number(words[1])
        agents = context.core.signal(pk, number) if row.state in IN_HAND and row.is_ours else 0
        if not agents:
            is_at_rest = row.state == RUNNING  # between two items, say, or in the hands of another daemon
            raise CommandError(
                f"no agent works on job {pk} here now" if is_at_rest else f"job {pk} is not running: it is {row.state}"
            )
        return Done(f"job {pk}: {Signals(number).name} to {agents} agent{'s' * (agents > 1)}", {str(pk): True})
    if len(words) % 2:
        raise CommandError(f"a signal is required for job {words[-1]}")
    if wrong := next((word for word in words[::2] if not word.isdecimal()), None):
        raise CommandError(f"a job number is required (got {wrong!r}): signal JOB SIGNAL [JOB SIGNAL...]")
    pairs = [(int(job), _signal_number(name)) for job, name in zip(words[::2], words[1::2], strict=True)]
    sent = {str(job): bool(context.core.signal(job, number)) for job, number in pairs}
    text = f"{sum(sent.values())} of {len(sent)} jobs are running and were told"
    return Done(text, sent, ok=any(sent.values()))


def _signal_number(word: str) -> int:
    """Read `TERM`, `SIGTERM` or `15`. Errors: CommandError."""
    try:
        return Signals(int(word)) if word.isdecimal() else Signals["SIG" + word.upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        raise CommandError(f"no signal {word!r}: a name such as TERM, or a number, is required") from None


# ---- jobs not in hand; of some a command took effect before, and its answer was lost, or the daemon that did it


def release(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Release a held job, and all that wait for it."""
    pk = job_of(row, command)
    if row.state != "held":
        what = "has ended" if row.state in TERMINAL else "is released already"
        return Done(f"job {pk} {what}: it is {row.state}", {"job": pk, "released": 0})
    count, is_manual = yield from context.change("release_job", job=pk, command=row.pk)
    if is_manual == b"t":
        return Done(f"job {pk} is manual: run {pk}", ok=False)
    released = int(count or 0)
    if not released:
        return Later()
    below = "" if released == 1 else f", and {released - 1} that wait for it"
    return Done(f"job {pk}: released{below}", {"job": pk, "released": released})


def hold(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    pk = job_of(row, command)
    if row.state in states_before(HELD):
        context.settle([(yield from context.change("hold_job", job=pk))])
    elif row.state != "held":
        what = "is in hand" if row.state in IN_HAND else "has ended"
        raise CommandError(f"job {pk} {what}: it is {row.state}")
    return Done(f"job {pk}: held")


def ice(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Skip a job as if it had been done."""
    pk = job_of(row, command)
    if row.state in states_before(SKIPPED):
        context.settle([(yield from context.change("ice_job", command=row.pk, job=pk))])
    elif row.state == "skipped" and row.took_effect:
        context.core.settle([pk])
    else:
        raise CommandError(f"job {pk} is neither held nor queued: it is {row.state}")
    return Done(f"job {pk}: on ice")


def retry(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    pk = job_of(row, command)
    if row.took_effect:
        return Done(f"job {pk}: queued again")
    if row.state != "failed":
        anew = "; drover resubmit queues it as another job" if row.state in TERMINAL else ""
        raise CommandError(f"job {pk} has not failed: it is {row.state}{anew}")
    refusal = text_of((yield from context.change("retry_job", command=row.pk, job=pk))[0])
    return Done(f"job {pk}: {refusal or 'queued again'}", ok=not refusal)


def priority(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Change the priority of a job that waits."""
    pk, letters = job_of(row, command), command.values["letters"]
    if row.state in IN_HAND or row.state in TERMINAL:
        what = "has ended" if row.state in TERMINAL else "is in hand"
        raise CommandError(f"job {pk} {what}: it is {row.state}")
    yield from context.change("set_priority", job=pk, letters=letters)
    return Done(f"job {pk}: priority {letters}")


def move(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Put a job that waits into another queue."""
    pk, queue = job_of(row, command), command.values["queue"]
    if row.state in IN_HAND or row.state in TERMINAL:
        what = "has ended" if row.state in TERMINAL else "is in hand"
        raise CommandError(f"job {pk} {what}: it is {row.state}")
    is_known, _ = yield from context.change("move_job", job=pk, queue=queue)
    return Done(f"job {pk}: in queue {queue}" if is_known == b"t" else f"no queue {queue}", ok=is_known == b"t")


def unblock(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Look again at a job that is blocked, or at all that are for a reason."""
    named = command.values["job"]
    condition = named if isinstance(named, str) else None
    pk = job_of(row, command) if condition is None or row.is_command else None
    cells = yield from context.change("unblock", command=row.pk, job=pk, condition=condition)
    wanted, done = (int(cell or 0) for cell in cells)
    count = row.progress if isinstance(row.progress, int) else wanted
    if done < wanted:  # some are locked; what is unblocked now may be blocked again by then
        return Later(progress=count)
    if condition:
        return Done(f"{count} jobs were blocked on {condition}", {"unblocked": count})
    if done or row.took_effect:
        return Done(f"job {pk}: not blocked any more", {"unblocked": 1})
    return Done(f"job {pk} is not blocked: it is {row.state}", ok=False)


def run(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Queue held jobs; the command ends when all of them have ended (query `close_runs`)."""
    count, errors, parents = yield from context.change("begin_run", command=row.pk, jobs=command.values["job"])
    context.settle_listed(parents)
    if count != b"0":
        return GoesOn()
    found = json.loads(text_of(errors))
    return Done("; ".join(found.values()), {"jobs": {}, "errors": found}, ok=False)


# ---- hosts, agent types, queues, what is long over


def set_host(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Enable or disable a host, or set its maximum or its filters."""
    name, words = str(command.values["name"]), command.values.get("filter") or ()
    assert isinstance(words, tuple)
    filters: dict[str, Any] = dict(filter_of(str(word)) for word in words)
    config = context.core.config
    if name in config.hosts:  # a type that no host took any more would be a mistake in the configuration too
        new = attrs.evolve(config, hosts=config.hosts | {name: attrs.evolve(config.hosts[name], **filters)})
        if idle := [kind for kind in config.agents if config.hosts_of(kind) and not new.hosts_of(kind)]:
            raise CommandError(f"no host would take agents of type {', '.join(idle)}")
    now_is, missing = yield from context.change(
        "set_host",
        name=name,
        enabled={"host-enable": True, "host-disable": False}.get(command.verb),
        most=command.values.get("max"),
        urgent=command.values.get("urgent"),
        letters=ranges_text(filters.get("priorities", "")),
        **dict.fromkeys(FILTERS) | filters,
    )
    if missing:
        return Done(f"no such queue: {text_of(missing)}", ok=False)
    going_on = context.core.report.agents_at_work(host=name) if command.verb == "host-disable" else 0
    return (yield from _changed(context, f"host {name}", now_is, going_on))


def set_type(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Serve an agent type, or not."""
    name, enabled = str(command.values["name"]), command.verb == "agent-enable"
    (now_is,) = yield from context.change("set_type", name=name, enabled=enabled)
    if enabled:
        context.core.reset_failed_slots(name, context.now())
    going_on = 0 if enabled else context.core.report.agents_at_work(kind=name)
    return (yield from _changed(context, f"agent type {name}", now_is, going_on))


def set_program(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Try the new program of an agent type, let all its agents run it, or none."""
    wanted = ProgramEvent[command.verb.removeprefix("agent-").upper()]
    ok, said = context.core.set_program(str(command.values["name"]), wanted, context.now())
    return Done(said, ok=ok)


def _changed(context: Context, what: str, now_is: bytes | None, going_on: int) -> Steps[Outcome]:
    """Let the core follow; return how it is now, and how many agents finish what they have in hand."""
    if now_is is None:
        return Done(f"no {what}", ok=False)
    yield from context.follow_tables()
    who = "" if not going_on else "; 1 agent finishes" if going_on == 1 else f"; {going_on} agents finish"
    return Done(f"{what}: {text_of(now_is)}{who and who + ' what is in hand'}")


def pause(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Start no more jobs of queues, or go on."""
    paused = command.verb == "pause"
    word = "paused" if paused else "running"
    cells = yield from context.change("pause_queues", names=command.values["queue"] or (), paused=paused)
    missing, now, before = map(text_of, cells)
    if missing:
        return Done(f"no queue {missing}", ok=False)
    yield from context.follow_tables()
    return Done("; ".join([f"{word}: {now}"] * bool(now) + [f"{word} already: {before}"] * bool(before)))


def add_queue(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Make a queue of our group."""
    name, concurrency = command.values["queue"], command.values["concurrency"]
    if not row.took_effect:
        (is_new,) = yield from context.change("add_queue", command=row.pk, name=name, concurrency=concurrency)
        if is_new != b"t":
            return Done(f"there is a queue {name} already", ok=False)
    yield from context.follow_tables()
    return Done(f"queue {name}: concurrency {concurrency}")


def set_filter(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Choose which jobs that name no queue go to a queue; no expression: none."""
    name, text = command.values["queue"], str(command.values["expression"] or "")
    tree = to_json(parse_filter(text)) if text else None
    ok, said = yield from context.change("set_filter", name=name, filter=text, tree=tree)
    if ok == b"t":
        yield from context.follow_tables()
    return Done(text_of(said), ok=ok == b"t")


def set_rate(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Set the rate limits of a queue; without limits any number of jobs may start."""
    name, words = command.values["queue"], command.values["limit"] or ()
    assert isinstance(words, tuple)
    limits = read_limits(map(str, words))
    (found,) = yield from context.change("set_rate", name=name, rate=to_json(limits) if limits else None)
    if found != b"t":
        return Done(f"no queue {name}", ok=False)
    yield from context.follow_tables()
    return Done(f"queue {name}: {limits_in_words(limits)}")


def remove_queue(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    name, verdict = command.values["queue"], "removed"
    if not row.took_effect:
        verdict = text_of((yield from context.change("remove_queue", command=row.pk, name=name))[0])
    return Done(_REMOVALS[verdict].format(name), ok=verdict == "removed")


_REMOVALS: Final = {
    "removed": "queue {}: removed", "unknown": "no queue {}", "own": "queue {} is a group's own",
    "used": "queue {} is not empty",
}  # fmt: skip


def set_schedule(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Enable or disable a schedule."""
    name, enabled = command.values["schedule"], command.verb == "schedule-enable"
    (found,) = yield from context.change("set_schedule", name=name, enabled=enabled)
    if found != b"t":
        return Done(f"no schedule {name}", ok=False)
    return Done(f"schedule {name}: {'enabled' if enabled else 'disabled'}")


def run_schedule(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Start a schedule now, once."""
    name = command.values["schedule"]
    if row.took_effect:
        return Done(f"schedule {name}: started")
    started, said = yield from context.change("run_schedule", command=row.pk, name=name)
    return Done(text_of(said), ok=started == b"t")


def flush(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Remove what is long over, piece by piece."""
    days, failed_too = command.values["days"], command.values["failed"] is not None
    assert isinstance(days, int)
    left = row.progress
    kept = dict.fromkeys(REMOVED if failed_too else REMOVED - {"failed"}, days)
    each = left if isinstance(left, FlushPass) else FlushPass(kept, command=row.pk)
    if not (yield from each.remove_piece(context.ask)):
        return Later(progress=each)
    return Done(str(each), each.removed) if each.is_over else Later(PAUSE_S, each, has_moved=True)


class FlushPass:
    """One pass over what ended more than so many days, by state, before a command came, or before now (None).

    It is a row of statements with pauses between them, in which the lease and other commands go on. A pass that was
    cut off begins again from the start, which only looks at what it has removed.
    """

    def __init__(self, days: Mapping[str, int], *, command: int | None) -> None:
        self._days, self._command = days, command
        self._stage: str | None = "jobs"
        self._place, self._most = 0, PIECE
        self.removed = dict.fromkeys(STAGES, 0)
        self._kept = dict.fromkeys(STAGES, 0)  # what the database refuses to remove
        self._refusals: dict[str, str] = {}  # of the first piece with such rows: which, and why

    @property
    def is_over(self) -> bool:
        """Return whether all was looked at."""
        return self._stage is None

    @property
    def is_refused(self) -> bool:
        """Return whether the database refuses to remove some rows."""
        return bool(self._refusals)

    @property
    def age(self) -> str:
        """Return what it removes, in words: the ages, in days."""
        days = sorted(set(self._days.values()))
        return f"older than {' or '.join(map(str, days))} days"

    def remove_piece(self, ask: Ask) -> Steps[bool]:
        """Remove a piece of it; return False if that is for another daemon."""
        values = {"days": to_json(dict(self._days)), "most": self._most, "stage": self._stage}
        rows = yield from ask("flush", command=self._command, place=self._place, **values)
        if not rows:
            return False
        count, stage, place, kept, numbers, why = rows[0]
        now = self._stage or ""
        self.removed[now] += int(count or 0)
        self._kept[now] += int(kept or 0)
        self._most = PIECE if why is None else SMALL_PIECE
        if why is not None:
            self._refusals.setdefault(now, f"such as {text_of(numbers)}: {text_of(why)}")
        self._stage = None if stage is None else stage.decode()
        self._place = int(place or 0)
        return True

    def __str__(self) -> str:
        """Return what it removed, in words."""
        refused = (f"; the database refuses to remove {self._kept[stage]} {STAGES[stage]}, {text}"
                   for stage, text in self._refusals.items())  # fmt: skip
        return "removed " + ", ".join(f"{self.removed[stage]} {STAGES[stage]}" for stage in STAGES) + "".join(refused)


# ---- the daemon


def status(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Answer with what is in hand."""
    if (group := command.values["group"]) in (None, context.core.config.scheduler.group):
        return Done(SEE_RESULT, context.core.report.overview())
    return Done(f"no scheduler serves group {group}", ok=False)  # it has no active scheduler, or is none


def shutdown(context: Context, row: CommandRow, command: Command) -> Outcome:
    if command.values["now"]:
        context.daemon.stop()
    else:
        context.daemon.drain()
    return Done("shutting down")


def step_down(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Step down, so that another scheduler of the group takes over."""
    return Done("it ends anyway", ok=context.daemon.step_down())


def reload(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Read the configuration anew; answer with what has changed, or all mistakes."""
    try:
        return Done((yield from context.daemon.reload()))
    except ConfigError as error:
        return Done(str(error), ok=False)


def reexec(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Execute the program that is there now; the command ends when that has come up, or the old one goes on."""
    outcome = context.daemon.reexec(row.pk)
    return Later() if outcome is None else Done(outcome[1], ok=outcome[0])


def reopen_log(context: Context, row: CommandRow, command: Command) -> Outcome:
    try:
        return Done(log.reopen())
    except ConfigError as error:
        return Done(str(error), ok=False)


def verbose(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Log so many levels more than the configuration says."""
    level = log.further(context.core.config.scheduler.log_level, int(str(command.values["level"] or 0)))
    log.set_level(level)
    context.core.log_routine(log.LOG.isEnabledFor(logging.DEBUG))
    return Done(f"log level {level}")


def reset(context: Context, row: CommandRow, command: Command) -> Outcome:
    """Try failed slots again."""
    thawed = context.core.reset_failed_slots(None, context.now())
    context.rescan()
    return Done(f"{thawed} failed slots are tried again")


def poll(context: Context, row: CommandRow, command: Command) -> Steps[Outcome]:
    """Claim jobs now; refuse a queue that does not exist."""
    if queues := command.values["queue"]:
        ((unknown,),) = yield from context.ask("unknown_queues", names=queues)
        if unknown:
            return Done(f"invalid target: {text_of(unknown)}", ok=False)
    context.core.handle(Woken(), context.now())
    context.rescan()
    return Done("looked at the queue")


ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action
    for action in (
        change_all, kill, cancel, signal, release, hold, ice, retry, priority, move, unblock, run, set_host, set_type,
        pause, add_queue, remove_queue, set_program, set_filter, set_rate, set_schedule, run_schedule, flush, status,
        shutdown, step_down, reload, reexec, reopen_log, verbose, reset, poll,
    )
}  # fmt: skip
