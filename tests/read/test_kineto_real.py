"""What real traces of torch.profiler hold, counted by hand in plain Python."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from shared_data import shared

from annot import load
from annot.labels import tag
from annot.profile import Profile

ROLES = ("annotation", "module", "operator", "backward")

# Annotations, modules, operators, backward operators, those that know their forward thread, launches, kernels, copies.
COUNTS = {
    "hta_alexnet_a100_train.json.gz": (8, 0, 359, 0, 0, 361, 79, 19),
    "hta_alexnet_a100_cupti_sass_flops.json.gz": (8, 0, 375, 0, 0, 1862, 77, 0),
    "hta_backward_thread_min.json": (2, 0, 1, 2, 0, 1, 1, 0),
    "hta_cpu_only.json.gz": (100, 0, 7179, 200, 120, 0, 0, 0),
    "hta_large_integer.json.gz": (0, 0, 1, 0, 0, 0, 1, 0),
    "hta_oldcat_Kernel_Runtime.json.gz": (0, 0, 0, 0, 0, 8, 4, 0),
    # Without 27248 calls that launch nothing and wait for nothing, see tests/data/README.md.
    "hta_recsys_a100_cudagraph.json.gz": (360, 0, 23670, 1515, 690, 6676, 6080, 1667),
    "hta_resnet_ddp_a100_fwdbwd_gua.json.gz": (42, 0, 12777, 1569, 1086, 8740, 2700, 1074),
    "kineto_2021_resnet50_v100_oldcats_seq.json.gz": (24, 0, 22554, 1068, 1068, 11923, 8772, 324),
    "tracelens_h100_bert_small_nnmodule.json.gz": (1, 84, 479, 0, 0, 132, 60, 1),
    "tracelens_mi300_resnet18_train_nnmodule_seq.json.gz": (10, 380, 5155, 1020, 710, 5587, 2360, 15),
    "tracelens_mi300_sglang_decode_graph_exec.json.gz": (2, 1, 61, 0, 0, 29, 555, 3),
}


def events(name: str) -> list[dict[str, Any]]:
    content = shared(f"kineto/{name}").read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    return json.loads(content)["traceEvents"]


def profile(name: str) -> Profile:
    return load(shared(f"kineto/{name}"))


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    """Every range by its role, every launch, kernel and copy of the twelve traces is there, and every link."""
    found = profile(name)
    roles = Counter(found.ranges["role"])
    linked = found.ranges.filter(pl.col("role") == "backward")["forward_thread"].count()
    heights = (found.launches.height, found.kernels.height, found.copies.height)
    assert (*(roles[role] for role in ROLES), linked, *heights) == COUNTS[name]
    assert not set(roles) - set(ROLES)
    assert found.ranges["id"].to_list() == list(range(found.ranges.height))


@pytest.mark.parametrize("name", [name for name, counts in COUNTS.items() if counts[4]])
def test_backward_operations_find_their_forward_ones(name):
    """A backward operation names a sequence number that forward operations of its forward thread bear."""
    ranges = profile(name).ranges
    backward = ranges.filter((pl.col("role") == "backward") & pl.col("sequence").is_not_null())
    keys = ["thread", "sequence"]
    ahead = ranges.filter(pl.col("role") == "operator").select(*keys, ahead="start").unique(keys, keep="first")
    found = backward.join(ahead, left_on=["forward_thread", "sequence"], right_on=keys)
    # Of the trace without a GPU, ten belong to operations before its beginning.
    assert backward.height - found.height == (10 if name == "hta_cpu_only.json.gz" else 0)
    assert (found["ahead"] < found["start"]).all()


@pytest.mark.parametrize(
    "name", ["tracelens_h100_bert_small_nnmodule.json.gz", "tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"]
)
def test_layers_are_the_chains_of_modules(name):
    """The layer of a module is its chain of callers, as the ids of the Python calls tell, without the model."""
    calls = {event["args"]["Python id"]: event for event in events(name) if event.get("cat") == "python_function"}
    expected: Counter[tuple[str, str]] = Counter()
    for call in calls.values():
        names: list[str] = []
        around = call
        while around is not None and call["name"].startswith("nn.Module: "):
            names[:0] = [around["name"].removeprefix("nn.Module: ")] * around["name"].startswith("nn.Module: ")
            around = calls.get(around["args"]["Python parent id"])
        if names:
            expected[".".join(names[1:]), names[-1].rpartition("_")[0]] += 1
    modules = profile(name).ranges.filter(pl.col("role") == "module")
    tags = [tag.parse(text) for text in modules["text"]]
    assert Counter((found.layer, found.module) for found in tags) == expected
    assert {found.phase for found in tags} == {"forward"}
    assert set(modules["domain"]) == {""}


def test_layers_of_resnet18():
    """Layers have paths and classes as one would write them down, five calls for five steps."""
    texts = Counter(profile("tracelens_mi300_resnet18_train_nnmodule_seq.json.gz").ranges["text"])
    assert texts["Forward ResNet |fwd"] == 5
    assert texts["Sequential_1.BasicBlock_2.Sequential_2.Conv2d_7 Conv2d |fwd"] == 5
    assert texts["Sequential_1.BasicBlock_2.ReLU_3 ReLU |fwd"] == 10


def test_kernels_of_graphs_hang_on_one_launch():
    """All kernels of the HIP graph have the launch of the graph, and those of CUDA's 70 graphs theirs."""
    found = profile("tracelens_mi300_sglang_decode_graph_exec.json.gz")
    launched = found.kernels.join(found.launches, on=["process", "correlation"], suffix="_launch")
    assert Counter(launched["name_launch"]) == {
        "hipGraphLaunch": 544,
        "hipLaunchKernel": 10,
        "hipModuleLaunchKernel": 1,
    }
    assert (profile("hta_recsys_a100_cudagraph.json.gz").launches["name"] == "cudaGraphLaunch").sum() == 70


