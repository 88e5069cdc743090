"""The charts of a profile: numbers are read off the axes of the SVG; the page and PNG draw the same shapes."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import Page, browser
from hypothesis import given
from hypothesis import strategies as st
from report_pages import page_of
from tables import Rows

from annot.analyze.peaks import unknown_peaks
from annot.analyze.roofline import layer_roofline
from annot.attribution.attribute import attribute
from annot.attribution.summary import by_step
from annot.profile import Profile
from annot.report.charts.chart import Chart, Mark, Series, as_svg, shapes
from annot.report.charts.profile_charts import pictures, step_charts
from annot.report.charts.raster import as_png

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"
PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "id": 0}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


def chart_of(name: str, profile: Profile) -> ElementTree.Element:
    attribution = attribute(profile)
    return ElementTree.fromstring(as_svg(pictures(attribution)[name]))


def training(batches: tuple[int, ...] = (1, 16, 512), devices: tuple[dict[str, object], ...] = (A100,)) -> Profile:
    """Three steps of different lengths; a layer for each batch size, so that intensities differ."""
    rows = Rows()
    for step in range(3):
        zero = 100 * MS * step
        rows.range(f"Batch {step} |step", zero, zero + (10 + 7 * step) * MS)
        for place, batch in enumerate(batches):
            start = zero + 2 * MS * place
            rows.range(f"l{place} Linear [{batch},1024]f32 out=1024 |fwd", start, start + MS)
            rows.kernel(start + 10, (start + 50, start + 50 + MS * (place + 1)), name="ampere_sgemm_128x64_tn")
    return rows.build(devices=list(devices))


def ticks(root: ElementTree.Element, anchor: str) -> list[tuple[float, float]]:
    """Place and number of each tick; numbers of the vertical axis end beside it, the others stand below theirs."""
    found = []
    for text in root.iter(f"{SVG}text"):
        number = re.fullmatch(r"([\d.,]+) ?([kMGTP]?)", text.text or "")
        if number and text.get("text-anchor") == anchor:
            place = float(text.attrib["x"]) if anchor == "middle" else float(text.attrib["y"]) - 4
            found.append((place, float(number[1].replace(",", "")) * PREFIXES[number[2]]))
    return sorted(found, key=lambda tick: tick[1])


def value(place: float, ticks: list[tuple[float, float]], log: bool) -> float:
    """The number at a place, from the outermost ticks."""
    (begin, low), (end, high) = ticks[0], ticks[-1]
    part = (place - begin) / (end - begin)
    return math.exp(math.log(low) + part * math.log(high / low)) if log else low + part * (high - low)


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The bars with a tooltip; squares of the legend have none."""
    return [one for one in root.iter(f"{SVG}rect") if one.findtext(f"{SVG}title")]


def test_points_of_the_roofline_stand_at_their_numbers() -> None:
    """Intensity and speed of each layer, read off the axes, are those of the table."""
    profile = training()
    root = chart_of("roofline", profile)
    x, y = ticks(root, "middle"), ticks(root, "end")
    circles = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.iter(f"{SVG}circle")]
    found = sorted((value(left, x, True), value(top, y, True)) for left, top in circles)
    rows = layer_roofline(attribute(profile), unknown_peaks("")).drop_nulls(["intensity", "flops_per_s"])
    expected = sorted(rows.select("intensity", "flops_per_s").rows())
    assert len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02)


def test_roofline_has_the_roofs_of_the_precisions_in_use() -> None:
    """The A100 has many peaks; only f32 is used. Areas of dots are proportional to times above a minimum."""
    root = chart_of("roofline", training())
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "guide"] == ["f32 19.5 TFLOP/s"]
    sizes = sorted(float(one.attrib["r"]) - 4 for one in root.iter(f"{SVG}circle"))
    assert [size**2 / sizes[-1] ** 2 for size in sizes] == pytest.approx([1 / 3, 2 / 3, 1], rel=0.02)


def test_steps_are_as_high_as_they_are_long() -> None:
    """The time of each step, read off the axis, is that of the table; the axis begins at 0."""
    profile = training()
    root = chart_of("steps", profile)
    y = ticks(root, "end")
    assert y[0][1] == 0
    tops: dict[str, float] = {}
    for bar in bars(root):
        tops[bar.attrib["x"]] = min(tops.get(bar.attrib["x"], math.inf), float(bar.attrib["y"]))
    times = [ns / MS for ns in by_step(attribute(profile))["host_ns"]]
    assert [value(top, y, False) for top in tops.values()] == pytest.approx(times, rel=0.02)
    assert [number for _, number in ticks(root, "middle")] == [0, 1, 2]


