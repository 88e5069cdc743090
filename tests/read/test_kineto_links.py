"""Which layer, thread and process things belong to, in small traces whose answers are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from range_tables import ranges_of

from annot import correlate, load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import UNATTRIBUTED, by_layer, by_op
from annot.profile import Profile
from annot.read.kineto.flows import module_texts


def read(folder: Path, *events: dict[str, Any], **top: Any) -> Profile:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events), **top}))
    return load(path)


def span(
    name: str, start: float, end: float, category: str = "cpu_op", tid: int | str = 1, **args: Any
) -> dict[str, Any]:
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, **times, "args": args}


def operation(name: str, start: float, end: float, tid: int, sequence: int | None, forward: int) -> dict[str, Any]:
    args = {"Sequence number": sequence, "Fwd thread id": forward}
    return span(name, start, end, tid=tid, **({} if sequence is None else args))


def arrow(number: int, from_tid: int, start: float, to_tid: int, end: float) -> list[dict[str, Any]]:
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 7}
    return [{"ph": "s", "tid": from_tid, "ts": start, **common}, {"ph": "f", "tid": to_tid, "ts": end, **common}]


def rows(profile: Profile, *columns: str) -> dict[str, Any]:
    return {row[0]: row[1:] for row in profile.ranges.select("text", *columns).rows()}


def thread(tid: int) -> int:
    return (7 << 24) + tid


def test_arrows_tell_which_of_several_threads_was_forward(tmp_path):
    """Two threads count from the same number; an arrow tells for its operation and for all of the same thread id."""
    profile = read(
        tmp_path,
        operation("aten::a", 1, 2, 11, 5, 0), operation("aten::b", 3, 4, 11, 6, 0),
        operation("aten::c", 1, 2, 12, 5, 0), operation("aten::d", 3, 4, 12, 6, 0),
        operation("ABackward0", 10, 11, 20, 5, 1), operation("BBackward0", 12, 13, 20, 6, 1),
        operation("CBackward0", 10, 11, 21, 5, 2), operation("DBackward0", 12, 13, 21, 6, 2),
        operation("aten::e", 5, 6, 12, 7, 0), operation("EBackward0", 14, 15, 20, 7, 1),
        *arrow(1, 11, 1, 20, 10), *arrow(2, 12, 1, 21, 10),
    )  # fmt: skip
    found = rows(profile, "forward_thread", "sequence", "role")
    assert found["ABackward0"] == (thread(11), 5, "backward")
    assert found["BBackward0"] == (thread(11), 6, "backward")
    assert found["CBackward0"] == (thread(12), 5, "backward")
    assert found["DBackward0"] == (thread(12), 6, "backward")
    assert found["aten::d"] == (None, 6, "operator")
    # Its forward operation was not recorded; that of the other thread with the same number is not it.
    assert found["EBackward0"] == (thread(11), 7, "backward")


def test_what_is_not_certain_is_not_said(tmp_path):
    """Without arrows, a number that two threads bear leads to neither; one that one thread bears leads there."""
    profile = read(
        tmp_path,
        operation("aten::a", 1, 2, 11, 5, 0), operation("aten::c", 1, 2, 12, 5, 0),
        operation("aten::b", 3, 4, 11, 6, 0),
        operation("ABackward0", 10, 11, 20, 5, 1), operation("BBackward0", 12, 13, 20, 6, 2),
        operation("EBackward0", 14, 15, 20, 99, 3),
    )  # fmt: skip
    found = rows(profile, "forward_thread")
    assert found["ABackward0"] == (None,)
    assert found["BBackward0"] == (thread(11),)
    assert found["EBackward0"] == (None,)


def test_arrows_stand_in_for_numbers(tmp_path):
    """Without sequence numbers both ends of an arrow get one of their own, and its end is of the backward pass."""
    profile = read(
        tmp_path,
        span("aten::a", 1, 2, tid=11), span("aten::b", 3, 4, tid=11),
        operation("aten::n", 5, 6, 11, 40, 0),
        span("Mine", 10, 11, tid=20), span("Other", 12, 13, tid=20), span("aten::inner", 12.5, 12.75, tid=20),
        *arrow(8, 11, 3, 20, 10), *arrow(9, 11, 1, 20, 12),
    )  # fmt: skip
    found = rows(profile, "sequence", "role", "forward_thread")
    assert found["Mine"][0] == found["aten::b"][0] != found["Other"][0] == found["aten::a"][0]
    assert {found["Mine"][0], found["Other"][0]}.isdisjoint({40, None})
    assert found["Mine"][1:] == found["Other"][1:] == ("backward", thread(11))
    assert found["aten::b"][1:] == ("operator", None)
    assert found["aten::inner"] == (None, "operator", None)


@pytest.mark.parametrize(
    ("name", "category", "role"),
    [
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "cpu_op", "backward"),
        ("AddmmBackward0", "cpu_op", "backward"),
        ("NllLossBackward", "Operator", "backward"),
        ("aten::convolution_backward", "cpu_op", "operator"),
        ("my Backward", "user_annotation", "annotation"),
        ("fc Linear |bwd", "cpu_op", "annotation"),
        ("## forward ##", "Operator", "annotation"),
        ("torch::autograd::CppNode<a b>", "Operator", "operator"),
        ("## forward ##", "cpu_op", "operator"),
    ],
)
def test_roles(name, category, role, tmp_path):
    """What a range is follows from its category and its name."""
    assert read(tmp_path, span(name, 1, 2, category)).ranges["role"].to_list() == [role]


def module(name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return span(f"nn.Module: {name}", start, end, "python_function", tid)


def test_several_models_keep_their_names(tmp_path):
    """Two models stand before their layers, a loss is a layer by itself, and functions are no ranges."""
    profile = read(
        tmp_path,
        module("Generator_0", 0, 10), module("Linear_0", 1, 3), span("train.py(3): step", 0, 90, "python_function"),
        module("Discriminator_0", 20, 30), module("Linear_1", 21, 22), module("Linear_1", 23, 24),
        module("BCELoss_0", 40, 41), module("Odd", 50, 51),
    )  # fmt: skip
    assert profile.ranges["text"].to_list() == [
        "Generator_0 Generator |fwd", "Generator_0.Linear_0 Linear |fwd",
        "Discriminator_0 Discriminator |fwd", "Discriminator_0.Linear_1 Linear |fwd",
        "Discriminator_0.Linear_1 Linear |fwd", "BCELoss_0 BCELoss |fwd", "Odd Odd |fwd",
    ]  # fmt: skip


def test_wrappers_are_no_layers(tmp_path):
    """A wrapped model has the layers of the model."""
    inner = [module("Net_0", 2, 90), module("Block_0", 5, 50), module("Linear_0", 10, 20), module("Linear_1", 60, 80)]
    wrapped = read(
        tmp_path, module("DistributedDataParallel_0", 0, 99), module("OptimizedModule_0", 1, 95), inner[0],
        module("FullyShardedDataParallel_1", 3, 55), module("CheckpointWrapper_0", 4, 52), *inner[1:],
    )  # fmt: skip
    assert wrapped.ranges["text"].to_list() == read(tmp_path, *inner).ranges["text"].to_list()
    assert "Block_0.Linear_0 Linear |fwd" in wrapped.ranges["text"].to_list()


def test_modules_nest_per_thread_and_despite_rounding(tmp_path):
    """A module lies in one of its own thread, also if times cut to microseconds let it end a little later."""
    profile = read(
        tmp_path,
        module("Net_0", 0, 10), module("Block_0", 1, 5), module("Linear_0", 4, 6), module("Linear_1", 6, 7),
        module("Net_0", 2, 9, tid=2), module("Linear_2", 3, 4, tid=2),
    )  # fmt: skip
    assert set(profile.ranges["text"]) == {
        "Forward Net |fwd", "Block_0 Block |fwd", "Block_0.Linear_0 Linear |fwd", "Linear_1 Linear |fwd",
        "Linear_2 Linear |fwd",
    }  # fmt: skip


def test_times_of_all_kinds(tmp_path):
    """Whole, fractional, negative and textual times are exact, also where a float of microseconds is not."""
    path = tmp_path / "trace.json"
    text = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": "7", "tid": "1", "ts": %s, "dur": %s}'
    times = [("5", "1"), ("-3.5", "0.001"), ('"1234567890123.456"', '"2"'), ("4403965917570.368", "1")]
    coarse = ("1695835542514261.123", "0.75")
    for absolute in ([], [coarse, ("0", "0")]):
        spans = [text % (f"op{row}", *pair) for row, pair in enumerate(times + absolute)]
        path.write_text(f"[{','.join(spans)}]")
        found = {row[0]: row[1:] for row in load(path).ranges.select("text", "start", "end").rows()}
        assert found["op0"] == (5000, 6000)
        assert found["op1"] == (-3500, -3499)
        assert found["op2"] == (1234567890123456, 1234567890125456)
        assert found["op3"] == (4403965917570368, 4403965917571368)
    assert found["op4"] == (1695835542514261123, 1695835542514261873)
    path.write_text("[" + ",".join(text % (f"op{row}", *coarse) for row in range(3)) + "]")
    assert set(load(path).ranges["start"]) == {1695835542514261123}


def test_arguments_of_unusual_types(tmp_path):
    """Numbers as text are numbers; what is none is null, for that event alone, and the report says so."""
    common = {"correlation": "9", "stream": 4294967295, "device": 0, "bytes": 2**70}
    profile = read(
        tmp_path,
        span("cudaLaunchKernel", 1, 2, "cuda_runtime", correlation=9),
        span("good", 3, 4, "kernel", **common),
        span("bad", 5, 6, "kernel", **{**common, "device": "cuda:0"}),
        {**span("none", 7, 8, "kernel"), "args": None},
    )
    assert profile.kernels.select("name", "correlation", "stream", "device").rows() == [
        ("good", 9, 4294967295, 0), ("bad", 9, 4294967295, None), ("none", None, None, None),
    ]  # fmt: skip
    assert profile.meta["notes"] == ["annot ignored arguments of unexpected types in 1 event."]


def test_what_is_left_out_is_said(tmp_path):
    """Spans without an end, in either notation, and ids that two processes share are notes."""
    other = {**span("cudaLaunchKernel", 2, 3, "cuda_runtime", correlation=1), "pid": 8}
    endless = span("aten::a", 1, 2)
    del endless["dur"]
    profile = read(
        tmp_path,
        other, span("cudaLaunchKernel", 1, 2, "cuda_runtime", correlation=1),
        span("gemm", 3, 4, "kernel", correlation=1), endless, {**endless, "ph": "B"},
    )  # fmt: skip
    assert profile.ranges.height == 0
    assert profile.kernels["process"].to_list() == [7 << 24]
    assert profile.meta["notes"] == [
        "annot skipped 2 events without valid start and end times.",
        "annot found 1 correlation id in several processes and uses the first process.",
    ]


def test_counters_without_their_kernels_are_not_guessed(tmp_path):
    """Counters of as many kernels as were timed belong to them in order; of another number, to none."""
    counted = [span(f"k{row}", row, row + 1, "cuda_profiler_range", fma=row * 10, text="x") for row in range(2)]
    kernels = [span("second", 9, 10, "kernel"), span("first", 5, 6, "kernel"), span("third", 11, 12, "kernel")]
    profile = read(tmp_path, *counted, *kernels[:2])
    assert profile.metrics.select("kernel", "name", "value").rows() == [(0, "fma", 0.0), (1, "fma", 10.0)]
    assert profile.kernels["name"].to_list() == ["first", "second"]
    profile = read(tmp_path, *counted, *kernels)
    assert profile.metrics.height == 0
    assert "of 2 kernels, but times of 3" in profile.meta["notes"][0]
    profile = read(tmp_path, *counted)
    assert profile.kernels.select("name", "correlation").rows() == [("k0", None), ("k1", None)]
    assert (profile.kernels["start"] == profile.kernels["end"]).all()
    assert len(profile.meta["notes"]) == 2


def test_origin_of_work_without_a_launch(tmp_path):
    """The operation that the id names is the origin, unless a launch is known or the id repeats the correlation."""
    profile = read(
        tmp_path,
        span("aten::a", 1, 9, tid=11, **{"External id": 5}), span("call", 2, 3, "cuda_runtime", correlation=1),
        span("launched", 20, 21, "kernel", correlation=1, **{"External id": 5}),
        span("caused", 22, 23, "kernel", correlation=2, **{"External id": 5}),
        span("repeated", 24, 25, "kernel", correlation=5, **{"External id": 5}),
        span("small", 26, 27, "kernel", **{"external id": 5}),
        span("unknown", 28, 29, "kernel", correlation=3, **{"External id": 6}),
    )  # fmt: skip
    origins = {row[0]: row[1:] for row in profile.kernels.select("name", "origin_thread", "origin_start").rows()}
    known, nothing = (thread(11), 1000), (None, None)
    assert origins == {
        "launched": nothing, "caused": known, "repeated": nothing, "small": known, "unknown": nothing,
    }  # fmt: skip
    assert set(profile.kernels["process"]) == {7 << 24}


def test_launches_of_every_runtime(tmp_path):
    """Calls of CUDA's and HIP's runtimes and drivers are launches, two of the same id included, in order of time."""
    categories = ["cuda_driver", "cuda_runtime", "Runtime", "hip_runtime", "privateuse1_driver"]
    events = [span(f"call{row}", 9 - row, 20, name, correlation=3) for row, name in enumerate(categories)]
    launches = read(tmp_path, *events, span("sync", 1, 2, "cuda_sync", correlation=4)).launches
    assert launches["name"].to_list() == ["call4", "call3", "call2", "call1", "call0"]
    assert launches.filter(pl.col("correlation") == 3).height == 5


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_belongs_to_its_layer(tmp_path, reentrant):
    """Activation checkpointing calls modules again in the backward pass: the same layers, in the phase recompute."""
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(2))

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=reentrant)
            return x.sum()

    net, x = Net(), torch.randn(2, 4, requires_grad=True)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(with_stack=True, with_modules=True, activities=cpu) as run:
        for _ in range(3):
            net(x).backward()
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = correlate(load(tmp_path / "trace.json")).filter(pl.col("module").is_in(["Net", "Sequential", "Linear"]))
    forward, again = (
        dict(rows.filter(phase=phase).select("layer", "calls").iter_rows()) for phase in ("forward", "recompute")
    )
    assert len(forward) == 5
    assert set(forward.values()) == {3}
    assert again == dict.fromkeys(filter(None, forward), 3)


def test_a_part_called_by_itself_is_the_layer_that_it_is_in_the_model():
    """A module that lies in the model elsewhere keeps its path when it is called alone, and the phase forward."""
    calls = [("Net_0", 0, 90), ("Enc_0", 10, 80), ("Linear_0", 20, 30), ("Enc_0", 100, 150), ("Linear_0", 110, 120),
             ("Linear_0", 200, 210)]  # fmt: skip
    table = pl.DataFrame([{"thread": 1, "start": a, "end": b, "python": n, "text": f"nn.Module: {name}"}
                          for n, (name, a, b) in enumerate(calls)])  # fmt: skip
    backward = pl.DataFrame({"thread": [1, 2], "start": [190, 0], "end": [220, 999]})
    paths = ["Forward Net |fwd", "Enc_0 Enc |fwd", "Enc_0.Linear_0 Linear |fwd"]
    assert module_texts(table) == [*paths, *paths[1:], paths[2]]
    assert module_texts(table, backward) == [*paths, *paths[1:], "Enc_0.Linear_0 Linear |re"]


def test_backward_operations_have_one_row(tmp_path):
    """The range of autograd's engine and that of the operation in it are one call of one operation."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as run:
        for _ in range(3):
            net(torch.randn(2, 4)).sum().backward()
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    result = attribute(load(tmp_path / "trace.json"))
    expected = {
        "layer": {"aten::sum": 3, "aten::linear": 12, "aten::relu": 3},  # of addmm and of the transposed weight
        "op": {"SumBackward0": 3, "AddmmBackward0": 6, "TBackward0": 6, "ReluBackward0": 3},
    }
    of_engine = pl.col("op").str.contains("Backward0|Accumulate")  # and not what they call
    for rows, name in ((by_layer(result), "layer"), (by_op(result).filter(of_engine), "op")):
        calls = dict(rows.filter(phase="backward").select(name, "calls").iter_rows())
        assert calls == expected[name] | {"torch::autograd::AccumulateGrad": 12}
        assert not rows[name].str.contains("evaluate_function").any()
    inside = ranges_of(result).filter(pl.col("text").str.contains("AddmmBackward0"))
    found = by_op(result).filter(pl.col("op") == "AddmmBackward0")["host_self_ns"].to_list()
    assert found == [inside["host_self_ns"].sum()]


