"""The charts of files and notebooks and those of the page: the same rules hold for the SVG of both."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import Page, browser
from report_pages import page_of
from tables import Rows

from annot.analyze.roofline import layer_roofline
from annot.attribution import attribute, by_layer, by_step
from annot.profile import Profile
from annot.report.charts.chart import as_svg
from annot.report.charts.profile_charts import pictures

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"
PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "id": 0}

Draw = Callable[[str, Profile], ElementTree.Element]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


@pytest.fixture(params=["file", pytest.param("page", marks=pytest.mark.slow)])
def draw(request: pytest.FixtureRequest, tmp_path: Path) -> Draw:
    """A function that gives the SVG of a chart of a profile, by its name."""

    def file(name: str, profile: Profile) -> ElementTree.Element:
        attribution = attribute(profile)
        return ElementTree.fromstring(as_svg(pictures(attribution, by_layer(attribution))[name]))

    def of_page(name: str, profile: Profile) -> ElementTree.Element:
        page: Page = request.getfixturevalue("page")
        page.open(page_of(profile, tmp_path), name)
        return ElementTree.fromstring(
            page.run("new XMLSerializer().serializeToString(document.querySelector('main svg'))")
        )

    return file if request.param == "file" else of_page


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


def test_points_of_the_roofline_stand_at_their_numbers(draw: Draw) -> None:
    """Intensity and speed of each layer, read off the axes, are those of the table."""
    profile = training()
    root = draw("roofline", profile)
    x, y = ticks(root, "middle"), ticks(root, "end")
    circles = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.iter(f"{SVG}circle")]
    found = sorted((value(left, x, True), value(top, y, True)) for left, top in circles)
    rows = layer_roofline(attribute(profile), None).drop_nulls(["intensity", "flops_per_s"])
    expected = sorted(rows.select("intensity", "flops_per_s").rows())
    assert len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02)


def test_steps_are_as_high_as_they_are_long(draw: Draw) -> None:
    """The time of each step, read off the axis, is that of the table; the axis begins at 0."""
    profile = training()
    root = draw("steps", profile)
    y = ticks(root, "end")
    assert y[0][1] == 0
    bars = [[float(rect.attrib["y"]) for rect in bar.iter(f"{SVG}rect")] for bar in root.iter(f"{SVG}g")]
    points = [float(one.attrib["cy"]) for one in root.iter(f"{SVG}circle") if "step:" in "".join(one.itertext())]
    tops = [min(bar) for bar in bars if bar] or points
    times = [ns / MS for ns in by_step(attribute(profile))["host_ns"]]
    assert [value(top, y, False) for top in tops] == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize("batches", [(16,), (16, 20), (1, 4096)])
def test_axes_of_the_roofline_have_numbers(draw: Draw, batches: tuple[int, ...]) -> None:
    """However little an axis spans, three different numbers tell how much that is, also without peaks."""
    root = draw("roofline", training(batches, ()))
    for anchor in ("middle", "end"):
        numbers = [number for _, number in ticks(root, anchor)]
        assert len(set(numbers)) == len(numbers) >= 3
