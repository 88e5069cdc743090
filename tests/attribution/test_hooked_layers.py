"""Layers between the hooks of FSDP, against the layers that generated launches belong to, and on a real profile."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from forked import python
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import ranges_of
from shared_data import unpacked
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer, by_op
from annot.attribution.summary import summarize
from annot.labels.foreign import hooks_of
from annot.profile import Profile
from annot.read.formats import load

PATHS = ("blocks.0._checkpoint_wrapped_module", "_fsdp_wrapped_module.blocks.1", "module.head")
LAYERS = ("blocks.0", "blocks.1", "head")
POSTS = ("accumulate", "reshard", "reduce")
GPU = 5

calls = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6)


class Trace:
    """Ranges one after the other on a thread, and the kernels that each layer launches."""

    def __init__(self) -> None:
        self.rows, self.now, self.expected = Rows(), 0, Counter[tuple[str, str]]()

    def hook(self, name: str, thread: int, inside: str = "") -> None:
        """Add the range of a hook, inside an operation if one is named."""
        if inside:
            self.rows.range(inside, self.now, self.now + 20, thread)
        self.rows.range(f"FSDP::{name}", self.now + 5, self.now + 15, thread)
        self.now += 21

    def operation(self, layer: str, phase: str, thread: int) -> None:
        """Add an operation with a kernel."""
        name = "aten::mm, seq = 3" if phase == "forward" else "autograd::engine::evaluate_function: MmBackward0"
        self.rows.range(name, self.now, self.now + 10, thread)
        self.rows.kernel(self.now + 3, (self.now + 3, self.now + 3 + GPU), thread)
        self.expected[layer, phase if layer else "other"] += GPU
        self.now += 11


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(calls, calls, st.sampled_from(["", "start", "end"]), st.integers(1, 3))
def test_launches_between_hooks_belong_to_the_layer(forward: Any, backward: Any, cut: str, posts: int) -> None:
    """A pass has what is launched between its hooks on the thread, also where the capture begins or ends in it."""
    trace = Trace()
    for number, (layer, operations, after) in enumerate(forward):
        if number or cut != "start":
            trace.hook(f"pre_forward ({PATHS[layer]})", MAIN)
        for _ in range(operations):
            trace.operation(LAYERS[layer], "forward", MAIN)
        if number < len(forward) - 1 or cut != "end":
            trace.hook(f"post_forward ({PATHS[layer]})", MAIN)
            for _ in range(after):
                trace.operation("", "forward", MAIN)
    for layer, operations, _ in backward:
        trace.hook(f"pre_backward ({PATHS[layer]})", ENGINE, "autograd::engine::evaluate_function: AddBackward0")
        for _ in range(operations):
            trace.operation(LAYERS[layer], "backward", ENGINE)
        for post in POSTS[:posts]:
            trace.hook(
                f"post_backward_{post} ({PATHS[layer]})", ENGINE, "RegisterPostBackwardFunctionBackward, op_id = 4"
            )
    attribution = attribute(trace.rows.build())
    table = by_layer(attribution)
    found = {
        (row["layer"] if row["layer"] in LAYERS else "", row["phase"]): row["gpu_ns"]
        for row in table.filter(pl.col("gpu_ns") > 0).rows(named=True)
    }
    assert found == dict(trace.expected)
    assert table["gpu_self_ns"].sum() == summarize(attribution)["gpu_ns"] == trace.expected.total()
    passes = dict(table.filter(pl.col("layer").is_in(LAYERS)).group_by("phase").agg(pl.col("calls").sum()).iter_rows())
    assert passes == {"forward": len(forward), "backward": len(backward)}


def test_nested_modules_and_the_root() -> None:
    """A module inside another one, and the root module, which has no path."""
    rows = Rows()
    names = (
        "pre_forward",
        "pre_forward (a)",
        "pre_forward (a.b)",
        "post_forward (a.b)",
        "post_forward (a)",
        "post_forward",
    )
    for number, name in enumerate(names):
        rows.range(f"FSDP::{name}", 10 * number, 10 * number + 5).kernel(10 * number + 7, (0, 1))
    table = by_layer(attribute(rows.build()))
    assert table.select("layer", "module", "gpu_ns", "gpu_self_ns").rows()[:3] == [
        ("", "FSDP", 5, 2), ("a", "", 3, 2), ("a.b", "", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
def test_backward_hooks_name_layers_before_sequence_numbers(first: bool) -> None:
    """Also where the hook is the first range of the profile.

    Outside the hooks, an operation has the layer of its forward operation.
    """
    rows = Rows()
    if not first:
        rows.range("before", -9, -5)
    rows.range("FSDP::pre_backward (a)", 100, 105, ENGINE).range("FSDP::post_backward_reduce (a)", 130, 135, ENGINE)
    rows.range("FSDP::pre_forward (b)", 0, 5).range("FSDP::post_forward (b)", 30, 35)
    rows.range("aten::mm", 10, 20, role="operator", sequence=1)
    for start in (110, 140):
        rows.range("MmBackward0", start, start + 10, ENGINE, role="backward", sequence=1)
        rows.kernel(start + 5, (start + 5, start + 7), ENGINE)
    table = by_layer(attribute(rows.build())).filter(pl.col("gpu_ns") > 0)
    assert table.select("layer", "phase", "gpu_ns").rows() == [("a", "backward", 2), ("b", "backward", 2)]


def test_hooks_inside_named_layers_are_operations() -> None:
    """Where annot's ranges name the layers, hooks of FSDP are operations in them."""
    rows = Rows().range("blocks.0 Block |fwd", 0, 100, domain="annot").kernel(50, (50, 57))
    rows.range("FSDP::pre_forward (blocks.0)", 5, 10).range("FSDP::post_forward (blocks.0)", 90, 95)
    assert by_layer(attribute(rows.build())).select("layer", "module", "gpu_ns").rows() == [("blocks.0", "Block", 7)]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("+a k -a k +b k +c k -c k +d k -d", {"a": (1, 1), "c": (1, 1), "d": (1, 1)}),
        ("+a k -a k -b k +a k -a", {"a": (2, 2)}),
        ("k +a k +a k -a k -a k", {"a": (3, 1)}),
        ("+a k +a' k' -a k k' -a' k'", {"a": (4, 2)}),
        ("+ k -", {}),
    ],
    ids=["no post", "no pre", "repeated", "two threads", "root only"],
)
def test_hooks_without_a_partner(calls: str, expected: dict[str, tuple[int, int]]) -> None:
    """A lone hook in the middle of a thread is no pass, and repeated hooks are one. (' is the thread of autograd.)"""
    rows = Rows()
    for at, call in enumerate(calls.split()):
        thread = ENGINE if call.endswith("'") else MAIN
        if call.startswith("k"):
            rows.kernel(10 * at, (10 * at, 10 * at + 1), thread)
        else:
            layer = f" ({call[1]})" if call[1:] else ""
            side = "pre" if call[0] == "+" else "post"
            rows.range(f"FSDP::{side}_forward{layer}", 10 * at, 10 * at + 5, thread)
    table = by_layer(attribute(rows.build())).filter(phase="forward")
    assert {
        layer: (gpu, calls) for layer, gpu, calls in table.select("layer", "gpu_ns", "calls").iter_rows()
    } == expected