def test_hardware_counters_belong_to_kernels():
    """77 kernels have 9 counters each; the first fully connected layer does 128·9216·4096 fused multiply-adds."""
    found = profile("hta_alexnet_a100_cupti_sass_flops.json.gz")
    assert set(found.metrics["kernel"].value_counts()["count"]) == {9}
    assert found.metrics["kernel"].n_unique() == 77
    fused = found.metrics.filter(pl.col("name") == "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum")
    exact = fused.filter(pl.col("value") == 128 * 9216 * 4096)
    assert exact.height > 0
    kernels = found.kernels[exact["kernel"].to_list()]
    launches = kernels.join(found.launches, on=["process", "correlation"], suffix="_launch", maintain_order="left")
    assert set(launches["name_launch"]) == {"cudaLaunchKernel"}
    assert all("addmm" in enclosing(found, *row) for row in launches.select("thread", "start_launch").rows())
    assert (found.kernels["end"] - found.kernels["start"]).sum() == 0
    assert any("77 kernels" in note for note in found.meta["notes"])


def enclosing(found: Profile, thread: int, instant: int) -> str:
    inside = (pl.col("thread") == thread) & (pl.col("start") <= instant) & (pl.col("end") >= instant)
    return " ".join(found.ranges.filter(inside)["text"])


