"""Measured FLOPs of kernels and layers, against the expected ones: the founding tables and real profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import shared
from tables import MAIN, Rows

from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.layer_work import kernel_flops, layer_flops, padded
from annot.attribution.attribute import attribute
from annot.labels.tag import parse
from annot.profile import METRICS, Profile
from annot.read.formats import load
from annot.runs.run import Run

DATA = Path(__file__).parents[1] / "data"
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"

TABLE = [
    # layer, kernel, measured FLOPs, ratio and what explains it, as `seed-facts.md` has them
    ("Conv2d [1,3,227,227]f32 out=64 kernel=11,11 stride=4,4", "maxwell_scudnn_128x64_interior_nn",
     143_717_440, 1.02251, "tile"),
    ("Conv2d [1,64,27,27]f32 out=192 kernel=5,5 padding=2,2", "maxwell_scudnn_128x64_stridedB_splitK_small_nn",
     472_294_080, 1.054469, "tile"),
    ("Conv2d [1,192,13,13]f32 out=384 kernel=3,3 padding=1,1", "maxwell_scudnn_winograd_128x128_tile_148n_nt",
     162_168_191, 0.723059, "Winograd"),
    ("Conv2d [1,384,13,13]f32 out=256 kernel=3,3 padding=1,1", "maxwell_scudnn_winograd_128x128_tile_148n_nt",
     215_558_401, 0.720833, "Winograd"),
    ("Conv2d [1,256,13,13]f32 out=256 kernel=3,3 padding=1,1", "maxwell_scudnn_winograd_128x128_tile_148n_nt",
     143_927_547, 0.721946, "Winograd"),
    ("Linear [1,9216]f32 out=4096", "void gemv2N_kernel_val<float>", 76_988_416, 1.019748, ""),
    ("Linear [1,4096]f32 out=4096", "void gemv2N_kernel_val<float>", 34_226_176, 1.02002, ""),
    ("Linear [1,4096]f32 out=1000", "void gemv2N_kernel_val<float>", 8_522_048, 1.040289, ""),
]  # fmt: skip


def with_metrics(rows: Rows, metrics: list[dict[str, Any]]) -> Profile:
    """A profile with counters of its kernels."""
    built = rows.build()
    tables = {name: getattr(built, name) for name in ("ranges", "marks", "launches", "kernels", "copies")}
    table = pl.DataFrame(metrics, schema=dict(METRICS), orient="row")
    return Profile.build(built.meta, metrics=table, **tables)


def alexnet() -> Profile:
    """One image through the network of the founding table, with a kernel a layer."""
    rows, metrics = Rows(), []
    for place, (text, kernel, flops, _, _) in enumerate(TABLE):
        rows.range(f"l{place} {text} |fwd", 100 * place, 100 * place + 90)
        rows.kernel(100 * place + 50, (1000 + 100 * place, 1050 + 100 * place), MAIN, kernel)
        metrics.append({"kernel": place, "name": "flop_count_sp", "value": float(flops), "unit": ""})
    return with_metrics(rows, metrics)


def test_the_founding_table() -> None:
    """Measured over expected, with every digit of the table, and Winograd named where it fell short."""
    profile = alexnet()
    table = layer_flops(attribute(profile), profile)
    assert table["flops_measured"].to_list() == [row[2] for row in TABLE]
    for (_, _, _, ratio, reason), found, said in zip(TABLE, table["ratio"], table["explanation"], strict=True):
        assert found == pytest.approx(ratio, abs=1e-6)
        assert said.startswith(reason) if reason else said == ""


def test_the_report_shows_what_was_measured() -> None:
    """A profile with counters has the columns in the report by work, one without has not."""
    rows = Run(alexnet()).view("layer", "work", total=True).rows
    assert rows["ratio"][2] == pytest.approx(0.723059, abs=1e-6)
    assert rows["explanation"][2].startswith("Winograd")
    assert (
        "ratio"
        not in Run(Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 9).build()).view("layer", "work", total=True).rows
    )


def test_the_founding_csv_has_the_total_of_the_founding_document() -> None:
    """The nvprof CSV of the founding table gives the total, and with it the work of an image."""
    flops = kernel_flops(load(DATA / "nvprof_alexnet_flops.csv").metrics)["flops"]
    assert flops.sum() == 76_202_056_779
    assert round(flops.sum() / 54) == 1_411_149_200
    assert len(flops) == 17


def test_alexnet_under_cupti_agrees_exactly_where_the_kernel_does_the_definition() -> None:
    """FFMA instructions of the first fully connected layer are exactly batch · inputs · outputs."""
    profile = load(shared("kineto/hta_alexnet_a100_cupti_sass_flops.json.gz"))
    fused = profile.metrics.filter(pl.col("name") == SASS.format("ffma"))
    gemm = profile.kernels.with_row_index("kernel").filter(pl.col("name") == "ampere_sgemm_32x32_sliced1x4_tn")
    first, second, third = fused.filter(pl.col("kernel").is_in(gemm["kernel"][:3].to_list()))["value"]
    assert first == 128 * 9216 * 4096 == cost_of("Linear [128,9216]f32 out=4096") // 2
    assert second == 128 * 4096 * 4096 == cost_of("Linear [128,4096]f32 out=4096") // 2
    layer = parse("x Linear [128,4096]f32 out=1000 |fwd")
    assert layer is not None
    known = cost(layer)
    assert known is not None
    whole_tiles = padded(known.gemms, (32, 32))  # 1000 columns are no whole number of tiles
    assert known.flops < whole_tiles == 2 * 128 * 1024 * 4096 <= 2 * third
    flops = dict(kernel_flops(profile.metrics).select("kernel", "flops").iter_rows())
    adds = 1_572_864 + 2_097_152  # those of the epilogue: FADD and FMUL
    assert flops[gemm["kernel"][0]] == 2 * 128 * 9216 * 4096 + adds


def test_alexnet_under_cupti_by_layer() -> None:
    """With the layer named around its kernels, the ratio and what explains it: tiles, FFT, Tensor Cores."""
    profile = load(shared("kineto/hta_alexnet_a100_cupti_sass_flops.json.gz"))
    texts = [
        "Conv2d [128,3,224,224]f32 out=64 kernel=11,11 stride=4,4 padding=2,2",
        "Conv2d [128,64,27,27]f32 out=192 kernel=5,5 padding=2,2",
        "Conv2d [128,192,13,13]f32 out=384 kernel=3,3 padding=1,1",
    ]
    convolutions = profile.ranges.filter(pl.col("text") == "aten::conv2d").sort("start")[5:8]
    named = convolutions.with_columns(
        pl.Series("text", [f"l{place} {text} |fwd" for place, text in enumerate(texts)]),
        pl.Series("id", [10**6, 10**6 + 1, 10**6 + 2]), role=pl.lit(None, pl.String), domain=pl.lit("annot"),
        start=pl.col("start") - 1, end=pl.col("end") + 1, sequence=pl.lit(None, pl.Int64),
    )  # fmt: skip
    ranges = pl.concat([profile.ranges, named])
    layered = Profile.build(
        profile.meta, ranges=ranges, launches=profile.launches, kernels=profile.kernels, metrics=profile.metrics
    )
    table = {row["layer"]: row for row in layer_flops(attribute(layered), layered).to_dicts()}
    assert table["l0"]["flops"] == 2 * 8_995_430_400
    assert 1.01 < table["l0"]["ratio"] < 1.03
    assert table["l1"]["explanation"].startswith("FFT convolution")
    assert table["l1"]["ratio"] < 0.5
    assert table["l2"]["explanation"].startswith("Tensor Cores computed")
    assert table["l2"]["ratio"] < 0.01


def cost_of(text: str) -> int:
    """The expected FLOPs of a forward."""
    tag = parse(f"x {text} |fwd")
    assert tag is not None
    found = expected(tag)
    assert found is not None
    return found.flops


def test_attention_under_nsight_compute_is_three_times_its_definition_for_tiles() -> None:
    """26 kernels of MultiheadAttention(256, 8) on [2,20,256]: small matrices fill their tiles badly."""
    profile = load(shared("ncu/leleucas_bert_attention_torch_a100.csv"))
    kernels = kernel_flops(profile.metrics).hstack(profile.kernels.select("name"))
    products = kernels.filter(pl.col("name").str.contains("gemm"))
    text = "MultiheadAttention [20,2,256]f32 [20,2,256]f32 [20,2,256]f32 heads=8"
    assert cost_of(text) == 21_790_720
    fused = profile.metrics.filter(
        (pl.col("name") == SASS.format("ffma").replace("smsp", "sm")) & (pl.col("value") > 0)
    )
    fused = fused.filter(pl.col("kernel").is_in(products["kernel"].to_list()))["value"].to_list()
    # Four projections of 40 rows in tiles of 32; 16 heads of 20 rows and columns in tiles of 128.
    projection, heads = (1, 40, 256, 256), (16, 20, 20, 32)
    assert fused[0] == fused[1] == fused[2] == fused[5] == padded([projection], (32, 32)) // 2
    assert fused[3] == padded([heads], (128, 128)) // 2
    assert products["flops"].sum() / cost_of(text) == pytest.approx(3.0, abs=0.1)
    moved = kernels.filter(pl.col("tensor_instructions") > 0)
    assert (moved["half_flops"] > 0).all()  # its pipe ran 16-bit moves only, no Tensor Cores


def one_layer(text: str, kernel: str, counters: dict[str, float], unit: str = "inst") -> dict[str, Any]:
    """The row of a layer with one kernel."""
    rows = Rows().range(f"a {text} |fwd", 0, 100).kernel(50, (200, 300), MAIN, kernel)
    metrics = [{"kernel": 0, "name": name, "value": value, "unit": unit} for name, value in counters.items()]
    profile = with_metrics(rows, metrics)
    return layer_flops(attribute(profile), profile).row(0, named=True)


def test_instructions_count_by_what_they_do() -> None:
    """A multiply-add is two; a counter of an SM and of its parts is one; units are scaled."""
    counters = {SASS.format("fadd"): 3.0, SASS.format("fmul"): 5.0, SASS.format("ffma"): 20.0, SASS.format("dfma"): 2.0}
    counters |= {name.replace("smsp", "sm"): value for name, value in counters.items()}
    assert one_layer("Linear [2,3]f32 out=4", "k", counters)["flops_measured"] == 3 + 5 + 40 + 4
    thousands = one_layer("Linear [2,3]f32 out=4", "k", counters, unit="Kinst")
    assert thousands["flops_measured"] == 52_000


def test_sixteen_bits_count_where_the_layer_works_in_them() -> None:
    """In other layers such instructions only move numbers."""
    counters = {SASS.format("hfma"): 24.0, SASS.format("fadd"): 1.0}
    assert one_layer("Linear [2,3]f32 out=4", "k", counters)["flops_measured"] == 1
    assert one_layer("Linear [2,3]bf16 out=4", "k", counters)["flops_measured"] == 49
    assert one_layer("Linear [2,3]f32 out=4 autocast=f16", "k", counters)["flops_measured"] == 49


def test_tensor_cores_are_seen_or_missed() -> None:
    """Their operations count; where only their instructions are known, the report says that they are not counted."""
    operations = "sm__ops_path_tensor_src_bf16_dst_fp32{}.sum"
    seen = one_layer(
        "Linear [2,3]bf16 out=4", "k", {operations.format(""): 48.0, operations.format("_sparsity_on"): 9.0}
    )
    assert (seen["flops_measured"], seen["ratio"], seen["explanation"]) == (48, 1.0, "")
    pipe = {"sm__inst_executed_pipe_tensor.sum": 100.0, SASS.format("hfma"): 0.0}
    assert one_layer("Linear [2,3]bf16 out=4", "k", pipe)["explanation"].startswith("Tensor Cores computed")
    moves = {"sm__inst_executed_pipe_tensor.sum": 100.0, SASS.format("hfma"): 3200.0}
    assert one_layer("Linear [2,3]f32 out=4", "k", moves)["explanation"] == ""


def test_no_counters_no_rows() -> None:
    """A profile without FLOP counters has nothing to compare."""
    profile = with_metrics(Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 9).kernel(5, (10, 20)), [])
    assert layer_flops(attribute(profile), profile).is_empty()
    other = [{"kernel": 0, "name": "dram__bytes.sum", "value": 1.0, "unit": "byte"}]
    assert kernel_flops(pl.DataFrame(other, schema=dict(METRICS))).is_empty()
