"""The report: a page of HTML with table and plots that needs nothing else, and the bars in files of their own."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from tests.bench import bars
from tests.bench.lines import HEADINGS, LEGEND, Line, cells, costs
from tests.bench.plots import bars_of
from tests.bench.svg import Chart, draw

NAME: Final = "report.html"
PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Drover: how fast</title><style>
body {{ font: 14px sans-serif; margin: 2em; color: #333 }}
td, th {{ padding: .2em .6em; text-align: left; border-bottom: 1px solid #ddd }}
.PASS {{ color: #0b6e4f }} .FALLS {{ color: #c8553d; font-weight: bold }} .missing {{ color: #8a6d1d }}
.cost {{ color: #777 }}
</style></head><body>
<h1>Drover: how fast</h1>
<p>{about}</p>
{table}
{plots}
</body></html>
"""


def write(folder: Path, about: Mapping[str, Any], lines: Sequence[Line], charts: Iterable[Chart]) -> None:
    """Write the page into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(page(about, lines, charts))
    for each in bars_of(lines):
        (folder / f"{each.name}.svg").write_text(bars.draw(each))


def page(about: Mapping[str, Any], lines: Sequence[Line], charts: Iterable[Chart]) -> str:
    """Return the page."""
    facts = "; ".join(f"{name}: {_fact(value)}" for name, value in about.items() if name != "sizes")
    drawn = [*map(bars.draw, bars_of(lines)), *map(draw, charts)]
    plots = "\n".join(f"<p>{plot}</p>" for plot in drawn)
    return PAGE.format(about=escape(facts), table=_table(lines) if lines else "", plots=plots)


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _table(lines: Sequence[Line]) -> str:
    head = "".join(f"<th>{escape(word)}</th>" for word in HEADINGS)
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(map(_row, lines)) + f"\n</table>\n<p>{LEGEND}</p>"


def _row(line: Line) -> str:
    if not line.costs:
        return _figures(line)
    return f'{_figures(line)}\n<tr class="cost"><td></td><td colspan="7">{escape(costs(line))}</td></tr>'


def _figures(line: Line) -> str:
    *figures, verdict = map(escape, cells(line))
    kind = verdict.split(" ")[0].rstrip(":")
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in figures) + f'<td class="{kind}">{verdict}</td></tr>'
