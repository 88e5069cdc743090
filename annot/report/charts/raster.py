"""Charts as PNG, for tools without SVG support. Pillow draws the SVG of `annot.report.charts.chart.as_svg`.

Supported elements are those of that module: rectangles, lines, paths of straight lines, circles and texts.
"""

from __future__ import annotations

import io
import re
from importlib import import_module
from typing import Any, Final
from xml.etree import ElementTree

from annot.report.charts.chart import Chart, as_svg

__all__ = ["as_png", "can_draw"]

_INK: Final = {"grid": "#dddddd", "axis": "#555555", "guide": "#888888"}
_TEXT: Final = "#333333"
_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow anchors: left, middle or right on the baseline
_NAME = "{http://www.w3.org/2000/svg}"


def can_draw() -> bool:
    """Return whether Pillow is installed with FreeType, which scalable fonts need."""
    try:
        return bool(_pillow("features").check("freetype2"))
    except ImportError:
        return False


def as_png(chart: Chart, scale: int = 2) -> tuple[bytes, int, int]:
    """Return a chart as PNG, with its width and height in pixels.

    Args:
        chart: the chart.
        scale: pixels per unit of the SVG.

    Raises:
        ImportError: Pillow is not installed; see `can_draw`.
    """
    root = ElementTree.fromstring(as_svg(chart))
    size = int(root.attrib["width"]) * scale, int(root.attrib["height"]) * scale
    picture = _pillow("Image").new("RGB", size, "white")
    draw = _pillow("ImageDraw").Draw(picture)
    for element in root:
        kind = element.tag.removeprefix(_NAME)
        if kind == "text":
            _draw_text(picture, draw, element, scale)
        elif kind in _SHAPES:
            _SHAPES[kind](draw, element, scale)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue(), *size


def _pillow(module: str) -> Any:
    """A module of Pillow. The dynamic import keeps mypy independent of the optional package."""
    return import_module(f"PIL.{module}")


def _number(element: ElementTree.Element, name: str, scale: int) -> float:
    return float(element.get(name, "0")) * scale


def _draw_rectangle(draw: Any, element: ElementTree.Element, scale: int) -> None:
    if element.get("width", "").endswith("%"):  # the background
        return
    x, y, width, height = (_number(element, name, scale) for name in ("x", "y", "width", "height"))
    draw.rectangle((x, y, x + width, y + height), fill=element.get("fill"))


def _draw_line(draw: Any, element: ElementTree.Element, scale: int) -> None:
    ends = [_number(element, name, scale) for name in ("x1", "y1", "x2", "y2")]
    draw.line(ends, fill=_INK.get(element.get("class", ""), _TEXT), width=max(1, scale // 2))


def _draw_path(draw: Any, element: ElementTree.Element, scale: int) -> None:
    ink = element.get("stroke") or _INK.get(element.get("class", ""), _TEXT)
    draw.line(_places(element.get("d", ""), scale), fill=ink, width=scale)


def _places(path: str, scale: int) -> list[tuple[float, float]]:
    """The points of a path with the absolute commands M, L, H and V."""
    places = [(0.0, 0.0)]
    for letter, arguments in re.findall(r"([MLHV])([^MLHV]*)", path):
        numbers = [float(number) * scale for number in arguments.split()]
        x, y = places[-1]
        places.append(
            (numbers[0], y) if letter == "H" else (x, numbers[0]) if letter == "V" else (numbers[0], numbers[1])
        )
    return places[1:]


def _draw_circle(draw: Any, element: ElementTree.Element, scale: int) -> None:
    x, y, radius = (_number(element, name, scale) for name in ("cx", "cy", "r"))
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=element.get("fill"))


def _draw_text(picture: Any, draw: Any, element: ElementTree.Element, scale: int) -> None:
    style = element.get("style", "")
    points = 15 if element.get("class") == "title" else 9 if "9px" in style else 12
    font = _pillow("ImageFont").load_default(points * scale)
    anchor = _ANCHORS[element.get("text-anchor", "start")]
    place = _number(element, "x", scale), _number(element, "y", scale)
    turned = re.match(r"rotate\((-?\d+)", element.get("transform", ""))
    if turned is None:
        draw.text(place, element.text or "", fill=_TEXT, font=font, anchor=anchor)
        return
    layer = _pillow("Image").new("RGBA", picture.size)
    _pillow("ImageDraw").Draw(layer).text(place, element.text or "", fill=_TEXT, font=font, anchor=anchor)
    layer = layer.rotate(-int(turned[1]), center=place)
    picture.paste(layer, (0, 0), layer)


_SHAPES: Final = {"rect": _draw_rectangle, "line": _draw_line, "path": _draw_path, "circle": _draw_circle}
