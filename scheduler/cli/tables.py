"""Tables for people and records for programs: rich on a terminal, aligned text elsewhere, JSON on demand.

Knows kinds of values, not what they mean. Everything that is printed here is safe for a terminal.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.cli.text import printable

GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as a query gave them, under the names of its columns."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """A mapping for each row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def show(table: Table) -> None:
    """Print the table as suits where it goes."""
    if sys.stdout.isatty():
        return _show_rich(table)
    return print(*plain(table), sep="\n")


def as_json(value: Any) -> str:
    """One line; times as ISO 8601, intervals as seconds. Anything that is not ASCII is escaped."""
    return json.dumps(value, default=_json_value)


def plain(table: Table) -> Iterator[str]:
    """The lines of a table: title (unless empty), headings, rows; numbers to the right."""
    cells = [tuple(map(cell, row)) for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    numeric = _numeric(table)
    if table.title:
        yield table.title
    for line in (tuple(name.upper() for name in table.columns), *cells):
        yield GAP.join(_aligned(line, widths, numeric)).rstrip()


def cell(value: Any) -> str:
    """A value as a table shows it, without its fractions of a second; nothing is a dash."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case timedelta():
            return str(timedelta(seconds=int(value.total_seconds())))
    return printable(str(value))


def _aligned(cells: Iterable[str], widths: Iterable[int], numeric: Iterable[bool]) -> Iterator[str]:
    for text, width, is_number in zip(cells, widths, numeric, strict=True):
        yield text.rjust(width) if is_number else text.ljust(width)


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers and nothing else."""
    return [_all_are(column, int) for column in _columns(table)]


def _columns(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*table.rows, strict=True)) or [()] * len(table.columns)


def _all_are(values: Iterable[Any], *kinds: type) -> bool:
    return all(value is None or isinstance(value, kinds) for value in values)


def _show_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    title = Text(printable(table.title)) if table.title else None
    drawn = RichTable(title=title, title_justify="left", box=None, pad_edge=False)
    for name, values, is_number in zip(table.columns, _columns(table), _numeric(table), strict=True):
        is_short = _all_are(values, int, datetime, timedelta)
        drawn.add_column(Text(name), justify="right" if is_number else "left", no_wrap=is_short)
    for row in table.rows:
        drawn.add_row(*(Text(cell(value)) for value in row))
    Console().print(drawn)


def _json_value(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return str(value)
