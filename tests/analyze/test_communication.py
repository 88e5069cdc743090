"""Communication by layer: exposed and hidden time, who launches a collective and who waits for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from shared_data import shared, unpacked
from step_rows import ALL_REDUCE, GEMM, TENSOR, Rows

from annot.analyze.communication import (
    NOBODY,
    Message,
    bus_factor,
    by_communication,
    collectives_of,
    message_of,
    operations,
)
from annot.analyze.run_summary import by_summary, step_time
from annot.attribution.attribute import Attribution, attribute
from annot.profile import Profile
from annot.read.formats import load

LAYERS = ("a", "b")
TIMES = ("exposed_ns", "hidden_ns", "wait_ns")


def _by_layer(profile: Profile, *columns: str, **options: Any) -> dict[str, tuple[Any, ...]]:
    """The columns of each layer, or of each reason."""
    rows = by_communication(attribute(profile, **options))
    name = pl.when(pl.col("layer") == "(unattributed)").then("module").otherwise("layer")
    return {row[0]: row[1:] for row in rows.select(name.alias("name"), *columns).iter_rows()}


def test_who_launches_and_who_waits() -> None:
    """Two collectives overlap; the gap before the next kernel belongs to its layer, the first one in the file."""
    rows = Rows().range("a Linear |bwd", 0, 10).range("b Linear |bwd", 20, 30)
    rows.work(GEMM, 1, 2, 12).work(ALL_REDUCE, 5, 8, 40).work("ncclDevKernel_Broadcast", 22, 30, 50)
    rows.work(TENSOR, 25, 45, 60).work(GEMM, 6, 45, 50)
    assert _by_layer(rows.build(), "operations", "calls", *TIMES, "waits_for") == {
        "a": ("all_reduce", 1, 28, 4, 0, None),
        "b": ("broadcast", 1, 5, 5, 33, "all_reduce, broadcast"),
    }


def test_exposed_time_at_the_end_has_no_waiting_layer() -> None:
    """After the last kernel nobody waits, and the time is not lost."""
    rows = Rows().range("a Linear |bwd", 0, 10).work(GEMM, 1, 2, 12).work(ALL_REDUCE, 5, 8, 40)
    assert _by_layer(rows.build(), *TIMES) == {"a": (28, 4, 0), NOBODY: (0, 0, 28)}


def test_the_range_of_a_collective_is_no_layer() -> None:
    """Collectives, and the kernels launched in their ranges, belong to the layer around them; loops are no layers."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("a Linear |bwd", 10, 30)
    rows.range("Collective all_reduce@default_pg:2 [8]f32 |coll", 12, 28).range("ncclAllReduce", 13, 20)
    rows.range("nccl:broadcast", 40, 50)
    rows.work(ALL_REDUCE, 14, 20, 30).work(GEMM, 22, 35, 36).work("ncclDevKernel_Broadcast", 41, 50, 60)
    assert _by_layer(rows.build(), *TIMES) == {"a": (10, 0, 10), "nccl:broadcast": (10, 0, 0), NOBODY: (0, 0, 10)}


def test_bytes_and_bus_bandwidth() -> None:
    """A range is one message, whatever number of kernels it launches; sizes that are unknown stay unknown."""
    rows = Rows().range("a Linear |bwd", 0, 30).range("Collective all_reduce@default_pg:4 [1000]f32 |coll", 2, 20)
    rows.range("ncclAllReduce", 3, 10).work(ALL_REDUCE, 4, 10, 110).work(ALL_REDUCE, 12, 110, 310)
    rows.range("b Linear |bwd", 40, 60).range("Collective all_reduce@default_pg:4 [?]f32 |coll", 42, 50)
    rows.work(ALL_REDUCE, 44, 400, 500)
    bandwidth = 4000 * 1.5 / 300e-9
    found = _by_layer(rows.build(), "calls", "bytes", "bus_bytes_per_s")
    assert found == {"a": (2, 4000, pytest.approx(bandwidth)), "b": (1, None, None), NOBODY: (0, None, None)}


