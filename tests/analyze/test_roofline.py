"""Peaks of devices, and how far layers and kernels are from them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from shared_data import shared, unpacked
from tables import Rows

from annot.analyze.gpu_activities import device_idle
from annot.analyze.hardware_counters import default_peaks, measured_work
from annot.analyze.peaks import (
    Peaks,
    device_of_counters,
    device_row,
    given_peaks,
    peaks_of_device,
    tables,
    unknown_peaks,
)
from annot.analyze.roofline import kernel_roofline, layer_roofline
from annot.attribution.attribute import attribute
from annot.profile import METRICS, Profile
from annot.read.formats import load
from annot.report.terminal.table import roofline_table
from annot.runs.run import Run
from annot.runs.selection import Selection

A100 = {
    "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "smCount": 108, "clockRate": 1_410_000_000,
    "memoryBandwidth": 2_039_040_000_000,
}  # fmt: skip

UNKNOWN = unknown_peaks("no device")

ORIN = {"name": "Orin", "computeMajor": 8, "computeMinor": 7, "smCount": 16, "clockRate": 1_300_000_000}
THOR = {"name": "NVIDIA Thor", "computeMajor": 11, "computeMinor": 0, "smCount": 20, "clockRate": 1_575_000_000}
RTX_5090 = {
    "name": "NVIDIA GeForce RTX 5090", "computeMajor": 12, "computeMinor": 0, "smCount": 170,
    "clockRate": 2_407_000_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "precision", "tensor", "data_sheet"),
    [
        (A100, "f32", False, 19.5e12),
        (A100, "f32", True, 156e12),
        (A100, "bf16", True, 312e12),
        (A100, "f64", False, 9.7e12),
        ({"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}, "f16", True, 989e12),
        ({"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}, "f16", True, 125e12),
        ({"name": "Tesla T4", "computeMajor": 7, "computeMinor": 5, "numSms": 40}, "f16", True, 65e12),
        ({"name": "NVIDIA L40S", "computeMajor": 8, "computeMinor": 9, "numSms": 142}, "f16", True, 362e12),
        ({"name": "NVIDIA GeForce RTX 4090", "computeMajor": 8, "computeMinor": 9, "numSms": 128}, "f16", True, 165e12),
        ({"name": "NVIDIA GeForce RTX 3090", "computeMajor": 8, "computeMinor": 6, "numSms": 82}, "f32", False, 36e12),
        ({"name": "NVIDIA GB300", "computeMajor": 10, "computeMinor": 3, "numSms": 160}, "f4", True, 15e15),
        ({"name": "NVIDIA GB300", "computeMajor": 10, "computeMinor": 3, "numSms": 160}, "f8", True, 5e15),
        ({"name": "NVIDIA GB300", "computeMajor": 10, "computeMinor": 3, "numSms": 160}, "bf16", True, 2.5e15),
        ({"name": "NVIDIA GB300", "computeMajor": 10, "computeMinor": 3, "numSms": 160}, "f32", True, 1.25e15),
        ({"name": "NVIDIA B300 SXM6 AC", "computeMajor": 10, "computeMinor": 3, "numSms": 148}, "f8", True, 4.5e15),
        ({"name": "NVIDIA B200", "computeMajor": 10, "computeMinor": 0, "numSms": 148}, "f4", True, 9e15),
        ({"name": "NVIDIA B200", "computeMajor": 10, "computeMinor": 0, "numSms": 148}, "f6", True, 4.5e15),
        (ORIN, "f32", False, 5.3e12),
        (ORIN, "f16", True, 42.5e12),
        (THOR, "f4", True, 1035e12),
        (THOR, "bf16", True, 258.5e12),
        ({"name": "NVIDIA GB10", "computeMajor": 12, "computeMinor": 1, "numSms": 48}, "f32", False, 29.71e12),
        (RTX_5090, "f4", True, 1676e12),
        ({"name": "AMD Instinct MI355X", "computeMajor": 9, "computeMinor": 5, "numSms": 256}, "f4", True, 10.1e15),
        ({"name": "AMD Instinct MI355X", "computeMajor": 9, "computeMinor": 5, "numSms": 256}, "f6", True, 10.1e15),
        ({"name": "AMD Instinct MI355X", "computeMajor": 9, "computeMinor": 5, "numSms": 256}, "f8", True, 5e15),
        ({"name": "AMD Instinct MI350X", "computeMajor": 9, "computeMinor": 5, "numSms": 256}, "f32", False, 144.2e12),
        ({"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304}, "bf16", True, 1307e12),
    ],
)  # fmt: skip
def test_peaks_are_those_of_data_sheets(
    device: dict[str, object], precision: str, tensor: bool, data_sheet: float
) -> None:
    """Multiprocessors, clock and operations of the architecture give what the maker prints, within 2 %."""
    peaks = peaks_of_device(device)
    assert peaks is not None
    assert peaks.of(precision, tensor_cores=tensor) == pytest.approx(data_sheet, rel=0.02)


def test_tables_of_devices_are_complete() -> None:
    """A data sheet has a clock or FLOP/s, each architecture float32, and no device two data sheets."""
    sheets, per_cycle = tables().sheets, tables().per_cycle
    assert all((sheet.clock is None) != (sheet.flops is None) for sheet in sheets)
    assert len({sheet.device.pattern for sheet in sheets}) == len(sheets)
    assert all(min(rates.values()) > 0 and "f32" in rates for rates in per_cycle.values())


def test_what_is_not_published_has_no_peak() -> None:
    """Of Orin nobody says bfloat16 outside Tensor Cores, of Spark FP4 is the double of FP8, and MI350 has no TF32."""
    orin, spark = (
        peaks_of_device(one)
        for one in (ORIN, {"name": "NVIDIA GB10", "computeMajor": 12, "computeMinor": 1, "numSms": 48})
    )
    mi350 = peaks_of_device({"name": "AMD Instinct MI350X", "computeMajor": 9, "computeMinor": 5, "numSms": 256})
    assert orin is not None
    assert spark is not None
    assert mi350 is not None
    assert orin.of("bf16") == orin.of("f32")
    assert orin.of("f8", tensor_cores=True) == orin.of("f16", tensor_cores=True)
    assert spark.of("f4", tensor_cores=True) == 2 * (spark.of("f8", tensor_cores=True) or 0)
    assert spark.bandwidth == pytest.approx(273e9)
    assert "tf32 tensor" not in mi350.flops


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("void gemv2T_kernel_val<int, int, c10::BFloat16, c10::BFloat16, float>", "bf16"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<c10::Half const>>>", "f16"),
        ("void gemvNSP_kernel<double, double, double>(cublasGemvParams)", "f64"),
        ("ampere_sgemm_128x64_tn", "f32"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN", "bf16 tensor"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x64x32_MI16x16x1_SN", "f16 tensor"),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_e2m1_v_bz_TNT", "f4 tensor"),
        ("cutlass3x_sm100_bstensorop_s128x256x64gemm_block_scaled_ue8m0xe3m2_ue8m0xe2m3_f32", "f6 tensor"),
    ],
)
def test_precision_is_what_a_kernel_says(kernel: str, precision: str) -> None:
    """C++ types in the arguments of a template count, in whatever case they are spelled."""
    profile = Rows().range("fc Linear [8,8]f32 |fwd", 0, 9).kernel(1, (10, 20), name=kernel)
    assert layer_roofline(attribute(profile.build()), UNKNOWN)["precision"].to_list() == [precision]


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("rmsnorm_kernel", None),
        ("Cijk_Alik_Bljk_SB_MT64x64x8", "f32"),
        ("vectorized_elementwise_kernel<4, float, float>", "f32"),
        ("vectorized_elementwise_kernel<4, float16_copy>", None),
        ("softmax<c10::BFloat16, float>", "bf16"),
        ("cutlass_tensorop_s1688gemm_tf32", "tf32 tensor"),
    ],
)
def test_precision_without_dtypes_is_what_a_kernel_says_or_unknown(kernel: str, precision: str | None) -> None:
    """Neither a container nor a layer whose kernels do not tell has a precision, and so no share of a roof."""
    rows = Rows().range("net Sequential |fwd", 0, 100).range("net.0 RMSNorm |fwd", 10, 30)
    attribution = attribute(rows.kernel(15, (20, 40), name=kernel).build())
    table = layer_roofline(attribution, peaks_of_device(A100))
    assert table.select("module", "precision").rows() == [("Sequential", None), ("RMSNorm", precision)]
    assert table["roof_share"].to_list() == table["bound"].to_list() == [None, None]


def test_without_a_precision_only_the_bandwidth_is_a_roof() -> None:
    """A lookup of integers is memory-bound. Its backward pass computes, so its roof is that of given peaks only."""
    rows = Rows().range("e Embedding [8]i64 num=100 dim=8 |fwd", 0, 9).kernel(1, (10, 20), name="gather")
    rows.range("e Embedding [8]i64 num=100 dim=8 |bwd", 20, 29).kernel(21, (30, 40), name="scatter")
    attribution = attribute(rows.build())
    unknown, given = (layer_roofline(attribution, one) for one in (peaks_of_device(A100), given_peaks(1e12, 1e12)))
    assert unknown.select("precision", "bound").rows() == [(None, "memory"), (None, None)]
    assert unknown["roof_share"].is_null().to_list() == [False, True]
    assert given.select("precision", "bound").rows() == [(None, "memory"), (None, "memory")]


@pytest.mark.parametrize(("share", "said"), [(1.0, False), (1.01, True)])
def test_shares_above_the_roof_are_explained(share: float, *, said: bool) -> None:
    """Tensors in a cache move faster than the peak of the memory."""
    rows = Rows().range("e Embedding [8]i64 num=100 dim=8 |fwd", 0, 9).kernel(1, (10, 20), name="gather")
    profile = rows.build()
    speed = layer_roofline(attribute(profile), given_peaks(1e12, 1e12))["bytes_per_s"][0]
    report = Run(profile, Selection(peaks=given_peaks(1e12, speed / share))).view(columns="roofline")
    assert report.rows["roof_share"][0] == pytest.approx(share)
    assert ("Roof above 100%" in repr(report)) == said


def test_kernels_tell_the_precision_where_no_shape_does() -> None:
    """All layers of the BERT of bfloat16 compute in it, also those that multiply no matrices."""
    path = shared("kineto/tracelens_h100_bert_small_nnmodule.json.gz")
    rows = layer_roofline(attribute(load(path)), UNKNOWN)
    norms = rows.filter(pl.col("module") == "LayerNorm")
    assert norms.height
    assert set(norms["precision"]) == {"bf16"}


def test_what_waits_for_memory_is_not_bound_by_launches() -> None:
    """In the training on an MI300 the device waits for hipFree: 0.3 % of the steps are launches."""
    path = shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz")
    bound = layer_roofline(attribute(load(path)), UNKNOWN)["bound"].value_counts()
    counts = dict(bound.iter_rows())
    assert counts["host"] > 20 * counts.get("launch", 0)


def test_rows_above_the_roof_are_said() -> None:
    """A layer that does more than the peaks allow is no measurement without a word."""
    profile = Rows().range("fc Linear [8,8]f32 |fwd", 0, 9000).kernel(1, (10, 1010))
    work = _work(("fc", "Linear", "forward", 2_000_000, 1000))
    report = roofline_table("layer", layer_roofline(attribute(profile.build()), ROOF, work), ROOF, "")
    assert report.rows["roof_share"].to_list() == [pytest.approx(2.0)]
    assert report.meta["notes"][0].startswith("1 row is above the roof, up to 200.0% of it")
    fine = _work(("fc", "Linear", "forward", 500_000, 1000))
    report = roofline_table("layer", layer_roofline(attribute(profile.build()), ROOF, fine), ROOF, "")
    assert report.meta["notes"] == []


def test_source_of_peaks_is_said() -> None:
    """A device table that says all is the source; else the data sheet of the name is one too."""
    complete = peaks_of_device(A100)
    named = peaks_of_device({"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108})
    assert complete is not None
    assert named is not None
    assert "device table" in complete.source
    assert "data sheet" in named.source
    assert complete.flops == named.flops
    assert given_peaks(1e12, 1e11).source == "given by hand"


def test_unknown_devices_have_no_peaks() -> None:
    """Nothing is guessed: of an architecture or a name that is not known, and of a GPU of AMD by NVIDIA's numbers."""
    assert peaks_of_device(A100 | {"computeMajor": 99}) is None
    assert peaks_of_device({"name": "NVIDIA Unheard-of", "computeMajor": 8, "computeMinor": 0, "numSms": 108}) is None
    assert (
        peaks_of_device({"name": "AMD Radeon", "computeMajor": 9, "computeMinor": 0, "numSms": 9, "clockRate": 1e9})
        is None
    )
    assert peaks_of_device(A100 | {"clockRate": "fast", "name": ""}) is None
    assert device_row([]) is None


