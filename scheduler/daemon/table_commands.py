"""What commands change in tables: hosts, agent types and queues, and what they remove from them.

Every daemon that follows hosts, types and queues hears of a change at once. We follow before a command ends, so that
nothing is started after it that it forbids.

A query that gives no row found that the group is no longer ours: another scheduler reads the command.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from scheduler.daemon.command_rows import PAUSE_S, Desk, Doer, Pass, Row, text_of
from scheduler.model.commands import CommandError, Order, filter_of
from scheduler.model.config import Config
from scheduler.model.events import TablesRead
from scheduler.model.filters import FILTERS, letters_matching
from scheduler.model.jobs import Cells


def looked(rows: list[Cells]) -> TablesRead:
    """Read the answer to query `read_shared_settings`."""
    return TablesRead(*(json.loads(cell or b"[]") for cell in rows[0]))


def _follow(desk: Desk, then: Callable[[], None]) -> None:
    """Go by what the tables say now."""

    def follow(rows: list[Cells]) -> None:
        desk.core.handle(looked(rows), desk.now())
        then()

    desk.ask("read_shared_settings", {}, follow)


def to_host(desk: Desk, row: Row, order: Order) -> None:
    """Let a host take agents, or none, or so many, or for certain jobs only. Errors: CommandError."""
    name = str(order.values["name"])
    enabled = {"host-enable": True, "host-disable": False}.get(order.verb)
    words = order.values.get("filter") or ()
    assert isinstance(words, tuple)
    filters = dict(filter_of(str(word)) for word in words)
    _refuse_idle_types(desk.core.config, name, filters)
    letters = letters_matching(str(filters.get("priorities", "")))
    values = {
        "name": name,
        "enabled": enabled,
        "most": order.values.get("max"),
        "urgent": order.values.get("urgent"),
        **{key: filters.get(key) for key in FILTERS},
        "letters": "".join(sorted(letters)) if filters.get("priorities") else None,
    }

    def changed(rows: list[Cells]) -> None:
        if missing := text_of(rows[0][1]) if rows else "":
            desk.end(row, f"no such queue: {missing}", ok=False)
        else:
            _changed(desk, row, f"host {name}", rows)

    desk.ask("set_host", values, changed)


def _refuse_idle_types(config: Config, name: str, filters: Mapping[str, Any]) -> None:
    """A type that no host took any more would be a mistake in the configuration too."""
    if name in config.hosts:
        hosts = config.hosts | {name: attrs.evolve(config.hosts[name], **filters)}
        new = attrs.evolve(config, hosts=hosts)
        if idle := [kind for kind in config.agents if config.hosts_of(kind) and not new.hosts_of(kind)]:
            raise CommandError(f"no host would take agents of type {', '.join(idle)}")


def to_type(desk: Desk, row: Row, order: Order) -> None:
    """Serve an agent type, or not."""
    name, enabled = str(order.values["name"]), order.verb == "agent-enable"

    def changed(rows: list[Cells]) -> None:
        if rows and enabled:
            desk.core.thaw(name, desk.now())
        _changed(desk, row, f"agent type {name}", rows)

    desk.ask("set_type", {"name": name, "enabled": enabled}, changed)


def flush(desk: Desk, row: Row, order: Order) -> None:
    """Remove what is long over, piece by piece; others have their turn in between."""
    days, failed_too = order.values["days"], order.values["failed"] is not None
    assert isinstance(days, int)
    each = desk.passes.setdefault(row.pk, Pass(days, failed_too=failed_too, command=row.pk))

    def removed(rows: list[Cells]) -> None:
        if not rows:
            desk.later()
            return
        each.take(rows[0])
        if each.is_over:
            desk.end(row, str(each), each.removed)
        else:
            desk.later(PAUSE_S)

    desk.ask("flush", each.values(), removed)


# ---- queues


def _pause(desk: Desk, row: Row, order: Order) -> None:
    paused = order.verb == "pause"
    word = "paused" if paused else "running"

    def changed(rows: list[Cells]) -> None:
        if not rows:
            desk.later()
            return
        missing, now, before = (text_of(cell) for cell in rows[0])
        if missing:
            desk.end(row, f"no queue {missing}", ok=False)
            return
        parts = [f"{word}: {now}"] * bool(now) + [f"{word} already: {before}"] * bool(before)
        _follow(desk, lambda: desk.end(row, "; ".join(parts)))

    desk.ask("pause_queues", {"names": order.values["queue"] or (), "paused": paused}, changed)


def _add(desk: Desk, row: Row, order: Order) -> None:
    name, concurrency = order.values["queue"], order.values["concurrency"]

    def end() -> None:
        desk.end(row, f"queue {name}: concurrency {concurrency}")

    def added(rows: list[Cells]) -> None:
        if not rows:
            desk.later()
        elif rows[0][0] == b"t":
            _follow(desk, end)
        else:
            desk.end(row, f"there is a queue {name} already", ok=False)

    if row.took_effect:
        _follow(desk, end)
    else:
        desk.ask("add_queue", {"command": row.pk, "name": name, "concurrency": concurrency}, added)


def _remove(desk: Desk, row: Row, order: Order) -> None:
    name = order.values["queue"]

    def removed(rows: list[Cells]) -> None:
        verdict = text_of(rows[0][0]) if rows else ""
        if not rows:
            desk.later()
        elif verdict == "removed":
            desk.end(row, f"queue {name}: removed")
        else:
            desk.end(row, _REFUSALS[verdict].format(name), ok=False)

    if row.took_effect:
        desk.end(row, f"queue {name}: removed")
    else:
        desk.ask("remove_queue", {"command": row.pk, "name": name}, removed)


def _set(desk: Desk, row: Row, order: Order) -> None:
    name = order.values["queue"]
    values = {key: order.values.get(key) for key in ("concurrency", "priority")}
    desk.ask("set_queue", {"name": name, **values}, lambda rows: _changed(desk, row, f"queue {name}", rows))


def _changed(desk: Desk, row: Row, what: str, rows: list[Cells]) -> None:
    if not rows:
        desk.later()
    elif rows[0][0] is None:
        desk.end(row, f"no {what}", ok=False)
    else:
        _follow(desk, lambda: desk.end(row, f"{what}: {text_of(rows[0][0])}"))


_REFUSALS: Final = {
    "unknown": "no queue {}", "own": "queue {} is a group's own", "used": "queue {} is not empty",
}  # fmt: skip
QUEUES: Final[dict[str, Doer]] = {
    "pause": _pause,
    "continue": _pause,
    "add-queue": _add,
    "remove-queue": _remove,
    "set-concurrency": _set,
    "set-queue-priority": _set,
}
