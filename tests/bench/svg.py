"""A line chart as SVG, by hand: several series over the same places on the x axis, which stand evenly apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
COLOURS: Final = ("#0b6e4f", "#c8553d", "#3d5a98", "#8a6d1d")
STEPS: Final = (1, 2, 5, 10)
STYLE: Final = "font: 12px sans-serif"


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: series of (x, y), by name."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def draw(chart: Chart) -> str:
    """Return the chart as an SVG element."""
    places = sorted({x for points in chart.series.values() for x, _ in points})
    top = ceiling(max((y for points in chart.series.values() for _, y in points), default=0.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'style="{STYLE}" role="img" aria-label="{escape(chart.title)}">',
        text(WIDTH / 2, 18, chart.title, "middle"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x_label, "middle"),
        text(LEFT - 60, TOP - 8, chart.y_label, "start"),
        *(_rule(y, top) for y in (top * i / 4 for i in range(5))),
        *(text(_x(places, x), HEIGHT - BOTTOM + 18, short(x), "middle") for x in places),
        *(_series(i, name, places, points, top) for i, (name, points) in enumerate(chart.series.items())),
        "</svg>",
    ]
    return "\n".join(parts)


def ceiling(value: float) -> float:
    """Return a round number that is not less: 1, 2 or 5 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next(power * step for step in STEPS if power * step >= value)


def short(value: float) -> str:
    """Return a number as an axis has it: 1000 is 1k."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    """Return a text; the anchor is `start`, `middle` or `end`."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _series(index: int, name: str, places: Sequence[float], points: Sequence[tuple[float, float]], top: float) -> str:
    colour = COLOURS[index % len(COLOURS)]
    spots = [(_x(places, x), _y(y, top)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    return "\n".join(
        [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots),
            text(LEFT + 10 + index * 160, TOP - 8, name, "start", colour),
        ]
    )


def _rule(y: float, top: float) -> str:
    height = _y(y, top)
    line = f'<line x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}" stroke="#ddd"/>'
    return line + text(LEFT - 6, height + 4, short(y), "end")


def _x(places: Sequence[float], x: float) -> float:
    gaps = max(len(places) - 1, 1)
    return LEFT + 20 + places.index(x) * (WIDTH - LEFT - RIGHT - 40) / gaps


def _y(y: float, top: float) -> float:
    return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)