def test_messages() -> None:
    """Operation, group and size are those of the label; tensors that were left out make the size unknown."""
    label = "Collective reduce_scatter_tensor@tp:4 [8,2]bf16 [3]i64{} |coll"
    assert message_of(label.format("")) == Message("reduce_scatter_tensor", "tp", 4, 56)
    assert message_of(label.format(" +1")) == Message("reduce_scatter_tensor", "tp", 4, None)
    assert message_of("Collective wait |coll") == Message("wait")
    assert message_of("nccl:all_reduce") is message_of("fc Linear [4]f32 |fwd") is None


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0), ("all_reduce_coalesced", 4, 1.5), ("reduce_scatter_tensor", 4, 0.75),
        ("all_gather_into_tensor", 8, 0.875), ("all_to_all_single", 2, 0.5), ("reduce", 8, 1.0), ("send", 2, 1.0),
        ("barrier", 8, None), ("all_reduce", 1, None), ("all_reduce", None, None),
    ],
)  # fmt: skip
def test_bus_factors(operation: str, ranks: int | None, factor: float | None) -> None:
    """The factors of NCCL's tests, counted by hand."""
    assert bus_factor(operation, ranks) == factor


def test_operations_of_kernels() -> None:
    """NCCL, RCCL and custom kernels name their operation; others do not."""
    names = {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)": "all_reduce", "ncclKernel_Broadcast_RING_LL": "broadcast",
        "ncclDevKernel_ReduceScatter_Sum_bf16": "reduce_scatter", "ncclDevKernel_SendRecv": "send_recv",
        "void vllm::cross_device_reduce_1stage<4>": "reduce", "rcclGenericKernel": "collective",
    }  # fmt: skip
    assert operations(pl.Series(list(names))).to_list() == list(names.values())


def test_without_a_device_the_process_waits() -> None:
    """On a CPU, ranges of collectives are exposed, unless a layer computes beside them."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("a Linear |bwd", 10, 60)
    rows.range("Collective all_reduce@default_pg:2 [8]f32 |coll", 20, 30)
    rows.range("Collective wait |coll", 50, 80)
    rows.ranges[-1]["kind"] = "start"
    attribution = attribute(rows.build())
    table = by_communication(attribution)
    assert table.select("layer", "module", *TIMES, "bytes", "bus_bytes_per_s").rows() == [
        ("a", "Linear", 10, 0, 10, 32, None), ("", "wait", 20, 10, 20, None, None),
    ]  # fmt: skip
    assert table["exposed_ns"].sum() == _collectives(attribution)[0]


def test_a_collective_of_another_step() -> None:
    """What a selected step did not launch is communication of that step, without a layer."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("Batch 1 |step", 100, 200)
    rows.range("a Linear |bwd", 10, 60).range("b Linear |bwd", 110, 160)
    rows.work(ALL_REDUCE, 20, 90, 130).work(GEMM, 120, 140, 150)
    found = _by_layer(rows.build(), *TIMES, steps=slice(1, 2))
    assert found == {"b": (0, 0, 30), "launched outside the steps": (30, 0, 0)}


def test_a_collective_that_runs_outside_the_steps() -> None:
    """A collective counts in the steps in which it runs: its size where it starts, its time in each of them."""
    rows = Rows().range("Batch 0 |step", 100, 200).range("Batch 1 |step", 200, 300)
    for layer, start in (("before", 0), ("a", 100), ("after", 120)):
        rows.range(f"{layer} Linear |bwd", start, start + 20)
        rows.range("Collective all_reduce@default_pg:2 [100]f32 |coll", start + 2, start + 8)
    rows.work(ALL_REDUCE, 5, 90, 110).work(ALL_REDUCE, 105, 190, 210).work(ALL_REDUCE, 125, 220, 230)
    profile = rows.build()
    columns = ("calls", "time_ns", "bytes")
    assert _by_layer(profile, *columns) == {
        "before": (0, 10, None), "a": (1, 20, 400), "after": (1, 10, 400), NOBODY: (0, 0, None),
    }  # fmt: skip
    first = _by_layer(profile, *columns, steps=slice(0, 1))
    assert first == {"a": (1, 10, 400), "launched outside the steps": (0, 10, None), NOBODY: (0, 0, None)}


def test_several_reports_read_the_collectives_once() -> None:
    """The second result is the first one, and other steps have their own."""
    rows = Rows().range("Batch 0 |step", 0, 50).range("Batch 1 |step", 50, 100).work(ALL_REDUCE, 5, 8, 40)
    attribution = attribute(rows.build())
    assert collectives_of(attribution) is collectives_of(attribution)
    assert attribution.of_steps is not None
    assert collectives_of(attribution.of_steps(slice(1, 2))) is not collectives_of(attribution)


def _collectives(attribution: Attribution) -> tuple[int, int]:
    """Exposed and hidden time of the step time."""
    table = step_time(attribution).filter(pl.col("share") == "collectives")
    return int(table["ns"].sum()), int(table["hidden_ns"].sum())


