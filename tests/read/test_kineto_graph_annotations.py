"""Annotations of graph nodes in traces of torch.profiler: replayed activities get the layers that they name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from graph_profiles import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.graphs import with_captures
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.profile import Profile

REPLAY = "replay"
ANNOTATED = "The layers of {} come from cuda_graph_annotations."


def _trace(path: Path, activities: list[dict[str, Any]]) -> Profile:
    """Return a profile with two steps, which replay the same activities. The n-th of each takes n ns."""
    events, node = list[dict[str, Any]](), (3 << 32) + 1
    for step in range(2):
        start = 1000 * step
        events += [
            _span(f"ProfilerStep#{step}", "user_annotation", start, 500, {}),
            _span(REPLAY, "user_annotation", start + 1, 400, {}),
            _span("cudaGraphLaunch", "cuda_runtime", start + 2, 5, {"correlation": step + 1}),
        ]
        for number, activity in enumerate(activities, 1):
            graph = {"graph id": 3, "graph node id": node + number, "correlation": step + 1, "device": 0, "stream": 7}
            args = graph | {key: value for key, value in activity.items() if key not in ("cat", "kernel")}
            name = activity.get("kernel", f"kernel{number}")
            events.append(_span(name, activity.get("cat", "kernel"), start + 10 * number, number / 1000, args))
    path.write_text(json.dumps({"cudaGraphInlineAnnotated": True, "traceEvents": events}))
    return load(path)


def _span(name: str, category: str, start: float, length: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


def _gpu(profile: Profile) -> dict[str, int]:
    return {layer: gpu for layer, gpu in by_layer(attribute(profile)).select("layer", "gpu_self_ns").iter_rows() if gpu}


def test_names_and_modules_are_layers_in_the_range_of_the_replay(tmp_path: Path) -> None:
    activities: list[dict[str, Any]] = [
        {"module_fqn": "layers.0.attention.wq"},
        {"name": "mlp", "stream": 61, "original_stream": 7},
        {
            "module_fqn": "layers.0._checkpoint_wrapped_module.attention.wq",
            "name": "allgather",
            "Process Group Name": "1",
        },
        {"name": "mlp"},
        {"cat": "gpu_memcpy", "kernel": "Memcpy DtoD (Device -> Device)", "name": "cache", "bytes": 8},
        {"cat": "gpu_memset", "kernel": "Memset (Device)", "module_fqn": "layers.0.attention.wq", "bytes": 8},
        {"kernel": "not annotated"},
        {"name": 4},
        {"name": "loss.backward"},
    ]
    profile = _trace(tmp_path / "trace.json", activities)
    expected = {"layers.0.attention.wq": 1 + 3 + 6, "mlp": 2 + 4, "cache": 5, REPLAY: 7 + 8, "loss.backward": 9}
    assert _gpu(profile) == {layer: 2 * gpu for layer, gpu in expected.items()}
    assert profile.meta["notes"] == [ANNOTATED.format("14 GPU activities")]
    rows = by_layer(attribute(profile))
    totals = dict(rows.select("layer", "gpu_ns").iter_rows())
    assert totals[REPLAY] == rows["gpu_self_ns"].sum() == summarize(attribute(profile))["gpu_ns"] == 90
    assert by_step(attribute(profile)).filter(pl.col("step") >= 0)["gpu_ns"].to_list() == [45, 45]
    phases = dict(rows.select("layer", "phase").iter_rows())
    assert (phases["layers.0.attention.wq"], phases["loss.backward"]) == ("other", "backward")
    assert rows.filter(layer="mlp").select("calls", "host_ns").row(0) == (0, 0)


def test_annotations_of_pytorch_and_its_tools_are_layers(tmp_path: Path) -> None:
    """PyTorch 2.13 calls a text ``str``; Inductor writes paths below ``L.``; the CUPTI monitor writes JSON."""
    monitor = json.dumps([{"module_fqn": "layers.1.mlp"}, {"Collective name": "allreduce"}])
    activities: list[dict[str, Any]] = [
        {"str": "prefill"},
        {"str": "L.layers.0.mlp.fc1"},
        {"str": "L.layers.0.norm + L.layers.0.mlp.fc1"},
        {"annotation": monitor},
        {"annotation": "residual"},
        {"annotation": '["decode"]'},
        {"annotation": "[7, null]"},
        {"annotation": "[" * 100_000},
        {"name": "L.layers.0.mlp.fc1", "str": "other", "stream": 61},
        {"str": "L. + M"},
    ]
    profile = _trace(tmp_path / "trace.json", activities)
    expected = {
        "prefill": 1, "layers.0.mlp.fc1": 2 + 9, "layers.0.norm+layers.0.mlp.fc1": 3, "layers.1.mlp": 4, "residual": 5,
        "decode": 6, REPLAY: 7, "[" * 100_000: 8, "L. + M": 10,
    }  # fmt: skip
    assert _gpu(profile) == {layer: 2 * gpu for layer, gpu in expected.items()}


def test_a_label_of_annot_is_a_label(tmp_path: Path) -> None:
    """`mark_kernels` with a text of annot names class and phase."""
    rows = by_layer(attribute(_trace(tmp_path / "trace.json", [{"name": "fc1 Linear |bwd"}])))
    assert rows.filter(layer="fc1").select("module", "phase", "gpu_ns").row(0) == ("Linear", "backward", 2)


def test_arguments_of_others_are_no_annotations(tmp_path: Path) -> None:
    """Names without a node of a graph are arguments of another producer."""
    profile = _trace(tmp_path / "trace.json", [{"graph node id": 0, "name": "a"}, {"graph node id": None, "name": "b"}])
    assert _gpu(profile) == {REPLAY: 6}
    assert profile.meta["notes"] == []
    assert profile.captured.is_empty()


def test_an_annotated_activity_without_a_launch_keeps_its_layer(tmp_path: Path) -> None:
    profile = _trace(tmp_path / "trace.json", [{"correlation": 99, "name": "a"}, {"correlation": 98}])
    assert _gpu(profile) == {"a": 2, "(unattributed)": 4}
    assert by_step(attribute(profile)).filter(pl.col("step") >= 0)["gpu_ns"].sum() == 0


def test_a_capture_adds_to_the_annotations(tmp_path: Path) -> None:
    """The replay that the capture matches gets its layers; the replay of another graph keeps its annotations."""
    profile = _trace(tmp_path / "trace.json", [{"name": "annotated"}])
    other = profile.kernels.with_columns(name=pl.Series(["first", "second"]))
    merged = with_captures(replace(profile, kernels=other), [capture([("captured", "first", None)])])
    assert _gpu(merged) == {"captured": 1, "annotated": 1}
    assert merged.captured.select("process", "thread").n_unique() == 2


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([None, "a", "b", "c › d", "aten::mm", "step 12", " ", "x |fwd"]), max_size=8))
def test_annotations_never_change_a_total(tmp_path_factory: pytest.TempPathFactory, names: list[str | None]) -> None:
    """Attributed and unattributed time add up, whatever the annotations say."""
    path = tmp_path_factory.mktemp("annotated") / "trace.json"
    profile = _trace(path, [{} if name is None else {"name": name} for name in names])
    run = attribute(profile)
    total = 2 * sum(range(len(names) + 1))
    assert by_layer(run)["gpu_self_ns"].sum() == summarize(run)["gpu_ns"] == total
    annotated = sum(name is not None for name in names)
    assert profile.kernels["origin_start"].count() == 2 * annotated