def test_peaks_are_of_the_device_that_did_the_work() -> None:
    """A kernel of device 1 is compared with device 1."""
    slow = A100 | {"cuDevice": 0, "smCount": 1}
    profile = Rows().range("fc Linear [8,8]f32 |fwd", 0, 9).kernel(1, (10, 20), device=1)
    peaks = default_peaks(attribute(profile.build(devices=[slow, A100 | {"cuDevice": 1}])))
    assert peaks.of("f32") == pytest.approx(19.5e12, rel=0.01)


def test_device_of_counters() -> None:
    """Nsight Compute's attributes describe the device: kHz, and memory that moves data twice a cycle."""
    said = {
        "multiprocessor_count": 108.0, "clock_rate": 1_410_000.0, "compute_capability_major": 8.0,
        "compute_capability_minor": 0.0, "global_memory_bus_width": 5120.0, "memory_clock_rate": 1_593_000.0,
    }  # fmt: skip
    rows = [
        {"kernel": 0, "name": f"device__attribute_{name}", "value": value, "unit": ""} for name, value in said.items()
    ]
    device = device_of_counters(pl.DataFrame(rows, schema=dict(METRICS)))
    assert device is not None
    assert device["memoryBandwidth"] == pytest.approx(2.039e12, rel=0.001)
    peaks = peaks_of_device(device)
    assert peaks.of("f32") == pytest.approx(19.5e12, rel=0.01)
    assert device_of_counters(pl.DataFrame(rows[1:], schema=dict(METRICS))) is None


