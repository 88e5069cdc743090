"""Sizes of collectives in traces of torch.profiler: bytes and bus bandwidth by layer."""

from __future__ import annotations

import gzip
import json
import operator
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from shared_data import shared

from annot.analyze.communication import by_communication
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.labels import tag
from annot.read.formats import load
from annot.read.kineto.operator_calls import message_text

RESNET = "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz"
BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Byte": 1, "Float8_e4m3fn": 1}
FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n, "_allgather_base": lambda n: (n - 1) / n,
    "_reduce_scatter_base": lambda n: (n - 1) / n, "all_to_allv": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0, "_reduce_oop": lambda n: 1.0, "send": lambda n: 1.0, "recv": lambda n: 1.0,
}  # fmt: skip


def _expected(messages: list[dict[str, Any]], microseconds: list[float]) -> tuple[int, float]:
    """Bytes and bus bandwidth from the arguments of kernels, one by one."""
    sizes = [max(one["In msg nelems"], one["Out msg nelems"]) * BYTES[one["dtype"]] for one in messages]
    factors = [FACTORS[one["Collective name"]](one["Group size"]) for one in messages]
    moved = sum(map(operator.mul, sizes, factors))
    return sum(sizes), moved * 1e6 / sum(microseconds)


def test_real_messages() -> None:
    """annot reads the arguments of operations; those of the kernels say the same."""
    events = json.loads(gzip.decompress(shared(RESNET).read_bytes()))["traceEvents"]
    kernels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "kernel" and "In msg nelems" in event["args"]:
            kernels[event["args"]["Collective name"]].append(event)
    attribution = attribute(load(shared(RESNET)))
    rows = by_communication(attribution).filter(pl.col("bytes").is_not_null())
    found = {row["operations"]: (row["calls"], row["bytes"], row["bus_bytes_per_s"]) for row in rows.to_dicts()}
    for title, name in (("all_reduce", "allreduce"), ("broadcast", "broadcast")):
        size, speed = _expected([one["args"] for one in kernels[name]], [one["dur"] for one in kernels[name]])
        assert found[title] == (len(kernels[name]), size, pytest.approx(speed, rel=1e-6))
    assert found["all_reduce"][1] == 12 * 25_557_032  # three steps of the float32 gradients of ResNet-50


_MESSAGE = st.tuples(
    st.sampled_from(["a Linear |fwd", "b Linear |fwd"]), st.sampled_from(sorted(FACTORS)),
    st.sampled_from(sorted(BYTES)), st.integers(2, 16), st.integers(1, 1 << 33), st.integers(0, 1 << 33),
    st.integers(1, 500),
)  # fmt: skip


def _span(category: str, name: str, start: int, length: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


def _trace(messages: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """One collective after the other, each within a layer of a step."""
    events = [_span("user_annotation", "Batch 0 |step", 0, 1000 * len(messages))]
    for number, (layer, name, dtype, ranks, sent, received, length) in enumerate(messages):
        at = 1000 * number
        said = {"Collective name": name, "dtype": dtype, "Group size": ranks, "Process Group Name": "7"}
        said |= {"In msg nelems": sent, "Out msg nelems": received}
        events += [
            _span("user_annotation", layer, at, 90), _span("cpu_op", "record_param_comms", at + 2, 70, **said),
            _span("user_annotation", "nccl:x", at + 3, 60),
            _span("cuda_runtime", "cudaLaunchKernelExC", at + 4, 5, correlation=number + 1),
            _span("kernel", "ncclDevKernel_X", at + 9, length, correlation=number + 1, device=0, stream=9),
        ]  # fmt: skip
    return events


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(_MESSAGE, min_size=1, max_size=6))
def test_generated_messages(messages: list[tuple[Any, ...]]) -> None:
    """Any operation, dtype and group: the sums of a layer are those of its messages."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_text(json.dumps({"traceEvents": _trace(messages)}))
        attribution = attribute(load(path))
    rows = by_communication(attribution).filter(pl.col("calls") > 0)
    assert not by_layer(attribution)["shapes"].list.len().sum()  # a message is no input of the layer around it
    assert set(rows["layer"]) == {one[0][0] for one in messages}
    for layer, size, speed in rows.select("layer", "bytes", "bus_bytes_per_s").iter_rows():
        keys = ("Collective name", "dtype", "Group size", "In msg nelems", "Out msg nelems")
        own = [dict(zip(keys, one[1:6], strict=True)) for one in messages if one[0][0] == layer]
        expected = _expected(own, [one[6] for one in messages if one[0][0] == layer])
        assert (size, speed) == (expected[0], pytest.approx(expected[1]))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (['"send"', '"pp"', "2", "8", "8", '"Half"'], "Collective send@pp:2 [8]f16 |coll"),
        (['"send"', "", "2", "8", "0", '"QInt8"'], "Collective send@:2 [8] |coll"),
        (['"wait"', "", "1", "0", "0", '"Byte"'], None),
        (['"send"', "", '"2"', "8", "8", '"Half"'], None),
        (["send", "", "2", "8", "8", '"Half"'], None),
        (['"send"', "", "2", "8.5", "8", '"Half"'], None),
    ],
)
def test_text(parts: list[str], expected: str | None) -> None:
    """A message is a tag; a wait, and arguments of other types, are none."""
    found = message_text(*(part.encode() for part in parts))
    assert found == expected
    assert found is None or tag.parse(found) is not None


@given(st.lists(st.text(max_size=6) | st.integers() | st.none(), min_size=6, max_size=6))
def test_any_json(parts: list[Any]) -> None:
    """Whatever a file holds becomes a valid tag or None."""
    found = message_text(*(json.dumps(part).encode() for part in parts))
    assert found is None or tag.parse(found) is not None
