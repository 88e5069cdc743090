"""The HTML page in a real browser: what it shows, how it is used, and that profiles cannot do anything in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from chromium import Page, browser
from shared_data import shared
from sqlite_profile import SqliteProfile, training
from tables import Rows, many_kernels

from annot.analyze.counters import layer_counters
from annot.cli import main
from annot.correlate import Attribution, attribute, by_layer
from annot.profile import Profile
from annot.read import load
from annot.report import units
from annot.report.page import as_page
from annot.report.page.data import report_data

US = 1000
VIEWS = ("summary", "layers", "layer/0", "kernels", "roofline", "steps", "timeline")
SCRIPTS = Path(str(as_page.__code__.co_filename)).parent
HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><b>&amp;`${1}", "line\u2028and\u2029end",
    "x" * 10_000, "\u202eevil\u202c שלום עולם", "{{script}} {{data}}", "javascript:alert(1)",
    "\x1b[31m\x00", "__proto__",
)  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of two steps of a small network."""
    folder = tmp_path_factory.mktemp("page")
    return _written(training(device=True).write(folder / "run.sqlite"))


@pytest.fixture
def fresh(page: Page) -> Iterator[Page]:
    """Give the page, and see at the end that nothing went wrong in it and nothing was asked of the network."""
    page.problems.clear()
    yield page
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:,"))] == []


def _written(profile: Path, *options: str) -> Path:
    out = profile.with_suffix(".html")
    assert main(["report", str(profile), "--format", "html", "-o", str(out), *options]) == 0
    return out


def _page_of(profile: Profile, folder: Path) -> Path:
    out = folder / "made.html"
    out.write_bytes(as_page(report_data(attribute(profile), "made"), "made"))
    return out


def _tree(page: Page) -> dict[str, list[str]]:
    """The cells of each line of the layer tree that is shown, by its label."""
    script = (
        "[...document.querySelectorAll('.tree tbody tr')].map(row => [row.querySelector('.name').textContent,"
        "[...row.querySelectorAll('td.number')].map(cell => cell.innerText)])"
    )
    return dict(page.run(script))


def _column(page: Page, title: str) -> list[str]:
    heads = page.run("[...document.querySelectorAll('.tree thead th.number')].map(one => one.textContent.trim())")
    place = heads.index(title)
    return [cells[place] for cells in _tree(page).values()]


def _frames(page: Page) -> None:
    """Let the page draw what was asked for."""
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def test_all_views_from_disk_without_a_request(fresh: Page, trained: Path) -> None:
    """The page is small, may ask for nothing, and shows each view without a complaint of the browser."""
    content = trained.read_text()
    assert len(content) < 1_000_000
    assert "default-src 'none'" in content
    assert "unsafe" not in content.partition("<style>")[0]
    fresh.open(trained)
    for view in VIEWS:
        fresh.go(view)
        assert fresh.text("main h1")
    assert [url for url in fresh.requests if url != "data:,"] == [trained.as_uri()]