def _kernel(name: str, start: float, end: float, category: str = "kernel", **args: Any) -> dict[str, Any]:
    return {**span(name, start, end, category, 0, **args), "pid": 0}


def test_external_ids_lead_to_launches(tmp_path: Path) -> None:
    """Without correlation ids, the external id of a GPU activity is that of its launch, whose operator is around it."""
    profile = read(
        tmp_path,
        span("aten::mm", 1, 9, **{"External id": 513}), span("aten::add", 10, 19, **{"External id": 25}),
        span("hipLaunchKernel", 3, 4, "cuda_runtime", **{"External id": 25}),
        span("hipMemcpyAsync", 12, 13, "cuda_runtime", **{"External id": 26}),
        _kernel("gemm", 20, 30, **{"External id": 25}),
        _kernel("Memcpy DtoH", 30, 35, "gpu_memcpy", **{"External id": 26}),
        _kernel("lost", 40, 50, **{"External id": 0}), _kernel("other", 50, 60, **{"External id": 77}),
        span("hipDeviceSynchronize", 14, 15, "cuda_runtime", **{"External id": 0}),
    )  # fmt: skip
    times = dict(by_op(attribute(profile)).select("op", "gpu_self_ns").iter_rows())
    assert times == {"aten::mm": 10_000, "aten::add": 5_000, "(unattributed)": 20_000}


