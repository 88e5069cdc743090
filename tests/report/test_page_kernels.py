"""Kernels on the HTML page in a real browser: short names, whole names, and links between kernels and layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Page
from report_pages import choose, frames, page_of, written
from sqlite_profile import training
from tables import Rows

from annot.cli.main import main

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::{}Functor<float> >, std::array<char*, 3ul> >(int)"
)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Write the page of two layers: `Mul` runs in both, forward and backward, `Add` in one."""
    rows = Rows()
    for number, layer in enumerate(("fc1 Linear [4,8]f32", "fc2 Linear [4,8]f32")):
        for offset, phase in ((0, "fwd"), (400, "bwd")):
            start = 1000 * number + offset
            rows.range(f"{layer} |{phase}", start, start + 300)
            rows.kernel(
                start + 10, (start + 5000, start + 5031 + 2 * number - offset // 400), name=ELEMENTWISE.format("Mul")
            )
    rows.kernel(20, (9000, 9010), name=ELEMENTWISE.format("Add"))
    rows.kernel(3000, (9500, 9507), name=ELEMENTWISE.format("Mul"))
    return page_of(rows.build(), tmp_path)


def test_a_kernel_leads_to_its_layers_and_back(fresh: Page, pages: Path) -> None:
    """The row of a kernel opens its layers with time, calls and share; a layer lists its kernels with links back."""
    fresh.open(pages, "kernels")
    assert fresh.texts("section:last-of-type tbody th") == ["elementwise MulFunctor", "elementwise AddFunctor"]
    fresh.click("section:last-of-type tbody th a")
    fresh.wait("document.querySelector('main').dataset.view === 'kernel'")
    assert fresh.text("h1") == "elementwise MulFunctor elementwise, PyTorch"
    assert fresh.text("#head nav [aria-current]") == "Kernels"
    rows = [row.split("\t") for row in fresh.texts("section tbody tr")]
    assert [(row[0], row[2], *row[3:6]) for row in rows] == [
        ("fc2 Linear", "forward", "0.03 µs", "24.8%", "1"), ("fc2 Linear", "backward", "0.03 µs", "24.1%", "1"),
        ("fc1 Linear", "forward", "0.03 µs", "23.3%", "1"), ("fc1 Linear", "backward", "0.03 µs", "22.6%", "1"),
        ("(unattributed) launched in no range", "other", "0.01 µs", "5.3%", "1"),
    ]  # fmt: skip
    assert ELEMENTWISE.format("Mul") in fresh.text("main")
    fresh.click("section tbody tr:nth-child(3) a")
    fresh.wait("document.querySelector('main').dataset.view === 'layer'")
    assert fresh.text("h1") == "fc1 Linear"
    links = "[...document.querySelectorAll('main tbody a')].map(one => [one.textContent.includes('Add'), one.hash])"
    assert [place for is_add, place in fresh.run(links) if is_add] == ["#kernel/1"]
    fresh.go("kernel/1")
    assert fresh.texts("section tbody th") == ["fc1 Linear"]


def test_whole_names_are_shown_on_demand(fresh: Page, pages: Path) -> None:
    """Names are short, with the whole name as tooltip; a box shows all of it, and the search finds both."""
    fresh.open(pages, "kernels")
    names = "section:last-of-type tbody .kernel"
    titles = fresh.run(f"[...document.querySelectorAll('{names}')].map(one => one.title)")
    assert titles == [ELEMENTWISE.format(operation) for operation in ("Mul", "Add")]
    fresh.run("document.querySelector('.whole-names').focus()")
    fresh.press(" ")
    assert fresh.texts(names) == titles
    for needle in ("elementwise Add", "binary_internal::Add"):
        fresh.run(
            "(() => { const one = document.getElementById('search'); one.value = '"
            + needle
            + "'; one.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        fresh.wait(f"document.querySelectorAll('{names}').length === 1")


def test_kernels_that_the_page_lacks(fresh: Page, pages: Path) -> None:
    """A number without a kernel says so, as that of a layer."""
    fresh.open(pages, "kernel/99")
    assert "does not contain the kernel" in fresh.text("main")


def test_a_comparison_lists_a_change_once(fresh: Page, tmp_path: Path) -> None:
    """The layer whose kernel became slower is on top; what contains it is left out, until all rows are chosen."""
    slow = training(device=True)
    for row in slow.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if row["demangledName"] == slow.strings["conv_fwd"]:
            row["end"] += 900 * US
    paths = [training(device=True).write(tmp_path / "a.sqlite"), slow.write(tmp_path / "b.sqlite")]
    out = tmp_path / "c.html"
    assert main(["compare", *map(str, paths), "-o", str(out)]) == 0
    fresh.open(out)
    labels = fresh.texts("tbody th")
    assert labels[:3] == ["features.0 Conv2d", "Backward (all)", "(model) AlexNet"]
    assert "Optimizer SGD" in labels
    assert "Batch" not in labels
    assert "Left out: 4 layers" in fresh.text(".status")
    choose(fresh, "only", "all")
    fresh.wait(f"document.querySelectorAll('tbody th').length === {len(labels) + 4}")
    assert {"Batch", "Epoch", "features Sequential"} <= set(fresh.texts("tbody th"))


def test_the_class_of_a_module_has_its_source(fresh: Page, tmp_path: Path) -> None:
    """The view of a layer says in which file and line its class is defined, if the profile does."""
    rows = Rows().range("net Block [4,8]f32 |fwd", 0, 900).range("net.fc Linear [4,8]f32 |fwd", 100, 300)
    fresh.open(page_of(rows.build(sources={"Block": "model.py:12"}), tmp_path), "layer/0")
    assert "Block is defined in model.py:12" in fresh.text("main")
    assert "defined in" not in fresh.go("layer/1").text("main")


def test_short_names_of_a_page_from_a_file(fresh: Page, tmp_path: Path) -> None:
    """A page of a file has the names of the terminal."""
    fresh.open(written(training(device=True).write(tmp_path / "run.sqlite")), "kernels")
    assert "conv_bwd" in fresh.texts("section:last-of-type tbody th")


def test_timeline_names_kernels_as_other_views_do(fresh: Page, pages: Path) -> None:
    """Short names in tooltip, details and tables, with links to the kernel; the whole name on demand."""
    fresh.open(pages, "timeline?begin=0&end=10000")
    fresh.wait("document.querySelectorAll('.sums').length === 2")
    kernels = ".sums:last-child tbody tr"
    assert fresh.texts(f"{kernels} th") == ["elementwise MulFunctor", "elementwise AddFunctor"]
    assert fresh.run(f"[...document.querySelectorAll('{kernels} a')].map(one => one.hash)") == [
        "#kernel/0",
        "#kernel/1",
    ]
    fresh.wait("document.querySelectorAll('.names > div > section tbody tr').length > 5")
    longest = fresh.texts(".names > div > section tbody th")
    assert "elementwise MulFunctor" in longest
    assert not any("vectorized" in text for text in longest)
    place = longest.index("elementwise MulFunctor") + 1
    fresh.click(f".names > div > section tbody tr:nth-child({place}) button")
    assert fresh.text(".detail dd") == "elementwise MulFunctor"
    assert fresh.run("document.querySelector('.detail a').hash") == "#kernel/0"
    fresh.click(".whole-names")
    assert fresh.text(".detail dd") == ELEMENTWISE.format("Mul")
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("Enter")
    frames(fresh)
    x, _ = fresh.middle("#timeline")
    fresh.hover(x, fresh.run("document.getElementById('timeline').getBoundingClientRect().bottom") - 16)
    assert fresh.run("document.querySelector('.tip .name').textContent") == "elementwise MulFunctor"