def test_policy_stops_what_would_be_injected(page: Page, trained: Path) -> None:
    """Even markup that got into the page could neither run nor ask for anything."""
    page.open(trained)
    page.problems.clear()
    done = page.run(
        "new Promise(done => { window.ran = false; const one = document.createElement('script');"
        "one.textContent = 'window.ran = true'; document.body.append(one);"
        "fetch('http://127.0.0.1:9/').then(() => done('asked'), () => done(window.ran)); })"
    )
    assert done is False
    assert any("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()


def test_summary_says_shares_of_the_steps(fresh: Page, trained: Path) -> None:
    """The numbers are those of the summary: 4.02 of 4.24 ms in kernels, and the layers with the most time."""
    fresh.open(trained, "summary")
    assert fresh.texts(".card dd")[0].startswith("7.000 ms")
    rows = [re.split(r"\s*\t\s*|\n", row) for row in fresh.texts("main table.plain tbody tr")]
    assert next(row[:3] for row in rows if row[0] == "kernels") == ["kernels", "4.020 ms", "94.8%"]
    assert fresh.texts("ol.top a")[:2] == ["features.0", "classifier.1"]


def test_layers_have_the_numbers_of_the_table(fresh: Page, trained: Path) -> None:
    """Forward, backward, total, self, share, calls, kernels and host of each layer, as `annot report` prints them."""
    fresh.open(trained, "layers")
    tree = _tree(fresh)
    assert list(tree)[:5] == ["(model)", "features", "0", "1", "classifier.1"]
    assert tree["0"] == ["1.800", "3.000", "4.800", "4.800", "68.6%", "2", "4", "1.840"]
    widths = fresh.run(
        "[...document.querySelectorAll('.tree tbody tr')[2].querySelectorAll('.bar span')].map(s => s.style.width)"
    )
    assert [float(width[:-1]) for width in widths] == pytest.approx([100 * 1.8 / 6.7, 100 * 3 / 6.7], rel=1e-3)


def test_sorting_keeps_layers_below_their_own(fresh: Page, trained: Path) -> None:
    """Siblings are sorted, the largest first and then the smallest; the heading says which."""
    fresh.open(trained, "layers")
    assert list(_tree(fresh))[1:3] == ["features", "0"]
    fresh.click(".tree thead th:nth-child(5) button")  # Total
    assert fresh.run("document.querySelector('.tree thead .sorted').ariaSort") == "descending"
    assert list(_tree(fresh))[:5] == ["(model)", "features", "0", "1", "classifier.1"]
    fresh.click(".tree thead th:nth-child(5) button")
    assert list(_tree(fresh))[:5] == ["(model)", "classifier.1", "features", "1", "0"]
    assert fresh.run("document.querySelector('.tree thead .sorted').ariaSort") == "ascending"


def test_search_and_filters(fresh: Page, trained: Path) -> None:
    """What is found stands with what is above it; phase and class leave the others out; steps add up some."""
    fresh.open(trained, "layers")
    fresh.press("/")
    fresh.type("relu")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 3")
    assert list(_tree(fresh)) == ["(model)", "features", "1"]
    assert "1 line of 12" in fresh.text("main .told")
    fresh.run("document.getElementById('search').select()")
    fresh.type("nothing like this")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 0")
    fresh.open(trained, "layers")
    _choose(fresh, "phase", "backward")
    fresh.wait("!document.querySelector('.tree').textContent.includes('Epoch')")
    assert _column(fresh, "Total") == _column(fresh, "Backward")
    _choose(fresh, "module", "Linear")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 2")
    assert _tree(fresh)["classifier.1"][0] == "1.200"


def test_steps_filter_agrees_with_the_command(fresh: Page, trained: Path) -> None:
    """The times of step 1 are those of `--steps 1`; a text that is no steps changes nothing and is marked."""
    attribution = attribute(load(trained.with_suffix(".sqlite")), steps=slice(1, 2))
    rows = by_layer(attribution).filter(pl.col("layer") == "features.0")
    assert rows["gpu_ns"].sum() == 2_400 * US
    fresh.open(trained, "layers")
    fresh.run("document.getElementById('steps').focus()")
    fresh.type("1")
    fresh.wait("document.querySelector('.tree').textContent.includes('2.400')")
    assert _tree(fresh)["0"][2] == "2.400"
    fresh.type(":x")
    fresh.wait("document.getElementById('steps').getAttribute('aria-invalid') === 'true'")
    assert _tree(fresh)["0"][2] == "2.400"


def test_keys_walk_in_the_tree_and_open_a_layer(fresh: Page, trained: Path) -> None:
    """Down, left (folds), right (unfolds), left (to what stands above), Enter: the page of the layer."""
    fresh.open(trained, "layers")
    fresh.run("document.querySelector('.tree tbody tr').focus()")
    at = "document.activeElement.querySelector('.name')?.textContent"
    fresh.press("ArrowDown")
    assert fresh.run(at) == "features"
    fresh.press("ArrowLeft")
    assert fresh.run("document.activeElement.ariaExpanded") == "false"
    assert list(_tree(fresh))[:3] == ["(model)", "features", "classifier.1"]
    fresh.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert fresh.run(at) == "1"
    fresh.press("ArrowLeft")
    assert fresh.run(at) == "features"
    fresh.press("ArrowDown", "Enter")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("main h1").split() == ["features.0", "Conv2d"]


def test_page_of_a_layer(fresh: Page, trained: Path) -> None:
    """Its kernels with their times, its shapes, the way back, and its steps."""
    fresh.open(trained, "layer/2")
    assert fresh.texts(".crumbs a") == ["Layers", "(model)", "features"]
    assert fresh.texts(".shapes li") == ["[16,3,224,224]f32", "[32,3,224,224]f32"]
    facts = [row.split("\t") for row in fresh.texts(".facts tbody tr")]
    assert ["GPU time", "1.800 ms", "3.000 ms"] in facts
    table = "section:has(table[class=''], table:not([class])) tbody tr"
    kernels = [row.split("\t") for row in fresh.texts(table)]
    assert [row[:2] for row in kernels] == [["conv_bwd", "backward"], ["conv_fwd", "forward"]]
    assert fresh.run("document.querySelectorAll('main svg rect').length") == 4


def test_counters_of_a_layer(fresh: Page, tmp_path: Path) -> None:
    """What hardware counters say of a layer stands on its page, as the table of bottlenecks has it."""
    profile = load(shared("ncu/leleucas_bert_attention_torch_a100.csv"))
    attribution = attribute(profile)
    row = layer_counters(attribution)
    assert row is not None
    fresh.open(_page_of(profile, tmp_path), "layer/0")
    facts = dict(line.split("\t")[:2] for line in fresh.texts("table[aria-label='Hardware counters'] tbody tr"))
    names = {"L1 throughput": "l1_throughput", "L2 throughput": "l2_throughput"}
    assert facts == {label: f"{units.amount(row[name][0])}%" for label, name in names.items()}
    assert "NaN" not in fresh.go("kernels").text("main")  # of kernels whose times nobody knows


def test_tables_sort_and_search(fresh: Page, trained: Path) -> None:
    """Kernels: the longest first, then by name; the search leaves those that have the text."""
    fresh.open(trained, "kernels")
    names = "main section:last-of-type tbody .kernel"
    assert fresh.texts(names)[:2] == ["conv_bwd", "conv_fwd"]
    fresh.click("main section:last-of-type thead th:first-child button")
    assert fresh.texts(names)[:3] == ["(copy HtoD)", "conv_bwd", "conv_fwd"]
    assert fresh.run("document.activeElement.textContent.startsWith('Name')")  # sorting does not lose the place
    fresh.press("/")
    fresh.type("RELU")
    fresh.wait(f"document.querySelectorAll('{names}').length === 2")


def test_roofline_stands_under_the_peaks_of_the_device(fresh: Page, tmp_path: Path) -> None:
    """A point per layer whose work is known, below the roofs, that leads to the layer."""
    rows = Rows()
    for step in range(2):
        zero = 1_000_000 * step
        rows.range("fc Linear [256,1024]f32 out=1024 bias=1 |fwd", zero, zero + 900_000)
        rows.kernel(zero + 30, (zero + 50, zero + 60_050), name="ampere_sgemm_128x64_tn")
    device = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "id": 0}
    fresh.open(_page_of(rows.build(devices=[device]), tmp_path), "roofline")
    assert "A100" in fresh.text("main .told")
    said = fresh.run("document.querySelector('svg a').getAttribute('aria-label')")
    assert said.startswith("fc Linear forward: ")
    assert "FLOP/s" in said
    roof, point = fresh.run(
        "[document.querySelector('.roof').getBBox().y, Number(document.querySelector('circle').getAttribute('cy'))]"
    )
    assert roof < point
    fresh.run("document.querySelector('svg a').focus()")
    fresh.press("Enter")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")


