"""What a comparison keeps of a run, against the attribution of the same profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from shared_data import shared, unpacked

from annot import batches, emit_ranges, record
from annot.analyze.comparison.digest import TABLES, Digest, as_row, digest, from_row
from annot.analyze.run_summary import step_time
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import LAYER_PHASES, NO_OPERATION, by_layer, by_op
from annot.attribution.steps import steady_steps
from annot.attribution.summary import by_step
from annot.profile import Profile
from annot.runs.run import Run

REAL = (
    "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz",
    "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz",
    "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "kineto/hta_recsys_a100_cudagraph.json.gz",
    "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz",
    "kineto/tracelens_h100_bert_small_nnmodule.json.gz",
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz",
    "ncu/leleucas_bert_attention_torch_a100.csv",
)


def _opened(name: str, folder: Path) -> Attribution:
    return Run(unpacked(name, folder) if name.startswith("nsys") else shared(name)).attribution


@pytest.mark.parametrize("name", REAL)
def test_a_row_holds_all(name: str, tmp_path: Path) -> None:
    run = digest(_opened(name, tmp_path))
    as_row(run).write_parquet(tmp_path / "run.parquet")
    same = from_row(pl.read_parquet(tmp_path / "run.parquet"))
    assert same.meta == run.meta
    for table, schema in TABLES.items():
        assert getattr(same, table).equals(getattr(run, table))
        assert getattr(same, table).schema == schema


@pytest.mark.parametrize("name", REAL)
def test_times_of_steps_are_those_of_the_attribution(name: str, tmp_path: Path) -> None:
    attribution = _opened(name, tmp_path)
    run = digest(attribution)
    sums = run.times.select(pl.col("gpu_ns", "host_ns").sum()).row(0)
    assert run.kernels["gpu_ns"].sum() == run.activities["gpu_ns"].sum() == sums[0]
    assert run.activities["calls"].sum() == run.kernels["calls"].sum()
    if attribution.steps.table.is_empty():
        assert sums[0] == attribution.nodes["gpu_self_ns"].sum()
        nodes = run.nodes.with_row_index("node").cast({"node": pl.Int32}).join(run.times, on="node", how="left")
        named = attribution.forest.layers_of_nodes().hstack(attribution.nodes.select("calls", "gpu_self_ns"))
        assert nodes["gpu_ns"].fill_null(0).to_list() == named["gpu_self_ns"].to_list()
        assert nodes["calls"].to_list() == named["calls"].to_list()
    else:
        steady = steady_steps(by_step(attribution))
        assert run.steps["gpu_ns"].to_list() == steady["gpu_ns"].to_list()
        of_step = run.times.group_by("step").agg(pl.col("gpu_ns").sum()).filter(pl.col("gpu_ns") > 0)
        of_table = run.steps.select("step", "gpu_ns").filter(pl.col("gpu_ns") > 0)
        assert dict(of_step.iter_rows()) == dict(of_table.iter_rows())


@pytest.mark.parametrize("name", REAL)
def test_inputs_are_those_of_the_layer_table(name: str, tmp_path: Path) -> None:
    """The digest counts in steady steps only, so that the attribution here is that of the same steps."""
    attribution = _opened(name, tmp_path)
    if attribution.steps.table.height:
        chosen = steady_steps(by_step(attribution))["step"]
        attribution = attribute(attribution.source, steps=slice(chosen.min(), chosen.max() + 1))  # type: ignore
    run = digest(attribution)
    nodes = run.nodes.with_row_index("node").cast({"node": pl.Int32})
    rows = run.inputs.drop_nulls("text").join(nodes, on="node").group_by("layer", "module", "phase", "text")
    counts: dict[Any, Counter[str]] = {}
    for *key, text, calls in rows.agg(pl.col("calls").sum()).iter_rows():
        counts.setdefault(tuple(key), Counter())[text] = calls
    for *key, shapes in by_layer(attribution).select("layer", "module", "phase", "shapes").iter_rows():
        mine = counts.get(tuple(key), Counter())
        assert set(shapes) <= set(mine), key
        if not shapes and key[-1] not in LAYER_PHASES:  # operators outside layers have no shapes in the table
            continue
        assert len(mine) == len(shapes) or len(shapes) == 8, key


def _recorded(path: Path, steps: int, **options: Any) -> Digest:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    with record(path), emit_ranges(model):
        for batch in batches(range(steps)):
            rows = options.get("last", 2) if batch == steps - 1 else 2
            model(torch.ones(rows, 3, 8, 8)).sum().backward()
    return digest(Run(path).attribution)


def test_inputs_are_counted_by_call(tmp_path: Path) -> None:
    run = _recorded(tmp_path / "run.sqlite", steps=6, last=1)
    node = run.nodes.select(((pl.col("layer") == "0") & (pl.col("phase") == "forward")).arg_true()).item()
    steady = run.steps.height
    assert run.nodes["calls"][node] == steady > 1
    rows = run.inputs.filter(pl.col("node") == node).select("text", "calls", "steps").rows()
    assert sorted(rows) == [("[1,3,8,8]f32", 1, 1), ("[2,3,8,8]f32", steady - 1, steady - 1)]
    assert run.times.filter(pl.col("node") == node)["calls"].to_list() == [1] * steady
    (parameters,) = run.inputs.filter(pl.col("node") == node)["parameters"].unique()
    assert "out=4" in parameters
    assert "kernel=3,3" in parameters
    assert run.meta["versions"]["PyTorch"] == torch.__version__
    assert not run.meta["on_gpu"]
    assert run.steps["step"].to_list() == list(range(steady))
    assert run.times["gpu_ns"].sum() == 0 < run.times["host_ns"].sum()


def test_only_steady_steps_count() -> None:
    ranges = [(0, 100, 0), (100, 110, 1), (110, 120, 2), (120, 130, 3)]
    steps = [{"text": f"Batch {n} |step", "start": start, "end": end} for start, end, n in ranges]
    layers = [{"text": "fc Linear [4,8]f32 out=2 |fwd", "start": start + 1, "end": end - 1} for start, end, _ in ranges]
    rows = [
        {"id": row, "process": 1, "thread": 1, "domain": "annot", "kind": "push", **at}
        for row, at in enumerate(steps + layers)
    ]
    run = digest(attribute(Profile.build({"source": "by hand"}, ranges=rows)))
    assert run.meta["step_count"] == 4
    assert run.steps["step_ns"].to_list() == [10, 10, 10]
    (node,) = run.nodes.select((pl.col("layer") == "fc").arg_true()).to_series()
    assert run.nodes["calls"][node] == 3
    assert run.inputs.rows() == [(node, "[4,8]f32", "out=2", 3, 3)]
    assert run.times.filter(pl.col("node") == node)["host_ns"].to_list() == [8, 8, 8]


def test_a_profile_without_steps_is_one_step() -> None:
    kernel = {"process": 1, "device": 0, "start": 5, "end": 9, "correlation": 1, "name": "gemm"}
    run = digest(attribute(Profile.build({"source": "by hand"}, kernels=[kernel])))
    assert run.steps.rows() == [(0, 0, None, None, None, 4, 1)]
    assert run.activities.rows() == [("gemm", 0, 1, 4)]
    assert run.times.select("step", "gpu_ns", "activities").rows() == [(0, 4, 1)]
    empty = digest(attribute(Profile.build({"source": "nothing"})))
    assert empty.times.is_empty()
    assert from_row(as_row(empty)).meta == empty.meta


def test_rows_that_are_no_digest_are_refused() -> None:
    row = as_row(digest(attribute(Profile.build({}))))
    wrong: dict[str, pl.DataFrame] = {
        "one row": pl.concat([row, row]),
        "steps": row.drop("steps"),
        "times": row.with_columns(times=pl.lit(3)),
        "nodes": row.with_columns(nodes=pl.lit(None, row.schema["nodes"])),
        "JSON": row.with_columns(meta=pl.lit("[")),
        "object": row.with_columns(meta=pl.lit("[]")),
    }
    for words, frame in wrong.items():
        with pytest.raises(ValueError, match=words):
            from_row(frame)


def test_operations_are_those_of_each_layer(tmp_path: Path) -> None:
    attribution = _opened("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", tmp_path)
    run = digest(attribution)
    every = by_op(attribution).filter(~pl.col("op").is_in([NO_OPERATION, UNATTRIBUTED]))
    assert run.meta["step_count"] == run.steps.height
    sums = run.operations.group_by(op="name").agg(pl.col("host_ns").sum())
    steady = attribute(attribution.source, steps=slice(0, run.steps.height))
    of_op = by_op(steady).filter(~pl.col("op").is_in([NO_OPERATION, UNATTRIBUTED])).group_by("op")
    whole = dict(of_op.agg(pl.col("host_self_ns").sum()).iter_rows())
    assert dict(sums.iter_rows()) == whole
    assert every.height
    conv = run.nodes.with_row_index("node").filter(layer="Conv2d_0", phase="forward")["node"][0]
    names = run.operations.filter(pl.col("node") == conv)
    assert dict(names.select("name", "calls").iter_rows())["aten::conv2d"] == run.steps.height


@pytest.mark.parametrize("name", ["kineto/more/param_linear.json.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz"])
def test_parts_add_up_to_the_usual_step(name: str, tmp_path: Path) -> None:
    attribution = _opened(name, tmp_path)
    run, table = digest(attribution), step_time(attribution)
    if attribution.steps.table.is_empty():
        whole = table.group_by("process", "device").agg(pl.col("ns").sum())["ns"].mean()
        assert sum(run.meta["parts"].values()) == pytest.approx(whole)
        return
    lengths = run.steps["step_ns"].sort()
    half = lengths.filter(lengths.is_between(lengths.quantile(0.25, "lower"), lengths.quantile(0.75, "higher")))
    assert sum(run.meta["parts"].values()) == pytest.approx(half.mean())
    assert run.meta["parts"]["launch"] > run.meta["parts"]["kernels"] > 0