def _work(*rows: tuple[str, str, str, int | None, int | None]) -> pl.DataFrame:
    schema = {"layer": pl.String, "module": pl.String, "phase": pl.String, "flops": pl.Int64, "bytes_read": pl.Int64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.with_columns(bytes_written=pl.lit(0), counted=pl.col("flops").is_not_null())


ROOF = Peaks("", {"f32": 1e12, "f16 tensor": 8e12}, 1e11, "the test")


def test_bounds_by_the_roofline() -> None:
    """Left of the ridge (10 FLOPs a byte) memory binds, right of it computing; the share is of what the roof allows."""
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 10).kernel(1, (100, 1100)).range("b ReLU [8,8]f32 |fwd", 20, 30)
    profile = profile.kernel(21, (1100, 2100)).range("c Odd [8]f32 |fwd", 40, 50).kernel(41, (2100, 2200))
    work = _work(
        ("a", "Linear", "forward", 500_000, 10_000),
        ("b", "ReLU", "forward", 10_000, 80_000),
        ("c", "Odd", "forward", None, None),
    )
    rows = {row["layer"]: row for row in layer_roofline(attribute(profile.build()), ROOF, work).to_dicts()}
    assert (rows["a"]["intensity"], rows["a"]["bound"]) == (50.0, "compute")
    assert rows["a"]["flops_per_s"] == pytest.approx(5e11)
    assert rows["a"]["roof_share"] == pytest.approx(0.5)
    assert (rows["b"]["intensity"], rows["b"]["bound"]) == (0.125, "memory")
    assert rows["b"]["roof_share"] == pytest.approx(0.8)
    assert (rows["c"]["flops"], rows["c"]["bound"]) == (None, None)
    unknown = layer_roofline(attribute(profile.build()), UNKNOWN, work)
    assert unknown["bound"].to_list() == [None] * 3
    assert unknown["intensity"].to_list() == [50.0, 0.125, None]