def test_external_ids_of_operators_lead_to_operators(tmp_path: Path) -> None:
    """Without launches in the trace, a GPU activity belongs to the operator with its external id."""
    profile = read(
        tmp_path, span("aten::mm", 1, 9, **{"External id": 7}), _kernel("gemm", 20, 30, **{"External id": 7}),
    )  # fmt: skip
    assert by_op(attribute(profile)).filter(op="aten::mm")["gpu_self_ns"].to_list() == [10_000]


def test_correlation_ids_come_first(tmp_path: Path) -> None:
    """Where launches have correlation ids, the external id of another numbering leads nowhere."""
    profile = read(
        tmp_path,
        span("aten::mm", 1, 9, **{"External id": 1}), span("aten::add", 10, 19, **{"External id": 2}),
        span("cudaLaunchKernel", 3, 4, "cuda_runtime", correlation=2, **{"External id": 1}),
        span("cudaLaunchKernel", 12, 13, "cuda_runtime", correlation=1, **{"External id": 2}),
        _kernel("gemm", 20, 30, correlation=2, **{"External id": 1}), _kernel("add", 30, 35, correlation=1),
    )  # fmt: skip
    times = {op: ns for op, ns in by_op(attribute(profile)).select("op", "gpu_self_ns").iter_rows() if ns}
    assert times == {"aten::mm": 10_000, "aten::add": 5_000}


