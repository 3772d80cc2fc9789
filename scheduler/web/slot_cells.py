"""The slots of a group as rows of cells, by host and agent type: a letter for the state of each, as in `drover top`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scheduler.cli.output import cell
from scheduler.cli.top import LETTERS

STATE_WORDS: Final[Mapping[str, str]] = {
    "ST_RUNNING": "works", "ST_READY": "ready", "ST_SPAWNED": "starts", "ST_PREP": "is prepared",
    "ST_FREEING": "ends", "ST_FREE": "free, without a process", "ST_FAIL": "failed",
}  # fmt: skip
FAILED: Final = "ST_FAIL"
IDLE: Final = ("ST_READY", "ST_FREE", FAILED)

Slot = Mapping[str, Any]
Kind = tuple[str, list[dict[str, Any]], str]  # a type, its cells, and how many are busy


def by_host(slots: Iterable[Slot]) -> list[tuple[str, list[Kind]]]:
    """Return for each host its types, each with the cells of its slots and how many of them are busy."""
    hosts: dict[str, dict[str, list[Slot]]] = {}
    for slot in slots:
        hosts.setdefault(slot["host"], {}).setdefault(slot["agent"], []).append(slot)
    return [(host, [_kind(name, of) for name, of in sorted(kinds.items())]) for host, kinds in hosts.items()]


def _kind(name: str, slots: list[Slot]) -> Kind:
    busy = sum(slot["state"] not in IDLE for slot in slots)
    failed = sum(slot["state"] == FAILED for slot in slots)
    said = f"{busy} of {len(slots)} busy" + (f", {failed} failed" if failed else "")
    return name, [{**slot, "letter": LETTERS.get(slot["state"], "?"), "said": _said(slot)} for slot in slots], said


def _said(slot: Slot) -> str:
    """Return what a slot does, in words."""
    parts = {"pid": slot["pid"], "job": slot["job"]}
    more = "".join(f", {name} {value}" for name, value in parts.items() if value is not None)
    items = f", {slot['items']:,} items" if slot["items"] else ""
    return f"slot {slot['slot']}: {slot['state']} for {cell(slot['since'])}{more}{items}"