@pytest.mark.parametrize(
    ("said", "kernel", "precision"),
    [
        ("fc Linear [32,64]f32 out=64 autocast=bf16", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "bf16 tensor"),
        ("fc Linear [32,64]f32 out=64 autocast=f16", "triton_tem_fused_mm_3", None),
        ("fc Linear [32,64]f32 out=64", "nvjet_sss_128x256_64x4_1x2_h_bz_coopA_TNT", "tf32 tensor"),
        ("fc Linear [32,64]f64 out=64 autocast=bf16", "cutlass_80_simt_dgemm_64x64", "f64"),
        ("norm LayerNorm [32,64]f32 autocast=bf16", "vectorized_layer_norm_kernel", "f32"),
        ("fc Linear [32,64]f32 out=64 autocast=bf16", None, "bf16"),
    ],
)
def test_autocast_tells_the_precision(said: str, kernel: str | None, precision: str | None) -> None:
    """Products compute in the dtype of autocast where the kernel's name tells none; other layers in their own."""
    rows = Rows().range(f"{said} |fwd", 0, 100).range(f"{said} |bwd", 100, 200)
    for at in (10, 110) if kernel else ():
        rows.kernel(at, (at, at + 40), name=kernel or "")
    found = layer_roofline(attribute(rows.build()), UNKNOWN)
    assert found["precision"].to_list() == [precision] * 2


