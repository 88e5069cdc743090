"""The HTML page in a real browser: profiles cannot do anything in it, several of them, and how it reads."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from report_pages import VIEWS, choose, page_data, page_of, tree_of, written
from sqlite_profile import SqliteProfile, training
from tables import Rows

from annot.cli.main import main
from annot.profile import Profile
from annot.report import units
from annot.report.page.render import as_page, bundled

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000
HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><b>&amp;`${1}", "line\u2028and\u2029end",
    "x" * 10_000, "\u202eevil\u202c שלום עולם", "{{script}} {{data}}", "javascript:alert(1)",
    "\x1b[31m\x00", "__proto__",
)  # fmt: skip


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
    data = page_data(_hostile(), HOSTILE[0])
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
    data = page_data(_hostile(), "made")
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
            "summary": "The profile is empty", "layers": "No layers were recorded. Use emit_ranges",
            "kernels": "The profile is empty",
            "steps": "No steps", "timeline": "Nothing to show", "roofline": "The profile has no shapes",
        }),
        (lambda: Rows().range("fc Linear [4,8]f32 |fwd", 0, 900).build(), {
            "summary": "forward fc Linear", "layers": "Host time in µs, 1 line", "kernels": "Longest layers",
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
    """Each view says what there is not, and how to have it. Kernels have a view in a profile with GPU activity."""
    fresh.open(page_of(profile(), tmp_path))
    has_kernels = profile().kernels.height > 0
    assert ("Kernels" in fresh.text("nav")) == has_kernels
    for view in VIEWS:
        if "kernel" in view and not has_kernels:
            continue
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
    assert tree_of(fresh)["fc"][0] == "300.00"
    choose(fresh, "rank", "1")
    assert tree_of(fresh)["fc"][0] == "700.00"
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
    fresh.open(written(run, "--by-process"), "layers")
    assert tree_of(fresh)["fc"][0] == "300.00"
    choose(fresh, "rank", "1")
    assert tree_of(fresh)["fc"][0] == "700.00"
    fresh.open(written(run, "--by-process", "--rank", "1", "--force"), "layers")
    assert tree_of(fresh)["fc"][0] == "700.00"
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
    choose(fresh, "by", "layer")
    fresh.wait("document.querySelector('main tbody').textContent.includes('features.0')")
    rows = {tuple(row.split("\t")[:2]): row.split("\t") for row in fresh.texts("main tbody tr")}
    assert rows["features.0 Conv2d", "forward"][2:5] == ["0.900", "1.800", "0.900"]
    assert rows["features.0 Conv2d", "forward"][6] == "0.500"
    choose(fresh, "only", "faster")
    fresh.wait("document.querySelectorAll('main tbody tr').length === 0")
    choose(fresh, "only", "all")
    choose(fresh, "by", "kernel")
    fresh.wait("document.querySelector('main tbody').textContent.includes('conv_bwd')")
    assert fresh.texts("main tbody .kernel")[0] == "conv_bwd"
    names = fresh.run("[...document.getElementById('by').options].map(one => one.text)")
    assert names == ["Layer", "Module class", "Phase", "Kind of kernel", "Kernel"]
    choose(fresh, "by", "kind")
    fresh.wait("document.querySelector('main tbody').textContent.includes('convolution')")
    assert fresh.text("main thead th").strip("▲▼ ") == "Kind"


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
    choose(fresh, "theme", "light")
    assert fresh.run(background) != dark
    fresh.open(trained, dark=True)
    assert fresh.run(background) != dark
    choose(fresh, "theme", "auto")
    assert fresh.run(background) == dark


def test_numbers_read_as_on_the_terminal(fresh: Page, trained: Path) -> None:
    """The rules of `annot.report.units` hold in the page, number by number."""
    times = [
        -4,
        0,
        1,
        999,
        1_234,
        999_999,
        1_000_000,
        12_345_678,
        100_000_000,
        999_999_999,
        98_765_432_101,
        125,
        2_375,
        1_000_500_000,
    ]
    amounts = [0, 0.25, 1, 9.994, 12.34, 99.96, 123.4, 999, 999.6, 1000, 9_950, 9_996, 99_500, 99_960, 140_553_600]
    amounts += [19.5e12, 3.1e15, 2e18, 4.2e19, 1.125, 12.25, 2.5e3, 1_250_000, 1_125_000]
    numbers = random.Random(7)
    times += [numbers.randrange(10**digits) for digits in range(1, 13) for _ in range(50)]
    amounts += [numbers.randrange(10**digits) / 8 for digits in range(1, 13) for _ in range(50)]
    fresh.open(trained)
    script = bundled("units").removesuffix("})();\n")
    found = fresh.run(
        f"{script}const {{amount, count, duration, setUnits, share}} = units_module;"
        f"setUnits({json.dumps(units.units_as_data())});"
        f"return [{times}.map(duration), {amounts}.map(one => amount(one)), share(1, 3), count(1234567)]; }})()"
    )
    assert found[0][0] == "0.00 µs"
    assert found[0] == [units.duration(time) for time in times]
    assert found[1] == [units.amount(number) for number in amounts]
    assert found[2:] == [units.share(1, 3), units.count(1_234_567)]
