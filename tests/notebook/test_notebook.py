"""`Layers` and the magics, in the shell of the real IPython."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from chromium import browser
from sqlite_profile import SqliteProfile, training

import annot
from annot import AnnotError, load
from annot.native import recorder_library
from annot.notebook.layers import Layers, layers
from annot.report.terminal.layout import plain_text
from annot.report.terminal.table import print_table
from annot.runs.run import Run


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


class _Page(HTMLParser):
    """What a piece of HTML says: its tags, and the texts of the cells of its table, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def _page(profile: Path) -> _Page:
    return _Page(layers(profile)._repr_html_())


def test_table(trained: Path) -> None:
    """The HTML is the tree of layers with its numbers, bars in proportion, the totals and the notes."""
    page = _Page(layers(trained).view(total=True)._repr_html_())
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["Layer"][:3] == ["Forward, ms", "Backward, ms", "Total, ms"]
    assert rows["0 Conv2d"] == [
        "1.800", "3.000", "4.800", "4.800", "68.6%", "", "2", "4.800", "4", "1.840", "[16,3,224,224]f32 (+1)",
    ]  # fmt: skip
    terminal = plain_text(partial(print_table, layers(trained).view(total=True)), 200)
    shown = re.search(r"^Layer  .*$", terminal, re.MULTILINE)
    assert shown
    assert " ".join(["Layer", *rows["Layer"]]).replace(", ms", "").split() == shown[0].split()
    assert rows["(unattributed) no launch recorded"][2:5] == ["0.030", "0.030", "0.4%"]
    bars = [attrs["style"] for tag, attrs in page.tags if attrs.get("class") in ("annot-forward", "annot-backward")]
    assert bars[:2] == ["width:34.86%", "width:60.86%"]
    html = layers(trained).view(total=True)._repr_html_()
    assert "GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)" in html
    assert "Note: 1 kernel or copy with no launch recorded" in html
    rows = {row[0]: row[1:] for row in _page(trained).rows}
    assert rows["0 Conv2d"][:4] == ["0.900", "1.500", "2.400", "2.400"]  # per step


@pytest.mark.slow
def test_long_names_leave_room_for_numbers(tmp_path: Path) -> None:
    """A name that is cut can be read whole in its title; in a browser, the numbers stay within a notebook's width."""
    profile = SqliteProfile()
    name = "gradients of " + "AccumulateGrad" * 20
    profile.range(name, 0, 900)
    html = _page(profile.write(tmp_path / "run.sqlite"))
    assert next(attributes.get("title") for tag, attributes in html.tags if tag == "td") == name
    out = tmp_path / "page.html"
    out.write_text(f"<!doctype html><main><h1>x</h1>{layers(tmp_path / 'run.sqlite')._repr_html_()}</main>")
    with browser() as page:
        page.open(out, width=900)
        assert page.run("document.querySelector('.annot-bar').getBoundingClientRect().right") < 900


def test_pictures_are_self_contained(trained: Path) -> None:
    """Pictures are data of the page itself; nothing is a script, and nothing is asked for from elsewhere."""
    page = _page(trained)
    sources = [attrs["src"] or "" for tag, attrs in page.tags if tag == "img"]
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not {"script", "link", "iframe", "a"} & {tag for tag, _ in page.tags}


def test_hostile_names(tmp_path: Path) -> None:
    """What a profile says is text, in names, classes and shapes alike."""
    evil = '<img src=x onerror="alert(1)">&amp;'
    profile = SqliteProfile()
    profile.range(evil, 0, 10)
    profile.layer(f"a.{evil} </style><b> |fwd", 20, 30)
    page = _page(profile.write(tmp_path / "x"))
    assert evil in [row[0] for row in page.rows]
    assert {tag for tag, _ in page.tags}.isdisjoint({"b", "script"})
    assert not [attrs for tag, attrs in page.tags if "onerror" in attrs]


def test_table_for_programs(trained: Path) -> None:
    """The rows are those of `correlate`, for polars and for all that read Arrow."""
    found = layers(load(trained))
    expected = annot.correlate(load(trained))
    assert found.table.equals(expected)
    assert pl.DataFrame(found).equals(expected)
    assert len(found) == expected.height
    assert found.meta["gpu_ns"] == 7_000_000
    assert "\nGPU self time, ms per step" in repr(found)