def test_steps_over_time(fresh: Page, tmp_path: Path) -> None:
    """A bar for each step; of a thousand the longest of some neighbours, which is said."""
    rows = Rows()
    for step in range(1000):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + (900 if step == 502 else 500))
    fresh.open(_page_of(rows.build(), tmp_path), "steps")
    assert "1,000 steps" in fresh.text("main .told")
    assert "the longest of 3 steps" in fresh.text("main section .hint")
    titles = fresh.run("[...document.querySelectorAll('main svg g title')].map(one => one.textContent)")
    assert "Step 502: other 0.90 µs" in titles
    assert len(titles) == 334


def _range(page: Page) -> tuple[float, float]:
    _frames(page)
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
    assert fresh.texts("main section tbody .kernel")[0] == "Epoch 0 |epoch"
    fresh.click("main section tbody tr:nth-child(4) button")
    assert "conv_bwd" in fresh.text(".detail")
    assert "features.0 Conv2d backward" in fresh.text(".detail")
    fresh.run("scrollTo(0, 0); document.getElementById('timeline').focus()")
    fresh.press("Enter")
    begin, end = _range(fresh)
    assert end - begin == pytest.approx(1.2 * 1500 * US, rel=0.01)
    fresh.wait("document.querySelector('main section table').textContent.split('conv_fwd').length === 2")  # one of two