def test_layers_on_tensor_cores_have_their_roof() -> None:
    """A kernel that uses Tensor Cores in half precision is measured by that peak, whatever type came in."""
    gemm = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn"
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 10).kernel(1, (100, 1100), name=gemm).build()
    row = layer_roofline(attribute(profile), ROOF, _work(("a", "Linear", "forward", 4_000_000, 10_000))).row(
        0, named=True
    )
    assert row["precision"] == "f16 tensor"
    assert row["roof_share"] == pytest.approx(0.5)


def test_waiting_for_launches_is_launch_bound() -> None:
    """Idle time counts from when the device was done and the host had entered the layer, and once."""
    profile = (
        Rows().range("a Linear [8,8]f32 |fwd", 0, 100).kernel(10, (20, 60)).range("b Linear [8,8]f32 |fwd", 300, 500)
    )
    profile = profile.kernel(420, (430, 460)).kernel(480, (490, 500)).build()
    idle = device_idle(attribute(profile))
    assert idle is not None
    assert dict(idle.select("layer", "gpu_idle_ns").rows()) == {"b": (430 - 300) + (490 - 460)}
    rows = layer_roofline(attribute(profile), UNKNOWN, _work())
    assert rows.select("layer", "gpu_idle_ns", "bound").rows() == [("a", 0, None), ("b", 160, "launch")]


def test_work_side_by_side_is_no_idle_time() -> None:
    """A device that another stream keeps busy does not wait; another device is another device."""
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 100).kernel(1, (10, 90)).kernel(2, (20, 30), stream=8)
    profile = profile.kernel(3, (70, 80), stream=8).kernel(4, (50, 60), device=1).build()
    idle = device_idle(attribute(profile))
    assert idle is not None
    assert idle["gpu_idle_ns"].sum() == 0


def test_without_times_on_the_host_nothing_is_launch_bound() -> None:
    """Nsight Compute knows no times on the host."""
    profile = (
        Rows().range("a Linear [8,8]f32 |fwd", 0, 9).kernel(1, (10, 20)).kernel(2, (90, 99)).build(host_times=False)
    )
    assert device_idle(attribute(profile)) is None
    assert layer_roofline(attribute(profile), ROOF, _work())["gpu_idle_ns"].to_list() == [None]


def test_profile_without_device_work_is_about_the_host() -> None:
    """Of a run on a CPU the time is that of the ranges."""
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 1000).build()
    row = layer_roofline(attribute(profile), ROOF, _work(("a", "Linear", "forward", 500_000, 10_000))).row(
        0, named=True
    )
    assert (row["time_ns"], row["flops_per_s"], row["bound"]) == (1000, 5e11, "compute")


def test_kernels_by_their_counters() -> None:
    """Operations are 2 per multiply-add, bytes are those of the device's memory, whatever the unit."""
    counters = [
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", 400_000.0, "inst"),
        ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", 200_000.0, "inst"),
        ("dram__bytes_read.sum", 16.0, "Kbyte"),
        ("dram__bytes_write.sum", 4000.0, "byte"),
    ]
    profile = (
        Rows().range("a Linear [8,8]f32 |fwd", 0, 9).kernel(1, (0, 2000), name="sgemm").kernel(2, (2000, 2500)).build()
    )
    attribution = attribute(_counted(profile, counters))
    row = kernel_roofline(attribution, ROOF).row(0, named=True)
    assert (row["name"], row["flops"], row["bytes"], row["flops_per_s"]) == ("sgemm", 1_000_000, 20_000, 5e11)
    assert (row["precision"], row["bound"]) == ("f32", "compute")
    assert measured_work(attribution).height == 1


