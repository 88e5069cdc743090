"""The summary, the layers and the kernels of the HTML page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from chromium import Page
from report_pages import choose, column_of, page_data, page_of, tree_of
from shared_data import shared
from tables import Rows

from annot.analyze.hardware_counters import layer_counters
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.read.formats import load
from annot.report import units
from annot.report.page.data import advice_data
from annot.report.page.render import as_page

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000


def test_summary_says_shares_of_the_steps(fresh: Page, trained: Path) -> None:
    """Totals are per step, the breakdown is that of the summary: 4.02 of 4.24 ms in kernels."""
    fresh.open(trained, "summary")
    assert fresh.texts(".card dd")[0].startswith("3.480 ms")
    rows = [re.split(r"\s*\t\s*|\n", row) for row in fresh.texts("main table.plain tbody tr")]
    assert next(row[:3] for row in rows if row[0] == "other kernels") == ["other kernels", "4.020 ms", "94.8%"]
    assert fresh.texts("ol.top a")[:2] == ["features.0", "classifier.1"]


def test_layers_have_the_numbers_of_the_table(fresh: Page, trained: Path) -> None:
    """Forward, backward, total, self, share, calls, kernels and host of each layer, as the terminal has them."""
    fresh.open(trained, "layers")
    tree = tree_of(fresh)
    assert list(tree)[1:7] == ["Batch", "(model)", "features", "0", "1", "classifier.1"]
    assert tree["0"] == ["0.900", "1.500", "2.400", "2.400", "69.0%", "1", "2", "0.920"]
    widths = fresh.run(
        "[...document.querySelectorAll('.tree tbody tr')[4].querySelectorAll('.bar span')].map(s => s.style.width)"
    )
    assert [float(width[:-1]) for width in widths] == pytest.approx([100 * 1.8 / 6.96, 100 * 3 / 6.96], rel=1e-3)


def test_sorting_keeps_layers_below_their_own(fresh: Page, trained: Path) -> None:
    """Siblings are sorted, the largest first and then the smallest; the heading says which."""
    fresh.open(trained, "layers")
    assert list(tree_of(fresh))[3:5] == ["features", "0"]
    fresh.click(".tree thead th:nth-child(5) button")  # Total
    assert fresh.run("document.querySelector('.tree thead .sorted').ariaSort") == "descending"
    assert list(tree_of(fresh))[:6] == ["Batch", "(model)", "features", "0", "1", "classifier.1"]
    fresh.click(".tree thead th:nth-child(5) button")
    labels = list(tree_of(fresh))
    assert labels[labels.index("(model)") :][:5] == ["(model)", "classifier.1", "features", "1", "0"]
    assert fresh.run("document.querySelector('.tree thead .sorted').ariaSort") == "ascending"


def test_search_and_filters(fresh: Page, trained: Path) -> None:
    """What is found stands with what is above it; phase and class leave the others out; steps add up some."""
    fresh.open(trained, "layers")
    fresh.press("/")
    fresh.type("relu")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 4")
    assert list(tree_of(fresh)) == ["Batch", "(model)", "features", "1"]
    assert "1 line of 10" in fresh.text("main .status")
    fresh.run("document.getElementById('search').select()")
    fresh.type("nothing like this")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 0")
    fresh.open(trained, "layers")
    choose(fresh, "phase", "backward")
    fresh.wait("!document.querySelector('.tree').textContent.includes('Optimizer')")
    assert column_of(fresh, "Total") == column_of(fresh, "Backward")
    choose(fresh, "module", "Linear")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 3")
    assert tree_of(fresh)["classifier.1"][0] == "0.600"  # per step


def test_steps_filter_agrees_with_the_command(fresh: Page, trained: Path) -> None:
    """The times of step 1 are those of `--steps 1`; a text that is no steps changes nothing and is marked."""
    attribution = attribute(load(trained.with_suffix(".sqlite")), steps=slice(1, 2))
    rows = by_layer(attribution).filter(pl.col("layer") == "features.0")
    assert rows["gpu_ns"].sum() == 2_400 * US
    fresh.open(trained, "layers")
    fresh.run("document.getElementById('steps').focus()")
    fresh.type("1")
    fresh.wait("document.querySelector('.tree').textContent.includes('2.400')")
    assert tree_of(fresh)["0"][2] == "2.400"
    fresh.type(":x")
    fresh.wait("document.getElementById('steps').getAttribute('aria-invalid') === 'true'")
    assert tree_of(fresh)["0"][2] == "2.400"


def test_keys_walk_in_the_tree_and_open_a_layer(fresh: Page, trained: Path) -> None:
    """Down, left (folds), right (unfolds), left (to what stands above), Enter: the page of the layer."""
    fresh.open(trained, "layers")
    fresh.run("document.querySelector('.tree tbody tr:nth-child(3)').focus()")
    at = "document.activeElement.querySelector('.name')?.textContent"
    fresh.press("ArrowDown")
    assert fresh.run(at) == "features"
    fresh.press("ArrowLeft")
    assert fresh.run("document.activeElement.ariaExpanded") == "false"
    assert list(tree_of(fresh))[2:5] == ["(model)", "features", "classifier.1"]
    fresh.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert fresh.run(at) == "1"
    fresh.press("ArrowLeft")
    assert fresh.run(at) == "features"
    fresh.press("ArrowDown", "Enter")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("main h1").split() == ["features.0", "Conv2d"]


def test_page_of_a_layer(fresh: Page, trained: Path) -> None:
    """Its kernels with their times, its shapes, the way back, and its steps."""
    fresh.open(trained, "layer/4")
    assert fresh.texts(".crumbs a") == ["Layers", "Batch", "(model)", "features"]
    assert fresh.texts(".shapes li") == ["[16,3,224,224]f32", "[32,3,224,224]f32"]
    facts = [row.split("\t") for row in fresh.texts(".facts tbody tr")]
    assert ["GPU time", "900.00 µs", "1.500 ms"] in facts
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
    fresh.open(page_of(profile, tmp_path), "layer/0")
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


def test_long_paths_show_their_ends(fresh: Page, tmp_path: Path) -> None:
    """Paths of layers begin alike: without room, the first parts are left out. They come back in a wider window."""
    rows = Rows()
    paths = [f"language_model.encoder.layers.{'block.' * 9}dense_{number}" for number in range(2)]
    for number, path in enumerate(paths):
        rows.range(f"{path} Linear |fwd", 1000 * number, 1000 * number + 900)
    fresh.open(page_of(rows.build(), tmp_path), "summary")
    shown = "[...document.querySelectorAll('.panel:first-child > ol.top .path')].map(one => one.innerText)"
    fresh.wait("document.querySelectorAll('.panel:first-child > ol.top .path.cut').length === 2")
    for text, path in zip(fresh.run(shown), paths, strict=True):
        assert path.endswith("." + text)
        assert text.startswith("block.block.")
    assert fresh.run("[...document.querySelectorAll('.path')].every(one => one.scrollWidth <= one.clientWidth)")
    assert [
        one.partition(" ")[0] for one in fresh.run("[...document.querySelectorAll('.top .path')].map(one => one.title)")
    ][:2] == paths
    fresh.run("document.querySelectorAll('.top .name').forEach(one => one.style.maxWidth = 'none')")
    fresh.run("dispatchEvent(new Event('resize'))")
    assert fresh.run(shown) == paths


def test_short_paths_have_no_gap(fresh: Page, tmp_path: Path) -> None:
    """Characters of a path follow each other: `module` with a part of its own for the `m` is not `m odule`."""
    rows = Rows()
    for number, path in enumerate(("module.classifier.1", "module.features.10", "module.encoder.layers.0.fc")):
        rows.range(f"{path} Linear |fwd", 1000 * number, 1000 * number + 900)
    fresh.open(page_of(rows.build(), tmp_path), "summary")
    texts = "(one => [...one.childNodes].map(part => { const range = document.createRange();"
    texts += "range.selectNodeContents(part); return range.getBoundingClientRect(); }))"
    gaps = f"[...document.querySelectorAll('.panel:first-child > ol.top a bdi')].map({texts}).map(boxes =>"
    gaps += " Math.max(0, ...boxes.slice(1).map((box, place) => box.left - boxes[place].right)))"
    assert len(fresh.texts(".panel:first-child > ol.top a bdi.name")) == 3
    assert max(fresh.run(gaps)) < 1


def test_no_share_of_nothing(fresh: Page, tmp_path: Path) -> None:
    """Kernels whose lengths nobody knows have no bar and no share beside their time."""
    fresh.open(page_of(Rows().kernel(None, (10, 10)).build(), tmp_path), "summary")
    assert fresh.texts("ol.top .value") == ["0"]
    assert fresh.run("document.querySelectorAll('ol.top .bar span').length") == 0


def test_all_colours_of_bars_are_explained(fresh: Page, tmp_path: Path) -> None:
    """Ranges without a phase are grey, and the legend says so; where all have one, it does not."""
    rows = Rows().range("fc Linear |fwd", 0, 900)
    fresh.open(page_of(rows.build(), tmp_path), "layers")
    assert fresh.texts(".tree thead .key") == ["forward"]
    fresh.open(page_of(rows.range("load", 1000, 1100).build(), tmp_path), "layers")
    assert fresh.texts(".tree thead .key") == ["forward", "other"]


@pytest.mark.parametrize("view", ["kernels", "layer/0"])
def test_names_of_kernels_can_be_read_whole(fresh: Page, tmp_path: Path, view: str) -> None:
    """Names without a short form are cut to a line, until somebody wants to see all of them, by keyboard too."""
    rows = Rows().range("fc Linear |fwd", 0, 900)
    for number, operation in enumerate(("Add", "Mul")):
        name = (
            f"sm80_xmma_fprop_implicit_gemm_{'tf32f32_' * 8}nhwckrsc_{operation}_tilesize128x128x16_stage4_cudnn_infer"
        )
        rows.kernel(10 + number, (20 + number, 21 + number), name=name)
    fresh.open(page_of(rows.build(), tmp_path), view)
    cut = "[...document.querySelectorAll('td .kernel, th .kernel')].filter(one => one.scrollWidth > one.clientWidth)"
    assert fresh.run(f"{cut}.length") == 2
    fresh.run("document.querySelector('.whole-names').focus()")
    fresh.press(" ")
    assert fresh.run(f"{cut}.length") == 0
    assert fresh.run("document.documentElement.scrollWidth <= innerWidth")


def test_advice_says_the_class_of_a_number(fresh: Page, tmp_path: Path) -> None:
    """`Where: 1, 4` of an nn.Sequential does not say what the layers are."""
    data = page_data(Rows().range("1 Conv2d |fwd", 0, 900).range("fc Linear |fwd", 1000, 1900).build(), "x")
    advice = {"advice": "Do.", "evidence": "It is so", "saves": 0.1, "layers": ["1", "fc", "gone"], "code": "x"}
    data["runs"][0]["advice"] = advice_data(pl.DataFrame([advice]), data["runs"][0])
    out = tmp_path / "made.html"
    out.write_bytes(as_page(data, "made"))
    fresh.open(out)
    assert fresh.text(".best .where") == "Where: 1 Conv2d, fc, gone"


@pytest.mark.parametrize(("view", "selector"), [("layers", ".tree .bar span"), ("summary", "ol.top .bar span")])
def test_a_phase_has_one_color(fresh: Page, tmp_path: Path, view: str, selector: str) -> None:
    """The optimizer and the wait for data are not gray in lists: they have the color of the bar of the step."""
    rows = Rows().range("(data) |data", 0, 500).range("fc Linear |fwd", 500, 1400)
    rows.range("Optimizer Adam |opt", 1400, 2000)
    fresh.open(page_of(rows.build(), tmp_path), view)
    classes = set(fresh.run(f"[...document.querySelectorAll('{selector}')].map(one => one.className)"))
    assert {"data", "forward", "optimizer"} <= classes
    assert "other" not in classes
