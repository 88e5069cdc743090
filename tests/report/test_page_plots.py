"""The roofline, the steps and the timeline of the HTML page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from report_pages import frames, page_data, page_of
from tables import Rows, many_kernels

from annot.report.page.render import as_page

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000


def test_roofline_stands_under_the_peaks_of_the_device(fresh: Page, tmp_path: Path) -> None:
    """A point per layer whose work is known, below the roofs, that leads to the layer."""
    rows = Rows()
    for step in range(2):
        zero = 1_000_000 * step
        rows.range("fc Linear [256,1024]f32 out=1024 bias=1 |fwd", zero, zero + 900_000)
        rows.kernel(zero + 30, (zero + 50, zero + 60_050), name="ampere_sgemm_128x64_tn")
    device = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "id": 0}
    fresh.open(page_of(rows.build(devices=[device]), tmp_path), "roofline")
    assert "A100" in fresh.text("main .status")
    said = fresh.run("document.querySelector('svg a').getAttribute('aria-label')")
    assert said == "fc Linear forward: 8.95 TFLOP/s at 85.3 FLOP per byte, 120.00 µs, bound by compute"
    roof, point = fresh.run("['path.guide', 'circle'].map(one => document.querySelector(one).getBBox().y)")
    assert roof < point
    fresh.run("document.querySelector('svg a').focus()")
    fresh.press("Enter")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")


def test_steps_over_time(fresh: Page, tmp_path: Path) -> None:
    """A bar for each step; of a thousand the longest of some neighbours, which is said; of a layer, too."""
    rows = Rows()
    for step in range(1000):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + (900 if step == 502 else 500))
        rows.range("fc Linear |fwd", 1000 * step, 1000 * step + (700 if step == 502 else 300 + step % 7))
    fresh.open(page_of(rows.build(), tmp_path), "steps")
    assert "1,000 steps" in fresh.text("main .status")
    assert "step (a bar is the longest of 4)" in fresh.run("document.querySelector('.drawing').textContent")
    titles = "[...document.querySelectorAll('.drawing rect title')].map(one => one.textContent)"
    assert "Step 502: forward 0.70 µs of 0.90 µs" in fresh.run(titles)
    fresh.go("layer/1")
    text = "Median 0.30 µs, longest 0.70 µs (step 502), shortest 0.30 µs (step 994). A bar is the longest of 4 steps."
    assert text in fresh.texts("main section .status")
    assert "Step 502: forward 0.70 µs of 0.70 µs" in fresh.run(titles)
    assert len(fresh.run(titles)) == 250


def _range(page: Page) -> tuple[float, float]:
    frames(page)
    data = page.run("({...document.getElementById('timeline').dataset})")
    return float(data["from"]), float(data["to"])


def test_timeline_zooms_and_pans(fresh: Page, trained: Path) -> None:
    """By wheel at the place of the mouse, by drag, by keys; 0 shows all; never beyond what there is."""
    fresh.open(trained, "timeline")
    fresh.wait("document.getElementById('timeline').dataset.drawn === '50'")
    whole = _range(fresh)
    x, y = fresh.middle("#timeline")
    fresh.wheel(x, y, -300)
    fresh.wait(f"Number(document.getElementById('timeline').dataset.to) < {whole[1]}")
    near = _range(fresh)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2.718281828, rel=0.01)
    assert sum(near) == pytest.approx(sum(whole), rel=0.01)
    fresh.drag(x, y, x - 200)
    later = _range(fresh)
    assert later[0] - near[0] == pytest.approx(200 / fresh.run("timeline.clientWidth") * (near[1] - near[0]), rel=0.05)
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("ArrowLeft")
    assert _range(fresh)[0] < later[0]
    for _ in range(40):
        fresh.press("+")
    assert _range(fresh)[1] - _range(fresh)[0] == pytest.approx(20)
    fresh.press("0")
    assert _range(fresh) == whole
    fresh.press("-", "ArrowLeft", "ArrowLeft")
    assert _range(fresh)[0] == pytest.approx(-0.02 * 5070 * US)


def test_timeline_says_what_an_event_is(fresh: Page, trained: Path) -> None:
    """The keys go from event to event and a click selects one; the table has the longest that are in view."""
    fresh.open(trained, "timeline")
    fresh.wait("document.getElementById('timeline').dataset.drawn === '50'")
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("n")
    assert "Epoch 0" in fresh.text(".detail")
    fresh.wait("document.querySelector('main section tbody .kernel')")
    assert fresh.texts("main section tbody .kernel")[0] == "Epoch 0"
    fresh.click("main section tbody tr:nth-child(4) button")
    assert "conv_bwd" in fresh.text(".detail")
    assert "features.0 Conv2d backward" in fresh.text(".detail")
    fresh.run("scrollTo(0, 0); document.getElementById('timeline').focus()")
    fresh.press("Enter")
    begin, end = _range(fresh)
    assert end - begin == pytest.approx(1.2 * 1500 * US, rel=0.01)
    fresh.wait("document.querySelector('main section table').textContent.split('conv_fwd').length === 2")  # one of two


def test_keys_reach_all_lanes_of_the_timeline(fresh: Page, trained: Path) -> None:
    """Down goes from the first row of the first thread to the work of the device, and up back; it is in sight."""
    fresh.open(trained, "timeline", height=300)
    fresh.wait("document.getElementById('timeline').dataset.drawn === '50'")
    fresh.run("document.getElementById('timeline').focus()")
    fresh.run("scrollTo(0, 0)")
    fresh.press("n")
    lanes = []
    for _ in range(30):
        fresh.press("ArrowDown")
        lanes.append(fresh.texts(".detail dd")[2])
    assert lanes[0] == "Thread 1"
    assert lanes[-1] == "GPU 0, stream 7"
    assert 0 < fresh.run("document.getElementById('timeline').getBoundingClientRect().bottom") < 300 + 17
    for _ in range(30):
        fresh.press("ArrowUp")
    assert "Epoch 0" in fresh.text(".detail")


def test_a_large_timeline_is_a_sample_and_says_so(fresh: Page, tmp_path: Path) -> None:
    """The page says how the events were chosen, and draws what can be seen."""
    fresh.open(page_of(many_kernels(250_000), tmp_path), "timeline")
    assert re.search(r"A sample: [\d,]+ of 250,000 events", fresh.text("main .status"))
    fresh.wait("Number(document.getElementById('timeline').dataset.drawn) > 100")
    drawn = int(fresh.run("document.getElementById('timeline').dataset.drawn"))
    assert drawn < 5_000  # what lies in one pixel is drawn once
    fresh.run("document.getElementById('timeline').focus()")
    for _ in range(12):
        fresh.press("+")
    begin, end = _range(fresh)
    assert end - begin == pytest.approx(2_500_000 / 2**12, rel=0.01)


def test_times_beyond_what_scripts_count(fresh: Page, tmp_path: Path) -> None:
    """Instants since 1970 in ns have more digits than numbers of scripts: times of the page begin at the first one."""
    zero = 1_753_000_000_000_000_001
    rows = Rows().range("Batch 0 |step", zero, zero + 3).range("Batch 1 |step", zero + 5, zero + 9)
    data: dict[str, Any] = page_data(rows.build(), "late")
    assert data["runs"][0]["timeline"]["start_ns"] == [0, 5]
    assert data["runs"][0]["steps"]["start_ns"] == [0, 5]
    out = tmp_path / "late.html"
    out.write_bytes(as_page(data, "late"))
    fresh.open(out, "timeline")
    fresh.wait("document.getElementById('timeline').dataset.drawn === '2'")
