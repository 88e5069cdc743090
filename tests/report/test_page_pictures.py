"""Pictures of the page as files: an SVG file that needs nothing else, and a PNG file."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import Page

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
SVG = "{http://www.w3.org/2000/svg}"


def saved(page: Page, folder: Path, kind: str) -> bytes:
    """Click the first button for a kind of file, and return the file."""
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click(f".saves [aria-label^='Save as {kind}']")
    until = time.monotonic() + 30
    while not (found := [one for one in folder.iterdir() if one.suffix == f".{kind.lower()}" and one.stat().st_size]):
        assert time.monotonic() < until, f"no file; problems: {page.problems}"
        page.run("new Promise(done => requestAnimationFrame(done))")
    content = found[0].read_bytes()
    found[0].unlink()
    return content


def test_svg_file_stands_alone(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """It has the colors of the light theme on white in any theme, all texts and tooltips, and nothing of the page."""
    fresh.open(trained, "steps", dark=True)
    in_page = fresh.run("document.querySelector('.drawing').textContent")
    dark = saved(fresh, tmp_path, "SVG")
    fresh.open(trained, "steps")
    light = saved(fresh, tmp_path, "SVG")
    assert dark == light
    assert not re.search(rb"class=|style=|href|var\(|http(?!://www.w3.org/2000/svg)", light)
    root = ElementTree.fromstring(light)
    assert (root.attrib["width"], root.attrib["height"]) == ("1200", "320")
    assert root[0].attrib == {"width": "100%", "height": "100%", "fill": "#fff"}
    assert "".join(root.itertext()) == in_page
    fills = {one.findtext(f"{SVG}title", "").partition(":")[2].split(" ")[1:2][0]: one.get("fill")
             for one in root.iter(f"{SVG}rect") if one.findtext(f"{SVG}title")}  # fmt: skip
    assert fills["forward"] == "rgb(33, 116, 192)"
    assert all(fill and fill.startswith("rgb(") for fill in fills.values())
    title = root.find(f"{SVG}text")
    assert title is not None
    assert (title.get("font-size"), title.get("font-weight")) == ("15px", "650")


def test_png_file_shows_the_picture(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """Two pixels per unit; a bar of the forward has its color, and the background is white."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    fresh.open(trained, "steps", dark=True)
    x, y = fresh.run(
        "(() => { const box = document.querySelector('.drawing rect.forward').getBBox();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    picture = image.open(io.BytesIO(saved(fresh, tmp_path, "PNG"))).convert("RGB")
    assert picture.size == (2400, 640)
    assert picture.getpixel((2, 2)) == (255, 255, 255)
    assert picture.getpixel((round(2 * x), round(2 * y))) == (33, 116, 192)


def test_timeline_is_saved_as_it_is_in_view(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """The SVG file has a rectangle per drawn event, their names, a title and a legend; PNG has the same."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    fresh.open(trained, "timeline", dark=True)
    fresh.wait("document.getElementById('timeline').dataset.drawn === '50'")
    root = ElementTree.fromstring(saved(fresh, tmp_path, "SVG"))
    texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    assert texts[0] == "Timeline"
    assert {"0 ms", "forward", "backward", "optimizer"} <= {*texts}
    assert "Batch 0" in texts
    assert texts[-1] == "0 to 5.070 ms of 5.070 ms"
    lines = sum(one.get("width") == "1" and one.get("y") == "0" for one in root.iter(f"{SVG}rect"))
    lanes, keys, paper = 2, len(fresh.texts(".legend .key")), 1
    assert len([*root.iter(f"{SVG}rect")]) == 50 + lines + lanes + keys + paper
    picture = image.open(io.BytesIO(saved(fresh, tmp_path, "PNG"))).convert("RGB")
    assert list(picture.size) == [2 * int(root.attrib[one]) for one in ("width", "height")]
    colors = {color for _, color in picture.getcolors(1 << 20)}
    assert {(0xFF, 0xFF, 0xFF), (0x21, 0x74, 0xC0), (0x67, 0x2A, 0x03)} <= colors  # paper, forward, backward


def test_icicle_is_saved_with_title_and_legend(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """The lines over the backward are as faint as on the screen, so that the names of the boxes stay legible."""
    fresh.open(trained, "icicle", dark=True)
    fresh.wait("document.querySelector('.icicle [data-place]')")
    elements, keys = fresh.run("document.querySelectorAll('*').length"), fresh.texts(".legend .key")
    boxes = fresh.run("document.querySelectorAll('.icicle svg .fill').length")
    root = ElementTree.fromstring(saved(fresh, tmp_path, "SVG"))
    assert fresh.run("document.querySelectorAll('*').length") == elements
    texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    assert texts[0] == "GPU time by layer"
    assert texts[-1] == fresh.text(".legend .hint")
    assert texts[-1 - len(keys) : -1] == keys
    assert any(text.startswith("features.0 Conv2d") for text in texts)
    (lines,) = root.iter(f"{SVG}path")
    assert lines.get("stroke-opacity") == "0.18"
    fills = [one for one in root.iter(f"{SVG}rect") if one.get("fill", "").startswith("rgb(33")]
    assert 0 < len(fills) <= boxes


def test_roofline_and_steps_of_a_layer_are_saved(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """Links of the roofline become groups. Each picture has a button for each kind of file, with its own name."""
    for view in ("roofline", "layer/4"):
        fresh.open(trained, view)
        kept = fresh.run("document.querySelectorAll('.drawing :is(circle, rect)').length")
        root = ElementTree.fromstring(saved(fresh, tmp_path, "SVG"))
        assert len([one for one in root.iter() if one.tag in (f"{SVG}circle", f"{SVG}rect")]) == kept + 1
        names = fresh.run("[...document.querySelectorAll('.saves button')].map(one => one.getAttribute('aria-label'))")
        assert len(set(names)) == len(names) == 2


def test_bar_of_the_first_screen_is_saved_with_its_legend(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """The files have the parts with the colors of the light theme, hatches of their own, names and shares."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    fresh.open(trained, "summary", dark=True)
    elements = fresh.run("document.querySelectorAll('*').length")
    keys = fresh.texts(".keys li")
    picture = saved(fresh, tmp_path, "SVG")
    assert fresh.run("document.querySelectorAll('*').length") == elements
    assert not re.search(rb"class=|style=|var\(|http(?!://www.w3.org/2000/svg)", picture)
    root = ElementTree.fromstring(picture)
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert texts[0] == "Step time"
    assert texts[-1].startswith("100% is ")
    shares = [" ".join(re.sub(r"\(.*?\)", " ", key).split()) for key in keys]
    assert sorted(texts[1:-1]) == sorted(shares)
    hatched = {one.get("fill") for one in root.iter(f"{SVG}rect") if "url(" in (one.get("fill") or "")}
    known = {f'url("#{one.get("id")}")' for one in root.iter(f"{SVG}pattern")}
    assert hatched
    assert hatched <= known
    png = image.open(io.BytesIO(saved(fresh, tmp_path, "PNG"))).convert("RGB")
    assert png.size == (2400, 2 * int(root.attrib["height"]))
    assert len(png.crop((0, 68, 2400, 136)).getcolors(1 << 20)) > len(shares)
