"""Snapshots: the state of objects as JSON, for a program that takes over (handover.py)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduler.model.protocol import Item

BYTES: Final = "latin-1"  # how JSON holds bytes: a character for each

Snapshot = Mapping[str, Any]


def fields_of(thing: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of these names, which are JSON as they are."""
    return {name: getattr(thing, name) for name in names}


def set_fields(thing: object, names: Sequence[str], snapshot: Snapshot) -> None:
    """Set those attributes that a snapshot has; an older program may have written fewer."""
    for name in names:
        if name in snapshot:
            setattr(thing, name, snapshot[name])


def text_of(cell: bytes | None) -> str | None:
    return None if cell is None else cell.decode(BYTES)


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else text.encode(BYTES)


def item_snapshot(item: Item | None) -> list[Any] | None:
    """Return a work item as JSON."""
    if item is None:
        return None
    return [text_of(item.line), item.number, text_of(item.key), [text_of(cell) for cell in item.row]]


def item_of(snapshot: Sequence[Any]) -> Item:
    """Return the work item that was written."""
    line, number, key, row = snapshot
    return Item(line.encode(BYTES), int(number), bytes_of(key), tuple(map(bytes_of, row)))
