"""What commands print: tables, JSON, messages on stderr, and text made safe for a terminal.

What others wrote must neither steer a terminal nor forge a line. Source: RELIABILITY threat 3.
"""

import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# By category: control characters, format characters (what reorders or hides text), private use, halves of characters,
# unassigned ones, of which nobody knows what they will be; and what separates lines. Blanks of any width are shown.
UNSAFE: Final = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
# Such a half from \udc80 on is a byte that is not UTF-8 (cli/db.py).


def printable(text: str) -> str:
    r"""One line that shows every control and format character as `\n`, `\xHH`, `\uHHHH` or `\UHHHHHHHH`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The same, but newlines and tabs stay what they are."""
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def clipped(text: str, width: int) -> str:
    """One line of at most so many characters; a cut is marked."""
    line = printable(text[: width + 1])
    return line if len(line) <= width else line[: width - 1] + "…"


def _shown(c: str) -> str:
    if c.isprintable() or unicodedata.category(c) not in UNSAFE:
        return c
    if c in NAMED:
        return NAMED[c]
    code = ord(c) - 0xDC00 if "\udc80" <= c <= "\udcff" else ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def warn(message: str) -> None:
    """Say something that goes beside the output."""
    print("drover:", printable(message), file=sys.stderr, flush=True)


def failed(message: str) -> int:
    """Say why it could not be done, and give the exit status for that."""
    warn(message)
    return 1


def no_such_job(job: int) -> int:
    """The job was never there, or has been flushed."""
    return failed(f"no job {job}; drover ls --all lists those there are")


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
