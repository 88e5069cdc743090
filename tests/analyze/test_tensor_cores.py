"""Which layers use Tensor Cores, and why others do not."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from shared_data import shared
from tables import Rows

from annot.analyze.tensor_cores import layer_tensor_cores, tensor_core_work
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.profile import METRICS, Profile
from annot.read.formats import load

SGEMM, TENSOR, TF32 = "ampere_sgemm_128x64_tn", "ampere_fp16_s16816gemm_fp16_64x64_tn", "ampere_tf32_s1688gemm_tf32_nn"
HFMA = "sm__sass_thread_inst_executed_op_hfma_pred_on.sum"
CONVOLUTION, NORM = "ampere_scudnn_128x64_relu_interior_nn_v1", "void cudnn::bn_fw_tr_1C11_singleread<float>(float)"


def _row(text: str, *names: str, **meta: Any) -> dict[str, Any]:
    """The row of one layer with some kernels of 10 ns."""
    rows = Rows().range(text, 0, 100)
    for place, name in enumerate(names):
        rows.kernel(10, (100 * place, 100 * place + 10), name=name)
    return layer_tensor_cores(attribute(rows.build(**meta))).row(0, named=True)


@pytest.mark.parametrize(
    ("text", "names", "eligible", "used", "reason"),
    [
        ("fc Linear [32,64]f16 |fwd", (TENSOR, NORM), True, True, ""),
        ("fc Linear |bwd", (TENSOR,), True, True, ""),
        ("fc Linear [32,64]f32 |fwd", (SGEMM,), True, False, "f32 without TF32"),
        ("fc Linear |bwd", (SGEMM,), True, False, "f32 without TF32"),
        ("fc Linear [32,64]f64 |fwd", ("ampere_dgemm_64x64_nn",), True, False, "the library chose a kernel without"),
        ("fc Linear [32,63]f16 out=100 |fwd", ("ampere_hgemm_64x64_nn",), True, False,
         "in=63, out=100 not divisible by 8"),
        ("fc Linear [31,64]f16 |fwd", ("ampere_hgemm_64x64_nn",), True, False, "batch=31 not divisible by 8"),
        ("fc Linear [32,63]f32 out=64 autocast=bf16 |fwd", ("x_gemm",), True, None, "does not show it: x_gemm"),
        ("fc Linear [32,64]i64 |fwd", ("x_gemm",), True, False, "i64 is not supported"),
        ("fc Linear [1,64]f16 |fwd", ("void gemv2T_kernel_val<int>(int)",), True, False, "batch=1 not divisible"),
        ("c Conv2d [8,3,32,32]f16 out=64 |fwd", (CONVOLUTION,), True, False, "in=3 not divisible by 8"),
        ("c Conv2d [8,64,33,33]f16 out=64 |fwd", ("volta_scudnn_winograd_128x128",), True, False, "chose a Winograd"),
        ("c Conv2d [8,64,32,32]f16 groups=64 |fwd", ("conv_depthwise2d_forward_kernel",), False, False, "depthwise"),
        ("c DepthwiseConv2D |fwd", ("void at::native::conv_depthwise2d_forward_kernel<3>(int)",), False, False,
         "depthwise convolution"),
        ("c Conv2D [8,33,33,64]f16 out=64 |fwd", (CONVOLUTION,), True, False, "the library chose a kernel without"),
        ("bn BatchNorm1d [32,64]f32 |fwd", (NORM,), False, False, "no matrix multiplication"),
        ("fc Linear [32,64]f16 |fwd", (NORM,), True, False, "its kernels do not multiply"),
        ("fc Linear [32,64]f16 |fwd", ("triton_tem_fused_mm_0",), True, None, "does not show it: triton_tem"),
        ("fc Linear [32,64]f16 |fwd", (), True, None, "the layer itself launches no kernels"),
        ("fc Linear [32,60]f16 |fwd", (), True, None, "in=60 not divisible by 8"),
        ("drop Dropout [32,64]f16 |fwd", (), False, None, "no matrix multiplication"),
        ("somebody's attention", (TENSOR,), True, True, ""),
    ],
)  # fmt: skip
def test_verdicts(text: str, names: tuple[str, ...], eligible: bool, used: bool | None, reason: str) -> None:
    """Eligibility goes by class and kernels, use by the kernels' names; the reason is the first that is true."""
    row = _row(text, *names)
    assert (row["tc_eligible"], row["tc_used"]) == (eligible, used)
    assert reason in row["reason"]
    assert bool(row["reason"]) is (used is not True)
    assert row["tc_ns"] == (10 if used else 0)
    assert row["gpu_self_ns"] == 10 * len(names)


def test_with_tf32_the_sizes_count() -> None:
    """Where another layer shows that TF32 is allowed, it is not the dtype that keeps this one away."""
    rows = Rows().range("a Linear [8,64]f32 |fwd", 0, 100).range("b Linear [8,63]f32 |fwd", 200, 300)
    rows.kernel(10, (0, 10), name=TF32).kernel(210, (20, 30), name=SGEMM)
    table = layer_tensor_cores(attribute(rows.build()))
    assert table["tc_used"].to_list() == [True, False]
    assert table["reason"].to_list() == ["", "in=63 not divisible by 4"]


