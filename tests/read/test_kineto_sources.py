"""Sources of module classes from the Python stacks of torch.profiler traces."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import shared

from annot import load
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.runs.run import Run


def _reference(trace: dict[str, Any]) -> dict[str, set[str]]:
    """By class, the functions named `forward` whose grandparent is a call of a module of the class."""
    frames = [event for event in trace["traceEvents"] if event.get("cat") == "python_function"]
    by_id = {frame["args"]["Python id"]: frame for frame in frames}
    found: dict[str, set[str]] = {}
    for frame in frames:
        function = re.fullmatch(r"(.+)\((\d+)\): forward", frame["name"])
        parent = by_id.get(frame["args"]["Python parent id"], frame)
        module = by_id.get(parent["args"]["Python parent id"], frame)["name"]
        if function and module.startswith("nn.Module: ") and not function[1].startswith("torch/"):
            name = re.sub(r"_\d+$", "", module.removeprefix("nn.Module: "))
            found.setdefault(name, set()).add(f"{function[1]}:{function[2]}")
    return found


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("tracelens_h100_bert_small_nnmodule", 14),
        ("tracelens_mi300_resnet18_train_nnmodule_seq", 2),
        ("tracelens_mi300_sglang_decode_graph_exec", 1),
    ],
)
def test_real_traces(name: str, classes: int) -> None:
    """Every class outside PyTorch has the place of its `forward`, as its frames say."""
    path = shared(f"kineto/{name}.json.gz")
    found = {module: {source} for module, source in load(path).meta["sources"].items()}
    assert len(found) == classes
    assert found == _reference(json.loads(gzip.decompress(path.read_bytes())))


def _frame(name: str, number: Any, parent: Any, start: int, length: int) -> dict[str, Any]:
    args = {"Python id": number, "Python parent id": parent}
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args,
    }  # fmt: skip


def _sources(tmp_path: Path, *frames: dict[str, Any], **top: Any) -> dict[str, str]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*frames, _frame("nn.Module: End_0", 99, None, 900, 9)], **top}))
    return dict(load(path).meta.get("sources", {}))


def _call(module: str, forward: str, first: int) -> list[dict[str, Any]]:
    return [
        _frame(f"nn.Module: {module}", first, None, 10 * first, 9),
        _frame("torch/nn/modules/module.py(1): _call_impl", first + 1, first, 10 * first + 1, 7),
        _frame(forward, first + 2, first + 1, 10 * first + 2, 5),
    ]


def test_classes_and_functions(tmp_path: Path) -> None:
    """Classes of one name have both places, a subclass that of its base, and classes of frameworks none."""
    frames = [
        *_call("Block_0", "a.py(3): forward", 1), *_call("Block_1", "b.py(4): forward", 5),
        *_call("Child_0", "a.py(3): forward", 9), *_call("Linear_0", "torch/nn/modules/linear.py(5): forward", 13),
        *_call("Other_0", "/x/site-packages/torch/nn/f.py(5): forward", 17), *_call("Odd_0", "c.py(6): backward", 21),
        *_call("GraphModule_0", "<eval_with_key>.5(4): forward", 25),
    ]  # fmt: skip
    assert _sources(tmp_path, *frames) == {"Block": "a.py:3, b.py:4", "Child": "a.py:3"}


@pytest.mark.parametrize(("number", "parent"), [(1, 1), (1, 9), (None, 2), ("x", 2), (1, {}), (1, 10**30), (10**30, 2)])
def test_frames_that_do_not_fit(number: Any, parent: Any, tmp_path: Path) -> None:
    """A `forward` of another frame, and ids that are no numbers, give no source."""
    frames = [_frame("nn.Module: Block_0", number, None, 10, 9), _frame("a.py(3): forward", 3, parent, 12, 5)]
    assert _sources(tmp_path, *frames) == {}


def test_marks_of_annot_come_first(tmp_path: Path) -> None:
    """The place of a class that annot itself has written replaces that of its `forward`; the report shows it."""
    frames = [*_call("Block_0", "a.py(3): forward", 1), *_call("Head_0", "a.py(9): forward", 5)]
    assert _sources(tmp_path, *frames, annot_sources={"Block": "a.py:1"}) == {"Block": "a.py:1", "Head": "a.py:9"}
    rows = Run(tmp_path / "trace.json").layers.filter(pl.col("layer") != UNATTRIBUTED)
    assert dict(rows.select("module", "source").iter_rows()) == {"Block": "a.py:1", "Head": "a.py:9", "End": None}
