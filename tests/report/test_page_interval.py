"""Intervals, keys and tooltips of the timeline of the HTML page in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from report_pages import frames, page_data, page_of
from tables import Rows, busy_steps

from annot.report.page.render import as_page
from annot.report.units import duration

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000


def _opened(page: Page, path: Path, view: str = "timeline", drawn: int = 50) -> Page:
    page.open(path, view)
    page.wait(f"document.getElementById('timeline').dataset.drawn === '{drawn}'")
    return page


def _range(page: Page) -> tuple[float, float]:
    frames(page)
    data = page.run("({...document.getElementById('timeline').dataset})")
    return float(data["from"]), float(data["to"])


def _sums(page: Page) -> dict[str, str]:
    texts = page.texts("main .panel .pairs > div")
    return dict(text.split("\n")[:2] for text in texts)


def _events(path: Path) -> tuple[dict[str, Any], list[tuple[int, int, str, int]]]:
    """The run, and start, end, text and layer row of each GPU activity, from the data of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found
    run = json.loads(found[1])["runs"][0]
    line = run["timeline"]
    devices = [bool(lane["device"]) for lane in line["lanes"]]
    columns = zip(line["lane"], line["start_ns"], line["length_ns"], line["text"], line["of"], strict=True)
    return run, [(at, at + long, line["texts"][text], of) for lane, at, long, text, of in columns if devices[lane]]


@pytest.mark.parametrize(("begin", "end"), [(0, 5_070_000), (437_000, 2_913_000), (1_000_000, 1_100_500)])
def test_sums_of_an_interval(fresh: Page, trained: Path, begin: int, end: int) -> None:
    """Busy and idle time, and the time by phase, layer and kernel, are those of the activities cut to the interval."""
    run, events = _events(trained)
    cut = [(max(begin, a), min(end, b), text, of) for a, b, text, of in events if a < end and b > begin]
    busy = sum(any(a <= at < b for a, b, *_ in cut) for at in range(begin, end, 500)) * 500
    phases: dict[str, int] = {}
    kernels: dict[str, int] = {}
    for start, stop, text, of in cut:
        phase = run["rows"]["phase"][of]
        phase = phase if of >= 0 else "other"
        phases[phase] = phases.get(phase, 0) + stop - start
        kernels[text] = kernels.get(text, 0) + stop - start
    _opened(fresh, trained, f"timeline?begin={begin}&end={end}")
    said = _sums(fresh)
    assert said["GPU 0 busy"].startswith(duration(busy))
    assert said["GPU 0 idle"].startswith(duration(end - begin - busy))
    assert said["Kernels and copies"] == str(len(cut))
    for phase, ns in phases.items():
        assert said[phase].startswith(duration(ns)), phase
    rows = [row.split("\t") for row in fresh.texts(".sums:last-of-type tbody tr")]
    assert {row[0].strip(): row[1] for row in rows} == {name: duration(ns) for name, ns in kernels.items()}


def test_drag_selects_an_interval(fresh: Page, trained: Path) -> None:
    """In the time axis, with Shift, or with the switch; a plain drag pans; a click in the axis clears."""
    _opened(fresh, trained)
    x, y, width = fresh.run(
        "(box => [box.x, box.y, box.width])(document.getElementById('timeline').getBoundingClientRect())"
    )
    whole = _range(fresh)
    picked = "new URLSearchParams(location.hash.split('?')[1])"

    def interval() -> list[float]:
        return [float(one or "nan") for one in fresh.run(f"['begin', 'end'].map(key => {picked}.get(key))")]

    fresh.drag(x + 0.2 * width, y + 8, x + 0.6 * width)
    expected = [whole[0] + part * (whole[1] - whole[0]) for part in (0.2, 0.6)]
    assert interval() == pytest.approx(expected, abs=5 * US)
    assert _range(fresh) == whole
    length = _sums(fresh)["Length"]
    fresh.drag(x + 0.6 * width, y + 60, x + 0.2 * width, shift=True)  # from right to left: the same
    assert _sums(fresh)["Length"] == length
    fresh.drag(x + 0.5 * width, y + 60, x + 0.4 * width)
    assert _range(fresh) != whole  # panned
    assert interval() == pytest.approx(expected, abs=5 * US)
    fresh.click("main button[aria-pressed]")
    now = _range(fresh)
    fresh.drag(x + 0.3 * width, y + 60, x + 0.4 * width)
    assert _range(fresh) == now
    assert interval()[1] - interval()[0] == pytest.approx(0.1 * (now[1] - now[0]), rel=0.02)
    fresh.drag(x + 0.3 * width, y + 8, x + 0.3 * width)  # a click
    assert fresh.run(f"{picked}.get('begin')") is None
    assert fresh.texts("main .panel .pairs") == []


def test_interval_by_keys(fresh: Page, trained: Path) -> None:
    """M takes the selected event, Enter zooms to the interval, Escape clears it."""
    _opened(fresh, trained)
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("m")
    assert _sums(fresh)["Length"] == "5.070 ms"
    fresh.press("n", "ArrowDown", "m")
    length = fresh.texts(".detail dd")[1].split(",")[0]
    assert _sums(fresh)["Length"] == length
    fresh.click("main .panel .filters button")
    begin, end = _range(fresh)
    assert end - begin < 5070 * US
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("Escape")
    assert fresh.texts("main .panel .pairs") == []


