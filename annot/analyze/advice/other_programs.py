"""Code of advice for programs that do not use PyTorch: Keras, TensorFlow, and CUDA without a framework."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from annot.analyze.advice.facts import Advice

__all__ = ["in_cuda", "in_keras"]

_XLA: Final = "model.compile(optimizer, loss, jit_compile=True)"
_SEVERAL_STEPS: Final = "model.compile(optimizer, loss, steps_per_execution=10)"
_KERAS: Final = {
    "data_loading": "dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)",
    "synchronous_copies": _SEVERAL_STEPS,
    **dict.fromkeys(
        ("pageable_copies", "host_copies"),
        'dataset = dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))',
    ),
    "cuda_graphs": _XLA,
    "host_bound": _SEVERAL_STEPS,
    "allocations": 'os.environ.pop("TF_FORCE_GPU_ALLOW_GROWTH", None)  # before TensorFlow is imported',
    "channels_last": 'keras.config.set_image_data_format("channels_last")',
    "fusion": _XLA,
    "short_kernels": _XLA,
    "optimizer": _XLA,
    "small_layers": _XLA,
    "double_precision": 'keras.config.set_floatx("float32")',
}
_KERAS_ACTIONS: Final = {
    "data_loading": "Load data in parallel and prefetch it before the step needs it.",
    "synchronous_copies": "Avoid waiting for the GPU inside a step: remove .numpy() and print(tensor), and run "
    "several steps per call.",
    "pageable_copies": "Copy batches to the GPU while the previous step still runs.",
    "host_bound": "Run several steps per call: the GPU waits for Python.",
    "cuda_graphs": "Compile each step with XLA into a few large kernels: the run is launch-bound.",
}
_GRAPH: Final = (
    "cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);      // then the launches of a step, once\n"
    "cudaGraphLaunch(graph, stream);      // each step"
)
_ASYNCHRONOUS: Final = "cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);      // memory of cudaMallocHost"
_CUDA: Final = {
    "cuda_graphs": _GRAPH,
    "host_bound": _GRAPH,
    "synchronous_copies": f"{_ASYNCHRONOUS}\ncudaStreamSynchronize(stream);      // where the host needs the result",
    "pageable_copies": f"cudaMallocHost(&from, bytes);      // pinned\n{_ASYNCHRONOUS}",
    "host_copies": "cudaMemcpyAsync(next, from, bytes, cudaMemcpyHostToDevice, copies);      // a stream of its own",
    "allocations": "cudaMallocAsync(&buffer, bytes, stream);      // from a pool that keeps freed memory",
    "mixed_precision": "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);",
    "coverage": 'nvtxRangePushA("step");      // around each part of the program\nnvtxRangePop();',
}
"""CUDA calls by rule. A rule that is absent here and gives no command is about PyTorch."""
_CUDA_ACTIONS: Final = {
    "synchronous_copies": "Copy asynchronously, and wait for the GPU only where the host needs a result.",
    "pageable_copies": "Copy from pinned memory while kernels run.",
    "allocations": "Allocate GPU memory once, or from a pool.",
    "coverage": "Put ranges around the parts of the program, so that GPU time is attributed to them.",
}


def in_cuda(advice: Advice) -> Advice | None:
    """Return the advice with CUDA calls; None: it is about PyTorch."""
    if advice.rule not in _CUDA:
        return advice if advice.code.startswith(("annot ", "nsys ")) else None
    code = advice.code if advice.code.startswith("nsys ") else _CUDA[advice.rule]
    return replace(advice, code=code, advice=_CUDA_ACTIONS.get(advice.rule, advice.advice))


def in_keras(advice: Advice) -> Advice | None:
    """Return the advice with code for Keras; None: it does not apply to Keras."""
    # TensorFlow benchmarks the algorithms of cuDNN by default; operations of Keras layers need another recording.
    if advice.rule in ("cudnn_benchmark", "own_code"):
        return None
    code = _KERAS.get(advice.rule, advice.code)
    if advice.rule == "mixed_precision":
        code = f'keras.mixed_precision.set_global_policy("mixed_{"bfloat16" if "bfloat16" in code else "float16"}")'
    if advice.rule == "collectives":  # the command that compares ranks, without the code
        code = code.partition("\n")[0]
    if advice.rule == "batch_size":
        code = code.replace("DataLoader(dataset, batch_size=", "dataset = dataset.unbatch().batch(")
    return replace(advice, code=code, advice=_KERAS_ACTIONS.get(advice.rule, advice.advice))
