"""Bars as SVG, by hand: a bar a row, below its label; the parts of a bar stand one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tests.bench.svg import COLOURS, STYLE, WIDTH, text

EDGE, TOP, ROW, THICK = 20, 50, 40, 14
FULL: Final = WIDTH - 2 * EDGE - 90  # leaves room for the figure
LEGEND_STEP: Final = 150
CUT: Final = 8.0  # times the first row: a longer bar is cut off, or the others could not be seen


@dataclass(frozen=True, slots=True)
class Bars:
    """What is drawn: the names of the parts, and rows of parts by label."""

    name: str  # of its file
    title: str
    parts: Sequence[str]
    rows: Mapping[str, Sequence[float]]


def draw(bars: Bars) -> str:
    """Return the bars as an SVG element; each ends in its sum, a bar that is cut off in `>` and its sum."""
    height = TOP + ROW * len(bars.rows) + EDGE
    top = full(bars)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" style="{STYLE}" role="img" aria-label="{escape(bars.title)}">',
            text(WIDTH / 2, 18, bars.title, "middle"),
            *(text(EDGE + i * LEGEND_STEP, 38, part, "start", COLOURS[i]) for i, part in enumerate(bars.parts)),
            *(_row(TOP + i * ROW, label, parts, top) for i, (label, parts) in enumerate(bars.rows.items())),
            "</svg>",
        ]
    )


def full(bars: Bars) -> float:
    """Return the sum that is drawn at full width."""
    sums = [sum(parts) for parts in bars.rows.values()]
    return min(max(sums), CUT * sums[0]) or 1.0


def _row(y: float, label: str, parts: Sequence[float], top: float) -> str:
    whole = sum(parts)
    drawn, pieces = 0.0, [text(EDGE, y + 14, label, "start")]
    for i, part in enumerate(parts):
        width = min(part, top - drawn)
        pieces.append(
            f'<rect x="{EDGE + drawn / top * FULL:.1f}" y="{y + 18}" width="{width / top * FULL:.1f}" '
            f'height="{THICK}" fill="{COLOURS[i]}"/>'
        )
        drawn += width
    told = ("> " if whole > top else "") + (f"{whole:,.0f}" if whole >= 100 else f"{whole:.1f}")
    return "\n".join([*pieces, text(EDGE + drawn / top * FULL + 6, y + 18 + THICK - 3, told, "start")])
