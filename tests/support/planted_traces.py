"""Small traces of torch.profiler, each with one planted inefficiency, in the layouts of real traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from operator_traces import A100, H100

GEMM: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
CONV: Final = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4"
SINGLE: Final = "ampere_sgemm_128x64_nn"
SOFTMAX: Final = "void softmax_warp_forward<float, c10::BFloat16, float, 11, false, false>"
ADD: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
FLASH: Final = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
CAT: Final = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig"
    "<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 2, 128, 1>"
)
COPY: Final = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast"
    "<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>"
)
REDUCE: Final = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>"
SCATTER: Final = "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>"
NOT_CAUSAL: Final = ["", "", "", "", "0.", "False", "", "False"]


class Planted:
    """Operators with launches and kernels that follow each other on one thread and one stream.

    Args:
        devices: properties of the devices; none: the trace names no device.
        links: ``correlation`` as in real traces, ``external`` (ids of operators), or ``none`` (also without launches).
    """

    def __init__(self, *devices: dict[str, Any], links: str = "correlation") -> None:
        self._devices, self._links, self._events = devices, links, list[dict[str, Any]]()
        self._host, self._gpu = 1000.0, 1000.0

    def op(
        self, name: str, *shapes: list[Any], kernels: tuple[tuple[str, int], ...], values: list[str] | None = None,
        dtype: str = "c10::BFloat16", types: list[str] | None = None, times: int = 1, inside: tuple[str, ...] = (),
    ) -> Planted:  # fmt: skip
        """Add calls of an operator; `kernels` are names and µs, `inside` operators of its input around it."""
        inputs: dict[str, Any] = {"Input Dims": [*shapes], "Input type": types or [dtype] * len(shapes)}
        if values is not None:
            inputs["Concrete Inputs"] = values
        for _ in range(times):
            number = len(self._events) + 1
            host = 2.0 + 6 * len(kernels)
            for outer in inside:
                self._add("cpu_op", outer, self._host, host, {"Input Dims": [shapes[-1]], "Input type": [dtype]})
            self._add("cpu_op", name, self._host, host, {**inputs, "External id": number})
            for index, (kernel, us) in enumerate(kernels):
                self._kernel(kernel, us, number, number * 100 + index, self._host + 1 + 6 * index)
            self._host += host + 1
        return self

    def _kernel(self, name: str, us: int, external: int, correlation: int, at: float) -> None:
        ids = {"External id": external} | ({"correlation": correlation} if self._links == "correlation" else {})
        if self._links != "none":
            self._add("cuda_runtime", "cudaLaunchKernel", at, 3, ids)
        self._gpu = max(self._gpu, at + 5)
        self._add("kernel", name, self._gpu, us, {**ids, "device": 0, "stream": 7}, process=0)
        self._gpu += us

    def step(self, number: int, work: Callable[[Planted], object], optimizer: bool = False) -> Planted:
        """Add what `work` adds as a step, or as the step of an optimizer."""
        start = self._host
        work(self)
        name = "Optimizer.step#AdamW.step" if optimizer else f"ProfilerStep#{number}"
        self._add("user_annotation", name, start - 0.5, self._host - start, {})
        self._host += 1
        return self

    def _add(self, category: str, name: str, at: float, us: float, args: dict[str, Any], process: int = 1) -> None:
        ids = {"pid": process, "tid": 7 if process == 0 else 1}
        self._events.append({"ph": "X", "cat": category, "name": name, "ts": at, "dur": us, "args": args, **ids})

    def save(self, folder: Path) -> Path:
        """Write the trace into a folder."""
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": self._events, "deviceProperties": [*self._devices]}))
        return path


def _steps(trace: Planted, work: Callable[[Planted], object]) -> Planted:
    for number in range(5):
        trace.step(number, work)
    return trace


def _convolution(trace: Planted, data: list[int], weight: list[int], *options: str) -> Planted:
    return trace.op("aten::convolution", data, weight, kernels=((CONV, 900),), values=["", "", "", *options])


def _attention(trace: Planted, query: list[int], key: list[int], *kernels: tuple[str, int]) -> Planted:
    return trace.op("aten::scaled_dot_product_attention", query, key, key, kernels=kernels, values=NOT_CAUSAL, times=9)


def _eager_attention(trace: Planted, product: str, *, mask: bool = False) -> Planted:
    scores = [256, 1024, 1024]
    for _ in range(5):
        trace.op(product, [256, 1024, 64], [256, 64, 1024], kernels=((GEMM, 200),))
        trace.op("aten::mul", scores, kernels=((ADD, 300),))
        if mask:
            trace.op("aten::add", scores, scores, kernels=((ADD, 300),))
        trace.op("aten::_softmax", scores, kernels=((SOFTMAX, 400),))
        trace.op(product, scores, [256, 1024, 64], kernels=((GEMM, 200),))
    return trace


def _optimizer(trace: Planted) -> Planted:
    trace.op("aten::mm", [4096, 4096], [4096, 4096], kernels=((GEMM, 600),), times=4)
    parameter = [1024, 1024]
    update = lambda of: of.op("aten::add_", parameter, parameter, kernels=((ADD, 8),), dtype="float", times=300)  # noqa: E731
    return trace.step(0, update, optimizer=True)


def _copied(trace: Planted, name: str, *shapes: list[Any], kernel: str, **options: Any) -> Planted:
    """A matrix multiplication, and copies for 2/3 of the time."""
    trace.op("aten::mm", [4096, 4096], [4096, 4096], kernels=((GEMM, 600),), times=3)
    return trace.op(name, *shapes, kernels=((kernel, 400),), times=9, **options)


_LIST: Final = [[8192, 2048], [8192, 2048]]
_HEADS: Final = [8, 16, 2048, 128]
_SUM: Final[dict[str, Any]] = {
    "values": ["", "[0]", "False", ""], "types": ["float", "ScalarList", "Scalar", ""],
}  # fmt: skip
_TABLE: Final[dict[str, Any]] = {
    "values": ["", "", "1000000", "-1", "False"], "types": ["float", "long int", "Scalar", "Scalar", "Scalar"],
}  # fmt: skip

_TO_NHWC: Final = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>"
_LAYOUT: Final = ((_TO_NHWC, 150), (CONV, 600), (_TO_NHWC.replace("nchwToNhwc", "nhwcToNchw"), 150))
_MATH: Final = ((GEMM, 400), (SOFTMAX, 500), (GEMM, 400))

PLANTED: Final[dict[str, tuple[Callable[[], Planted], str, str]]] = {
    "few tiles": (
        lambda: Planted(links="none").op("aten::mm", [128, 65536], [65536, 256], kernels=((GEMM, 400),)),
        "gemm_shape", "2 output tiles of 128x128",
    ),
    "skinny": (
        lambda: Planted(A100).op("aten::mm", [16, 8192], [8192, 8192], kernels=((GEMM, 90),), times=9),
        "gemm_shape", "a skinny matrix multiplication (M=16",
    ),
    "small matrices": (
        lambda: Planted(links="external").op("aten::bmm", *[[999, 16, 16]] * 2, kernels=((GEMM, 100),)),
        "gemm_shape", "999 small matrix multiplications",
    ),
    "f32": (
        lambda: Planted(A100).op("aten::mm", *[[8192] * 2] * 2, kernels=((SINGLE, 60000),), dtype="float"),
        "mixed_precision", "",
    ),
    "transposed": (
        lambda: _convolution(Planted(), [8, 512, 16, 16], [512, 256, 4, 4], "[2, 2]", "[1, 1]", "[1, 1]", "True",
                             "[0, 0]", "1"),
        "convolution_shape", "a transposed convolution",
    ),
    "depthwise": (
        lambda: _convolution(Planted(links="external"), [64, 384, 56, 56], [384, 1, 7, 7], "[1, 1]", "[3, 3]", "[1, 1]",
                             "False", "[0, 0]", "384"),
        "convolution_shape", "a depthwise convolution",
    ),
    "layout": (
        lambda: Planted(A100).op("aten::cudnn_convolution", [32, 256, 56, 56], [256, 256, 3, 3], kernels=_LAYOUT,
                                 values=["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"], dtype="c10::Half", times=5),
        "channels_last", "33% of the run",
    ),
    "math": (
        lambda: _attention(Planted(H100), [8, 16, 2048, 64], [8, 16, 2048, 64], *_MATH),
        "attention_shape", "separate kernels for matrix multiplication and softmax",
    ),
    "decode": (
        lambda: _attention(Planted(H100), [32, 32, 1, 128], [32, 8, 8192, 128], (FLASH, 600)),
        "attention_shape", "attention of 1 query to 8192 keys",
    ),
    "eager attention with a mask": (
        lambda: _eager_attention(Planted(links="external"), "aten::bmm", mask=True), "eager_attention",
        "aten::_softmax [256",
    ),
    "eager attention": (
        lambda: _eager_attention(Planted(links="external"), "aten::bmm"), "eager_attention", "aten::_softmax [256",
    ),
    "concatenation": (
        lambda: _copied(Planted(A100), "aten::cat", _LIST, [], kernel=CAT, types=["TensorList", "Scalar"]),
        "concatenations", "67% of the run goes to concatenations, which copy each input: aten::cat [8192,2048]",
    ),
    "contiguous": (
        lambda: _copied(Planted(links="external"), "aten::copy_", _HEADS, _HEADS, kernel=COPY,
                        inside=("aten::contiguous", "aten::clone")),
        "tensor_copies", "67% of the run goes to copies of tensors on the GPU: aten::contiguous [8,16,2048,128]bf16",
    ),
    "cast": (
        lambda: _copied(Planted(A100), "aten::copy_", _HEADS, _HEADS, kernel=COPY, types=["c10::BFloat16", "float"],
                        inside=("aten::to", "aten::_to_copy")),
        "casts", "67% of the run goes to casts between dtypes: aten::to [8,16,2048,128]",
    ),
    "strided reduction": (
        lambda: Planted().op("aten::sum", [65536, 4096], [], [], [], kernels=((REDUCE, 9000),), **_SUM),
        "reduction_shape", "aten::sum [65536,4096]f32: a reduction over dimension 0, whose elements are 4096 elements",
    ),
    "embedding": (
        lambda: Planted(A100).op("aten::embedding_dense_backward", [8, 1024, 64], [8, 1024], [], [], [],
                                 kernels=((SCATTER, 900),), times=5, **_TABLE),
        "embedding_shape", "a dense gradient of 1,000,000 rows, of which 8,192 indices reach at most 1%",
    ),
    "optimizer": (lambda: _steps(Planted(A100), _optimizer), "optimizer", "300 kernels"),
}  # fmt: skip
"""A trace, the first rule that advises, and words of its evidence, by what is planted."""

NOTHING: Final[dict[str, Callable[[], Planted]]] = {
    "large matrices": lambda: Planted(A100).op("aten::mm", *[[8192] * 2] * 2, kernels=((GEMM, 4300),), times=5),
    "a lone operator": lambda: Planted(A100).op("aten::add", *[[1 << 26]] * 2, kernels=((ADD, 500),), times=9),
    "reductions": lambda: Planted().op(
        "aten::sum", [1 << 14] * 2, kernels=(("void at::native::reduce_kernel<128, 4>", 3000),), times=9
    ),
    "four kernels": lambda: Planted(A100).op(
        "aten::mm", *[[4096] * 2] * 2, kernels=((GEMM, 4),), times=4
    ),
    "compiled": lambda: _compiled(Planted(A100)),
}  # fmt: skip
"""Traces in which nothing shows what to change."""


def _compiled(trace: Planted) -> Planted:
    chain = ((ADD, 9), ("void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>", 9))
    return trace.op("## Call CompiledFxGraph f4ii27 ##", kernels=chain * 20)
