"""Operations of TensorFlow by their names: to layers by what annot noted of name scopes, else by the scopes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import shared
from sqlite_profile import SqliteProfile, thread
from tables import ENGINE, Rows

from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.ingest import parse_labels
from annot.attribution.layer_tables import by_layer
from annot.labels import tag
from annot.labels.marks import format_scope, parse_scope
from annot.labels.name_scopes import Scopes
from annot.read.formats import load

TSL: dict[str, Any] = {"domain": "TSL", "thread": ENGINE}
NOTED = [
    format_scope("net_1", tag.Tag("net", "Functional")),
    format_scope("net_1/fc", tag.Tag("net/fc", "Dense", tensors=(tag.TensorSpec((None, 8), "f32"),))),
    format_scope("net_1/fc_3", tag.Tag("net/fc", "Dense")),
    "Rank 0 of 2",
]


@pytest.mark.parametrize(
    ("text", "layer", "phase"),
    [
        ("model/dense/MatMul:MatMul", "model/dense", "forward"),
        ("gradient_tape/model/dense/MatMul_1:MatMul", "model/dense", "backward"),
        ("StatefulPartitionedCall/replica_1/model/dense/Relu:Relu", "model/dense", "forward"),
        ("ConstantFolding/StatefulPartitionedCall/net/fc/Shape:Shape", "net/fc", "forward"),
        ("a:B", "a:B", "other"),
    ],
)
def test_scopes_alone(text: str, layer: str, phase: str) -> None:
    """Without marks the scope is the layer, without functions and replicas."""
    said = parse_labels(pl.DataFrame({"text": [text], "role": [None]}))
    assert said.select("layer", "phase").row(0) == (layer, phase)


@pytest.mark.parametrize(
    ("name", "layer", "phase"),
    [
        ("net_1/fc/MatMul:MatMul", "net/fc", "forward"),
        ("net_1/fc_3/MatMul:MatMul", "net/fc", "forward"),
        ("StatefulPartitionedCall/gradient_tape/net_1/fc/MatMul/MatMul_1:MatMul", "net/fc", "backward"),
        ("cond/then/_7/cond/net_1/fc/Relu:_FusedMatMul", "net/fc", "forward"),
        ("_send_StatefulPartitionedCall/gradient_tape/net_1/fc/Shape_0:_Send#from=,to=#", "net/fc", "backward"),
        ("net_1/Mean:Mean", "net", "forward"),
        ("net_1/fc_30/MatMul:MatMul", "net", "forward"),
        ("other/fc/MatMul:MatMul", "other/fc", "forward"),
        ("adam/net_1/fc/update/Sqrt:Sqrt", "adam", "optimizer"),
    ],
)
def test_longest_noted_scope(name: str, layer: str, phase: str) -> None:
    """The longest scope anywhere in the name decides; parts of names do not match."""
    found = Scopes(NOTED).layers(name)[-1]
    assert (found.layer, found.phase) == (layer, phase)


def test_operations_without_a_scope() -> None:
    """Whatever TensorFlow itself marks is an operation, named by its type; the same text of others is a label."""
    names = ["range:Range", "_recv_Rank_0:_Recv#from=,to=#", "IteratorGetNext:IteratorGetNext"]
    texts = pl.DataFrame({"text": names, "role": [None] * 3})
    said = parse_labels(texts.with_columns(domain=pl.lit("TSL")))
    assert said.select("layer", "role").rows()[:2] == [("Range", "operator"), ("_Recv", "operator")]
    assert said.select("layer", "phase").row(2) == ("(data)", "data"), "the wait for data"
    assert set(parse_labels(texts.with_columns(domain=pl.lit("")))["role"]) == {"annotation"}


def test_text_of_marks() -> None:
    """What is written is read; other texts and scopes that no name can have are refused."""
    assert parse_scope(NOTED[1]) == ("net_1/fc", tag.parse("net/fc Dense [?,8]f32 |fwd"))
    assert parse_scope("Scope x = y") is None
    with pytest.raises(ValueError, match="is not a name scope"):
        format_scope("a b", tag.Tag("x"))


def test_layers_of_operations() -> None:
    """Kernels launched in ranges of operations belong to the layer, with what it lies in, its class and its shapes."""
    rows = Rows().range("net_1/fc/MatMul:MatMul", 0, 10, **TSL).kernel(5, (100, 107), ENGINE)
    rows.range("gradient_tape/net_1/fc/MatMul/MatMul_1:MatMul", 20, 30, **TSL).kernel(25, (110, 121), ENGINE)
    table = correlate(rows.range("adam/Sqrt:Sqrt", 40, 50, **TSL).kernel(45, (130, 133), ENGINE).build(scopes=NOTED))
    columns = ["layer", "module", "phase", "gpu_ns", "gpu_self_ns"]
    assert set(table.select(columns).rows()) == {
        ("net", "Functional", "forward", 7, 0),
        ("net/fc", "Dense", "forward", 7, 7),
        ("net", "Functional", "backward", 11, 0),
        ("net/fc", "Dense", "backward", 11, 11),
        ("adam", "", "optimizer", 3, 3),
    }
    assert table.filter(layer="net/fc", phase="forward")["shapes"].to_list() == [["[?,8]f32"]]


def test_marks_of_a_file(tmp_path: Path) -> None:
    """An export with annot's marks says the layers, without one more reading of its marks."""
    profile = SqliteProfile()
    for text in NOTED:
        profile.event(34, 1, None, text, thread(1), domainId=profile.domain("annot"))
    profile.range("net_1/fc/MatMul:MatMul", 10, 20)
    profile.write(tmp_path / "p.sqlite")
    loaded = load(tmp_path / "p.sqlite")
    assert loaded.meta["scopes"] == NOTED[:3]
    rows = by_layer(attribute(loaded))
    assert rows.filter(layer="net/fc")["module"].to_list() == ["Dense"]


def test_ranges_of_a_gpu_build_of_tensorflow() -> None:
    """The ranges that TensorFlow emits itself have the layers, both phases, and the optimizer."""
    profile = load(shared("tf_gpu_build.sqlite"))
    own = profile.ranges.filter(pl.col("domain") == "TSL")["text"].to_list()
    assert own.count("StatefulPartitionedCall/gradient_tape/net_1/head_1/MatMul/MatMul:_MklMatMul") == 2
    rows = correlate(profile).filter(pl.col("host_self_ns") > 0)
    found = {tuple(row) for row in rows.select("layer", "module", "phase").rows()}
    assert found > {
        ("net/hidden", "Dense", "forward"), ("net/hidden", "Dense", "backward"), ("net/head", "Dense", "forward"),
        ("net/head", "Dense", "backward"), ("sgd_1", "", "optimizer"), ("(data)", "", "data"),
    }  # fmt: skip
    assert not [layer for layer, *_ in found if "net_1" in layer], "no scope is left unnamed"