@given(st.lists(st.lists(st.just(0.0) | st.floats(1e-3, 1e6), min_size=3, max_size=3), min_size=1, max_size=4))
def test_bars_stack_without_gap_or_overlap(values: list[list[float]]) -> None:
    """Each bar begins where the one below ends, and is as high as its value on the scale of the axis."""
    series = [Series(f"s{number}", list(enumerate(map(float, column)))) for number, column in enumerate(values)]
    chart = Chart("t", "x", "y", series, bars=1)
    found = [shape.points for shape in shapes(chart) if shape.kind == "bar" and "," in shape.text]
    assert len(found) == 3 * len(values)
    highest = max(sum(column[place] for column in values) for place in range(3))
    base, top = 480 - 44, 46
    scale = (base - top) / (highest * 1.06 or 1.0)
    for place in range(3):
        below = float(base)
        for (_, high), (_, low) in found[place::3]:
            assert low == below
            below = high
        assert below == pytest.approx(base - scale * sum(column[place] for column in values), abs=0.06)


def test_a_thousand_steps_are_groups() -> None:
    """A bar is the longest of some neighbors, which the axis says; its tooltip names the step."""
    rows = Rows()
    for step in range(1000):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + (900 if step == 502 else 500))
    (chart,) = step_charts(by_step(attribute(rows.build())))
    assert chart.x == "step (a bar is the longest of 4)"
    (other,) = chart.series
    assert len(other.points) == 250
    (slow,) = [mark.text for (_, ns), mark in zip(other.points, other.marks, strict=True) if ns > 0.6]
    assert slow == "Step 502: other 0.90 µs of 0.90 µs"
    assert other.points[125][0] == pytest.approx(501.5)


@pytest.mark.parametrize("batches", [(16,), (16, 20), (1, 4096)])
def test_axes_of_the_roofline_have_numbers(batches: tuple[int, ...]) -> None:
    """However little an axis spans, three different numbers tell how much that is, also without peaks."""
    root = chart_of("roofline", training(batches, ()))
    for anchor in ("middle", "end"):
        numbers = [number for _, number in ticks(root, anchor)]
        assert len(set(numbers)) == len(numbers) >= 3


def test_png_blends_what_is_not_opaque() -> None:
    """A bar has the color of its phase; a faint one is between that and white."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    marks = [Mark("a", opacity=1), Mark("b", opacity=0.5)]
    chart = Chart("t", "x", "y", [Series("forward", [(0, 1.0), (1, 1.0)], marks)], bars=1, size=(400, 300))
    picture = image.open(io.BytesIO(as_png(chart, 1)[0])).convert("RGB")
    assert picture.size == (400, 300)
    full, faint = (shape.points for shape in shapes(chart) if shape.kind == "bar" and shape.text)
    colors = [picture.getpixel((round((a[0] + b[0]) / 2), round(b[1] - 3))) for a, b in (full, faint)]
    assert colors[0] == (0x21, 0x74, 0xC0)
    assert colors[1] == tuple(pytest.approx((one + 255) / 2, abs=2) for one in colors[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steps", "roofline"])
def test_the_page_draws_the_shapes(page: Page, tmp_path: Path, name: str) -> None:
    """Each element of the SVG file is in the page, at its place and with its tooltip; its times are per step."""
    profile = training()
    page.open(page_of(profile, tmp_path), name)
    found = ElementTree.fromstring(
        page.run("new XMLSerializer().serializeToString(document.querySelector('.drawing'))")
    )
    width, height = map(int, found.attrib["viewBox"].split()[2:])
    attribution = attribute(profile)
    chart = replace(pictures(attribution)[name], size=(width, height))
    expected = as_svg(chart)
    assert _drawn(found) == _drawn(ElementTree.fromstring(expected))[1:]  # without the background


def _drawn(root: ElementTree.Element) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for one in root.iter():
        tag = one.tag.removeprefix(SVG)
        if tag in ("path", "circle", "rect", "text"):
            keys = ("d", "x", "y", "cx", "cy", "r", "width", "height", "fill-opacity", "text-anchor", "transform")
            texts = [re.sub(r"-?[\d.]+", lambda number: f"{float(number[0]):.1f}", one.get(key, "")) for key in keys]
            found.append(
                (tag, *(text.replace(",", " ") for text in texts), re.sub(r", [\d.]+ ms", "", "".join(one.itertext())))
            )
    return found
