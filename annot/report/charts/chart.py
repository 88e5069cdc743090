"""Charts of points, lines and stacked bars, as shapes and as SVG.

All renderers draw the same shapes: `as_svg` files and notebooks, `annot.report.charts.raster` PNG, and `drawing.js` the
page. No plotting library is needed, and each point and bar has a tooltip with its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from annot.report.units import printable

SIZE: Final = (860, 480)
_LEFT, _TOP, _RIGHT, _BELOW = 84, 46, 24, 44
_LEGEND: Final = 18
"""Maximum number of series in the legend."""
_NAME: Final = 30
"""Maximum length of a name in the legend."""
_THICK: Final = 72
"""Maximum width of a bar."""
_RAMP: Final = ((46, 35, 110), (32, 120, 145), (60, 170, 100), (240, 180, 40), (205, 60, 60))
_OF_MODEL: Final = {"forward": "#2174c0", "backward": "#672a03", "recompute": "#221250", "optimizer": "#1c6332"}
_PHASES: Final = _OF_MODEL | {"data": "#3b092f", "other": "#899096", "gpu": "#899096"}
INKS: Final = {"text": "#333333", "grid": "#dddddd", "axis": "#555555", "guide": "#888888"} | _PHASES
"""Colors of texts, grid, axes and guide lines, and of series that are named after a phase."""
_STYLE: Final = (
    f"text{{font:12px sans-serif;fill:{INKS['text']}}}.title{{font-size:15px;font-weight:bold}}.small{{font-size:9px}}"
    ".guide{paint-order:stroke;stroke:#fff;stroke-width:3px}path{fill:none}"
)


class Shape(NamedTuple):
    """A part of a drawing: a line, a dot, a bar (rectangle) or a text.

    Args:
        kind: line, dot, bar or text.
        points: corners of a line; top left and bottom right of a bar; the middle of a dot; the base of a text.
        style: color, or a key of `INKS`; of a text: title, small, guide or nothing.
        text: content of a text; tooltip of a dot or bar.
        link: target of a dot in the page.
        opacity: 0 to 1.
        size: radius of a dot.
        anchor: start, middle or end of the text is at the point.
        turn: clockwise rotation of a text around the point, in degrees.
    """

    kind: str
    points: Sequence[tuple[float, float]]
    style: str = ""
    text: str = ""
    link: str = ""
    opacity: float = 1
    size: float = 0
    anchor: str = "start"
    turn: int = 0


class Mark(NamedTuple):
    """How a point is drawn.

    Args:
        text: tooltip; empty: the values.
        size: radius of a dot.
        opacity: 0 to 1.
        link: target in the page.
    """

    text: str = ""
    size: float = 3.5
    opacity: float = 1
    link: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one color, in the order of the line that joins them.

    Args:
        name: name in the legend. A series that is named after a phase has the color of the phase.
        points: x and y of each point.
        marks: one per point; empty: plain dots.
    """

    name: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart with one or more series.

    Args:
        title, x, y: title of the chart and of the axes.
        series: points.
        lines: whether to join the points of a series.
        bars: width, in units of the horizontal axis, of bars that stack the series; 0: points.
        log_x, log_y: whether an axis is logarithmic, which leaves out values of 0 or less.
        categories: labels of the positions 0, 1, ... on the horizontal axis; None: numbers.
        guides: lines without markers, such as the roofs of a roofline.
        least_y: value that the vertical axis must include, such as 0.
        size: width and height of the drawing.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    lines: bool = False
    bars: float = 0
    log_x: bool = False
    log_y: bool = False
    categories: Sequence[str] | None = None
    guides: Sequence[Series] = ()
    least_y: float | None = None
    size: tuple[int, int] = SIZE


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
    width, height = chart.size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(map(_element, shapes(chart)))}</svg>\n"
    )


