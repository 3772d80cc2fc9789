"""What the list of jobs is filtered by: read from a query, and written as one again.

The same filter that a list shows is that of an action on all its jobs.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from scheduler.model.states import JOB_STATES
from scheduler.model.verbs import LARGEST_PK

SINCE: Final = {"15m": "15 minutes", "1h": "1 hour", "1d": "1 day", "7d": "7 days", "30d": "30 days"}
LENGTHS: Final = {
    "15m": timedelta(minutes=15), "1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}  # fmt: skip
LONGEST: Final = 200  # characters of a value


class Filter(NamedTuple):
    """What jobs are listed; None and an empty tuple filter nothing."""

    states: tuple[str, ...] = ()
    type: str | None = None
    queue: str | None = None
    host: str | None = None
    by: str | None = None
    group: int | None = None
    since: str | None = None
    text: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the values of the parameters in SQL."""
        since = SINCE[self.since] if self.since else None
        return self._asdict() | {"states": list(self.states) or None, "since": since}

    def of_command(self, states: Collection[str], now: datetime) -> dict[str, Any]:
        """Return the filter of drover.command that finds the same jobs, of those in these states."""
        found: dict[str, Any] = {
            "type": self.type, "queue": self.queue, "host": self.host, "by": self.by, "group": self.group,
            "text": self.text, "queued_since": (now - LENGTHS[self.since]).isoformat() if self.since else None,
        }  # fmt: skip
        given = {key: value for key, value in found.items() if value is not None}
        return given | {"state": sorted(states), "hidden": False}

    def wanted(self, before: int | None) -> dict[str, Any]:
        """Return what scheduler.cli.job_lists is to find: jobs below a number, and commands while they wait."""
        lists = {"types": self.type, "queues": self.queue, "hosts": self.host, "submitters": self.by,
                 "groups": self.group}  # fmt: skip
        return {name: None if value is None else [value] for name, value in lists.items()} | {
            "states": list(self.states or JOB_STATES), "text": self.text, "before": before,
            "queued_within": SINCE[self.since] if self.since else None, "with_ended_commands": self.type is not None,
        }  # fmt: skip

    def query(self) -> dict[str, Any]:
        """Return what a link to the same list has behind its `?`, by name."""
        values = {name: value for name, value in self._asdict().items() if value and name != "states"}
        return values | ({"state": list(self.states)} if self.states else {})

    def is_of_kinds(self) -> bool:
        """Return whether it tells jobs apart by what is counted of them alone, as by their type and state."""
        return self.group is None and self.since is None and self.text is None

    def words(self) -> str:
        """Return the filter in words."""
        parts = [f"{name} {value}" for name, value in self._asdict().items() if value and name != "states"]
        return "; ".join([*(["state " + " or ".join(self.states)] if self.states else []), *parts]) or "all jobs"


def read(query: Mapping[str, Sequence[str]]) -> Filter:
    """Read a filter; a value that cannot be one is left out, since links are typed by hand."""
    given = {name: values[-1].strip()[:LONGEST].replace("\0", "") for name, values in query.items() if values}
    wanted = query.get("state", ())
    return Filter(
        states=tuple(state for state in JOB_STATES if state in wanted),
        group=number(given.get("group", "")),
        since=given.get("since") if given.get("since") in SINCE else None,
        **{name: given.get(name) or None for name in ("type", "queue", "host", "by", "text")},
    )


def link(wanted: Filter) -> str:
    """Return what a link to the list has behind its path."""
    text = urlencode(wanted.query(), doseq=True, errors="backslashreplace")
    return f"?{text}" if text else ""


def of_request(query: QueryParams) -> dict[str, list[str]]:
    """Return all values of each name of a query."""
    return {name: query.getlist(name) for name in query}


def number(text: str) -> int | None:
    """Return the number of a row, if it is one that there may be."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LARGEST_PK else None
