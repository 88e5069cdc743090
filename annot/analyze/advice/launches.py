"""Advice rules about launches: the GPU waits for them, or for the CPU between them."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.bottlenecks import step_batches
from annot.analyze.part_names import GPU_PARTS
from annot.attribution.attribute import known

__all__ = ["RULES", "cuda_graphs", "host_bound"]

_SHORT_NS = 10_000
"""Kernels with a shorter mean duration take about as long to launch as to run."""
_MOST_WAITS: Final = 2
"""Calls that wait for the device at the end of a step: for its loss, and for a timer."""
_LEAST_KERNELS: Final = 10
"""Kernels from which gaps between them show that the run waits for launches."""


def cuda_graphs(facts: Facts) -> Advice | None:
    """Steps that wait for launches and launch the same kernels, as a CUDA graph requires.

    Evidence: steps without CUDA graphs, of which no two have different numbers of kernels; at least 10 kernels of at
    most 50 µs on average in each; at most two calls in each that wait for the device, which a graph cannot contain; and
    at least 10 % of the step time in which the device is idle while the CPU prepares the next launch.
    """
    share = facts.idle["launch"]
    if share < 0.1 or not _fits_a_graph(facts):
        return None
    kernels = facts.steps["kernels"]
    same = "each step runs the same" if kernels.len() > 1 else "the step runs"
    count = facts.calls(pl.col("kernel"))
    return Advice(
        "cuda_graphs",
        "Launch each step as a CUDA graph: the GPU waits for launches.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and {same} "
        f"{count:,.0f} kernels, {facts.mean_kernel_ns / 1000:.1f} µs on average",
        _fewer_launches(facts, _GRAPHS_OF_COMPILED),
        share,
        facts.idle_layers,
    )


def _fewer_launches(facts: Facts, code: str) -> str:
    """Code or a command that saves launches: of the serving engine that runs the model, else `code`."""
    return _OF_ENGINES[facts.engine][facts.graphs] if facts.engine else code


_GRAPHS_OF_COMPILED: Final = 'model = torch.compile(model, mode="reduce-overhead")'
_OF_ENGINES: Final = {
    "vLLM": (
        "vllm serve MODEL      # without --enforce-eager, which turns CUDA graphs off",
        "vllm serve MODEL --max-num-seqs 512      # more requests in each step",
    ),
    "SGLang": (
        "python -m sglang.launch_server --model-path MODEL      # without --disable-cuda-graph",
        "python -m sglang.launch_server --model-path MODEL --max-running-requests 512      # more in each step",
    ),
    "vLLM or SGLang": (
        "vllm serve MODEL      # without --enforce-eager; SGLang: without --disable-cuda-graph",
        "vllm serve MODEL --max-num-seqs 512      # SGLang: --max-running-requests 512",
    ),
    "TensorRT-LLM": (
        "trtllm-serve MODEL --extra_llm_api_options graphs.yaml      # cuda_graph_config: {enable_padding: true}",
        "trtllm-serve MODEL --max_batch_size 512      # more requests in each step",
    ),
}
"""Commands of serving engines without and with CUDA graphs."""


def _fits_a_graph(facts: Facts) -> bool:
    """Whether the steps launch the same short kernels, without CUDA graphs and without waits between them."""
    kernels = facts.steps["kernels"]
    alike = kernels.len() > 0 and kernels.min() == kernels.max()
    enough = facts.calls(pl.col("kernel")) >= _LEAST_KERNELS
    short = facts.mean_kernel_ns <= 5 * _SHORT_NS
    waits = facts.idle_calls.filter(pl.col("cause") == "synchronisation")["calls"].sum()
    runs_through = waits <= _MOST_WAITS * kernels.len()
    return facts.on_device and alike and enough and short and runs_through and not facts.graphs


def host_bound(facts: Facts) -> Advice | None:
    """A CPU-bound run: the GPU is idle while the CPU runs Python or framework code.

    Evidence: host times, and at least 10 % of the step time in which the device is idle while no thread waits for data,
    for the device or for its memory; short gaps count unless `cuda_graphs` advises on them, if they come again: with at
    least 10 kernels or two steps.
    """
    host, launch = facts.idle["host"], facts.idle["launch"]
    again = facts.steps.height > 1 or facts.calls(pl.col("kernel")) >= _LEAST_KERNELS
    share = host if not again or _fits_a_graph(facts) else host + launch
    if not facts.on_device or not known(facts.attribution.meta) or share < 0.1:
        return None
    count, mean = facts.calls(pl.col("kernel")), facts.mean_kernel_ns / 1000
    of_kernels = f" of {count:,.0f} kernels, {mean:.1f} µs on average"
    waits = [
        (host, GPU_PARTS["host"].name),
        (launch if share > host else 0.0, f"{GPU_PARTS['launch'].name}{of_kernels}"),
    ]
    (longest, first), (shorter, second) = sorted(waits, reverse=True)
    more = f", and {shorter:.0%} {second}" if shorter >= 0.01 else ""
    bound = "CPU-bound" if longest == host else "launch-bound"
    code, already = _COMPILE[facts.is_compiled, facts.graphs]
    return Advice(
        "host_bound",
        f"Reduce the CPU time between launches: the run is {bound}.",
        f"{longest:.0%} of {facts.time} is spent {first}{more}{already}",
        _idle_command(facts) + _fewer_launches(facts, code),
        share,
        facts.idle_layers,
    )


_COMPILE: Final = {
    (False, False): ("model = torch.compile(model)", ""),
    (True, False): (f"{_GRAPHS_OF_COMPILED}      # CUDA graphs", "; the model is compiled"),
    (False, True): (
        "with torch.cuda.graph(graph):      # the whole step in one graph\n    loss = step(x, y)",
        "; the run launches CUDA graphs",
    ),
    (True, True): (
        'model = torch.compile(model, mode="reduce-overhead", fullgraph=True)      # raises where Python runs between '
        "graphs",
        "; the model is compiled and launches CUDA graphs",
    ),
}
"""Code and a clause of the evidence, by whether the model is compiled and whether the run launches CUDA graphs."""


def _idle_command(facts: Facts) -> str:
    """A line with the command that shows the layers that wait for launches; empty without ranges."""
    if not facts.idle_layers:
        return ""
    layers = facts.layers.filter(pl.col("phase").is_in(["forward", "backward", "recompute"]), pl.col("module") != "")
    columns = "roofline" if layers.height else "all"  # the roofline is about layers of models
    return f"annot report {facts.source} --columns {columns}      # which layers wait for launches\n"


def batch_size(facts: Facts) -> Advice | None:
    """Small batches, whose kernels take longer to launch than to run.

    Evidence: batch sizes in the labels of layers, at least 10 % of the step time in which the device is idle while the
    CPU prepares the next launch, and kernels of less than 10 µs on average, in a run without a serving engine.
    """
    sizes = [size for _, size in step_batches(facts.attribution)]
    share = facts.idle["launch"]
    short = 0 < facts.mean_kernel_ns < _SHORT_NS
    if not facts.on_device or not sizes or share < 0.1 or not short or facts.engine:
        return None
    size = max(set(sizes), key=sizes.count)
    return Advice(
        "batch_size",
        "Double the batch size while it fits into memory"
        f"{', and scale the learning rate with it' if facts.has_backward else ''}.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and kernels take "
        f"{facts.mean_kernel_ns / 1000:.1f} µs on average at batch size {size}",
        f"DataLoader(dataset, batch_size={max(8, -(-size // 8) * 8) * 2})",
        share,
    )


RULES: Final[tuple[Rule, ...]] = (cuda_graphs, host_bound, batch_size)
