"""Prints for commands: tables, JSON, findings and messages on stderr.

Text that jobs or agents wrote is escaped first, so that it can neither control a terminal nor pass for another line.
"""

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any, Final, Literal

from scheduler.cli.columns import columns_of, heading, padded, width_of

NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Unicode categories: control, format (reorders or hides text), private use, surrogates (from \udc80 on a byte that is
# not UTF-8, see cli/database_session.py), unassigned, and what separates lines. Blanks of any width are shown.
UNSAFE: Final = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
GAP = "  "
OK: Literal["ok"] = "ok"
WARN: Literal["WARN"] = "WARN"
FAIL: Literal["FAIL"] = "FAIL"
Severity = Literal["ok", "WARN", "FAIL"]
Finding = tuple[Severity, str]
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as a query returned them, under the names of its columns.

    `spare` are columns that a narrow terminal may do without, the first of them first; `left` rows are left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    spare: tuple[str, ...] = ()
    left: int = 0

    def values(self) -> list[list[Any]]:
        """Return the values of each column."""
        return [[row[place] for row in self.rows] for place in range(len(self.columns))]

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def only(self, columns: Sequence[str]) -> "Table":
        """Return the table with these columns alone, in this order."""
        places = [self.columns.index(name) for name in columns]
        return replace(self, columns=tuple(columns), rows=[tuple(row[place] for place in places) for row in self.rows])


def printable(text: str) -> str:
    r"""Return one line that shows every control and format character as `\n`, `\xHH`, `\uHHHH` or `\UHHHHHHHH`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """Return the same, but newlines and tabs stay what they are."""
    return "".join(c if c in "\n\t" else _escaped(c) for c in text)


def clipped(text: str, width: int) -> str:
    """Return one line of at most so many columns of a terminal; a cut is marked."""
    most = 4 * width + 1  # characters, however many of them combine
    line = printable(text[:most])
    if len(text) <= most and width_of(line) <= width:
        return line
    ends = accumulate(map(columns_of, line))
    return line[: sum(1 for _ in takewhile(lambda end: end < width, ends))] + "…"


def _escaped(c: str) -> str:
    if c.isprintable() or unicodedata.category(c) not in UNSAFE:
        return c
    if c in NAMED:
        return NAMED[c]
    code = ord(c) - 0xDC00 if "\udc80" <= c <= "\udcff" else ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def warn(message: str) -> None:
    """Print a line on stderr, beside the output."""
    print("drover:", printable(message), file=sys.stderr, flush=True)


def failed(message: str) -> int:
    """Print on stderr why it could not be done, and return the exit status for that."""
    warn(message)
    return 1


def no_such_job(job: int | str) -> int:
    """Print that the job does not exist, or was flushed; return the exit status for that."""
    return failed(f"no job {job}; drover ls --all lists all jobs")


def print_findings(findings: Iterable[Finding], *, json: bool = False) -> int:
    """Print each finding as it comes, as a line; return the exit status."""
    status = 0
    for severity, text in findings:
        line = " ".join(text.split())
        record = {"finding": severity.lower(), "text": line}
        print(as_json(record) if json else f"{severity:4} {printable(line)}", flush=True)
        status = FAILED if severity == FAIL else status
    return status


def print_records(records: Iterable[Mapping[str, Any]]) -> None:
    """Print a JSON object a line."""
    print("".join(as_json(record) + "\n" for record in records), end="")


def as_json(value: Any) -> str:
    """Return one line; times as ISO 8601, intervals as seconds. Anything that is not ASCII is escaped."""
    return json.dumps(value, default=_json_value)


def _json_value(value: object) -> object:
    if isinstance(value, timedelta):
        return passed(value).total_seconds()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_rows(table: Table, *, json: bool) -> int:
    """Print a table for people, or a JSON object a line; return the exit status, 0."""
    if json:
        print_records(table.records())
    else:
        print_table(table)
    return 0


def print_newest(
    table: Table, limit: int | None, shorten: Callable[[Table], Table], *, json: bool, which: str = "newest",
    others: str = "-n 0 lists all",
) -> None:  # fmt: skip
    """Print the newest rows, which come first, the other way round; say so if there are more than the limit.

    `shorten` makes of the table what people see of it; `which` are printed, and `others` says how to see the others.
    """
    newest = replace(table, rows=table.rows[:limit][::-1])
    print_rows(newest if json else shorten(newest), json=json)
    if len(table.rows) > len(newest.rows):
        warn(f"only the {which} {limit} are listed; {others}")


def print_table(table: Table) -> None:
    """Print a table: drawn on a terminal, as aligned text elsewhere."""
    if not sys.stdout.isatty():
        return print(*aligned(table), sep="\n")
    from scheduler.cli.terminal import Column, draw_table

    today = datetime.now().astimezone().date()
    drawn = [
        Column(name, [_short(value, today) for value in values], _all_are(values, int, float),
               _all_are(values, int, float, datetime, timedelta))
        for name, values in zip(table.columns, table.values(), strict=True)
    ]  # fmt: skip
    return draw_table(printable(table.title), drawn, table.spare)


def _short(value: Any, today: date) -> str:
    """Return a value as `cell` has it; a time of today is without its date."""
    if isinstance(value, datetime) and value.astimezone().date() == today:
        return f"{value.astimezone():%H:%M:%S}"
    return cell(value)


def print_fields(fields: Sequence[tuple[str, str]], title: str = "", marks: Sequence[str] = ()) -> None:
    """Print names and what they are, below each other; on a terminal, in two columns.

    `marks` are words for the names, one for each, whose colours the names have.
    """
    if not sys.stdout.isatty():
        width = max(width_of(name) for name, _ in fields)
        lines = (f"{padded(name, width)}{GAP}{printable(text)}" for name, text in fields)
        return print(*([title] if title else []), *lines, sep="\n")
    from scheduler.cli.terminal import draw_fields

    return draw_fields([(name, printable(text)) for name, text in fields], title, marks)


def aligned(table: Table) -> Iterator[str]:
    """Yield the lines of a table: title (unless empty), headings, rows; numbers to the right."""
    cells = [tuple(map(cell, row)) for row in table.rows]
    widths = [max(map(width_of, column)) for column in zip(map(heading, table.columns), *cells, strict=True)]
    if table.title:
        yield table.title
    numeric = [_all_are(values, int) for values in table.values()]
    for line in (tuple(heading(name).upper() for name in table.columns), *cells):
        cut = (padded(c, w, to_right=n) for c, w, n in zip(line, widths, numeric, strict=True))
        yield GAP.join(cut).rstrip()


def _all_are(values: Iterable[Any], *kinds: type) -> bool:
    return all(value is None or isinstance(value, kinds) for value in values)


def cell(value: Any) -> str:
    """Return a value as a table shows it, without its fractions of a second; a dash for nothing."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case timedelta():
            return str(timedelta(seconds=int(passed(value).total_seconds())))
    return printable(str(value))


def passed(length: timedelta) -> timedelta:
    """Return a length of time, and 0 for one below it.

    A row that was written after our transaction began, or by a machine whose clock is ahead, is younger than now().
    """
    return max(length, timedelta(0))


def span(seconds: float) -> str:
    """Return a length of time with its two greatest units: `40 s`, `3 min 20 s`, `5 h 2 min`, `2 d 4 h`."""
    whole = max(round(seconds), 0)
    for unit, name, below, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"