def test_pandas_and_arrow(trained: Path) -> None:
    """With the packages installed, the rows are a frame of pandas and a table of Arrow."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pytest.importorskip("pandas", reason="needs pandas")
    found = layers(trained)
    assert found.to_arrow().column("gpu_ns").to_pylist() == found.table["gpu_ns"].to_list()
    assert pyarrow.table(found).num_rows == len(found)
    assert found.to_pandas()["layer"].tolist() == found.table["layer"].to_list()


def test_missing_package_names_the_extra(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas and pyarrow one line says what to install."""
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    found = layers(trained)
    for convert in (found.to_pandas, found.to_arrow):
        with pytest.raises(ImportError, match=r'pip install "annot-nvtx\[analysis\]"$'):
            convert()


def test_arguments(trained: Path) -> None:
    """Steps are chosen as for `correlate`; what is no profile is a TypeError, what is not there an AnnotError."""
    assert layers(trained, steps=slice(1, 2)).meta["steps"] == 1
    with pytest.raises(TypeError, match=r"profile must be a Profile .*, got int"):
        layers(7)  # type: ignore[arg-type]
    with pytest.raises(AnnotError, match="does not exist"):
        layers("no-such-file")


def test_views_have_text_and_html(trained: Path) -> None:
    """Every view has text and HTML, as the layers have."""
    run = annot.open(trained)
    for found in (run, run.view("kernel", top=2), run.view("layer", "work"), run.view("advice")):
        assert repr(found)
        assert found._repr_html_().startswith('<div class="annot-layers">')
    assert "conv_bwd" in run.view("kernel", top=2)._repr_html_()


