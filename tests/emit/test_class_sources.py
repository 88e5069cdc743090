"""Where the classes of layers are defined: from the script over a mark to the column `source`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
import pytest
from commands import annot, needs_recorder
from shared_data import shared
from tables import Rows

from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.emit.class_sources import method_source, source_of
from annot.labels.marks import format_source, parse_source
from annot.report.views import find_view
from annot.runs.run import Run

SCRIPT = """\
import torch
from torch import nn
import shapes


@torch.no_grad
def helper():
    class Block: "another class of this name, in front of the module"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


class Head(shapes.Base):
    pass


class Loss(nn.CrossEntropyLoss):
    pass


net = nn.Sequential(Block(), Block(), Head())
for _ in range(2):
    Loss()(net(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
"""
SHAPES = "from torch import nn\n\n\nclass Base(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"


def recorded(folder: Path, collector: str, out: str) -> Run:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "shapes.py").write_text(SHAPES)
    words = ("run", "--layers", "--no-report", "--collector", collector, "-o", out, "--", sys.executable, "train.py")
    done = annot(*words, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return Run(folder / out)


@pytest.mark.parametrize(
    ("collector", "out"),
    [
        pytest.param("recorder", "run.sqlite", marks=needs_recorder),
        pytest.param("torch", "run.json.gz", marks=pytest.mark.slow),
    ],
)
def test_layers_say_where_their_class_is_defined(collector: str, out: str, tmp_path: Path) -> None:
    """Classes of the script have file and line, in each phase; those of PyTorch have none."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = recorded(tmp_path, collector, out).layers.filter(pl.col("layer") != "(unattributed)")
    found = dict(rows.filter(pl.col("phase") == "forward").select("module", "source").iter_rows())
    assert found["Block"] == "train.py:11"
    assert found["Head"] == "train.py:20"
    assert found["Sequential"] is found["Linear"] is None
    assert rows.filter((pl.col("module") == "Block") & (pl.col("phase") == "backward"))["source"][0] == "train.py:11"
    assert set(rows.filter(~pl.col("phase").is_in(["forward", "backward"]))["source"]) <= {None}


@needs_recorder
def test_a_class_has_one_mark(tmp_path: Path) -> None:
    """Two modules of a class have one mark; a report of the file has the column with --columns all."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run = recorded(tmp_path, "recorder", "run.sqlite")
    texts = load(run.file).marks["text"].to_list()
    assert sorted(text for text in texts if parse_source(text)).count("Source Block = train.py:11") == 1
    assert "train.py:11" in find_view("layer", "all").rows(run.attribution_with_calls)["source"]
    done = annot("run.sqlite", "--columns", "all", cwd=tmp_path, COLUMNS="300")
    assert b"train.py:11" in done.stdout


def test_sources_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decorators, classes inside others and methods of other files do not lead to another line; builtins have none."""
    (tmp_path / "some_models.py").write_text(
        "import functools\n\nclass Outer:\n    class Net:\n        size = 1\n\n\nclass Net:\n    @functools.cache\n"
        "    def forward(self): pass\n    @property\n    def x(self): pass\n    def y(self): pass\n"
        "class Later:\n    class Net: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import some_models  # type: ignore[import-not-found]

    assert source_of(some_models.Net) == "some_models.py:8"
    assert source_of(some_models.Outer) == "some_models.py:3"
    assert source_of(int) == source_of(type("Made", (), {"__module__": "nowhere"})) == ""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.chdir(os.sep)
    some_models.Net.__qualname__ = "Again"  # another key of the cache
    assert source_of(some_models.Net) == f"{str(tmp_path)[1:]}/some_models.py:8"


def test_sources_of_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first name that a class has counts, also inherited; the line is that of the innermost function."""
    (tmp_path / "some_sets.py").write_text(
        "import functools\n\nclass Base:\n    def item(self): pass\n\n\nclass Set(Base):\n"
        "    @functools.wraps(Base.item)\n    def items(self): pass\n    def other(self): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import some_sets  # type: ignore[import-not-found]

    assert method_source(some_sets.Set, "missing", "other", "item") == "some_sets.py:10"
    assert method_source(some_sets.Set, "items") == method_source(some_sets.Set, "item") == "some_sets.py:4"
    assert method_source(list, "__getitem__") == method_source(some_sets.Set, "missing") == ""
    monkeypatch.setattr(some_sets.Base.item, "__module__", "torch.utils.data")
    assert method_source(some_sets.Set, "item") == ""  # code of a framework


def test_texts_of_marks() -> None:
    """What is formatted is parsed; other texts are no sources."""
    assert parse_source(format_source("Block", "a b/model = x.py:12")) == ("Block", "a b/model = x.py:12")
    assert parse_source("Source Block = model.py") is None
    with pytest.raises(ValueError, match="do not support"):
        format_source("My Block", "model.py:1")


def test_layers_of_a_profile_with_and_without_sources() -> None:
    """Only rows of layers whose class is known have a source; without any, the table has no such column."""
    rows = Rows().range("net Block [4,8]f32 |fwd", 0, 90).range("Optimizer Block |opt", 90, 200)
    table = by_layer(attribute(rows.build(sources={"Block": "model.py:12, other.py:3"})))
    assert table.select("phase", "source").rows() == [("forward", "model.py:12, other.py:3"), ("optimizer", None)]
    assert "source" not in by_layer(attribute(rows.build())).columns
    old = by_layer(attribute(load(shared("kineto/hta_alexnet_a100_train.json.gz"))))
    assert "source" not in old.columns
