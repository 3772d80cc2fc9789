"""`drover drain --dry-run`: what becomes of the work in hand when the schedulers drain, or are restarted at once."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from scheduler.cli.database_session import connect
from scheduler.cli.output import as_json, span
from scheduler.model.config import Config


class Fate(NamedTuple):
    """The name of a kind of work, and what a drain or a restart does to it: each for one job, then for several."""

    names: tuple[str, str]
    drain: tuple[str, str]
    restart: tuple[str, str]
    is_timed: bool = True  # it matters for how long it has run


KEPT: Final = "nothing is lost: waiting jobs stay in the table until a scheduler is started"
AGAIN: Final = "what begins again does its work a second time"
_BACK: Final = ("goes back to the queue", "go back to the queue")
_ON: Final = ("goes on", "go on")
_FINISHED: Final = ("is finished first", "are finished first")
_AGAIN: Final = ("begins again", "begin again")
_ANEW: Final = ("begins anew", "begin anew")
FATES: Final[Mapping[str, Fate]] = {
    "command": Fate(("command", "commands"), _FINISHED, _AGAIN),
    "job": Fate(("job of an agent", "jobs of agents"), _FINISHED, _AGAIN),
    "sql": Fate(("SQL job without a key", "SQL jobs without a key"), _FINISHED, _ANEW),
    "sql_repeat": Fate(
        ("SQL job that repeats its query", "SQL jobs that repeat their query"),
        ("finishes its slice first", "finish their slice first"),
        ("goes on with what its query gives then", "go on with what their query gives then"), is_timed=False,
    ),
    "sql_key": Fate(
        ("SQL job with a key", "SQL jobs with a key"), ("stops at its key", "stop at their keys"),
        ("goes on at its key", "go on at their keys"), is_timed=False,
    ),
    "detached": Fate(("detached command", "detached commands"), _ON, _ON, is_timed=False),
    "claimed": Fate(
        ("job that was just claimed", "jobs that were just claimed"), _BACK, _BACK, is_timed=False,
    ),
}  # fmt: skip


def print_costs(options: Namespace, config: Config) -> int:
    """Print what becomes of the work in hand at a drain, and at a restart; or one JSON object."""
    with connect(config) as session:
        found = {row["what"]: row for row in session.records("work_in_hand")}
    rows = [found[what] for what in FATES if what in found]
    if options.json:
        print(as_json({"in_hand": rows}))
        return 0
    print("a drain: " + _sentence(rows, "drain"))
    print("a restart without a drain: " + _sentence(rows, "restart"))
    is_any_again = any(FATES[row["what"]].restart in (_AGAIN, _ANEW) for row in rows)
    print(f"{KEPT}; {AGAIN}" if is_any_again else KEPT)
    return 0


def _sentence(rows: Sequence[Mapping[str, Any]], which: str) -> str:
    return "; ".join(_clause(row, which) for row in rows) or "nothing is in hand"


def _clause(row: Mapping[str, Any], which: str) -> str:
    """Return `3 commands begin again, the longest has run 42 min (job 17)`."""
    fate, is_many = FATES[row["what"]], row["jobs"] > 1
    text = f"{row['jobs']:,} {fate.names[is_many]} {getattr(fate, which)[is_many]}"
    if not fate.is_timed:
        return text
    who = "the longest has" if is_many else "it has"
    return f"{text}, {who} run {span(row['seconds'])} (job {row['longest']})"
