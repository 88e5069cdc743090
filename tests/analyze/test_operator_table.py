"""Operators by argument shape: times that add up to those of the run, work against counts by hand, roofs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from matrices import every_third
from operator_traces import H100, OperatorTrace
from shared_data import shared, unpacked

from annot.analyze.roofline import by_op_roofline, by_op_work
from annot.analyze.run_summary import by_summary
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_op, by_phase
from annot.profile import Profile
from annot.read.formats import load

REAL = (
    "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz",
    "kineto/hta_recsys_a100_cudagraph.json.gz", "kineto/more/tracelens_h100_qwen15_chat.json.gz",
    "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz", "kineto/hta_cpu_only.json.gz",
    "kineto/graph_pairs/vllm_decode_full/execution.json.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "kineto/labelled/gemm_01_compute_few_tiles.json.gz", "kineto/labelled/conv_07_transposed.json.gz",
)  # fmt: skip


@pytest.mark.parametrize("name", every_third(REAL))
def test_rows_of_every_column_group_add_up(name: str, tmp_path: Path) -> None:
    """Times, kernels and copies by operator are those of the run, phase by phase, whatever the columns."""
    attribution = attribute(load(unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)))
    work, roofline, plain = by_op_work(attribution), by_op_roofline(attribution), by_op(attribution)
    total = by_summary(attribution).filter(section="kernels")["ns"]
    whole = int(attribution.nodes["gpu_self_ns"].sum())
    assert work["gpu_self_ns"].sum() == plain["gpu_self_ns"].sum() == whole
    assert whole == total.sum() - (total[0] if len(total) else 0)
    assert roofline["time_ns"].sum() == (whole or work["host_self_ns"].sum())
    assert roofline["time_share"].sum() == pytest.approx(1)
    phases = by_phase(attribution).rename({"gpu_ns": "gpu_self_ns", "host_ns": "host_self_ns"})
    for column in ("gpu_self_ns", "host_self_ns", "kernels", "copies"):
        sums = work.group_by("phase").agg(pl.col(column).sum()).filter(pl.col(column) > 0)
        assert dict(sums.iter_rows()) == dict(phases.select("phase", column).filter(pl.col(column) > 0).iter_rows())
    assert not work.select("op", "inputs", "phase").is_duplicated().any()


def test_operators_with_shapes(tmp_path: Path) -> None:
    """Calls with the same shapes are a row; the outermost operator with known work has the time of all inside it."""
    trace = OperatorTrace(H100)
    for _ in range(3):
        trace.op("aten::linear", [512, 4096], [8192, 4096], inner=("aten::addmm",), us=200)
    trace.op("aten::linear", [64, 4096], [8192, 4096], inner=("aten::addmm",), us=50)
    trace.op("aten::_flash_attention_forward", [8, 512, 16, 64], us=30)
    attribution = trace.attribution(tmp_path)
    rows = by_op_work(attribution).filter(pl.col("gpu_self_ns") > 0)
    assert rows.select("op", "inputs", "calls", "gpu_self_ns", "flops").rows() == [
        ("aten::linear", "[512,4096]bf16 [8192,4096]bf16", 3, 600_000, 3 * 2 * 512 * 4096 * 8192),
        ("aten::linear", "[64,4096]bf16 [8192,4096]bf16", 1, 50_000, 2 * 64 * 4096 * 8192),
        ("aten::_flash_attention_forward", "[8,512,16,64]bf16", 1, 30_000, None),
    ]
    first = by_op_roofline(attribution).row(0, named=True)
    speed = 2 * 512 * 4096 * 8192 / 200e-6
    assert (first["precision"], first["bound"]) == ("bf16 tensor", "compute")
    assert first["flops_per_s"] == pytest.approx(speed)
    assert first["roof_share"] == pytest.approx(speed / 989e12, rel=0.01)


def test_experts_by_hand(tmp_path: Path) -> None:
    """16 tokens with 2 of 64 experts each: two GEMMs of 32 rows, and the weights of 32 experts."""
    shapes = [[16, 4096], [64, 22016, 4096], [64, 4096, 11008], [16, 2]]
    row = by_op_work(OperatorTrace().op("vllm::fused_moe", *shapes).attribution(tmp_path)).row(0, named=True)
    weights = 22016 * 4096 + 4096 * 11008
    assert row["flops"] == 2 * 32 * weights
    assert row["bytes_read"] == 2 * (16 * 4096 + 32 * weights)
    assert row["bytes_written"] == 2 * 16 * 4096


def test_operations_of_annot() -> None:
    """Ranges of `ops=True` have the work of annot's formulas, or of a mark; operators inside count with them."""
    names = ("0 Linear linear [8,64]f32 [32,64]f32 [32]f32 |op", "1 Mine mine [8]f32 |op", "2 Mine other [8]f32 |op")
    ranges = [
        {"start": 10 * number, "end": 10 * number + 10, "process": 1, "thread": 1, "text": name, "domain": "annot"}
        for number, name in enumerate(names)
    ]
    inner = ranges[0] | {"start": 2, "end": 8, "text": "aten::addmm", "role": "operator", "domain": ""}
    works = [f"Work flops=7 read=32 written=0 = {names[1]}"]
    rows = by_op_work(attribute(Profile.build({"works": works}, ranges=[*ranges, inner])))
    assert rows.sort("op").select("op", "inputs", "calls", "host_self_ns", "flops").rows() == [
        ("linear", "[8,64]f32 [32,64]f32 [32]f32", 1, 10, 2 * 8 * 64 * 32),
        ("mine", "[8]f32", 1, 10, 7),
        ("other", "[8]f32", 1, 10, None),
    ]


def test_attention_on_a_known_device() -> None:
    """The long attention of TraceLens reaches 267 of the 1307 TFLOP/s of an MI300X."""
    rows = by_op_roofline(attribute(load(shared("kineto/labelled/sdpa_01_long_seq_low_eff.json.gz"))))
    row = rows.row(0, named=True)
    assert row["flops"] == 10 * 4 * 32 * 32768 * 32768 * 128
    assert row["roof_share"] == pytest.approx(row["flops"] / (row["time_ns"] / 1e9) / 1307.4e12)
    assert (row["precision"], row["bound"]) == ("bf16 tensor", "compute")


def test_float32_on_matrix_cores_is_no_tf32() -> None:
    """MIOpen's kernels of Matrix Cores multiply float32 without rounding."""
    rows = by_op_roofline(attribute(load(shared("kineto/labelled/conv_05_pointwise_1x1.json.gz"))))
    assert rows["precision"][0] == "f32 tensor"