def test_steps_of_fsdp1_are_operations() -> None:
    """The steps inside FSDP1's forward pass count toward its range."""
    rows = Rows().range("FullyShardedDataParallel.forward", 0, 50).kernel(5, (5, 9))
    rows.range("FullyShardedDataParallel._pre_forward", 1, 10)
    table = by_layer(attribute(rows.build())).select("layer", "phase", "gpu_self_ns")
    assert table.rows() == [("FullyShardedDataParallel.forward", "forward", 4)]


def test_names_of_hooks() -> None:
    """Every name that FSDP2 gives to a hook, and names of its other ranges."""
    names = (
        "FSDP::pre_forward (a)", "FSDP::post_backward_rs_wait ()", "FSDP::post_backward_reduce (a._orig_mod.b) [pg=2]",
        "FSDP::all_gather (a)", "FSDP::forward_prefetch for a", "FSDP::root_pre_forward", "pre_forward (a)",
    )  # fmt: skip
    assert hooks_of(pl.Series(names)).rows() == [
        ("pre", "forward", "a"), ("post", "backward", ""), ("post", "backward", "a.b"), *[(None, None, None)] * 4,
    ]  # fmt: skip


def launched_in_blocks(profile: Profile) -> dict[str, int]:
    """GPU time of each block of `ginda_mfu`, launch by launch: from its first hook to its last, on its thread."""
    hooks: dict[tuple[int, str], dict[str, tuple[int, int]]] = defaultdict(dict)
    for thread, start, end, text in profile.ranges.select("thread", "start", "end", "text").iter_rows():
        if match := re.match(r"FSDP::(pre|post)_forward \((blocks\.\d+)\.", str(text)):
            hooks[thread, match[2]][match[1]] = (start, end)
    calls = {(row["process"], row["correlation"]): row for row in profile.launches.rows(named=True)}
    sums: Counter[str] = Counter()
    for table in (profile.kernels, profile.copies):
        for row in table.rows(named=True):
            call = calls.get((row["process"], row["correlation"]))
            for (thread, block), sides in hooks.items():
                first, last = sides.get("pre", (0, 0))[0], sides.get("post", (0, 2**62))[1]
                if call and thread == call["thread"] and first <= call["start"] and call["end"] <= last:
                    sums[block] += row["end"] - row["start"]
    return dict(sums)


