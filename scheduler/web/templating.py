"""How values become HTML: everything is escaped, and what others wrote shows its control characters.

Every `{{ value }}` of a template passes `shown`, as a cell of a table of the command line does. Only three filters do
otherwise: `lines` keeps newlines and tabs, `raw` is for values of forms, which come back to us, `query` makes links.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from scheduler.cli.output import as_json, cell, clipped, printable_lines
from scheduler.model.schedule_times import zone_of
from scheduler.package_data import version

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
HEAD: Final = re.compile("<th(?: [^>]*)?>(.*?)</th>", re.DOTALL)
ROW: Final = re.compile("<tr>.*?</tr>", re.DOTALL)
CELL: Final = re.compile("<td([^>]*)>(.*?)</td>", re.DOTALL)
TAG: Final = re.compile("<[^>]*>")
CONTROLS: Final = {code: f"&#{code};" for code in (*range(1, 32), 127)}  # beyond, HTML reads other characters


def shown(value: Any) -> Any:
    """Return a value as a page shows it: one line without control characters; HTML of ours stays as it is."""
    return value if isinstance(value, Markup) or value == "" else cell(value)


def lines(text: str) -> Markup:
    """Return several lines, in which all control characters but newline and tab are shown."""
    return escape(printable_lines(text.replace("\r\n", "\n")))


def readable_json(value: Any) -> Markup:
    """Return JSON with letters of any script as they are, where commands escape them; control characters are shown."""
    return lines(json.dumps(json.loads(as_json(value)), ensure_ascii=False))


def raw(value: Any) -> Markup:
    """Return what a form is to send back as it is; half of a surrogate pair, which HTML cannot hold, is replaced.

    Control characters are written as numbers: so they come back, and do nothing to a terminal that shows the source.
    """
    return Markup(str(escape(str(value).encode("utf-8", "backslashreplace").decode())).translate(CONTROLS))


def query(values: Mapping[str, Any], **changes: Any) -> Markup:
    """Return the part of a link after the path; empty values are left out."""
    given = {name: value for name, value in {**values, **changes}.items() if value not in (None, "", [], ())}
    text = urlencode(given, doseq=True, errors="backslashreplace")
    return escape(f"?{text}" if text else "")


def number(value: int | None) -> str:
    """Return a number with commas between its thousands."""
    return "-" if value is None else f"{value:,}"


def labelled(table: Markup) -> Markup:
    """Return the inside of a table whose cells name their columns, for a phone, which shows no heads.

    Cells that say nothing are marked, to be left out there. What others wrote is escaped, so all tags are of templates.
    """
    heads = [TAG.sub("", text) for text in HEAD.findall(table)]

    def row(found: re.Match[str]) -> str:
        names = iter(heads)
        return (
            found[0]
            if "colspan" in found[0]
            else CELL.sub(lambda cell: _labelled_cell(cell, next(names, "")), found[0])
        )

    return Markup(ROW.sub(row, table))


def _labelled_cell(cell: re.Match[str], name: str) -> str:
    nothing = " data-nothing" if TAG.sub("", cell[2]).strip() in ("", "-") and "<input" not in cell[2] else ""
    return f'<td data-label="{escape(name)}"{nothing}{cell[1]}>{cell[2]}</td>'


def is_one_word(value: Any) -> bool:
    """Return whether a command can name this: a word of characters that are shown as they are."""
    text = str(value)
    return text.isprintable() and len(text.split()) == 1 and text == text.strip()


def clock(value: datetime | None) -> Markup:
    """Return an instant: the time of day today, else the date as well; a tooltip has all of it."""
    if value is None:
        return Markup("-")
    local = value.astimezone()
    is_today = local.date() == datetime.now().astimezone().date()
    text = f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value.isoformat(), f"{local:%F %T %Z}", text)


def clock_in(value: datetime | None, zone: str) -> Markup:
    """Return an instant in a time zone, with its offset; a tooltip has it in UTC."""
    if value is None:
        return Markup("-")
    there, utc = value.astimezone(zone_of(zone)), value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        there.isoformat(), f"{utc:%F %T} UTC", f"{there:%Y-%m-%d %H:%M:%S %z}"
    )


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        lines=lines,
        number=number,
        labelled=labelled,
        raw=raw,
        query=query,
        clock=clock,
        clock_in=clock_in,
        clipped=clipped,
        as_json=as_json,
        readable_json=readable_json,
    )
    made.tests["one_word"] = is_one_word
    made.globals["version"] = version()
    return made