def test_a_large_timeline_is_a_sample_and_says_so(fresh: Page, tmp_path: Path) -> None:
    """The page says how the events were chosen, and draws what can be seen."""
    fresh.open(_page_of(many_kernels(250_000), tmp_path), "timeline")
    assert re.search(r"A sample: [\d,]+ of 250,000 events", fresh.text("main .told"))
    fresh.wait("Number(document.getElementById('timeline').dataset.drawn) > 100")
    drawn = int(fresh.run("document.getElementById('timeline').dataset.drawn"))
    assert drawn < 5_000  # what lies in one pixel is drawn once
    fresh.run("document.getElementById('timeline').focus()")
    for _ in range(12):
        fresh.press("+")
    begin, end = _range(fresh)
    assert end - begin == pytest.approx(2_500_000 / 2**12, rel=0.01)


def _hostile() -> Profile:
    rows = Rows()
    for number, name in enumerate(HOSTILE):
        zero = 1000 * number
        rows.range(name, zero, zero + 900).kernel(zero + 10, (zero + 20, zero + 500 + number), name=f"kernel {name}")
    notes = [f"note {name}" for name in HOSTILE]
    return rows.build(notes=notes, source=HOSTILE[0], producer=HOSTILE[1], devices=[{"name": HOSTILE[0]}])


def test_texts_of_a_profile_are_only_texts(fresh: Page, tmp_path: Path) -> None:
    """Names that look like markup or script, or turn the direction of writing, appear as they are and do nothing."""
    out = tmp_path / "hostile.html"
    data = report_data(attribute(_hostile()), HOSTILE[0])
    out.write_bytes(as_page(data, HOSTILE[0]))
    assert "application/json" in out.read_text()  # not compressed: texts stand in the page as they are
    assert HOSTILE[0] not in out.read_text().partition("</style>")[2]
    fresh.open(out, "layers")
    shown = fresh.run("[...document.querySelectorAll('.tree bdi.name')].map(one => one.textContent)")
    for name in HOSTILE[:3] + HOSTILE[6:8]:
        assert name in shown
    assert "x" * 10_000 in shown
    assert not any(mark in " ".join(shown) for mark in "\u2028\u2029\u202e\x1b\x00")
    for view in (*VIEWS, *(f"layer/{number}" for number in range(len(HOSTILE)))):
        fresh.go(view)
        assert fresh.run("document.querySelectorAll('main img, main b, main script, main iframe').length") == 0
        assert fresh.run("document.documentElement.scrollWidth <= innerWidth")
    assert fresh.run("document.title") == HOSTILE[0]
    assert fresh.run("document.querySelectorAll('script').length") == 2


def test_compressed_data_shows_the_same(fresh: Page, tmp_path: Path) -> None:
    """Above some size the data is compressed; names that are markup stay texts there, too."""
    data = report_data(attribute(_hostile()), "made")
    data["runs"][0]["meta"]["notes"] += ["filler"] * 40_000
    out = tmp_path / "large.html"
    out.write_bytes(as_page(data, "large"))
    assert "application/gzip+json" in out.read_text()
    assert len(out.read_bytes()) < 400_000
    fresh.open(out, "layers")
    assert HOSTILE[0] in fresh.run("[...document.querySelectorAll('.tree bdi.name')].map(one => one.textContent)")