def test_w_a_s_d(fresh: Page, trained: Path) -> None:
    """W and S zoom, A and D pan, before anything in the page has the focus, too; a form keeps its letters."""
    _opened(fresh, trained)
    whole = _range(fresh)
    fresh.press("w")
    near = _range(fresh)
    assert near[1] - near[0] == pytest.approx(0.7 * (whole[1] - whole[0]))
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("d")
    later = _range(fresh)
    assert later[0] - near[0] == pytest.approx(0.15 * (near[1] - near[0]))
    fresh.press("a")
    assert _range(fresh) == pytest.approx(near)
    fresh.press("s")
    assert _range(fresh) == pytest.approx(whole, abs=1)
    fresh.run("document.getElementById('theme').focus()")
    fresh.press("w")
    assert _range(fresh) == pytest.approx(whole, abs=1)
    fresh.go("layers")
    fresh.press("w")  # the timeline of before does not listen any more
    assert fresh.run("location.hash") == "#layers"


def test_wheel_keys_zoom_at_the_mouse(fresh: Page, trained: Path) -> None:
    """With the mouse over the timeline, W keeps the time under it in place."""
    _opened(fresh, trained)
    x, y, width = fresh.run(
        "(box => [box.x, box.y, box.width])(document.getElementById('timeline').getBoundingClientRect())"
    )
    whole = _range(fresh)
    fresh.hover(x + 0.25 * width, y + 60)
    fresh.press("w")
    near = _range(fresh)
    at = whole[0] + 0.25 * (whole[1] - whole[0])
    assert near[0] + 0.25 * (near[1] - near[0]) == pytest.approx(at, rel=0.01)


def test_tooltip_says_layer_phase_and_lane(fresh: Page, trained: Path) -> None:
    """A kernel under the mouse: its name, time, stream, layer and phase; elsewhere nothing."""
    _opened(fresh, trained)
    x, y = fresh.run(
        "(box => [box.x + box.width / 2, box.bottom])(document.getElementById('timeline').getBoundingClientRect())"
    )
    fresh.hover(x, y - 12)
    tip = fresh.text(".lanes .tip")
    assert "conv_fwd" in tip
    assert "features.0 Conv2d forward" in tip
    assert "GPU 0, stream 7" in tip
    fresh.hover(x, y + 100)
    assert fresh.run("document.querySelector('.lanes .tip').hidden")


def test_host_times_without_a_device(fresh: Page, tmp_path: Path) -> None:
    """A CPU profile: the time of each layer outside its child layers, cut to the interval."""
    rows = Rows().range("net Net |fwd", 0, 1000 * US).range("net.a Linear |fwd", 100 * US, 400 * US)
    rows.range("net.b ReLU |fwd", 500 * US, 900 * US)
    path = page_of(rows.build(), tmp_path)
    _opened(fresh, path, f"timeline?begin={200 * US}&end={600 * US}", drawn=3)
    assert _sums(fresh)["Ranges"] == "3"
    times = {row.split("\t")[0].strip(): row.split("\t")[2] for row in fresh.texts(".sums tbody tr")}
    assert times == {"net.a Linear": "200.00 µs", "net.b ReLU": "100.00 µs", "net Net": "100.00 µs"}
    assert not re.search(r"NaN|undefined", fresh.text("main"))


@pytest.mark.parametrize("device", [True, False])
def test_sums_of_a_sample_are_those_of_all_events(fresh: Page, tmp_path: Path, device: bool) -> None:
    """With a twelfth of the events: equal from cell to cell, and correct to the error that the page says between."""
    profile = busy_steps(150, device=device)
    whole, sample = (page_data(profile, "made", events=most) for most in (100_000, 400))
    line = sample["runs"][0]["timeline"]
    assert (line["every"] > 1, len(line["start_ns"]), whole["runs"][0]["timeline"]["every"]) == (True, 400, 1)
    bounds = line["cells"]["bounds"]
    found, counted = [], list[str]()
    for data in (whole, sample):
        (tmp_path / "made.html").write_bytes(as_page(data, "made"))
        said = []
        for begin, end in ((bounds[0], bounds[-1]), (bounds[2], bounds[3]), (bounds[1] + 777, bounds[-2] - 3333)):
            fresh.open(tmp_path / "made.html", f"timeline?begin={begin}&end={end}")
            fresh.wait("document.querySelector('.sums tbody')")
            hint = [text for text in fresh.texts("main .panel .hint") if "±" in text]
            times = sorted(row.rpartition("\t")[0] for row in fresh.texts(".sums tbody tr"))  # without the count
            sums = _sums(fresh)
            counted.append(sums.pop("Kernels and copies" if device else "Ranges"))
            said.append((sums, times, hint))
        found.append(said)
    every, some = found
    assert counted[0] == counted[3]
    assert [one[:2] for one in some[:2]] == [one[:2] for one in every[:2]]
    assert [len(hint) for _, _, hint in some] == [0, 0, 1]
    assert [hint for _, _, hint in every] == [[], [], []]
    error = _ns(some[2][2][0].partition("±")[2])
    assert 0 < error < bounds[-1] - bounds[0]
    timed = {term: text for term, text in every[2][0].items() if " " in text}
    assert len(timed) == (4 if device else 3)
    for term, text in timed.items():
        assert _ns(some[2][0][term]) == pytest.approx(_ns(text), abs=error + 10), term


def _ns(text: str) -> float:
    number, unit = re.split("[ :]", text)[:2]
    return float(number) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