def test_a_run_on_two_devices(tmp_path: Path) -> None:
    """At least 98 % of the kernel time that blocks of a real FSDP run launch is in their rows, exactly as launched."""
    profile = load(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path))
    attribution = attribute(profile)
    table = by_layer(attribution)
    expected = launched_in_blocks(profile)
    blocks = table.filter(pl.col("layer").str.contains(r"^blocks\.\d+$"))
    assert dict(blocks.filter(phase="forward").select("layer", "gpu_ns").iter_rows()) == expected
    assert len(expected) == 18
    assert blocks["gpu_ns"].sum() >= 0.98 * summarize(attribution)["attributed_gpu_ns"]
    assert table["gpu_ns"].sum() == table["gpu_self_ns"].sum() == summarize(attribution)["gpu_ns"]
    operations = by_op(attribution).filter(pl.col("gpu_self_ns") > 0).group_by("phase").agg(pl.col("gpu_self_ns").sum())
    meta = summarize(attribution)
    assert dict(operations.rows()) == {
        "forward": meta["attributed_gpu_ns"], UNATTRIBUTED: meta["unattributed_gpu_ns"],
    }  # fmt: skip


_TRAIN = """
import os, sys, torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
store = distributed.FileStore(sys.argv[2], 1)
distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 4))
for layer in list(model)[:2]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
def step():
    model(torch.randn(2, 8)).sum().backward()
step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    step()
profiler.export_chrome_trace(sys.argv[1])
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_hooks_of_the_installed_pytorch(tmp_path: Path) -> None:
    """The forward and backward passes of layers that the installed PyTorch shards are rows, with their operations."""
    path = tmp_path / "trace.json"
    done = python(_TRAIN, path, tmp_path / "store")
    assert done.returncode == 0, done.stderr
    texts = [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    attribution = attribute(load(path))
    table = by_layer(attribution)
    rows = set(table.select("layer", "phase", "calls").rows())
    assert {(layer, phase, 1) for layer in ("", "0", "1") for phase in ("forward", "backward")} <= rows
    for hook in ("pre_forward (1)", "pre_backward (1)", "post_backward_reduce (1)"):
        assert f"FSDP::{hook}" in texts
    inside = ranges_of(attribution).with_row_index("row")
    layer = inside.join(inside.filter(layer="1", phase="backward").select(parent="row"), on="parent", how="semi")
    assert any(text.startswith("autograd::engine::evaluate_function: Addmm") for text in layer["text"])