@pytest.mark.parametrize(
    "name", ["hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto_2021_resnet50_v100_oldcats_seq.json.gz"]
)
def test_without_launches_work_belongs_to_the_operation_that_the_trace_names(name, tmp_path):
    """Launches taken out, the origin of each kernel is an operation around its launch, on the same thread."""
    whole = profile(name)
    kept = [event for event in events(name) if event.get("cat") not in ("cuda_runtime", "Runtime")]
    path = tmp_path / "trace.json"
    top = {"baseTimeNanoseconds": 1711964646000000000} if "ddp" in name else {}
    path.write_text(json.dumps({"traceEvents": kept, **top}))
    cut = load(path)
    assert cut.launches.height == 0
    for table in ("kernels", "copies"):
        work, before = getattr(cut, table), getattr(whole, table)
        launched = before.join(whole.launches, on="correlation", suffix="_launch", maintain_order="left")
        assert (work["origin_thread"] == launched["thread"]).all()
        operations = whole.ranges.unique(["thread", "start"]).select("thread", "start", until="end")
        work = work.hstack(launched.select(at="start_launch")).join(
            operations, left_on=["origin_thread", "origin_start"], right_on=["thread", "start"], maintain_order="left"
        )
        assert (work["origin_start"] <= work["at"]).all()
        assert work["process"].to_list() == before["process"].to_list()
    assert whole.kernels["origin_start"].null_count() == whole.kernels.height


def test_repeated_correlation_is_no_operation():
    """Traces of 2023 repeat the correlation as the id of the operation: the 705 kernels have no origin."""
    kernels = profile("hta_recsys_a100_cudagraph.json.gz").kernels
    assert kernels["origin_start"].null_count() == 6080


def test_ranges_of_2021_that_are_no_operations():
    """Steps, optimizer and data loader, operators by category, are annotations; `detach_` is not."""
    ranges = profile("kineto_2021_resnet50_v100_oldcats_seq.json.gz").ranges
    texts = Counter(ranges.filter(pl.col("role") == "annotation")["text"])
    assert texts == {
        **{f"ProfilerStep#{step}": 1 for step in range(5, 11)},
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": 6,
        "Optimizer.zero_grad#SGD.zero_grad": 6,
        "Optimizer.step#SGD.step": 6,
    }
    assert "detach_" in ranges.filter(pl.col("role") == "operator")["text"].to_list()


@pytest.mark.parametrize("name", [name for name, counts in COUNTS.items() if counts[2] > 100])
def test_ranges_nest_in_the_order_of_their_ids(name):
    """On one thread, the operation that begins later, or has the larger id, lies in the earlier one or after it."""
    ranges = profile(name).ranges.sort("thread", "start", pl.col("end"), "id", descending=[False, False, True, False])
    rows = ranges.select("thread", "start", "end", "id").rows()
    stack: list[tuple[int, int]] = []
    for thread, start, end, _ in rows:
        while stack and (stack[-1][0] != thread or stack[-1][1] <= start):
            stack.pop()
        assert not stack or end <= stack[-1][1]
        stack.append((thread, end))
    assert all(one[3] < other[3] for one, other in pairwise(rows) if one[:3] == other[:3])


def test_what_the_file_says_about_the_machine():
    """Devices, rank and number of ranks are in the meta data; only plain values are taken."""
    meta = profile("hta_resnet_ddp_a100_fwdbwd_gua.json.gz").meta
    assert (meta["rank"], meta["world_size"]) == (0, 2)
    assert len(meta["devices"]) == 8
    assert meta["devices"][0]["name"] == "NVIDIA A100-PG509-200"
    assert meta["devices"][0]["numSms"] == 108
    cpu = profile("hta_cpu_only.json.gz").meta
    assert (cpu["rank"], cpu["world_size"], "devices" in cpu) == (34, 300, False)


def test_times_are_exact():
    """Times are those of the text, in nanoseconds from the base, to the last digit."""
    name = "hta_resnet_ddp_a100_fwdbwd_gua.json.gz"
    text = gzip.decompress(shared(f"kineto/{name}").read_bytes()).decode()
    spans = [event for event in json.loads(text, parse_float=str)["traceEvents"] if event.get("cat") == "kernel"]
    expected = [(digits(event["ts"]) + 1711964646000000000, digits(event["dur"])) for event in spans]
    expected.sort()
    kernels = profile(name).kernels
    assert [(start, end - start) for start, end in kernels.select("start", "end").rows()] == expected


def digits(microseconds: str | int) -> int:
    whole, _, fraction = str(microseconds).partition(".")
    return int(whole + fraction.ljust(3, "0"))