def test_launches_are_on_the_threads_of_their_operations(tmp_path: Path) -> None:
    """A launch with the thread id of an ended thread belongs to the operation with its external id, around it."""
    profile = read(
        tmp_path,
        span("aten::mm", 1, 9, tid=11, **{"External id": 501}),
        span("aten::add", 20, 29, tid=12, **{"External id": 502}),
        span("aten::relu", 30, 39, tid=12, **{"External id": 503}), span("aten::sum", 20, 39, tid=13),
        span("early", 2, 3, "cuda_runtime", 11, correlation=1, **{"External id": 501}),
        span("moved", 20, 29, "cuda_driver", 11, correlation=2, **{"External id": 502}),
        span("unknown", 31, 32, "cuda_runtime", 11, correlation=3),
        span("outside", 38, 40, "cuda_runtime", 13, correlation=4, **{"External id": 503}),
        span("alone", 33, 34, "cuda_runtime", 14, correlation=5, **{"External id": 99}),
    )  # fmt: skip
    threads = dict(profile.launches.select("name", "thread").iter_rows())
    assert threads == {
        "early": thread(11), "moved": thread(12), "unknown": thread(12), "outside": thread(13), "alone": thread(14),
    }  # fmt: skip


def test_external_ids_that_are_correlation_ids_move_no_launches(tmp_path: Path) -> None:
    """Launches stay on their threads where each external id repeats the correlation id, or replaces it."""
    operator = span("aten::mm", 1, 9, tid=11, **{"External id": 5})
    for args in ({"correlation": 5}, {}):
        launch = span("call", 2, 3, "cuda_runtime", 12, **args, **{"External id": 5})
        assert read(tmp_path, operator, launch).launches["thread"].to_list() == [thread(12)]