def _element(shape: Shape) -> str:
    x, y = (f"{coordinate:.1f}" for coordinate in shape.points[0])
    color, text = INKS.get(shape.style, shape.style), escape(shape.text)
    if shape.kind == "line":
        path = "L".join(f"{left:.1f} {top:.1f}" for left, top in shape.points)
        width = 1 if shape.style in ("grid", "axis", "guide") else 1.5
        dashes = ' stroke-dasharray="6 4"' if shape.style == "guide" else ""
        return f'<path d="M{path}" stroke="{color}" stroke-width="{width}"{dashes}/>'
    if shape.kind == "text":
        turned = f' transform="rotate({shape.turn} {x} {y})"' if shape.turn else ""
        style = f' class="{shape.style}"' if shape.style else ""
        return f'<text x="{x}" y="{y}" text-anchor="{shape.anchor}"{style}{turned}>{text}</text>'
    look = f'fill="{color}" fill-opacity="{shape.opacity:g}"><title>{text}</title>'
    if shape.kind == "dot":
        return f'<circle cx="{x}" cy="{y}" r="{shape.size:.3g}" {look}</circle>'
    (left, top), (right, bottom) = shape.points
    return f'<rect x="{x}" y="{y}" width="{right - left:.1f}" height="{bottom - top:.1f}" {look}</rect>'


def shapes(chart: Chart) -> list[Shape]:
    """Return the drawing of a chart, as large as its `size`, with a message if there are no points."""
    series = [_drawable(curve, chart) for curve in chart.series]
    title = _text(_LEFT, 26, chart.title, style="title")
    if not any(curve.points for curve in series):
        return [title, _text(_LEFT, 70, "No data")]
    x, y = _axes(chart, series)
    guides = [shape for guide in chart.guides for shape in _guide(guide, x, y)]
    if chart.bars:
        marks = [*_bars(series, chart, x, y), *guides]  # lines are in front of bars, and behind points
    else:
        marks = [*guides, *(shape for number in range(len(series)) for shape in _dots(series, number, chart, x, y))]
    return [title, *_frame(chart, x, y), *marks, *_legend(series, x.end + 16)]


def _drawable(series: Series, chart: Chart) -> Series:
    """The points with a place on the axes, with a mark for each."""
    marks = series.marks or [Mark(opacity=1 if chart.bars else 0.8)] * len(series.points)
    kept = [
        ((x, y), mark)
        for (x, y), mark in zip(series.points, marks, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y)
    ]
    return replace(series, points=[point for point, _ in kept], marks=[mark for _, mark in kept])


