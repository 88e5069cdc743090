"""The icicle of the HTML page in a real browser: sizes of boxes, zoom, search, keys, and models with many layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from report_pages import page_data, page_of
from tables import Rows

from annot.report.page.render import as_page

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
BOXES = (
    "Object.fromEntries([...document.querySelectorAll('.icicle [data-place]')].map(one => [one.dataset.place,"
    "[...one.querySelectorAll('.fill, .fill-self')].map(rect => [rect.getAttribute('class').split(' ').at(-1),"
    "...['x', 'y', 'width', 'height'].map(key => Number(rect.getAttribute(key)))])]))"
)
AT = "document.activeElement.dataset.place"


def _opened(page: Page, path: Path, view: str = "icicle", **options: Any) -> Page:
    page.open(path, view, **options)
    page.wait("document.querySelector('.icicle [data-place]')")
    return page


def test_boxes_are_as_wide_as_inclusive_times(fresh: Page, trained: Path) -> None:
    """Of 3.48 ms: features.0 2.4 ms below features 2.8 ms below the model; colours are as high as their shares."""
    boxes = _opened(fresh, trained).run(BOXES)
    whole = boxes["-1"][0][3]
    width = {place: max(rect[3] for rect in rects) for place, rects in boxes.items()}
    assert width["4"] / whole == pytest.approx(2400 / 3480, abs=0.002)
    phases = {phase: height for phase, *_, height in boxes["4"]}
    assert phases["backward"] / phases["forward"] == pytest.approx(1500 / 900, rel=0.01)
    levels = [boxes[place][0][2] for place in ("-1", "1", "2", "3", "4")]
    assert levels == sorted(set(levels))  # children stand below their parents
    for inner, outer in (("4", "3"), ("5", "3"), ("3", "2"), ("2", "1")):
        left, right = boxes[inner][0][1], boxes[inner][0][1] + width[inner]
        assert boxes[outer][0][1] <= left < right <= boxes[outer][0][1] + width[outer] + 1


def test_box_says_its_numbers(fresh: Page, trained: Path) -> None:
    """The name of the box for screen readers, the tooltip on hover and on focus, and the details have the same."""
    _opened(fresh, trained)
    said = {"Self": "2.400 ms", "Forward": "900.00 µs", "Backward": "1.500 ms", "Calls": "1"}
    label = fresh.run("document.getElementById('box4').ariaLabel")
    assert label.startswith("features.0 Conv2d · 2.400 ms · 69.0%, ")
    assert all(f"{term} {value}" in label for term, value in said.items())
    x, y = fresh.middle("#box4")
    fresh.hover(x, y)
    tip = fresh.text(".icicle .tip").split("\n")
    assert tip[0] == "features.0 Conv2d"
    pairs = dict(zip(tip[1::2], tip[2::2], strict=True))
    assert pairs.items() >= (said | {"Total": "2.400 ms", "Share": "69.0%"}).items()
    assert pairs["Shape"] == "[16,3,224,224]f32 (+1)"
    fresh.hover(5, 5)
    assert fresh.run("document.querySelector('.icicle .tip').hidden")
    fresh.run("document.getElementById('box3').focus()")
    fresh.press("ArrowDown")
    assert fresh.text(".icicle .tip").split("\n") == tip
    assert fresh.text("main .detail strong") == "features.0 Conv2d"
    fresh.click("main .detail a")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("main h1").split() == ["features.0", "Conv2d"]


def test_click_and_breadcrumb_zoom(fresh: Page, trained: Path) -> None:
    """A clicked box has the whole width; boxes above it and the breadcrumb lead out again."""
    _opened(fresh, trained)
    fresh.click("#box3")
    boxes = fresh.run(BOXES)
    assert set(boxes) == {"-1", "1", "2", "3", "4", "5"}
    assert boxes["3"][0][3] == boxes["-1"][0][3]
    assert boxes["4"][0][3] / boxes["3"][0][3] == pytest.approx(2400 / 2450, abs=0.002)
    assert fresh.texts(".crumbs a") == ["All", "Batch", "(model)", "features"]
    assert fresh.run("location.hash") == "#icicle/3"
    fresh.click(".crumbs a:nth-of-type(3)")
    assert fresh.run("location.hash") == "#icicle/2"
    fresh.click("#box-1")
    assert fresh.run("location.hash") == "#icicle"
    assert fresh.texts(".crumbs a") == ["All"]


def test_keys_move_and_zoom(fresh: Page, trained: Path) -> None:
    """Arrows go to boxes beside, above and below; Enter zooms, Escape and Backspace zoom out, O opens the layer."""
    _opened(fresh, trained)
    assert fresh.run("document.querySelectorAll('.icicle [tabindex=\"0\"]').length") == 1
    fresh.run("document.querySelector('.icicle [tabindex=\"0\"]').focus()")
    seen = []
    for key in ("ArrowDown",) * 4 + ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp"):
        fresh.press(key)
        seen.append(fresh.run(AT))
    assert seen == ["1", "2", "3", "4", "5", "4", "3", "2"]
    fresh.press("ArrowDown", "Enter")
    assert [fresh.run("location.hash"), fresh.run(AT)] == ["#icicle/3", "3"]
    fresh.press("Escape")
    assert [fresh.run("location.hash"), fresh.run(AT)] == ["#icicle/2", "3"]
    fresh.press("Backspace", "Backspace")
    assert fresh.run("location.hash") == "#icicle"
    fresh.press("ArrowDown", "o")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.run("location.hash").startswith("#layer/")


def test_search_marks_and_sums_layers(fresh: Page, trained: Path) -> None:
    """A layer inside another that matches counts once: features with its layers has 2.45 of 3.48 ms."""
    _opened(fresh, trained)
    fresh.press("/")
    fresh.type("features")
    fresh.wait("document.querySelectorAll('.icicle g.hit').length === 3")
    assert fresh.text("main .status") == "3 lines match: 2.450 ms, 70.4% of the GPU time."
    assert fresh.run("document.getElementById('box2').classList.contains('dim')")
    fresh.run("document.getElementById('search').select()")
    fresh.type("nothing like this")
    fresh.wait("document.querySelector('main .status').textContent === '0 lines match: 0, 0.0% of the GPU time.'")


def test_sum_of_a_match_includes_layers_below_it(fresh: Page, tmp_path: Path) -> None:
    """A block that matches counts with its layers, also if these do not match."""
    rows = Rows().range("net.a Special |fwd", 0, 600 * 1000).range("net.a.b Linear |fwd", 100 * 1000, 300 * 1000)
    rows.range("net.a Special |bwd", 650 * 1000, 750 * 1000).range("net.a.b Linear |bwd", 660 * 1000, 740 * 1000)
    rows.range("net.c Linear |fwd", 900 * 1000, 1000 * 1000)
    _opened(fresh, page_of(rows.build(), tmp_path), "icicle?search=special")
    assert fresh.text("main .status") == "1 line matches: 700.00 µs, 70.0% of the host time."  # of the wall-clock time


def test_thousands_of_layers(fresh: Page, tmp_path: Path) -> None:
    """Layers narrower than a pixel share a gray box; zoom shows them, and search finds them in the gray boxes."""
    rows, blocks, inside = Rows(), 500, 9
    for block in range(blocks):
        zero = 1_000 * block
        rows.range(f"net.{block} Block{block} |fwd", zero, zero + 1_000)  # layers of one class would be one box
        for one in range(inside):
            name = "needle" if (block, one) == (250, 5) else f"op{'abcdefghi'[one]}"
            rows.range(f"net.{block}.{name} Linear |fwd", zero + 10 + 100 * one, zero + 100 + 100 * one)
    _opened(fresh, page_of(rows.build(), tmp_path), width=1280)
    lines = blocks * (inside + 1)
    assert f"{lines:,} lines" in fresh.text("main .status")
    assert fresh.run("document.querySelectorAll('main *').length") < 3_000
    assert fresh.run("document.querySelectorAll('.icicle g.few').length") >= blocks
    fresh.press("/")
    fresh.type("needle")
    fresh.wait("document.querySelectorAll('.icicle g.few.hit').length === 1")
    assert fresh.text("main .status").startswith("1 line matches: 0.09 µs")
    place = 250 * (inside + 1)
    fresh.run(f"document.getElementById('box{place}').focus()")
    fresh.press("Enter")
    assert len(fresh.run(BOXES)) == 2 + inside
    assert fresh.run("document.querySelectorAll('.icicle g.box.hit').length") == 1


def test_a_layer_that_also_runs_elsewhere_has_a_box_in_each_place(fresh: Page, tmp_path: Path) -> None:
    """Each is as wide as its part of the time, and no box is wider than the box above it."""
    rows = Rows().range("net Net |fwd", 0, 100).range("net.a A |fwd", 10, 60).range("net.a A |fwd", 200, 500)
    boxes = _opened(fresh, page_of(rows.build(), tmp_path)).run(BOXES)
    assert boxes["1"][0][2] > boxes["0"][0][2] == boxes["2"][0][2]
    widths = [boxes[place][0][3] for place in ("0", "1", "2")]
    assert widths == pytest.approx([widths[2] / 3, widths[2] / 6, widths[2]], abs=2)


def test_a_layer_has_one_share(fresh: Page, trained: Path) -> None:
    """The layers view and the icicle show the same share of each layer, also with a filter."""
    script = "Object.fromEntries([...document.querySelectorAll('.tree tr[data-place]')].map(row => [row.dataset.place,"
    script += "row.querySelector('.col-share').textContent]))"
    for filters in ("", "?phase=backward", "?steps=1"):
        shares = {place: text for place, text in fresh.open(trained, f"layers{filters}").run(script).items() if text}
        _opened(fresh, trained, f"icicle{filters}")
        labels = "Object.fromEntries([...document.querySelectorAll('.icicle .box[data-place]')]"
        labels = fresh.run(f"{labels}.map(one => [one.dataset.place, one.ariaLabel]))")
        found = {
            place: label.split(" · ")[2].split(",")[0] for place, label in labels.items() if label.count(" · ") > 1
        }
        assert len(found) > 4
        assert found == {place: shares[place] for place in found}


def test_print_keeps_colours(fresh: Page, trained: Path) -> None:
    """SVG colours print without background graphics; the picture fits the paper, and its controls are left out."""
    _opened(fresh, trained)
    fresh.send("Emulation.setEmulatedMedia", media="print")
    assert fresh.run("getComputedStyle(document.querySelector('.icicle .fill.backward')).fill") != "none"
    assert fresh.run("getComputedStyle(document.querySelector('main form')).display") == "none"
    fresh.send("Emulation.setEmulatedMedia", media="")


def test_all_lanes_have_kinds(tmp_path: Path) -> None:
    """The page knows which lanes of the timeline are those of a device."""
    rows = Rows().range("fc Linear |fwd", 0, 900).kernel(10, (20, 60))
    data = page_data(rows.build(), "made")
    lanes = data["runs"][0]["timeline"]["lanes"]
    assert [(lane["kind"], lane["device"]) for lane in lanes] == [("thread", ""), ("stream", "GPU 0")]
    assert as_page(data, "made")


def test_texts_are_legible_where_phases_meet(fresh: Page, tmp_path: Path) -> None:
    """The line between two phases does not cross the name of a box, which has the ink of the phase behind it."""
    rows = Rows().range("a A |fwd", 0, 500).range("a A |bwd", 500, 1000)
    rows.range("b B |fwd", 1000, 1900).range("b B |bwd", 1900, 2000).range("Optimizer Adam |opt", 2000, 3000)
    _opened(fresh, page_of(rows.build(), tmp_path))
    seams = fresh.run("[...document.querySelectorAll('.icicle .seam')].map(one => one.parentNode.ariaLabel[0])")
    assert seams == ["b"]
    inks = "[...document.querySelectorAll('.icicle text')].map(one => [one.textContent[0], one.className.baseVal])"
    found = dict(fresh.run(inks))
    assert found["a"] == "box backward halo" or found["a"] == "box forward halo"
    assert (found["b"], found["O"]) == ("box forward", "box optimizer")


def test_zoom_into_a_layer_without_time(fresh: Page, tmp_path: Path) -> None:
    """A layer whose ranges have no length fills the width, with its name and no color."""
    path = page_of(Rows().range("fc Linear |fwd", 0, 0).range("head Linear |fwd", 10, 900).build(), tmp_path)
    _opened(fresh, path, "icicle/0")
    assert fresh.text("main .detail strong") == "fc Linear"
    assert (
        fresh.run("[...document.querySelectorAll('.icicle text')].map(one => one.textContent)")[1]
        == "fc Linear · 0 · 0.0%"
    )
