"""What is wrong, the worst first: the warnings of `drover health`, and slots that keep no job waiting yet.

A warning about a type says all that its slots would say.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from scheduler.cli.database_session import Session
from scheduler.cli.health import (
    HIDDEN,
    Limits,
    Row,
    by_urgency,
    database_warnings,
    group_warnings,
    in_parts,
    level_of,
    next_of,
    reasons,
)
from scheduler.cli.job_totals import SLOTS_IN_WORDS
from scheduler.web.database_sessions import Login

DATABASE_AGE_S: Final = 10.0  # of what is wrong with the database, as in `drover top`
FAILED_SLOT: Final = "ST_FAIL"
MOST_HOSTS: Final = 5  # that a sentence names

Slot = Mapping[str, Any]


class Trouble(NamedTuple):
    """A warning as the page shows it: how bad it is, its kind, what is wrong, and what to do next."""

    level: str
    kind: str
    what: str
    next: str


def found(group: Mapping[str, Any], warnings: Sequence[Row], slots: Iterable[Slot]) -> list[Row]:
    """Return what is wrong, the worst first; nothing if all is well."""
    told = [*reasons(group, warnings)]
    whose = {who for _, who, *_ in told}
    return by_urgency([*told, *(row for row in slots_in_trouble(slots) if row[1] not in whose)])


def as_shown(rows: Iterable[Row]) -> list[Trouble]:
    """Return the warnings in the parts that the page shows."""
    return [Trouble(level_of(row), *in_parts(row)) for row in rows]


def hidden(warnings: Iterable[Row]) -> list[str]:
    """Return what the role never sees, of which `drover health` has a note."""
    return [f"{who} {what}" for kind, who, _, what, _ in warnings if kind == HIDDEN]


def warnings_of(login: Login, session: Session, group: str) -> list[Row]:
    """Return the warnings of the group and of the database; the latter are looked for a few times a minute."""
    of_database = login.cached("database", DATABASE_AGE_S, lambda: [*database_warnings(session, Limits())])
    return [*group_warnings(session, group), *of_database]


def slots_in_trouble(slots: Iterable[Slot]) -> Iterator[Row]:
    """Yield the slots of each type that failed, or that are ended for a reason: how many, where, for how long."""
    kinds: dict[tuple[str, str, str], list[Slot]] = {}
    for slot in slots:
        if slot["state"] == FAILED_SLOT or slot["reason"]:
            kinds.setdefault((slot["agent"], slot["state"], slot["reason"] or ""), []).append(slot)
    for (agent, state, reason), of in kinds.items():
        word, who = SLOTS_IN_WORDS.get(state, state), f"type {agent}"
        count = f"{len(of):,} {'slot' if len(of) == 1 else 'slots'} {word} on {_names(of)}"
        longest: timedelta = max(slot["since"] for slot in of)
        yield "slots", who, longest, ": ".join(filter(None, (count, reason))), next_of("agents failed", who)


def _names(slots: Iterable[Slot]) -> str:
    names = [*dict.fromkeys(slot["host"] for slot in slots)]
    more = [f"{len(names) - MOST_HOSTS:,} more"] if len(names) > MOST_HOSTS else []
    return ", ".join((*names[:MOST_HOSTS], *more))
