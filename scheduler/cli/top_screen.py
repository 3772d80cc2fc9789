"""The screen of `drover top` as lines: a pure function of the rows that were read and of the state set by keys.

Imported only by a live screen, which is a terminal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rich.text import Text

from scheduler.cli.health import CRITICAL, Row, level_of, sentence
from scheduler.cli.output import cell, printable
from scheduler.cli.terminal import STYLES

LETTERS: Final = {  # of the states of slots
    "ST_RUNNING": "R", "ST_READY": "r", "ST_SPAWNED": "s", "ST_PREP": "p", "ST_FREEING": "k", "ST_FREE": ".",
    "ST_FAIL": "F",
}  # fmt: skip
URGENCY: Final = "?FkspRr."  # of these letters; a row stands where the first of its own does
LETTER_STYLES: Final = {"R": "green", "F": "bold red", ".": "dim", "k": "yellow"}
LEGEND: Final = "R ST_RUNNING  r ST_READY  s ST_SPAWNED  p ST_PREP  k ST_FREEING  . ST_FREE  F ST_FAIL"
KEYS: Final = "arrows choose  w why  p pause/continue queue  K kill job  q quit"
NAME_WIDTH: Final = 24
PART_LINES: Final = 2  # a title and an empty line
LEAST_ROWS: Final = 2

Kind = Literal["queue", "job"]
Chosen = tuple[Kind, str | int]


@dataclass(frozen=True, slots=True)
class View:
    """The rows read at one moment; rates are of the time since the reading before."""

    headline: str
    warnings: Sequence[Row]
    counts: Mapping[str, int]  # jobs in each state
    ended_per_s: float
    items_per_s: float
    slots: Sequence[Mapping[str, Any]]
    queues: Sequence[Mapping[str, Any]]
    conditions: Sequence[Mapping[str, Any]]
    jobs: Sequence[Mapping[str, Any]]

    def choices(self) -> list[Chosen]:
        """Return all that can be chosen, in the order of the screen."""
        return [("queue", row["queue"]) for row in self.queues] + [("job", row["job"]) for row in self.jobs]


@dataclass(slots=True)
class Choice:
    """State set by keys: the row that is chosen, the answer to the last command, and the job that `y` would kill."""

    at: Chosen | None = None
    place: int = 0  # of it, among all that can be chosen
    message: str = ""
    to_kill: int | None = field(default=None)

    def move(self, choices: Sequence[Chosen], step: int) -> None:
        """Choose another row; the first if none is chosen, the one in its place if the chosen one is gone."""
        place = choices.index(self.at) + step if self.at in choices else self.place
        self.place = max(0, min(place, len(choices) - 1))
        self.at = choices[self.place] if choices else None


def draw(view: View, choice: Choice, lines: int, columns: int) -> list[Text]:
    """Return at most so many lines, none of them wider than the screen; what has no room is left out, and counted."""
    head = [*_head(view)]
    foot = [Text(choice.message, "bold") if choice.message else Text(LEGEND, "dim"), Text(KEYS, "dim")]
    parts = [part for part in (_slots(view), _conditions(view), _queues(view, choice), _jobs(view, choice)) if part[1:]]
    room = lines - len(head) - len(foot) - PART_LINES * len(parts)
    shares = _shares([len(part) - 1 for part in parts], room)
    body = [line for part, rows in zip(parts, shares, strict=True) for line in _cut(part, max(rows, LEAST_ROWS))]
    shown = [*head[: max(lines - 2, 1)], *body][: lines - len(foot)] + foot
    for line in shown:
        line.truncate(columns)
    return shown[-lines:]


def _head(view: View) -> Iterator[Text]:
    yield Text(view.headline, "bold")
    counts = "  ".join(f"{state} {count:,}" for state, count in view.counts.items() if count)
    yield Text(f"{counts or 'no jobs'}   {view.ended_per_s:,.1f} jobs/s  {view.items_per_s:,.1f} items/s")
    for row in view.warnings[:3]:
        yield Text(printable(": ".join(sentence(row))), "red" if level_of(row) == CRITICAL else "yellow")


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return how many rows each part gets: what it wants, or as many as every other part that wants more."""
    shares = [0] * len(wanted)
    for others, (place, want) in enumerate(sorted(enumerate(wanted), key=lambda each: each[1])):
        shares[place] = min(want, max(room, 0) // (len(wanted) - others))
        room -= shares[place]
    return shares


def _cut(part: Sequence[Text], rows: int) -> Iterator[Text]:
    """Yield an empty line, the title, and as many rows as there is room for."""
    title, *rest = part
    yield Text()
    more = len(rest) - rows
    yield Text(f"{title.plain} (and {more:,} more)" if more > 0 else title.plain, "bold")
    yield from rest[:rows]


def _slots(view: View) -> list[Text]:
    """Return a row for each type on each host: a letter for each slot; those that failed or work come first."""
    places: dict[tuple[str, str], list[str]] = {}
    for slot in view.slots:
        places.setdefault((slot["host"], slot["agent"]), []).append(LETTERS.get(slot["state"], "?"))
    rows = [Text("Slots")]
    for (host, agent), letters in sorted(places.items(), key=lambda place: min(map(URGENCY.find, place[1]))):
        row = Text(f"  {printable(host):14} {printable(agent):14} ")
        for letter in letters:
            row.append(letter, LETTER_STYLES.get(letter, ""))
        rows.append(row)
    return rows


def _conditions(view: View) -> list[Text]:
    return [Text("Blocked")] + [
        Text(f"  {row['jobs']:>7,} on {printable(row['condition'])}, next check {cell(row['next_check'])}", "yellow")
        for row in view.conditions
    ]


def _queues(view: View, choice: Choice) -> list[Text]:
    rows = [Text("Queues")]
    for row in view.queues:
        limit = f" of {row['concurrency']}" if row["concurrency"] else ""
        name, is_paused = f"{printable(row['queue'])[:NAME_WIDTH]:{NAME_WIDTH}}", "  paused" if row["paused"] else ""
        in_hand = f"{row['in_hand']:,}{limit}"
        text = f"{name} {in_hand:>12} in hand {row['queued']:>9,} queued{is_paused}"
        rows.append(_row(text, choice.at == ("queue", row["queue"])))
    return rows


def _jobs(view: View, choice: Choice) -> list[Text]:
    rows = [Text("Jobs in hand or blocked")]
    for row in view.jobs:
        where = printable(row["host"] or "-")
        text = f"{row['job']:>9} {printable(row['type'])[:14]:14} {row['state']:8} {cell(row['since']):>10} {where:12} "
        rows.append(_row(text + printable(row["args"] or ""), choice.at == ("job", row["job"]),
                         STYLES.get(row["state"], "")))  # fmt: skip
    return rows


def _row(text: str, is_chosen: bool, style: str = "") -> Text:
    return Text(f"> {text}", "reverse") if is_chosen else Text(f"  {text}", style)