def test_kernels_on_tensor_cores_have_their_roof() -> None:
    """The name of a kernel says its type and whether it uses Tensor Cores."""
    counters = [("sm__ops_path_tensor_src_fp16_dst_fp32.sum", 8e6, ""), ("dram__bytes.sum", 50.0, "Kbyte")]
    gemm = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn"
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 9).kernel(1, (0, 2000), name=gemm).build()
    row = kernel_roofline(attribute(_counted(profile, counters)), ROOF).row(0, named=True)
    assert (row["precision"], row["flops"], row["bytes"], row["bound"]) == ("f16 tensor", 8_000_000, 50_000, "compute")
    assert row["roof_share"] == pytest.approx(4e9 / 8e9)


@pytest.mark.parametrize(
    ("counter", "flops", "moved"),
    [
        ("smsp__sass_thread_inst_executed_op_hadd_pred_on.sum", 20, 100),
        ("sm__sass_thread_inst_executed_op_hfma_pred_on.sum", 40, 100),
        ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", 10, 100),
        ("smsp__sass_thread_inst_executed_op_dfma_pred_on.sum", 20, 100),
        ("sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum", 10, 100),
        ("flop_count_hp", 10, 100),
        ("tensor_precision_fu_utilization", 0, 100),
        ("sm__ops_path_tensor_src_fp8.sum", 0, 100),
        ("dram__sectors_read.sum", 0, 10 * 32),
        ("dram_read_transactions.sum", 0, 10 * 32),
        ("dram_read_bytes", 0, 10),
    ],
)
def test_counters_have_their_units(counter: str, flops: int, moved: int) -> None:
    """An instruction on two halves counts twice, a multiply-add is two operations, and a sector has 32 bytes."""
    others = [("dram__bytes.sum", 100.0, "byte"), ("flop_count_sp", 1.0, ""), ("dram_write_bytes", 0.0, "byte")]
    profile = Rows().range("a Linear [8,8]f32 |fwd", 0, 9).kernel(1, (0, 2000), name="gemm").build()
    work = measured_work(attribute(_counted(profile, [(counter, 10.0, ""), *others])))
    assert work.select("flops", "bytes").rows() == [(flops + 1, moved)]


def _counted(profile: Profile, counters: list[tuple[str, float, str]]) -> Profile:
    rows = [{"kernel": 0, "name": name, "value": value, "unit": unit} for name, value, unit in counters]
    tables = {name: getattr(profile, name) for name in ("ranges", "launches", "kernels")}
    return Profile.build(profile.meta, **tables, metrics=pl.DataFrame(rows, schema=dict(METRICS)))


def test_counters_of_a_real_report() -> None:
    """The products of multi-head attention on [2, 20, 256] have 2·2·20·256·768 FLOPs and more, padded to tiles."""
    rows = kernel_roofline(attribute(load(shared("ncu/leleucas_bert_attention_torch_a100.csv"))), UNKNOWN)
    products = rows.filter(pl.col("name").str.contains("sgemm"))
    assert products["flops"].max() > 2 * 40 * 256 * 768
    assert products["bytes"].min() > 0


def test_peaks_of_real_profiles(tmp_path: Path) -> None:
    """Nsight Systems says all of an A100; torch.profiler says the name of an H100, and the data sheet the rest."""
    nsys = default_peaks(attribute(load(unpacked("nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz", tmp_path))))
    kineto = default_peaks(attribute(load(shared("kineto/tracelens_h100_bert_small_nnmodule.json.gz"))))
    assert (nsys.of("f16", tensor_cores=True), nsys.bandwidth) == pytest.approx((312e12, 2.039e12), rel=0.001)
    assert (kineto.of("f16", tensor_cores=True), kineto.bandwidth) == pytest.approx((989e12, 3.352e12), rel=0.001)
