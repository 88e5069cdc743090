"""The state of the HTML page in its URL: copied links, back and forward, old and malformed fragments."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Page
from report_pages import choose, column_of, tree_of
from sqlite_profile import SqliteProfile, training

from annot.cli.main import main

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
US = 1000
SUMMARY = "Step 2.12 ms on one GPU: "
"""Begin of the verdict of `trained`, the title of the first view."""


def _hash(page: Page) -> str:
    return str(page.run("location.hash"))


def _entries(page: Page) -> int:
    return int(page.run("history.length"))


def _back(page: Page, fragment: str, steps: int = -1) -> None:
    page.run(f"history.go({steps})")
    page.wait(f"location.hash === {fragment!r}")
    page.wait("document.querySelector('main h1')")


def test_filters_and_sort_of_the_layers(fresh: Page, trained: Path) -> None:
    """What is typed and chosen is in the URL without entries of the history, and the link opens the same table."""
    fresh.open(trained, "layers")
    before = _entries(fresh)
    fresh.press("/")
    fresh.type("class & ü?#")
    fresh.wait("location.hash.includes('search=')")
    fresh.run("document.getElementById('search').select()")
    fresh.type("features")
    choose(fresh, "time", "host_ns")
    fresh.wait("location.hash.includes('time=host_ns')")
    fresh.click(".tree thead th:nth-child(5) button")
    fresh.click(".tree thead th:nth-child(5) button")
    link = _hash(fresh)
    assert link == "#layers?search=features&time=host_ns&sort=layers%3Atotal%3Aup"
    assert _entries(fresh) == before
    shown = tree_of(fresh)
    fresh.open(trained, link[1:])
    assert tree_of(fresh) == shown
    assert fresh.run("document.querySelector('.tree thead .sorted').ariaSort") == "ascending"
    assert fresh.run("document.getElementById('search').value") == "features"
    assert fresh.run("document.getElementById('time').value") == "host_ns"


def test_phase_class_and_steps_of_the_layers(fresh: Page, trained: Path) -> None:
    fresh.open(trained, "layers?phase=backward&module=Linear&steps=1")
    assert list(tree_of(fresh))[-1] == "classifier.1"
    assert column_of(fresh, "Total") == column_of(fresh, "Backward")
    assert [fresh.run(f"document.getElementById('{key}').value") for key in ("phase", "module", "steps")] == [
        "backward", "Linear", "1",
    ]  # fmt: skip


def test_tables_of_other_views(fresh: Page, trained: Path) -> None:
    """The kernels: search, kind, and the sort of each table by its own name."""
    fresh.open(trained, "kernels")
    fresh.press("/")
    fresh.type("conv")
    fresh.wait("location.hash === '#kernels?search=conv'")
    fresh.click("main section:last-of-type thead th:first-child button")
    assert _hash(fresh) == "#kernels?search=conv&sort=kernels%3Aname%3Aup"
    names = fresh.texts("main section:last-of-type tbody .kernel")
    fresh.open(trained, _hash(fresh)[1:])
    assert fresh.texts("main section:last-of-type tbody .kernel") == names
    assert fresh.run("document.querySelector('main section:last-of-type .sorted').ariaSort") == "ascending"


def test_back_and_forward(fresh: Page, trained: Path) -> None:
    """Views and zooms are entries of the history; each has the state in which the reader left it."""
    fresh.open(trained, "layers")
    fresh.press("/")
    fresh.type("relu")
    fresh.wait("location.hash === '#layers?search=relu'")
    fresh.click("#head a[href='#icicle']")
    fresh.wait("document.querySelector('.icicle [data-place]')")
    assert _hash(fresh) == "#icicle?search=relu"  # views of the layers share their filters
    fresh.click("#box1")
    fresh.wait("location.hash === '#icicle/1?search=relu'")
    fresh.click("#box3")
    assert _hash(fresh) == "#icicle/3?search=relu"
    _back(fresh, "#icicle/1?search=relu")
    fresh.wait("document.querySelectorAll('.crumbs a').length === 2")
    _back(fresh, "#icicle?search=relu")
    _back(fresh, "#layers?search=relu")
    assert list(tree_of(fresh)) == ["Batch", "(model)", "features", "1"]
    _back(fresh, "#icicle/3?search=relu", 3)
    assert fresh.text("main h1") == "Icicle"


def test_filters_stay_from_view_to_view(fresh: Page, trained: Path) -> None:
    """Links that name a view alone keep what the reader chose there; going back to before the choice undoes it."""
    fresh.open(trained, "layers")
    fresh.go("kernels").go("layers")
    choose(fresh, "phase", "backward")
    fresh.wait("location.hash === '#layers?phase=backward'")
    fresh.go("summary").go("layers")
    assert fresh.run("document.getElementById('phase').value") == "backward"
    assert _hash(fresh) == "#layers?phase=backward"
    _back(fresh, "#layers", -4)
    assert fresh.run("document.getElementById('phase').value") == ""


def test_interval_of_the_timeline(fresh: Page, trained: Path) -> None:
    """The part in view, the selected interval and the highlighted layer are in the link; pans are no entries."""
    fresh.open(trained, "layer/4")
    fresh.click("main a[href^='#timeline']")
    fresh.wait("document.querySelector('main').dataset.view === 'timeline'")
    assert "features.0" in fresh.text(".marked")
    before = _entries(fresh)
    fresh.run("document.getElementById('timeline').focus()")
    fresh.press("w", "w", "d", "n", "m")
    fresh.wait("/from=\\d+&to=\\d+&begin=\\d+&end=\\d+&marked=4$/.test(location.hash)")
    assert _entries(fresh) == before
    link, sums = _hash(fresh), fresh.texts("main .panel .pairs")
    view = fresh.run("[timeline.dataset.from, timeline.dataset.to].map(Number)")
    fresh.open(trained, link[1:])
    fresh.wait("Number(document.getElementById('timeline').dataset.drawn) > 0")
    assert fresh.run("[timeline.dataset.from, timeline.dataset.to].map(Number)") == pytest.approx(view, abs=2)
    assert fresh.texts("main .panel .pairs") == sums
    assert "features.0" in fresh.text(".marked")


def test_key_before_the_first_frame_of_the_timeline(fresh: Page, trained: Path) -> None:
    """A key that comes before the timeline is drawn counts: a busy machine draws late."""
    fresh.open(trained, "layers")
    fresh.run("""new Promise(done => {
        addEventListener('hashchange', () => {
            document.getElementById('timeline').dispatchEvent(new KeyboardEvent('keydown', {key: 'w'}));
            done(1);
        }, {once: true});
        location.hash = '#timeline';
    })""")
    fresh.wait("/from=\\d+&to=\\d+/.test(location.hash)")


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, paths = tmp_path_factory.mktemp("ranks"), []
    for rank, length in enumerate((300, 700)):
        profile = SqliteProfile()
        profile.layer("fc Linear [4,8]f32 |fwd", 0, 900)
        profile.call(10, 20, 1)
        profile.kernel(30, 30 + length * US, 1)
        paths.append(str(profile.write(folder / f"run_rank{rank}.sqlite")))
    assert main(["report", *paths, "--format", "html", "-o", str(folder / "ranks.html")]) == 0
    return folder / "ranks.html"


def test_rank(fresh: Page, ranked: Path) -> None:
    """The rank is in the link, goes along from view to view, and Back leads to the rank of before."""
    fresh.open(ranked, "layers")
    choose(fresh, "rank", "1")
    assert _hash(fresh) == "#layers?rank=1"
    fresh.go("icicle")
    assert _hash(fresh) == "#icicle?rank=1"
    fresh.open(ranked, "layers?rank=1")
    assert tree_of(fresh)["fc"][0] == "700.00"
    assert fresh.run("document.getElementById('rank').value") == "1"
    choose(fresh, "rank", "0")
    assert _hash(fresh) == "#layers"
    _back(fresh, "#layers?rank=1")
    assert tree_of(fresh)["fc"][0] == "700.00"
    assert fresh.run("document.getElementById('rank').value") == "1"


def test_comparison(fresh: Page, tmp_path: Path) -> None:
    paths = [str(training(device=True).write(tmp_path / f"{name}.sqlite")) for name in "ab"]
    out = tmp_path / "comparison.html"
    assert main(["compare", *paths, "--format", "html", "-o", str(out)]) == 0
    fresh.open(out)
    assert _hash(fresh) == "#compare"
    choose(fresh, "by", "kernel")
    fresh.wait("location.hash === '#compare?by=kernel'")
    fresh.open(out, "compare?by=kernel&search=conv")
    assert fresh.run("document.getElementById('by').value") == "kernel"
    assert fresh.texts("main tbody th")[0].startswith("conv")


@pytest.mark.parametrize(
    ("fragment", "shown"),
    [
        ("layers", "Layers"),
        ("layer/4", "features.0 Conv2d"),
        ("", SUMMARY),
        ("nonsense", SUMMARY),
        ("layer/abc", SUMMARY),
        ("layer/-1", SUMMARY),
        ("__proto__", SUMMARY),
        ("constructor/1?x=y", SUMMARY),
        ("%E0%A4%A", SUMMARY),
        ("?????", SUMMARY),
        ("layers?phase=no&module=no&steps=x&time=tea&sort=layers:no:no&sort=&rank=99", "Layers"),
        ("layers?rank=-1&sort=__proto__:total", "Layers"),
        ("icicle/999999", "Icicle"),
        ("icicle/99999999999999999999?time=host_ns", "Icicle"),
        ("kernels?kind=no&sort=kernels:", "Kernels"),
        ("timeline?from=a&to=1e999&begin=&end=5&marked=77777", "Timeline"),
        ("timeline?from=50&to=10&begin=9&end=-5", "Timeline"),
        ("timeline?begin=1e300&end=2e300", "Timeline"),
    ],
)
def test_fragments_of_any_kind(fresh: Page, trained: Path, fragment: str, shown: str) -> None:
    """Old fragments open what they did; others open the first view, or leave out what the page does not offer."""
    fresh.open(trained, fragment)
    assert " ".join(fresh.text("main h1").split()).startswith(shown)
    assert "NaN" not in fresh.text("main")
    fresh.wait("!/NaN|=no|999|tea/.test(location.hash)")
