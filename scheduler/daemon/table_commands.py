"""The actions of commands about hosts, agent types and queues, and the one that removes rows that are long over.

The core follows a change before the command ends, so that nothing is started that the change forbids; other daemons
are notified. A query that returns no row found that the group is no longer ours: another scheduler reads the command.
"""

from typing import Any, Final

import attrs

from scheduler.daemon.command_context import (
    PAUSE_S,
    Action,
    CommandRow,
    Context,
    Done,
    FlushPass,
    Later,
    Outcome,
    text_of,
)
from scheduler.drivers.steps import Steps
from scheduler.model.commands import SEE_RESULT, Command, CommandError, filter_of
from scheduler.model.config import Config
from scheduler.model.filters import FILTERS, letters_matching
from scheduler.model.jobs import Cells


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


TABLE_ACTIONS: Final[dict[str, Action]] = {
    action.__name__: action for action in (set_host, set_type, pause, add_queue, remove_queue, flush, status)
}
