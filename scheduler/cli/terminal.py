"""How tables look on a terminal: drawn by rich, states in colours, and as blocks of lines where it is too narrow.

Imported only where standard output is a terminal; elsewhere tables are plain text, see output.py. All texts that come
here are printable.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.cli.columns import heading, width_of

STATE_COLUMNS: Final = {"state", "outcome", "role", "warning", "status"}  # whose words say how things are
STYLES: Final = {
    "critical": "red", "warning": "yellow", "unknown": "magenta",
    "failed": "red", "ST_FAIL": "red", "gone?": "red", "rescued": "red", "interrupted": "red",
    "blocked": "yellow", "held": "yellow", "draining": "yellow", "given back": "yellow", "retry": "yellow",
    "running": "green", "claimed": "green", "ST_RUNNING": "green", "owner": "green",
    "done": "dim", "skipped": "dim", "cancelled": "dim", "ignored": "dim", "ST_FREE": "dim", "standby": "dim",
}  # fmt: skip
LEAST_TEXT: Final = 10  # a column of text is not made narrower
NARROW: Final = 60  # on a wider terminal columns are squeezed rather than given up
GAP_WIDTH: Final = 2
EMPTY: Final = ("-", "")


class Column(NamedTuple):
    """A column of a table: its name, a text for each row, and how these are aligned."""

    name: str
    texts: Sequence[str]
    is_number: bool  # to the right
    is_whole: bool  # never broken

    def least_width(self) -> int:
        """Return how narrow the column may become."""
        widest = max(map(width_of, self.texts), default=0)
        return max(len(heading(self.name)), widest if self.is_whole else min(widest, LEAST_TEXT))


def draw_table(title: str, columns: Sequence[Column], spare: Sequence[str] = ()) -> None:
    """Print a table; a block of lines for each row if the terminal is too narrow for its columns.

    Before that, it does without columns that are spare.
    """
    console = Console()
    for name in spare:
        if _least_width(columns) > console.width:
            columns = [column for column in columns if column.name != name]
    least = _least_width(columns)
    if least > console.width and console.width < NARROW:
        return _draw_blocks(console, title, columns)
    drawn = Table(title=Text(title) if title else None, title_justify="left", title_style="bold", box=None,
                  pad_edge=False)  # fmt: skip
    for column in columns:
        drawn.add_column(
            Text(heading(column.name)), justify="right" if column.is_number else "left", no_wrap=column.is_whole,
            overflow="fold",
            min_width=column.least_width() if least <= console.width else None,
        )  # fmt: skip
    for texts in zip(*(column.texts for column in columns), strict=True):
        drawn.add_row(*(_styled(column.name, text) for column, text in zip(columns, texts, strict=True)))
    return console.print(drawn)


def _least_width(columns: Sequence[Column]) -> int:
    return sum(column.least_width() + GAP_WIDTH for column in columns) - GAP_WIDTH


def draw_fields(fields: Sequence[tuple[str, str]], title: str, marks: Sequence[str]) -> None:
    """Print names and what they are, below each other; long texts stay in their column."""
    console = Console()
    if title:
        console.print(Text(title, style="bold"))
    console.print(_grid(fields, marks))


def _draw_blocks(console: Console, title: str, columns: Sequence[Column]) -> None:
    if title:
        console.print(Text(title, style="bold"))
    names = [column.name for column in columns]
    for number, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
        if number:
            console.print()
        console.print(_grid([(name, text) for name, text in zip(names, texts, strict=True) if text not in EMPTY]))


def _grid(fields: Sequence[tuple[str, str]], marks: Sequence[str] = ()) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for (name, text), mark in zip_longest(fields, marks):
        grid.add_row(Text(name, style=STYLES.get(mark, "dim")), _styled(name, text))
    return grid


def _styled(name: str, text: str) -> Text:
    word = text.partition(" (")[0]
    return Text(text, style=STYLES.get(word, "") if name in STATE_COLUMNS else "")
