"""The report for programs: JSON by the contract, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matrices import every_third
from ranked import ordered_only
from sqlite_profile import training

from annot.read.formats import load
from annot.report.export import json_csv_parquet
from annot.report.table import Table
from annot.report.views import views
from annot.runs.run import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


@pytest.fixture
def report(source: Path) -> Table:
    """Its layers."""
    return Run(load(source)).view(total=True)


def test_json_has_the_contract(report: Table, source: Path) -> None:
    """One object with meta and layers, whose keys and exact sums are those of the design."""
    data = json.loads("".join(json_csv_parquet.as_json(report)))
    meta, layers = data["meta"], data["layers"]
    assert set(data) == {"meta", "layers"}
    assert meta["source"] == str(source)
    assert meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"] == meta["gpu_ns"]
    assert sum(row["gpu_self_ns"] for row in layers) == meta["gpu_ns"]
    assert sum(row["host_self_ns"] for row in layers) == meta["host_ns"]
    assert meta["steps"] == 2
    assert set(layers[0]) >= {
        "layer", "module", "phase", "calls", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "kernels", "shapes",
    }  # fmt: skip
    assert {row["phase"] for row in layers} == {"forward", "backward", "optimizer", "data", "other"}
    assert next(row["shapes"] for row in layers if row["layer"] == "features.1") == [
        "[16,64,55,55]f32", "[32,64,55,55]f32",
    ]  # fmt: skip


def test_json_is_ascii(tmp_path: Path, source: Path) -> None:
    """Whatever the encoding of the output, JSON gets through: it has no other characters than ASCII."""
    profile = training(device=False)
    profile.range("Größe → ∞", 0, 1)
    text = "".join(json_csv_parquet.as_json(Run(load(profile.write(tmp_path / "x"))).view(total=True)))
    assert text.isascii()
    assert "Größe → ∞" in {row["layer"] for row in json.loads(text)["layers"]}


@pytest.mark.parametrize("by", every_third(views()))
def test_json_of_every_grouping(tmp_path: Path, by: str) -> None:
    """The list of rows is named by what the rows are."""
    profile = training(device=True)
    profile.range("aten::relu, seq = 7, op_id = 3", 635_000, 695_000)
    report = Run(load(profile.write(tmp_path / "x"))).view(by, total=True)
    data = json.loads("".join(json_csv_parquet.as_json(report)))
    assert set(data) == {"meta", report.name}
    assert report.name == report.view.name
    assert bool(data[report.name]) == (
        by not in ("advice", "layer_memory", "kernel_roofline", "layer_communication", "expert", "stage")
    )


@pytest.mark.parametrize("by", every_third(views()))
def test_csv_reads_back(source: Path, by: str) -> None:
    """CSV has a header and the rows; lists become text."""
    report = Run(load(source)).view(by, total=True)
    back = pl.read_csv(io.StringIO("".join(json_csv_parquet.as_csv(report))), infer_schema_length=None)
    assert back.columns == report.rows.columns
    assert back.height == report.rows.height


def test_csv_joins_shapes(report: Table) -> None:
    """The shapes of a layer stand in one field."""
    line = next(
        line
        for line in "".join(json_csv_parquet.as_csv(report)).splitlines()
        if line.startswith("features.1,ReLU,forward")
    )
    assert line.endswith('"[16,64,55,55]f32; [32,64,55,55]f32"')


@dataclass(frozen=True)
class Rows:
    """A report of these rows."""

    rows: pl.DataFrame
    name: str = "layers"
    meta: dict[str, Any] = field(default_factory=dict)


HOSTILE = [
    ('=LINK("x")', "'=LINK(\"x\")"), ("+1", "'+1"), ("-1+1", "'-1+1"), ("@SUM(1)", "'@SUM(1)"),
    ("＝1", "'＝1"), ("\t=1", "\\t=1"), ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"), ("a\r\nb", "a\\r\\nb"),
    ("\x9b31m", "\\x9b31m"), ("a=b -c", "a=b -c"), ("层 é\u00a0", "层 é\u00a0"), ("", ""), (None, None),
]  # fmt: skip


def test_csv_is_harmless() -> None:
    """A spreadsheet computes no text, a terminal obeys none, and numbers stay numbers."""
    texts = [text for text, _ in HOSTILE]
    table = pl.DataFrame({"text": texts, "number": -1.5, "list": [[text or ""] for text in texts], "=cmd|' /C'!A1": -2})
    table = table.with_columns(category=pl.col("text").cast(pl.Categorical))
    content = "".join(json_csv_parquet.as_csv(Rows(table)))
    header, *lines = csv.reader(io.StringIO(content))
    assert header == ["text", "number", "list", "'=cmd|' /C'!A1", "category"]
    expected = [text or "" for _, text in HOSTILE]
    assert lines == [[text, "-1.5", text, "-2", text] for text in expected]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", content)


def test_lines_of_json_have_no_control_characters() -> None:
    """A terminal obeys no text of JSON Lines, and what reads them gets the text as it was."""
    texts = [text for text, _ in HOSTILE]
    content = "".join(json_csv_parquet.as_jsonl(Rows(pl.DataFrame({"text": texts}))))
    assert [json.loads(line)["text"] for line in content.splitlines()] == texts
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", content)


def test_unknown_host_times_are_null() -> None:
    """Where the file knows only an order of things on the host, JSON has null and CSV an empty field, not 0."""
    report = Run(ordered_only()).view(total=True)
    data = json.loads("".join(json_csv_parquet.as_json(report)))
    assert data["meta"]["host_ns"] is None
    assert [(row["layer"], row["host_ns"], row["host_self_ns"], row["gpu_ns"]) for row in data["layers"]] == [
        ("fc", None, None, 40)
    ]
    assert "".join(json_csv_parquet.as_csv(report)).splitlines()[1].startswith("fc,Linear,forward,1,,,40,40,")


def test_parquet_reads_back(report: Table) -> None:
    """Parquet keeps types and lists, and carries the totals."""
    content = json_csv_parquet.as_parquet(report)
    assert pl.read_parquet(io.BytesIO(content)).equals(report.rows)
    assert json.loads(pl.read_parquet_metadata(io.BytesIO(content))["annot"])["steps"] == 2