def _axes(chart: Chart, series: Sequence[Series]) -> tuple[_Axis, _Axis]:
    points = [point for curve in (*series, *chart.guides) for point in curve.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if chart.bars:
        ys += [0.0, *_totals(series).values()]
    if chart.least_y is not None:
        ys.append(chart.least_y)
    longest = max((min(len(curve.name), _NAME) for curve in series), default=0)
    right, bottom = chart.size[0] - _RIGHT - (24 + 6 * longest if longest else 0), chart.size[1] - _BELOW
    if chart.categories is not None:
        bottom -= 26  # turned texts need space
        horizontal = _Axis(-0.5, len(chart.categories) - 0.5, _LEFT, right, False)
    elif chart.bars:
        horizontal = _Axis(min(xs) - chart.bars / 2, max(xs) + chart.bars / 2, _LEFT, right, False)
    else:
        horizontal = _Axis(*_padded(min(xs), max(xs), chart.log_x), _LEFT, right, chart.log_x)
    return horizontal, _Axis(*_padded(min(ys), max(ys), chart.log_y), bottom, _TOP, chart.log_y)


def _totals(series: Iterable[Series]) -> dict[float, float]:
    """The height of the stacked bars by place."""
    totals: dict[float, float] = {}
    for bars in series:
        for x, y in bars.points:
            totals[x] = totals.get(x, 0.0) + y
    return totals


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
    ticks = [tick for e in exponents for factor in factors if low <= (tick := factor * 10.0**e) <= high]
    return ticks if len(ticks) > 2 else _even(low, high)


def _frame(chart: Chart, x: _Axis, y: _Axis) -> Iterable[Shape]:
    for tick in y.ticks():
        at = y.at(tick)
        yield Shape("line", [(x.begin, at), (x.end, at)], "grid")
        yield _text(x.begin - 6, at + 4, _short(tick), "end")
    if chart.categories is None:
        ticks = [tick for tick in x.ticks() if not chart.bars or tick == round(tick)]  # bars are at whole numbers
        yield from (_text(x.at(tick), y.begin + 18, _short(tick), "middle") for tick in ticks)
    else:
        for position, name in enumerate(chart.categories):
            yield _text(x.at(position), y.begin + 12, name[-16:], "end", turn=-40, style="small")
    yield Shape("line", [(x.begin, y.end), (x.begin, y.begin), (x.end, y.begin)], "axis")
    yield _text((x.begin + x.end) / 2, chart.size[1] - 8, chart.x, "middle")
    yield _text(16, (y.begin + y.end) / 2, chart.y, "middle", turn=-90)


def _guide(guide: Series, x: _Axis, y: _Axis) -> Iterable[Shape]:
    corners = [(x.at(a), y.at(b)) for a, b in guide.points]
    yield Shape("line", corners, "guide")
    yield _text(corners[-1][0], corners[-1][1] - 5, guide.name, "end", style="guide")


def _dots(series: Sequence[Series], number: int, chart: Chart, x: _Axis, y: _Axis) -> Iterable[Shape]:
    dots, color = series[number], _color(series, number)
    places = [(x.at(a), y.at(b)) for a, b in dots.points]
    if chart.lines and len(places) > 1:
        yield Shape("line", places, color)
    for point, mark, place in zip(dots.points, dots.marks, places, strict=True):
        yield Shape(
            kind="dot",
            points=[place],
            style=color,
            text=_tip(dots, point, mark, chart),
            link=mark.link,
            opacity=mark.opacity,
            size=mark.size,
        )


def _bars(series: Sequence[Series], chart: Chart, x: _Axis, y: _Axis) -> Iterable[Shape]:
    bases: dict[float, float] = {}
    half = min(0.42 * abs(x.at(chart.bars) - x.at(0)), _THICK / 2)
    for number, bars in enumerate(series):
        for point, mark in zip(bars.points, bars.marks, strict=True):
            middle, base = x.at(point[0]), bases.get(point[0], 0.0)
            bases[point[0]] = top = base + point[1]
            corners = [(middle - half, y.at(top)), (middle + half, y.at(base))]
            yield Shape(
                kind="bar",
                points=corners,
                style=_color(series, number),
                text=_tip(bars, point, mark, chart),
                link="",
                opacity=mark.opacity,
            )


def _tip(series: Series, point: tuple[float, float], mark: Mark, chart: Chart) -> str:
    category = chart.categories[int(point[0])] if chart.categories is not None else _short(point[0])
    return printable(mark.text or f"{series.name}: {category}, {_short(point[1])}")


def _legend(series: Sequence[Series], left: float) -> Iterable[Shape]:
    named = [(number, curve.name) for number, curve in enumerate(series) if curve.name and curve.points]
    for row, (number, name) in enumerate(named[:_LEGEND]):
        top = _TOP + 10 + 20 * row
        yield Shape("bar", [(left, top - 9), (left + 10, top + 1)], _color(series, number))
        yield _text(left + 16, top, name if len(name) <= _NAME else f"{name[: _NAME - 1]}…")
    if len(named) > _LEGEND:
        yield _text(left, _TOP + 10 + 20 * _LEGEND, f"and {len(named) - _LEGEND} more")


def _text(x: float, y: float, text: str, anchor: str = "start", *, turn: int = 0, style: str = "") -> Shape:
    return Shape("text", [(x, y)], style, printable(text), anchor=anchor, turn=turn)


def _color(series: Sequence[Series], number: int) -> str:
    """The name of a phase, or a color of the ramp from dark to bright."""
    if (name := series[number].name.lower()) in _PHASES:
        return name
    where = (len(_RAMP) - 1) * number / max(len(series) - 1, 1)
    low = min(int(where), len(_RAMP) - 2)
    channels = (round(a + (b - a) * (where - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def _short(value: float) -> str:
    """A number in a few characters: 12.5, 3M, 1.2G."""
    for factor, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if name == 'k' else factor):.3g}{name}"
    return f"{value:.4g}"