_KERNEL = st.tuples(
    st.sampled_from([GEMM, TENSOR, ALL_REDUCE, ALL_REDUCE, "copy"]), st.sampled_from([None, 5, 15, 25]),
    st.integers(0, 60), st.integers(0, 15), st.integers(1, 2), st.integers(0, 1),
)  # fmt: skip


def _rows(kernels: list[tuple[Any, ...]], *, steps: bool) -> Rows:
    """Layers a and b launch at 5 and 15 in each of two processes; 25 and None are no layer."""
    rows = Rows()
    for process in (1, 2):
        if steps:
            rows.range("Batch 0 |step", 0, 30, process).range("Batch 1 |step", 32, 62, process)
        rows.range("a Linear |fwd", 0, 10, process).range("b Linear |fwd", 10, 20, process)
    for name, launched, start, length, process, device in kernels:
        rows.work(name, launched, start, start + length, process, device)
    return rows


def _layer(kernel: tuple[Any, ...], *, steps: bool) -> str:
    return {5: "a", 15: "b", 25: "(batch)" if steps else "launched in no range"}.get(kernel[1], "no launch recorded")


def _reference(kernels: list[tuple[Any, ...]], *, steps: bool) -> dict[str, Counter[str]]:
    """The same, nanosecond by nanosecond and kernel by kernel."""
    found: dict[str, Counter[str]] = {name: Counter() for name in TIMES}
    for where in {kernel[4:] for kernel in kernels}:
        here = [kernel for kernel in kernels if kernel[4:] == where]
        collectives = [kernel for kernel in here if kernel[0] == ALL_REDUCE]
        compute = [kernel for kernel in here if kernel[0] in (GEMM, TENSOR) and kernel[3]]
        ran = [kernel for kernel in here if kernel[0] != "copy"] or here
        first, last = min(one[2] for one in ran), max(one[2] + one[3] for one in ran)
        for at in [*range(30), *range(32, 62)] if steps else range(first, last):
            open_now = [one for one in collectives if one[2] <= at < one[2] + one[3]]
            if not open_now:
                continue
            owner = _layer(min(open_now, key=lambda one: one[2]), steps=steps)
            if any(one[2] <= at < one[2] + one[3] for one in compute):
                found["hidden_ns"][owner] += 1
                continue
            after = min((one for one in compute if one[2] > at), key=lambda one: one[2], default=None)
            found["exposed_ns"][owner] += 1
            found["wait_ns"][NOBODY if after is None else _layer(after, steps=steps)] += 1
    return found


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_KERNEL, max_size=10), st.booleans())
def test_every_nanosecond_has_its_layers(kernels: list[tuple[Any, ...]], steps: bool) -> None:
    """On several devices of several processes, with any overlap, the times are those of the reference."""
    profile = _rows(kernels, steps=steps).build()
    found, expected = _by_layer(profile, *TIMES), _reference(kernels, steps=steps)
    for index, name in enumerate(TIMES):
        assert {layer: row[index] for layer, row in found.items() if row[index]} == dict(expected[name])
    one = attribute(profile, steps=slice(1, 2) if steps else None)
    exposed, hidden = _collectives(one)
    assert by_communication(one).select(pl.col(TIMES).sum()).rows() == [(exposed, hidden, exposed)]


@pytest.mark.parametrize(
    ("name", "exposed"),
    [
        ("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", 25_401_752),
        ("kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", 39_559_468),
        ("kineto/hta_recsys_a100_cudagraph.json.gz", None),
        ("kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz", None),
    ],
)  # fmt: skip
def test_layers_add_up_to_the_summary(name: str, exposed: int | None, tmp_path: Path) -> None:
    """Exposed time by launching and by waiting layer, and hidden time, are those of the summary to the nanosecond."""
    attribution = attribute(load(unpacked(name, tmp_path) if "sqlite" in name else shared(name)))
    item = by_summary(attribution).filter(pl.col("section") == "time", pl.col("item") == "collectives")
    total = item.select("ns", "hidden_ns").row(0)
    assert exposed is None or total[0] == exposed
    rows = by_communication(attribution)
    assert rows.select(pl.col("exposed_ns", "hidden_ns", "wait_ns").sum()).row(0) == (*total, total[0])
    assert (rows["time_ns"] == rows["exposed_ns"] + rows["hidden_ns"]).all()