def test_ambiguous_external_ids_move_no_launches(tmp_path: Path) -> None:
    """A launch stays on its thread if two operations have its external id, or only one of another process."""
    profile = read(
        tmp_path,
        span("aten::mm", 1, 9, tid=11, **{"External id": 501}), span("aten::add", 1, 9, tid=12, **{"External id": 501}),
        {**span("aten::sum", 1, 9, tid=11, **{"External id": 502}), "pid": 8},
        span("call", 2, 3, "cuda_runtime", 13, correlation=1, **{"External id": 501}),
        span("call", 4, 5, "cuda_runtime", 13, correlation=2, **{"External id": 502}),
    )  # fmt: skip
    assert profile.launches["thread"].to_list() == [thread(13)] * 2


def test_hooks_cross_no_ranges_of_the_engine(tmp_path: Path) -> None:
    """A backward range that begins in one operation of the engine and ends in another is in the tree, and is all."""
    engine = "autograd::engine::evaluate_function: "
    profile = read(
        tmp_path,
        span(f"{engine}MmBackward0", 1, 10), span("fc Linear |bwd", 2, 22), span("MmBackward0", 3, 9),
        span(f"{engine}AddBackward0", 20, 30), span("AddBackward0", 24, 29), span("mine", 40, 50, "user_annotation"),
        span("other", 45, 55, "user_annotation"),
    )  # fmt: skip
    attribution = attribute(profile)
    assert attribution.forest.crossing.height == 1
    lines = dict(by_layer(attribution).filter(pl.col("layer") != UNATTRIBUTED).select("layer", "host_ns").iter_rows())
    assert lines == {"fc": 20_000, "AddBackward0": 5_000, "mine": 10_000, "other": 10_000}


def test_operations_in_a_compiled_graph_hide_no_calls(tmp_path: Path) -> None:
    """A run of a graph calls each layer once, also where an operation is between the run and its kernels."""
    spans = []
    for start in (0, 100):
        spans += [
            span("Forward Net |fwd", start + 1, start + 90),
            span("Forward CompiledGraph#0 |fwd", start + 2, start + 80),
            span("## Call CompiledFxGraph f ##", start + 3, start + 79), span("aten::mm", start + 4, start + 9),
            span("h.0.a Linear inside=1,Block |fwd", start + 10, start + 20),
            span("h.0.a Linear inside=1,Block |fwd", start + 30, start + 40),
        ]  # fmt: skip
    calls = dict(by_layer(attribute(read(tmp_path, *spans))).select("layer", "calls").iter_rows())
    assert (calls["h"], calls["h.0.a"]) == (2, 2)