def test_damaged_data_is_said(page: Page, tmp_path: Path, trained: Path) -> None:
    """A page cut in two says that it cannot be read, rather than nothing."""
    out = tmp_path / "cut.html"
    out.write_text(trained.read_text().replace('"runs":[', '"runs":[['))
    page.open(out)
    assert "cannot be read" in page.text("main [role=alert]")
    page.problems.clear()


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (lambda: Profile.build({}), {
            "summary": "The profile is empty", "layers": "No layers: use emit_ranges", "kernels": "no device work",
            "steps": "No steps", "timeline": "Nothing to show", "roofline": "No layer whose work is known",
        }),
        (lambda: Rows().range("fc Linear [4,8]f32 |fwd", 0, 900).build(), {
            "summary": "times are those of the host", "layers": "Host time in µs, 1 line", "kernels": "no device work",
            "timeline": "1 event in 1 lane",
        }),
        (lambda: Rows().kernel(None, (10, 90)).build(), {
            "summary": "0.0% in ranges", "layers": "GPU time in µs, 1 line", "timeline": "1 event in 1 lane",
        }),
        (lambda: Rows().range("fc Linear |fwd", 0, 9).kernel(1, (2, 8)).build(host_times=False), {
            "layers": "GPU time in µs", "timeline": "1 event in 1 lane",
        }),
    ],
    ids=["empty", "cpu", "no layers", "no host times"],
)  # fmt: skip
def test_profiles_that_lack_something(fresh: Page, tmp_path: Path, profile: Any, said: dict[str, str]) -> None:
    """Each view says what there is not, and how to have it."""
    fresh.open(_page_of(profile(), tmp_path))
    for view in VIEWS:
        fresh.go(view)
        assert said.get(view, "") in fresh.text("main")
        assert not re.search(r"NaN|undefined|Infinity|\[object", fresh.text("main"))


def test_ranks_are_chosen_and_compared(fresh: Page, tmp_path: Path) -> None:
    """Several profiles: a view of who is slow, and a choice that all other views follow."""
    paths = []
    for rank, length in enumerate((300, 700)):
        profile = SqliteProfile()
        profile.layer("fc Linear [4,8]f32 |fwd", 0, 900)
        profile.call(10, 20, 1)
        profile.kernel(30, 30 + length * US, 1)
        paths.append(str(profile.write(tmp_path / f"run_rank{rank}.sqlite")))
    out = tmp_path / "ranks.html"
    assert main(["report", *paths, "--format", "html", "-o", str(out)]) == 0
    fresh.open(out, "layers")
    assert _tree(fresh)["fc"][0] == "300.00"
    _choose(fresh, "rank", "1")
    assert _tree(fresh)["fc"][0] == "700.00"
    fresh.go("ranks")
    rows = [row.split("\t") for row in fresh.texts("main section:nth-of-type(2) tbody tr")]
    assert rows[0][:5] == ["fc Linear", "forward", "500.00 µs", "700.00 µs", "1"]


def test_processes_of_a_file_are_ranks(fresh: Page, tmp_path: Path) -> None:
    """With --by-process each process of one file has views of its own, and only its own work in them."""
    profile = SqliteProfile()
    for process, length in ((1, 300), (2, 700)):
        profile.layer("fc Linear [4,8]f32 |fwd", 0, 900, of_process=process)
        profile.call(10, 20, 1, of_process=process)
        profile.kernel(30, 30 + length * US, 1, of_process=process)
    run = profile.write(tmp_path / "run.sqlite")
    fresh.open(_written(run, "--by-process"), "layers")
    assert _tree(fresh)["fc"][0] == "300.00"
    _choose(fresh, "rank", "1")
    assert _tree(fresh)["fc"][0] == "700.00"
    fresh.open(_written(run, "--by-process", "--rank", "1", "--force"), "layers")
    assert _tree(fresh)["fc"][0] == "700.00"
    assert fresh.run("document.getElementById('rank')") is None