def test_devices_without_tensor_cores() -> None:
    """On a device older than Volta nothing else is the reason; on one of AMD the number means another thing."""
    text = "fc Linear [32,64]f32 |fwd"
    assert (
        _row(text, SGEMM, devices=[{"name": "Tesla P4", "computeMajor": 6}])["reason"] == "the GPU is older than Volta"
    )
    assert "TF32" in _row(text, SGEMM, devices=[{"name": "Tesla P4", "computeMajor": 6}, {"computeMajor": 8}])["reason"]
    assert "TF32" in _row(text, SGEMM, devices=[{"name": "AMD Instinct", "computeMajor": 6}])["reason"]


def test_counters_overrule_names() -> None:
    """Counters of Nsight Compute tell of single kernels of one name; those without go by their names."""
    rows = Rows().range("a Linear |fwd", 0, 100).range("b Linear |fwd", 200, 300).range("c Linear |fwd", 400, 500)
    rows.kernel(10, (0, 10), name="gemm").kernel(20, (10, 25), name="gemm").kernel(210, (30, 47), name=TENSOR)
    rows.kernel(410, (50, 60), name=TENSOR)
    built = rows.build()
    counter = {"name": "sm__inst_executed_pipe_tensor.sum", "unit": "inst"}
    metrics = [{"kernel": kernel, "value": value} | counter for kernel, value in ((0, 0.0), (1, 512.0), (2, 0.0))]
    metrics.append({"kernel": 0, "value": 9.0, "name": "sm__mem_tensor_cycles_active.sum", "unit": "cycle"})
    table = pl.DataFrame(metrics, schema=dict(METRICS), orient="row")
    profile = Profile.build(
        {}, ranges=built.ranges, launches=built.launches, kernels=built.kernels, metrics=table
    )  # fmt: skip
    attribution = attribute(profile)
    found = layer_tensor_cores(attribution)
    assert found.select("layer", "tc_used", "tc_ns").rows() == [("a", True, 15), ("b", False, 0), ("c", True, 10)]
    assert tensor_core_work(attribution)["calls"].sum() == 4


@pytest.mark.parametrize(
    ("counters", "used"),
    [
        ({"sm__inst_executed_pipe_tensor_op_hmma.sum": 5.0}, True),
        ({"sm__inst_executed_pipe_tensor_op_hmma.sum": 0.0, "sm__inst_executed_pipe_tensor.sum": 5.0}, False),
        ({"sm__inst_executed_pipe_tensor.sum": 5.0}, True),
        ({"sm__inst_executed_pipe_tensor.sum": 960.0, HFMA: 30720.0}, False),
        ({"sm__inst_executed_pipe_tensor.sum": 96000.0, HFMA: 30720.0}, True),
        ({"tensor_precision_fu_utilization": 3.0}, True),
        ({HFMA: 30720.0}, None),  # packed multiply-adds run in other units, too, and the name shows nothing
    ],
)
def test_what_counters_tell(counters: dict[str, float], used: bool | None) -> None:
    """The pipe for tensors executes packed half-precision multiply-adds too, which are no use of Tensor Cores."""
    built = Rows().range("a Linear |fwd", 0, 100).kernel(10, (0, 10), name="gemm").build()
    rows = [{"kernel": 0, "name": name, "value": value, "unit": ""} for name, value in counters.items()]
    metrics = pl.DataFrame(rows, schema=dict(METRICS), orient="row")
    profile = Profile.build({}, ranges=built.ranges, launches=built.launches, kernels=built.kernels, metrics=metrics)
    assert layer_tensor_cores(attribute(profile))["tc_used"].to_list() == [used]


def test_counters_of_a_real_profile() -> None:
    """The measured attention in fp32 uses no Tensor Cores, although its kernels execute instructions in that pipe."""
    profile = load(shared("ncu/leleucas_bert_attention_torch_a100.csv"))
    assert profile.metrics["name"].str.contains("inst_executed_pipe_tensor").any()
    work = tensor_core_work(attribute(profile))
    assert work["calls"].sum() == 26
    assert not work["tensor_cores"].any()


def test_real_training() -> None:
    """On the MI300 all convolutions and the classifier use Matrix Cores, and what is no product does not."""
    attribution = attribute(load(shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz")))
    rows = layer_tensor_cores(attribution)
    assert rows.select("layer", "module", "phase").equals(by_layer(attribution).select("layer", "module", "phase"))
    forward = rows.filter((pl.col("phase") == "forward") & (pl.col("gpu_self_ns") > 0))
    products = forward.filter(pl.col("module").is_in(["Conv2d", "Linear"]))
    assert products.height == 21
    assert products["tc_used"].all()
    assert not forward.filter(pl.col("module").is_in(["BatchNorm2d", "ReLU", "MaxPool2d"]))["tc_eligible"].any()
    assert (rows["tc_ns"] <= rows["gpu_self_ns"]).all()