def test_extension_loads_nothing_heavy() -> None:
    """`import annot` has the extension and loads neither IPython nor polars for it."""
    code = "import sys, annot; sys.exit(sum(name in sys.modules for name in ('IPython', 'polars', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell of its own with the extension loaded."""
    pytest.importorskip("IPython", reason="needs IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    without_history = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=without_history, colors="nocolor")
    shell.run_line_magic("load_ext", "annot")
    yield shell
    shell.run_line_magic("unload_ext", "annot")
    InteractiveShell.clear_instance()


def _shown(shell: Any, cell: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The values that a cell displays."""
    values: list[Any] = []
    monkeypatch.setattr(type(shell.displayhook), "__call__", lambda hook, value=None: values.append(value))
    shell.run_cell(cell)
    return [value for value in values if value is not None]


def test_line_magic(shell: Any, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`%annot FILE` shows the layers of a profile; what goes wrong is one sentence."""
    found = shell.run_line_magic("annot", str(trained))
    assert isinstance(found, Layers)
    assert found.table.height > 10
    formats, _ = shell.display_formatter.format(found)
    assert formats["text/html"].startswith('<div class="annot-layers">')
    assert "\nGPU self time, ms per step" in formats["text/plain"]
    for words in ("no-such-file", "", '"open'):
        assert not shell.run_cell(f"%annot {words}").success
    said = capsys.readouterr().err
    assert "UsageError: no-such-file does not exist" in said
    assert "UsageError: %annot: the following arguments are required: profile" in said
    assert "Traceback" not in said


def test_table_appears_once(shell: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel of Jupyter the text of a table is a text, and nothing is displayed beside it."""
    import rich.console

    class ZMQInteractiveShell(type(shell)):  # type: ignore[misc]
        """The name by which rich knows the kernel of Jupyter."""

    monkeypatch.setattr(rich.console, "get_ipython", lambda: ZMQInteractiveShell.__new__(ZMQInteractiveShell), False)
    shown: list[Any] = []
    monkeypatch.setattr(type(shell.display_pub), "publish", lambda publisher, data, **_: shown.append(data))
    formats, _ = shell.display_formatter.format(layers(trained))
    assert "\nGPU self time, ms per step" in formats["text/plain"]
    assert formats["text/html"].count("<table") == 1
    assert shown == []


needs_recorder = pytest.mark.skipif(recorder_library() is None, reason="the recorder was not built")


@needs_recorder
def test_cell_runs_again(shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o` replaces the recording of the last run, and no other file without `--force`."""
    cell = "%%annot -o {}\nfrom annot import trace\nwith trace('{}'):\n    pass"
    for name in ("first", "second"):
        assert shell.run_cell(cell.format("kept.sqlite", name)).success
        assert layers(tmp_path / "kept.sqlite").table["layer"].to_list() == [name]
    (tmp_path / "mine.txt").write_text("precious")
    training(device=False).write(tmp_path / "nsys.sqlite")
    for name in ("mine.txt", "nsys.sqlite"):
        before = (tmp_path / name).read_bytes()
        assert not shell.run_cell(cell.format(name, "third")).success
        said = f"UsageError: {name} exists, and another program wrote it: use another name, or replace it with --force"
        assert said in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == before
    assert shell.run_cell(cell.format("mine.txt --force", "fourth")).success
    assert layers(tmp_path / "mine.txt").table["layer"].to_list() == ["fourth"]


@needs_recorder
def test_cell_magic(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`%%annot NET` runs the cell, keeps its variables and value, and shows what was recorded."""
    pytest.importorskip("torch", reason="needs PyTorch")
    shell.run_cell("import torch; net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())")
    shown = _shown(shell, "%%annot net\nfor _ in range(3):\n    y = net(torch.ones(2, 4)).sum()\n'done'", monkeypatch)
    assert shown[0] == "done"
    assert shell.user_ns["y"].ndim == 0
    rows = shown[1].table.filter(pl.col("layer") == "0")
    assert rows.select("module", "phase", "calls").rows() == [("Linear", "forward", 3)]
    assert not shell.user_ns["net"]._forward_hooks


@needs_recorder
def test_cell_that_fails(shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exception of a cell is shown once and goes on; what was recorded until then is kept with -o."""
    cell = "%%annot -o kept.sqlite\nfrom annot import trace\nwith trace('before'):\n    pass\n1 / 0"
    result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    output = capsys.readouterr()
    assert (output.out + output.err).count("ZeroDivisionError: division by zero") == 1
    assert layers(tmp_path / "kept.sqlite").table["layer"].to_list() == ["before"]


@needs_recorder
def test_cell_that_is_no_python(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell with a wrong syntax fails, which stops what runs a whole notebook, and says nothing about ranges."""
    result = shell.run_cell("%%annot\nx = )")
    assert not result.success
    output = capsys.readouterr()
    assert (output.out + output.err).count("SyntaxError") == 1
    assert "has no ranges" not in output.out


@needs_recorder
def test_cell_without_ranges(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that makes no ranges says how there would be some; a model that is not there is one sentence."""
    assert shell.run_cell("%%annot\nx = 3").success
    assert "Name a model (%%annot net)" in capsys.readouterr().out
    assert shell.user_ns["x"] == 3
    assert not shell.run_cell("%%annot nett\nx = 4").success
    assert "UsageError: %%annot: model 'nett' is not defined in this notebook" in capsys.readouterr().err
    assert shell.user_ns["x"] == 3


@pytest.mark.parametrize(
    ("by", "columns", "sentence"),
    [
        ("kernel", "time", "Kernels need a profile with GPU activity: run on a machine with a GPU"),
        ("layer", "tensor", "Tensor Cores need a profile with GPU activity"),
        ("op", "time", "No operations were recorded. Use `annot run --collector torch` or"),
        ("layer", "work", "emit_ranges"), ("advice", "time", ""),
    ],
)  # fmt: skip
def test_view_without_its_data(by: str, columns: str, sentence: str, tmp_path: Path) -> None:
    """In place of an empty table stands the sentence of the terminal, which says what the view needs."""
    profile = SqliteProfile()
    profile.range("step", 0, 9_000)
    report = Run(profile.write(tmp_path / "run.sqlite")).view(by, columns)
    page = _Page(report._repr_html_())
    assert report.nothing
    assert page.rows == [[report.nothing]]
    assert sentence in report.nothing
    assert report.nothing in " ".join(repr(report).split())


def test_unloaded(shell: Any) -> None:
    """`%unload_ext annot` takes the magics away."""
    shell.run_line_magic("unload_ext", "annot")
    assert shell.find_line_magic("annot") is None
    assert shell.find_cell_magic("annot") is None
    shell.run_line_magic("load_ext", "annot")
