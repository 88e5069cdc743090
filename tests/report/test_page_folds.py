"""Repeated layers on the HTML page in a real browser: the fold, its layers one by one, search, steps and size."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from chromium import Page
from report_pages import VIEWS, choose, page_data, page_of, tree_of
from tables import Rows

from annot.attribution.attribute import attribute
from annot.profile import Profile
from annot.report.page.data import advice_data, comparison_data
from annot.report.page.render import as_page

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
BLOCKS = 200


def _deep(blocks: int = BLOCKS, slow: int = 7) -> Profile:
    """Two steps of a model with blocks of 1 µs (`attn` 600 ns), one of 3 µs; then an optimizer step of 5 µs."""
    rows, clock = Rows(), 0
    for step in range(2):
        begin = clock
        for number in range(blocks):
            length = 3000 if number == slow else 1000
            rows.range(f"layers.{number} Block |fwd", clock, clock + length)
            rows.range(f"layers.{number}.attn Attention |fwd", clock, clock + 600)
            rows.range(f"layers.{number}.mlp Linear [32,64]f32 out=64 |fwd", clock + 600, clock + 700)
            clock += length
        rows.range("Optimizer Adam |opt", clock, clock + 5000)
        clock += 5000
        rows.range(f"Batch {step} |step", begin, clock)
    return rows.build()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(_deep(), tmp_path_factory.mktemp("deep"))


def _cells(page: Page, label: str) -> list[str]:
    return tree_of(page)[label]


def test_blocks_are_one_line_of_few_elements(fresh: Page, deep: Path) -> None:
    """200 blocks need under 2,000 elements; the fold has the sums, the median, the slowest and its index."""
    fresh.open(deep, "layers")
    assert list(tree_of(fresh)) == ["Batch", "layers.*", "attn", "mlp", "Optimizer"]
    assert fresh.text(".tree tbody .count") == "×200"
    assert _cells(fresh, "layers.*")[0] == "202.00"
    assert [_cells(fresh, "layers.*")[place] for place in (4, 5, 6, 7)] == ["1.00", "3.00", "7", "0.00"]
    assert fresh.run("document.querySelectorAll('*').length") < 2000


@pytest.mark.parametrize("view", [*VIEWS, "layer/{fold}", "icicle/{fold}", "layers?listed={listed}"])
def test_every_view_has_few_elements(fresh: Page, deep: Path, view: str) -> None:
    """Also the view of the fold, the icicle zoomed into it, and its layers one by one."""
    place = fresh.open(deep, "layers").run("document.querySelector('.tree a.count').hash").partition("/")[2]
    number = fresh.run(f"({place}).toString(36)")
    if view in fresh.run("[...document.querySelectorAll('nav a')].map(one => one.hash.slice(1))") or "{" in view:
        fresh.open(deep, view.format(fold=place, listed=number))
        fresh.wait("document.querySelector('.icicle') === null || document.querySelector('.icicle [data-place]')")
        assert fresh.run("document.querySelectorAll('*').length") < 2000


def test_icicle_has_a_box_per_fold(fresh: Page, deep: Path) -> None:
    """A click on the box of 200 blocks shows a box for each; a click on one of these the layers inside it."""
    fresh.open(deep, "icicle")
    boxes = "[...document.querySelectorAll('.icicle g.box')].map(one => one.ariaLabel.split(' · ')[0])"
    fresh.wait("document.querySelector('.icicle [data-place]')")
    shown = ["All", "Batch", "layers.* Block ×200", "layers.*.attn Attention ×200", "layers.*.mlp Linear ×200"]
    assert fresh.run(boxes)[:5] == shown
    assert "Slowest 3.00 µs (7)" in fresh.run("document.querySelector('.icicle g.box:nth-of-type(3)').ariaLabel")
    fresh.click(".icicle g.box:nth-of-type(3)")
    assert fresh.run(boxes)[:4] == ["All", "Batch", "layers.* Block ×200", "layers.0 Block"]
    assert len(fresh.run(boxes)) == BLOCKS + 3
    assert fresh.texts(".sums, .panel tbody .path, .panel tbody a")[:1] == ["layers.*.attn"]
    fresh.run(
        "[...document.querySelectorAll('.icicle g.box')].at(-1).dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert fresh.run(boxes) == [
        "All",
        "Batch",
        "layers.* Block ×200",
        "layers.199 Block",
        *(f"layers.199.{name}" for name in ("attn Attention", "mlp Linear")),
    ]
    assert fresh.texts("main .crumbs a") == ["All", "Batch", "layers.*", "layers.199"]
    fresh.press("Escape", "Escape", "Escape")
    assert fresh.run("location.hash") == "#icicle"


def test_search_in_the_icicle_marks_folds(fresh: Page, deep: Path) -> None:
    """The box of a fold is marked if one of its layers matches; the sum counts the layer only."""
    fresh.open(deep, "icicle?search=layers.72.attn")
    fresh.wait("document.querySelector('.icicle g.hit')")
    assert fresh.run("[...document.querySelectorAll('.icicle g.hit')].map(one => one.ariaLabel.split(' ')[0])") == [
        "layers.*.attn"
    ]
    assert fresh.text("main .status").startswith("1 line matches: 0.60 µs")


def test_roofline_has_a_dot_and_a_row_per_fold(fresh: Page, deep: Path) -> None:
    """A click lists the first 50 layers, another click all. The dot and the row have the sums."""
    fresh.open(deep, "roofline")
    assert fresh.run("document.querySelectorAll('.drawing circle').length") == 1
    row = "main table tbody tr"
    first = fresh.text(row)
    assert first.split("\t")[0].split() == ["▸", "layers.*.mlp", "Linear", "×200"]
    assert "20.00 µs" in first
    fresh.click(f"{row} button.fold")
    assert fresh.run(f"document.querySelectorAll('{row}').length") == 52
    assert fresh.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert fresh.text(f"{row}:nth-child(2)").split()[0] == "layers.0.mlp"
    assert fresh.run("document.querySelectorAll('*').length") < 2000
    fresh.click(f"{row} button.more")
    assert fresh.run(f"document.querySelectorAll('{row}').length") == BLOCKS + 1
    fresh.click(f"{row} button.fold")
    assert fresh.run(f"document.querySelectorAll('{row}').length") == 1


def test_parts_of_the_step_are_links(fresh: Page, tmp_path: Path) -> None:
    """Each layer in a part leads to its view, a fold to that of the fold, the optimizer to its own; sums are text."""
    data = page_data(_deep(), "x")
    summary = data["runs"][0]["summary"]
    place = summary["section"].index("parts")
    assert summary["item"][place] == "forward"
    summary["text"][place] = "layers.*.attn Attention ×200"
    out = tmp_path / "parts.html"
    out.write_bytes(as_page(data, "x"))
    fresh.open(out)
    rows = "[...document.querySelectorAll('ol.top')].at(-1).children"
    links = fresh.run(f"[...{rows}].map(one => [one.innerText.split('\\n')[0], one.querySelector('a')?.hash])")
    found = {text: link for text, link in links if link}
    assert any(text.endswith("layers.*.attn Attention ×200") for text in found)
    for text, link in found.items():
        shown = fresh.open(out, link[1:]).text("main h1").split()[0]
        assert shown in text or (shown, "Adam" in text) == ("Optimizer", True)
    assert any("other layers" in text for text, link in links if not link)


def test_advice_names_folds(fresh: Page, tmp_path: Path) -> None:
    """The layers of a fold are one link; a single layer keeps its own."""
    data = page_data(_deep(), "x")
    layers = ["layers.37.attn", "layers.83.attn", "layers.5.mlp"]
    advice = {"advice": "Do.", "evidence": "It is so", "saves": 0.1, "layers": layers, "code": "x"}
    data["runs"][0]["advice"] = advice_data(pl.DataFrame([advice]), data["runs"][0])
    out = tmp_path / "advice.html"
    out.write_bytes(as_page(data, "x"))
    fresh.open(out)
    assert fresh.text(".best .where") == "Where: layers.*.attn ×200, layers.5.mlp"
    fresh.click(".best .where a")
    fresh.wait("document.querySelector('main h1').innerText.startsWith('layers.*.attn ')")


def test_comparison_has_a_row_per_fold(fresh: Page, tmp_path: Path) -> None:
    """The row has the sums and names the layer that changed most; a click lists the layers."""
    sides = [attribute(_deep(slow=slow)) for slow in (7, 9)]
    page = tmp_path / "compare.html"
    data = comparison_data(*sides, ("a", "b"), "layer") | {"notes": ["Times are means"]}
    page.write_bytes(as_page(data, "x"))
    fresh.open(page, "compare?only=all")
    cause, doubt, *notes = fresh.texts(".notes li")
    assert cause.startswith("layers.9 Block forward: the same work takes longer here")
    assert doubt.startswith("One run of each side cannot separate a change")
    assert notes == ["Times are means"]
    assert fresh.run("document.querySelectorAll('*').length") < 2000
    rows = fresh.texts("main table tbody tr")
    fold = next(one for one in rows if "layers.* " in one).split("\t")
    assert fold[0].split() == ["▸", "layers.*", "Block", "×200", "most:", "layers.9", "+2.00", "µs"]
    assert fold[2:5] == ["202.00", "202.00", "0.00"]
    place = rows.index(next(one for one in rows if "layers.* " in one)) + 1
    fresh.click(f"main table tbody tr:nth-child({place}) button.fold")
    assert fresh.text(f"main table tbody tr:nth-child({place + 1})").split()[0] == "layers.9"
    assert fresh.run("document.querySelectorAll('main table tbody tr').length") == len(rows) + 51


def test_click_lists_the_layers(fresh: Page, deep: Path) -> None:
    """One click: the first 50 blocks, another: all, whose layers can be unfolded; another: one line again."""
    fresh.open(deep, "layers")
    fresh.click(".tree tbody button.link")
    assert len(list(tree_of(fresh))) == 50 + 3
    fresh.click(".tree tbody button.more")
    labels = list(tree_of(fresh))
    assert labels[1:4] == ["layers.*", "layers.0", "layers.1"]
    assert len(labels) == BLOCKS + 3
    assert _cells(fresh, "layers.7")[0] == "3.00"
    fresh.click(".tree tbody tr:nth-child(3) button.fold")
    assert list(tree_of(fresh))[1:5] == ["layers.*", "layers.0", "attn", "mlp"]
    assert fresh.run("[...document.querySelectorAll('.tree tbody tr')].slice(0, 5).map(one => one.ariaLevel)") == [
        "1", "2", "3", "4", "4",
    ]  # fmt: skip
    fresh.click(".tree tbody button.link")
    assert list(tree_of(fresh)) == ["Batch", "layers.*", "attn", "mlp", "Optimizer"]


def test_keys_list_the_layers(fresh: Page, deep: Path) -> None:
    """Enter lists the blocks, the arrows walk through them and back to the fold; Enter on a block opens its view."""
    fresh.open(deep, "layers")
    fresh.run("document.querySelector('.tree tbody tr:nth-child(2)').focus()")
    fresh.press("Enter")
    assert "layers.49" in tree_of(fresh)
    fresh.press("ArrowDown", "ArrowDown")
    assert fresh.run("document.activeElement.querySelector('.name').textContent") == "layers.1"
    fresh.press("ArrowLeft")
    assert fresh.run("document.activeElement.querySelector('.name').textContent") == "layers.*"
    fresh.press("ArrowLeft")
    assert list(tree_of(fresh)) == ["Batch", "layers.*", "Optimizer"]
    fresh.press("ArrowRight", "Enter", "ArrowDown")
    assert list(tree_of(fresh))[2] == "attn"
    fresh.press("ArrowUp", "Enter", "ArrowDown", "Enter")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("main h1").startswith("layers.0")


def test_search_finds_the_fold_or_single_layers(fresh: Page, deep: Path) -> None:
    """What all blocks have is one line; the path of a block lists the blocks with this path."""
    fresh.open(deep, "layers")
    for text, lines, found in (
        ("attn", 3, ["Batch", "layers.*", "attn"]),
        ("layers.7", 35, ["Batch", "layers.*", "layers.7", "attn", "mlp", "layers.70", "attn", "mlp"]),
        ("layers.*.mlp", 3, ["Batch", "layers.*", "mlp"]),
    ):
        fresh.run("document.getElementById('search').select()")
        fresh.type(text)
        fresh.wait(f"document.querySelectorAll('.tree tbody tr').length === {lines}")
        assert fresh.texts(".tree tbody .label .name")[: len(found)] == found
    fresh.run("document.getElementById('search').select()")
    fresh.press(" ")
    choose(fresh, "phase", "optimizer")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 2")
    assert fresh.texts(".tree tbody .label .name") == ["Batch", "Optimizer"]


def test_steps_change_the_sums(fresh: Page, deep: Path) -> None:
    """The fold follows the filters: the mean of two equal steps is each of them."""
    fresh.open(deep, "layers")
    before = _cells(fresh, "layers.*")
    fresh.run("document.getElementById('steps').focus()")
    fresh.type("1")
    fresh.wait("document.querySelectorAll('.tree thead .col-calls').length === 0")
    assert _cells(fresh, "layers.*")[:8] == before[:8]


def test_longest_parts_of_the_summary(fresh: Page, deep: Path) -> None:
    """Folds by their sums, and the optimizer, which is no layer."""
    fresh.open(deep, "summary")
    assert fresh.texts("ol.top a")[:4] == ["layers.*.attn", "layers.*", "layers.*.mlp", "Optimizer"]
    assert fresh.texts("ol.top .value")[0].startswith("120.00 µs")


def test_unfolded_lines_are_in_the_link(fresh: Page, deep: Path) -> None:
    """What is unfolded, listed and folded comes back with the link, and with Back; the link stays short."""
    fresh.open(deep, "layers")
    first = tree_of(fresh)
    fresh.click(".tree tbody button.link")
    fresh.click(".tree tbody button.more")
    fresh.click(".tree tbody tr:nth-child(5) button.fold")
    fresh.click(".tree tbody tr:nth-child(9) button.fold")
    shown = tree_of(fresh)
    link = fresh.run("location.hash")
    assert list(shown)[3:7] == ["layers.1", "layers.2", "attn", "mlp"]
    fresh.go("summary")
    fresh.open(deep, link[1:])
    assert tree_of(fresh) == shown
    fresh.click(".tree tbody tr:nth-child(2) button.fold")
    assert len(tree_of(fresh)) == 3
    fresh.click("#head a[href='#kernels'], #head a[href='#steps']")
    fresh.run("history.back()")
    fresh.wait("document.querySelectorAll('.tree tbody tr').length === 3")
    fresh.open(deep, "layers?lines=zz.0--&listed=zzzzzz-zzzzzz&folded=%00")
    assert tree_of(fresh) == first


def test_many_unfolded_lines_end_with_the_first_of_them(fresh: Page, deep: Path) -> None:
    """Every second of 200 blocks is unfolded: their numbers are in the link, which has 600 characters at most."""
    fresh.open(deep, "layers")
    fresh.click(".tree tbody button.link")
    fresh.click(".tree tbody button.more")
    for number in range(201, 2, -2):
        fresh.run(f"document.querySelector('.tree tbody tr:nth-child({number}) button.fold').click()")
    link = fresh.run("location.hash")
    assert len(link) < 700
    shown = list(tree_of(fresh))
    fresh.open(deep, link[1:])
    assert list(tree_of(fresh)) == shown


def test_view_of_a_fold(fresh: Page, deep: Path) -> None:
    """Its sums and spread, the slowest layer as a link, a bar per layer that leads to it, and the layers inside."""
    fresh.open(deep, "summary")
    fresh.click("ol.top li:nth-child(2) a")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("main h1") == "layers.* Block ×200"
    rows = {line[0]: line[1:] for line in (row.split("\t") for row in fresh.texts(".facts tbody tr"))}
    assert rows == {
        "Total": ["202.00 µs"] * 2, "Median": ["1.00 µs"] * 2, "Slowest (index)": ["3.00 µs (7)"] * 2,
        "IQR": ["0"] * 2,
    }  # fmt: skip
    bars = fresh.run("[...document.querySelectorAll('.drawing a rect')].map(one => one.height.baseVal.value)")
    assert (len(bars), max(bars), bars.index(max(bars))) == (BLOCKS, 90, 7)
    assert bars[0] == pytest.approx(30)
    assert fresh.texts(".columns .panel:nth-child(2) tbody .name") == ["attn", "mlp"]
    fresh.click(".facts a")
    fresh.wait("document.querySelector('main h1').innerText.startsWith('layers.7 ')")
    fresh.run("history.back()")
    fresh.wait("document.querySelectorAll('.drawing a').length === 200")
    fresh.run("document.querySelector('.drawing a:nth-of-type(12)').focus()")
    fresh.press("Enter")
    fresh.wait("document.querySelector('main h1').innerText.startsWith('layers.11 ')")


def test_folds_in_a_fold_lead_to_each_other(fresh: Page, deep: Path) -> None:
    """The tree leads to the view of a fold; a fold in it has the view of the same, with the way back."""
    fresh.open(deep, "layers")
    fresh.click(".tree tbody a.count")
    fresh.wait("document.querySelector('main h1').innerText.startsWith('layers.* ')")
    fresh.click(".columns .panel:nth-child(2) tbody a")
    fresh.wait("document.querySelector('main h1').innerText.startsWith('layers.*.attn ')")
    assert fresh.texts(".crumbs a") == ["Layers", "Batch", "layers.*"]
    assert fresh.text(".facts tbody tr:first-child td") == "120.00 µs"
    steps = fresh.texts("main .status")
    assert steps == ["Median 120.00 µs, longest 120.00 µs (step 0), shortest 120.00 µs (step 1)."]
