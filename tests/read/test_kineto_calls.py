"""Inputs of operators in traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

from annot import load
from annot.labels import tag
from annot.read.kineto.operator_calls import SIGNATURES, VIEWS, call_text

RESNET = "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"
OPERATORS = {f"aten::{name}" for name in SIGNATURES}


def text(name: str, *arguments: tuple[Any, str, str]) -> str | None:
    """The call of an operator with (sizes, type, value) of each argument."""
    dims, types, values = ([argument[part] for argument in arguments] for part in range(3))
    return call_text(f"aten::{name}", *(json.dumps(one).encode() for one in (dims, types, values)))


FLOAT: tuple[list[int], str, str] = ([2, 3], "float", "")
NONE: tuple[list[int], str, str] = ([], "", "")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("mm", [FLOAT, ([3, 4], "c10::Half", "")], "aten mm [2,3]f32 [3,4]f16 |op"),
        ("linear", [FLOAT, FLOAT, NONE], "aten linear [2,3]f32 [2,3]f32 bias=None |op"),
        ("linear", [FLOAT, FLOAT], "aten linear [2,3]f32 [2,3]f32 |op"),
        ("add_", [([], "long int", ""), ([], "Scalar", "1"), ([], "Scalar", "1")], "aten add_ []i64 other=1 |op"),
        ("dropout", [FLOAT, ([], "Scalar", "0.1"), ([], "Scalar", "True")], "aten dropout [2,3]f32 train=True |op"),
        (
            "avg_pool2d",
            [FLOAT, ([], "ScalarList", "[2, 2]"), ([], "ScalarList", "[]"), ([], "ScalarList", "[0, -1]")],
            "aten avg_pool2d [2,3]f32 kernel=2,2 stride=, padding=0,-1 |op",
        ),
        ("sum", [([4], "c10::Float8_e4m3fn", ""), ([], "ScalarList", "[0]")], "aten sum [4]float8_e4m3fn dim=0, |op"),
        ("mm", [([2, 3], "BFloat16", ""), ([3, 4], "c10::BFloat16", "")], "aten mm [2,3]bf16 [3,4]bf16 |op"),
        ("add", [FLOAT, ([], "Float", "1.5")], "aten add [2,3]f32 |op"),
        ("mm", [([2, "x"], "float", ""), FLOAT], None),
        ("mm", [([2, -3], "float", ""), FLOAT], None),
        ("mm", [([[2, 3]], "float", ""), FLOAT], None),
        ("mm", [([[2, 3]], "TensorList", ""), FLOAT], "aten mm [2,3]f32 |op"),
    ],
)
def test_text(name: str, arguments: list[Any], expected: str | None) -> None:
    found = text(name, *arguments)
    assert found == expected
    assert found is None or tag.parse(found) is not None


def test_values_beyond_the_tensors() -> None:
    """Some traces list sizes and types of the tensors only, and the values of all arguments."""
    values = b'["", "", "", "(2,2)", "(1, 1)", "(1,1)", "True", "(0,0)", "1"]'
    found = call_text("aten::convolution", b"[[4,8,2,2],[8,4,3,3]]", b'["Float","Float"]', values)
    arguments = "stride=2,2 padding=1,1 dilation=1,1 transposed=True output_padding=0,0 groups=1"
    assert found == f"aten convolution [4,8,2,2]f32 [8,4,3,3]f32 {arguments} |op"


def test_experts_and_unknown_operators_have_their_tensors() -> None:
    """The arguments of other operators have no names. Operators of experts may have a formula."""
    lists = b"[[16,8],[4,12,8],[4,8,6],[16,2],[]]", b'["c10::Half","c10::Half","c10::Half","float","Scalar"]', b""
    shapes = "[16,8]f16 [4,12,8]f16 [4,8,6]f16 [16,2]f32"
    assert call_text("vllm::fused_moe", *lists) == f"vllm fused_moe {shapes} |op"
    assert call_text("vllm::moe_align_block_size", *lists) == f"vllm moe_align_block_size {shapes} |other"
    assert call_text("mine", *lists) == f"mine {shapes} |other"


def test_lists_of_tensors() -> None:
    """Operators without named arguments have the shapes of the first tensors in their lists, whose dtype is unknown."""
    shapes = [[4, size] for size in range(6)]
    lists = (json.dumps([shapes, []]).encode(), b'["TensorList", "Scalar"]', b"")
    assert call_text("aten::cat", *lists) == "aten cat [4,0] [4,1] [4,2] [4,3] +2 |other"
    assert call_text("aten::cat", b'[{"a": 1}, []]', *lists[1:]) is None


def test_older_traces_lack_values() -> None:
    """Without ``Concrete Inputs`` the arguments are unknown, and not their defaults."""
    found = call_text(
        "aten::conv2d", b"[[1,3,8,8],[4,3,3,3],[],[],[],[],[]]", b'["float","float","","","","","Int"]', b""
    )
    assert found == ("aten conv2d [1,3,8,8]f32 [4,3,3,3]f32 bias=None stride=None padding=None dilation=None |op")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(st.sampled_from(sorted(OPERATORS)), JSON, JSON, JSON, st.binary(max_size=8))
def test_any_json(name: str, dims: Any, types: Any, values: Any, damage: bytes) -> None:
    """Whatever a file holds becomes a valid tag or None."""
    texts = [json.dumps(one).encode() for one in (dims, types, values)]
    for broken in (texts, [damage, *texts[1:]], [*texts[:2], damage]):
        found = call_text(name, *broken)
        assert found is None or tag.parse(found) is not None


def test_real_trace() -> None:
    """Each operator with a formula has its call, as counted in the file itself; others have their tensors only."""
    events = json.loads(gzip.decompress(shared(RESNET).read_bytes()))["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") == "cpu_op"]
    counted = sorted(event["name"] for event in spans if event["name"] in OPERATORS and "Input Dims" in event["args"])
    rows = load(shared(RESNET)).ranges.drop_nulls("call")
    assert set(rows["call"].filter(~rows["text"].is_in(OPERATORS)).str.extract(r" \|(\w+)$")) == {"other"}
    assert not rows["text"].is_in(VIEWS).any()
    rows = rows.filter(pl.col("text").is_in(OPERATORS))
    assert sorted(rows["text"]) == counted
    assert len(counted) > 900
    first = next(event for event in spans if event["name"] == "aten::conv2d")
    start = min(event["ts"] for event in spans if event["name"] == "aten::conv2d")
    assert first["ts"] == start
    call = rows.filter(pl.col("text") == "aten::conv2d").sort("start")["call"][0]
    found = tag.parse(call)
    assert found is not None
    assert [list(tensor.shape) for tensor in found.tensors] == first["args"]["Input Dims"][:2]
    assert dict(found.arguments)["stride"] == (2, 2)


def trace(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [*events]}))
    return path


def event(name: str, start: int, end: int, args: Any) -> dict[str, Any]:
    span = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}
    return span | {"args": args}


def test_damaged_inputs_lose_the_call_only(tmp_path: Path) -> None:
    """An operator with invalid inputs is still a range."""
    good = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    path = trace(
        tmp_path, event("aten::mm", 0, 5, good), event("aten::mm", 6, 9, good | {"Input Dims": "x"}),
        event("aten::mm", 10, 15, {"Input Dims": [[2, 3]]}), event("aten::foo", 16, 20, good),
    )  # fmt: skip
    rows = load(path).ranges.sort("start")
    assert rows["text"].to_list() == [*["aten::mm"] * 3, "aten::foo"]
    assert rows["call"].to_list() == [
        "aten mm [2,3]f32 [3,4]f32 |op", None, None, "aten foo [2,3]f32 [3,4]f32 |other",
    ]  # fmt: skip


def test_other_damage_in_the_same_block(tmp_path: Path) -> None:
    """An id of a wrong type costs the inputs of its operator, and a note says so."""
    good = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"], "Sequence number": 7}
    path = trace(tmp_path, event("aten::mm", 0, 5, good), event("aten::mm", 10, 15, good | {"Sequence number": [1]}))
    profile = load(path)
    assert profile.ranges.sort("start")["sequence"].to_list() == [7, None]
    assert profile.ranges.sort("start")["call"][1] is None
    assert profile.meta["notes"] == ["annot ignored arguments of unexpected types in 1 event."]