def test_comparison(fresh: Page, tmp_path: Path) -> None:
    """Two profiles in the same shell: what became slower first, by layer or kernel, searched and filtered."""
    before = training(device=True).write(tmp_path / "a.sqlite")
    slower = training(device=True)
    for kernel in slower.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        kernel["end"] = kernel["start"] + 2 * (kernel["end"] - kernel["start"])
    after = slower.write(tmp_path / "b.sqlite")
    out = tmp_path / "comparison.html"
    assert main(["compare", str(before), str(after), "--format", "html", "-o", str(out), "--by", "phase"]) == 0
    fresh.open(out)
    assert fresh.run("document.getElementById('by').value") == "phase"
    _choose(fresh, "by", "layer")
    fresh.wait("document.querySelector('main tbody').textContent.includes('features.0')")
    rows = {tuple(row.split("\t")[:2]): row.split("\t") for row in fresh.texts("main tbody tr")}
    assert rows["features.0 Conv2d", "forward"][2:5] == ["0.900", "1.800", "0.900"]
    assert rows["features.0 Conv2d", "forward"][6] == "0.500"
    _choose(fresh, "only", "faster")
    fresh.wait("document.querySelectorAll('main tbody tr').length === 0")
    _choose(fresh, "only", "")
    _choose(fresh, "by", "kernel")
    fresh.wait("document.querySelector('main tbody').textContent.includes('conv_bwd')")
    assert fresh.texts("main tbody .kernel")[0] == "conv_bwd"


def _choose(page: Page, name: str, value: str) -> None:
    """Choose an option as a person does, whose browser then says that something changed."""
    page.run(
        f"(() => {{ const one = document.getElementById('{name}'); one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_off_and_all_has_a_name(fresh: Page, trained: Path, width: int) -> None:
    """No view is wider than its window, and all that can be used has a name for those who do not see it."""
    fresh.open(trained, width=width)
    for view in VIEWS:
        fresh.go(view)
        assert fresh.run("document.documentElement.scrollWidth <= innerWidth"), view
        nodes = fresh.send("Accessibility.getFullAXTree")["nodes"]
        used = [node for node in nodes if node.get("role", {}).get("value") in _USED and not node["ignored"]]
        assert len(used) > 6
        nameless = [node["role"]["value"] for node in used if not node.get("name", {}).get("value")]
        assert nameless == [], view
    fresh.send("Accessibility.disable")


_USED = (
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "table",
    "treegrid",
    "application",
    "image",
    "columnheader",
)


def test_light_and_dark(fresh: Page, trained: Path) -> None:
    """The page follows the system until somebody chooses, and remembers that as far as the browser lets it."""
    background = "getComputedStyle(document.body).backgroundColor"
    fresh.open(trained, dark=True)
    dark = fresh.run(background)
    _choose(fresh, "theme", "light")
    assert fresh.run(background) != dark
    fresh.open(trained, dark=True)
    assert fresh.run(background) != dark
    _choose(fresh, "theme", "auto")
    assert fresh.run(background) == dark


def test_numbers_read_as_on_the_terminal(fresh: Page, trained: Path) -> None:
    """The rules of `annot.report.units` hold in the page, number by number."""
    times = [0, 1, 999, 1_234, 999_999, 1_000_000, 12_345_678, 100_000_000, 999_999_999, 1_000_000_001, 98_765_432_101]
    amounts = [0, 0.25, 1, 9.994, 12.34, 99.96, 123.4, 999, 999.6, 1000, 140_553_600, 19.5e12, 3.1e15, 2e18, 4.2e19]
    fresh.open(trained)
    script = (SCRIPTS / "units.js").read_text()
    found = fresh.run(
        f"(() => {{ {script}; return [{times}.map(duration), {amounts}.map(one => amount(one)),"
        "share(1, 3), count(1234567)]; })()"
    )
    assert found[0] == [units.duration(time) for time in times]
    assert found[1] == [units.amount(number) for number in amounts]
    assert found[2:] == [units.share(1, 3), units.count(1_234_567)]


def test_times_beyond_what_scripts_count(fresh: Page, tmp_path: Path) -> None:
    """Instants since 1970 in ns have more digits than numbers of scripts: times of the page begin at the first one."""
    zero = 1_753_000_000_000_000_001
    rows = Rows().range("Batch 0 |step", zero, zero + 3).range("Batch 1 |step", zero + 5, zero + 9)
    data: dict[str, Any] = report_data(_attributed(rows), "late")
    assert data["runs"][0]["timeline"]["start_ns"] == [0, 5]
    assert data["runs"][0]["steps"]["start_ns"] == [0, 5]
    out = tmp_path / "late.html"
    out.write_bytes(as_page(data, "late"))
    fresh.open(out, "timeline")
    fresh.wait("document.getElementById('timeline').dataset.drawn === '2'")


def _attributed(rows: Rows) -> Attribution:
    return attribute(rows.build())
