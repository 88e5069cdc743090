"""Charts as PNG, for tools without SVG support, drawn by Pillow."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, Final

from annot.report.charts.chart import INKS, Chart, Shape, shapes

_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow anchors: left, middle or right on the baseline
_POINTS: Final = {"title": 15, "small": 9}


def can_draw() -> bool:
    """Return whether Pillow is installed with FreeType, which scalable fonts need."""
    try:
        return bool(_pillow("features").check("freetype2"))
    except ImportError:
        return False


def as_png(chart: Chart, scale: int = 2) -> tuple[bytes, int, int]:
    """Return a chart as PNG with `scale` pixels per unit of the SVG, and its width and height in pixels.

    Raises ImportError without Pillow; see `can_draw`.
    """
    size = chart.size[0] * scale, chart.size[1] * scale
    picture = _pillow("Image").new("RGB", size, "white")
    for shape in shapes(chart):
        _draw(picture, shape, scale)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue(), *size


def _pillow(module: str) -> Any:
    """A module of Pillow. The dynamic import keeps mypy independent of the optional package."""
    return import_module(f"PIL.{module}")


def _draw(picture: Any, shape: Shape, scale: int) -> None:
    draw = _pillow("ImageDraw").Draw(picture, "RGBA")  # blends colors that are not opaque
    color = f"{INKS.get(shape.style, shape.style)}{round(255 * shape.opacity):02x}" if shape.kind != "text" else ""
    points = [(x * scale, y * scale) for x, y in shape.points]
    x, y = points[0]
    if shape.kind == "line":
        draw.line(points, fill=color, width=max(1, scale // 2) if shape.style == "grid" else scale)
    elif shape.kind == "dot":
        radius = shape.size * scale
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    elif shape.kind == "bar":
        draw.rectangle(points, fill=color)
    else:
        font = _pillow("ImageFont").load_default(_POINTS.get(shape.style, 12) * scale)
        turned = _pillow("Image").new("RGBA", picture.size) if shape.turn else None
        paper = draw if turned is None else _pillow("ImageDraw").Draw(turned)
        paper.text((x, y), shape.text, fill=INKS["text"], font=font, anchor=_ANCHORS[shape.anchor])
        if turned is not None:
            turned = turned.rotate(-shape.turn, center=(x, y))
            picture.paste(turned, (0, 0), turned)
