"""Charts of points and lines, as shapes and as SVG.

The charts need points, lines and a legend only. Plain SVG needs no plotting library, and each point has a tooltip with
its values. `annot.report.charts.raster` draws the same shapes as PNG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from annot.report.units import printable

__all__ = ["HEIGHT", "INKS", "WIDTH", "Chart", "Series", "Shape", "as_svg", "shapes"]

WIDTH, HEIGHT = 860, 480
_LEFT, _TOP, _RIGHT, _BOTTOM = 84, 46, 210, 62
_LEGEND: Final = 18
"""Maximum number of series in the legend."""
_RAMP: Final = ((46, 35, 110), (32, 120, 145), (60, 170, 100), (240, 180, 40), (205, 60, 60))
INKS: Final = {"text": "#333333", "grid": "#dddddd", "axis": "#555555", "guide": "#888888"}
"""Colors of texts, grid, axes and guide lines."""
_STYLE: Final = (
    f"text{{font:12px sans-serif;fill:{INKS['text']}}}.title{{font-size:15px;font-weight:bold}}.small{{font-size:9px}}"
    "path{fill:none}"
)


class Shape(NamedTuple):
    """A part of a drawing: a line, a dot (radius 3.5), a square (side 10) or a text.

    Args:
        kind: line, dot, square or text.
        points: corners of a line; else one point: the middle of a dot, the top left of a square, the base of a text.
        style: color, or a key of `INKS`; of a text: title, small or nothing.
        text: content of a text; tooltip of a dot.
        anchor: start, middle or end of the text is at the point.
        turn: clockwise rotation of a text around the point, in degrees.
    """

    kind: str
    points: Sequence[tuple[float, float]]
    style: str = ""
    text: str = ""
    anchor: str = "start"
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one color, in the order of the line that joins them.

    Args:
        name: name in the legend.
        points: x and y of each point.
    """

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart with one or more series.

    Args:
        title, x, y: title of the chart and of the axes.
        series: points.
        lines: whether to join the points of a series.
        log_x, log_y: whether an axis is logarithmic, which leaves out values of 0 or less.
        categories: labels of the positions 0, 1, ... on the horizontal axis; None: numbers.
        guides: lines without markers, such as the roofs of a roofline.
        least_y: value that the vertical axis must include, such as 0.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    lines: bool = False
    log_x: bool = False
    log_y: bool = False
    categories: Sequence[str] | None = None
    guides: Sequence[Series] = ()
    least_y: float | None = None


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis: maps the values `low` to `high` to the coordinates `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, here = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.begin + (here - low) / (high - low) * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        return _decades(self.low, self.high) if self.log else _even(self.low, self.high)


def as_svg(chart: Chart) -> str:
    """Return the chart as SVG, with a message if there are no points.

    Args:
        chart: the chart.

    Example:
        >>> as_svg(Chart("Time", "batch", "ms", [Series("a", [(1, 2.0), (2, 3.5)])])).count("<circle")
        2
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(map(_element, shapes(chart)))}</svg>\n"
    )


def _element(shape: Shape) -> str:
    x, y = (f"{one:.1f}" for one in shape.points[0])
    color, text = INKS.get(shape.style, shape.style), escape(shape.text)
    if shape.kind == "line":
        path = "L".join(f"{left:.1f} {top:.1f}" for left, top in shape.points)
        width = 1 if shape.style in INKS else 1.5
        dashes = ' stroke-dasharray="6 4"' if shape.style == "guide" else ""
        return f'<path d="M{path}" stroke="{color}" stroke-width="{width}"{dashes}/>'
    if shape.kind == "dot":
        return f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}" fill-opacity="0.8"><title>{text}</title></circle>'
    if shape.kind == "square":
        return f'<rect x="{x}" y="{y}" width="10" height="10" fill="{color}"/>'
    turned = f' transform="rotate({shape.turn} {x} {y})"' if shape.turn else ""
    style = f' class="{shape.style}"' if shape.style else ""
    return f'<text x="{x}" y="{y}" text-anchor="{shape.anchor}"{style}{turned}>{text}</text>'


def shapes(chart: Chart) -> list[Shape]:
    """Return the drawing of a chart, `WIDTH` by `HEIGHT`, with a message if there are no points."""
    series = [Series(one.name, list(_drawable(one.points, chart))) for one in chart.series]
    points = [point for one in series for point in one.points]
    title = _text(_LEFT, 26, chart.title, style="title")
    if not points:
        return [title, _text(_LEFT, 70, "No data")]
    x, y = _axes(chart, points)
    drawing = [title, *_frame(chart, x, y)]
    for guide in chart.guides:
        corners = [(x.at(a), y.at(b)) for a, b in guide.points]
        drawing += [Shape("line", corners, "guide"), _text(corners[-1][0], corners[-1][1] - 5, guide.name, "end")]
    for number, one in enumerate(series):
        drawing += _marks(one, _color(number, len(series)), chart, x, y)
    return [*drawing, *_legend(series)]


def _drawable(points: Iterable[tuple[float, float]], chart: Chart) -> Iterable[tuple[float, float]]:
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y):
            yield x, y


def _axes(chart: Chart, points: list[tuple[float, float]]) -> tuple[_Axis, _Axis]:
    every = [*points, *(point for guide in chart.guides for point in guide.points)]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    if chart.least_y is not None:
        ys.append(chart.least_y)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    if chart.categories is not None:
        horizontal = _Axis(-0.5, len(chart.categories) - 0.5, _LEFT, right, False)
    else:
        horizontal = _Axis(*_padded(min(xs), max(xs), chart.log_x), _LEFT, right, chart.log_x)
    return horizontal, _Axis(*_padded(min(ys), max(ys), chart.log_y), bottom, _TOP, chart.log_y)


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """The limits of an axis, with a margin for the markers."""
    if log:
        room = max((high / low) ** 0.06, 1.3)
        return low / room, high * room
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return (low - room if low < 0 or low > room else 0.0), high + room


def _even(low: float, high: float) -> list[float]:
    """About six round ticks."""
    rough = (high - low) / 6
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [number * step for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten as ticks, with 2 and 5 between them if there are few, or even ticks for less than a decade."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(exponents) <= 4 else (1,)
    found = [tick for e in exponents for factor in factors if low <= (tick := factor * 10.0**e) <= high]
    return found if len(found) > 2 else _even(low, high)


def _frame(chart: Chart, x: _Axis, y: _Axis) -> Iterable[Shape]:
    for tick in y.ticks():
        at = y.at(tick)
        yield Shape("line", [(x.begin, at), (x.end, at)], "grid")
        yield _text(x.begin - 6, at + 4, _short(tick), "end")
    if chart.categories is None:
        yield from (_text(x.at(tick), y.begin + 18, _short(tick), "middle") for tick in x.ticks())
    else:
        for position, name in enumerate(chart.categories):
            yield _text(x.at(position), y.begin + 12, name[-16:], "end", turn=-40, style="small")
    yield Shape("line", [(x.begin, y.end), (x.begin, y.begin), (x.end, y.begin)], "axis")
    yield _text((x.begin + x.end) / 2, HEIGHT - 8, chart.x, "middle")
    yield _text(16, (y.begin + y.end) / 2, chart.y, "middle", turn=-90)


def _marks(series: Series, color: str, chart: Chart, x: _Axis, y: _Axis) -> Iterable[Shape]:
    places = [(x.at(a), y.at(b)) for a, b in series.points]
    if chart.lines and len(places) > 1:
        yield Shape("line", places, color)
    for (a, b), place in zip(series.points, places, strict=True):
        category = chart.categories[int(a)] if chart.categories is not None else _short(a)
        yield Shape("dot", [place], color, printable(f"{series.name}: {category}, {_short(b)}"))


def _legend(series: Sequence[Series]) -> Iterable[Shape]:
    named = [(number, one.name) for number, one in enumerate(series) if one.name and one.points]
    left = WIDTH - _RIGHT + 16
    for row, (number, name) in enumerate(named[:_LEGEND]):
        top = _TOP + 10 + 20 * row
        yield Shape("square", [(left, top - 9)], _color(number, len(series)))
        yield _text(left + 16, top, name if len(name) <= 30 else f"{name[:29]}…")
    if len(named) > _LEGEND:
        yield _text(left, _TOP + 10 + 20 * _LEGEND, f"and {len(named) - _LEGEND} more")


def _text(x: float, y: float, text: str, anchor: str = "start", *, turn: int = 0, style: str = "") -> Shape:
    return Shape("text", [(x, y)], style, printable(text), anchor, turn)


def _color(number: int, count: int) -> str:
    """A color of the ramp, from dark to bright."""
    where = (len(_RAMP) - 1) * number / max(count - 1, 1)
    low = min(int(where), len(_RAMP) - 2)
    parts = (round(a + (b - a) * (where - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def _short(value: float) -> str:
    """A number in a few characters: 12.5, 3M, 1.2G."""
    for factor, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if name == 'k' else factor):.3g}{name}"
    return f"{value:.4g}"
