"""Rules about kernels and their launches: precision, layout and fusion of kernels, and idle time between launches."""

from __future__ import annotations

import math
import re
from typing import Final

import polars as pl

from annot.analyze.advice.facts import LEAST_CHANGE, LEAST_SETTING, LEAST_SHARE, Advice, Facts, Rule
from annot.analyze.advice.texts import texts
from annot.analyze.cpu_parts import GPU_PARTS
from annot.analyze.kernel_names import with_classes
from annot.analyze.peaks import rates_of
from annot.analyze.tensor_cores import F32_KERNEL, matrix_units
from annot.attribution.attribute import known
from annot.attribution.layer_tables import LAYER_PHASES
from annot.labels.tag import Tag

_SHORT_NS: Final = 10_000
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
    if share < LEAST_SHARE or not fits_a_graph(facts):
        return None
    kernels = facts.steps["kernels"]
    same = "each step runs the same" if kernels.len() > 1 else "the step runs"
    count = facts.calls(pl.col("kernel"))
    return Advice(
        "cuda_graphs",
        "Launch each step as a CUDA graph: the GPU waits for launches.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and {same} "
        f"{count:,.0f} kernels, {_mean_length(facts)} on average",
        _fewer_launches(facts, _GRAPHS_OF_COMPILED),
        share,
        facts.idle_layers,
        _COMPILED_IN_GRAPHS,
    )


def _mean_length(facts: Facts) -> str:
    return f"{facts.mean_kernel_ns / 1000:.1f} µs"


def _fewer_launches(facts: Facts, code: str) -> str:
    """Code or a command that saves launches: of the serving engine that runs the model, else `code`."""
    return texts().engines[facts.engine]["with" if facts.graphs else "without"] if facts.engine else code


_COMPILED: Final = ("compile", "compile-blocks")
_COMPILED_IN_GRAPHS: Final = ("compile-reduce-overhead", "cuda-graphs")
_GRAPHS_OF_COMPILED: Final = 'model = torch.compile(model, mode="reduce-overhead")'


def fits_a_graph(facts: Facts) -> bool:
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
    share = host if not again or fits_a_graph(facts) else host + launch
    if not facts.on_device or not known(facts.attribution.meta) or share < LEAST_SHARE:
        return None
    of_kernels = f" of {facts.calls(pl.col('kernel')):,.0f} kernels, {_mean_length(facts)} on average"
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
        (*_COMPILED, *_COMPILED_IN_GRAPHS),
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
    layers = facts.layers.filter(pl.col("phase").is_in(LAYER_PHASES), pl.col("module") != "")
    columns = "roofline" if layers.height else "all"  # the roofline is about layers of models
    return f"annot report {facts.source} --columns {columns}      # which layers wait for launches\n"


def batch_size(facts: Facts) -> Advice | None:
    """Small batches, whose kernels take longer to launch than to run.

    Evidence: batch sizes in the labels of layers, at least 10 % of the step time in which the device is idle while the
    CPU prepares the next launch, and kernels of less than 10 µs on average, in a run without a serving engine.
    """
    size, share = facts.batch, facts.idle["launch"]
    short = 0 < facts.mean_kernel_ns < _SHORT_NS
    if not facts.on_device or not size or share < LEAST_SHARE or not short or facts.engine:
        return None
    return Advice(
        "batch_size",
        "Double the batch size while it fits into memory"
        f"{', and scale the learning rate with it' if facts.has_backward else ''}.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and kernels take "
        f"{_mean_length(facts)} on average at batch size {size}",
        f"DataLoader(dataset, batch_size={2 * 8 * math.ceil(size / 8)})",
        share,
    )


LAUNCH_RULES: Final[tuple[Rule, ...]] = (cuda_graphs, host_bound, batch_size)


CONVERSIONS: Final = (
    r"(?i)nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw|batched_transpose_|genericReformat::|tensorTransform"
)
"""Names of layout conversion kernels in cuDNN, MIOpen (`batched_transpose_…`) and TensorRT."""
_LOW: Final = r"(?i)f16|fp16|half|hgemm|h884|h1688|h16816|bf16|bfloat|e4m3|e5m2|i8|int8"
_SINGLE: Final = r"(?i)f32|fp32|float|sgemm|scudnn"
"""Names of kernels that compute in 32 bits, unless they match `_LOW`: those also name their accumulator type."""
_AUTOCAST: Final = """\
torch.set_float32_matmul_precision("high")
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(x), y)"""
_SCALED: Final = """\
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""
_HALF: Final = ("f16", "bf16")
_SMALL: Final = ("elementwise", "normalisation", "softmax", "reduction")
_MEMORY_BOUND: Final = (*_SMALL, "copy", "random")
_OF_MODEL: Final = pl.col("kernel") & (pl.col("phase") != "optimizer")
"""Kernels that compiling the model can change."""


def mixed_precision(facts: Facts) -> Advice | None:
    """Matrix multiplications in float32 on a device with Tensor Cores.

    Evidence: kernels whose names show that they compute outside Tensor Cores, and that their inputs are float32, by
    the name or by the dtypes of their layer; at least 5 % of the step.
    """
    predicate = outside_matrix_units(facts)
    share = 0.0 if predicate is None else facts.share(predicate)
    if predicate is None or share < LEAST_CHANGE:
        return None
    units = matrix_units(facts.attribution.meta)
    bfloat = multiplies_bfloat16(facts)
    single_peak = facts.peaks.of("f32")
    tensor_peak = facts.peaks.of("f16", tensor_cores=True)
    # Lower bound of the time of a 16-bit GEMM on Tensor Cores relative to a float32 GEMM outside them.
    relative = min(single_peak / tensor_peak, 1.0) if single_peak and tensor_peak else 0.0
    return Advice(
        "mixed_precision",
        f"Run matrix multiplications on {units}: use {'bfloat16, or at least TF32' if bfloat else 'float16'}.",
        f"{share:.0%} of {facts.time} is spent in float32 matrix multiplications outside {units}",
        _AUTOCAST if bfloat else _SCALED,
        share * (1 - relative),
        facts.layers_of(predicate),
        ("bf16", "tf32") if bfloat else ("fp16",),
    )


def multiplies_bfloat16(facts: Facts) -> bool:
    """Whether the Tensor Cores of the device support bfloat16 and TF32; True if the device is unknown."""
    if facts.peaks.flops:
        return "bf16 tensor" in facts.peaks.flops
    devices = facts.attribution.meta.get("devices") or ()
    return all(rates is None or "bf16 tensor" in rates for rates in map(rates_of, devices))


def outside_matrix_units(facts: Facts) -> pl.Expr | None:
    """Return which rows of `Facts.work` are float32 matrix multiplications outside Tensor Cores.

    None: the device has no Tensor Cores.
    """
    if facts.peaks.flops and not any(name.endswith("tensor") for name in facts.peaks.flops):
        return None
    named = pl.col("name").str.contains(f"{F32_KERNEL.pattern}|{_SINGLE}")
    single = named | pl.col("layer").is_in(_computing_in(facts, ("f32",)))
    low = pl.col("name").str.contains(_LOW) | (~named & pl.col("layer").is_in(_computing_in(facts, _HALF)))
    return pl.col("matrix") & ~pl.col("tensor") & single & ~low


def _computing_in(facts: Facts, dtypes: tuple[str, ...]) -> list[str]:
    """The layers that compute in one of these dtypes, by their labels."""
    return [
        layer
        for layer, tags in facts.tags.items()
        if all(dict(tag.arguments).get("autocast", tag.tensors[0].dtype) in dtypes for tag in tags)
    ]


def multiples_of_eight(facts: Facts) -> Advice | None:
    """Layers in half precision whose sizes keep them off Tensor Cores.

    Evidence: sizes in the labels of layers that are not divisible by 8, and kernels of these layers whose names show
    that they compute outside Tensor Cores, with at least 5 % of the step.
    """
    odd = {layer: sizes for layer, tags in facts.tags.items() if (sizes := _odd_sizes(tags))}
    misses = pl.col("matrix") & ~pl.col("tensor")
    predicate = misses & pl.col("layer").is_in(list(odd))
    share = facts.share(predicate)
    if share < LEAST_CHANGE:
        return None
    layers, units = facts.layers_of(predicate), matrix_units(facts.attribution.meta)
    example = ", ".join(str(size) for size in odd[layers[0]]) if layers else ""
    return Advice.of(
        "multiples_of_eight",
        f"{share:.0%} of {facts.time} is spent in matrix multiplications outside {units} with sizes not divisible "
        f"by 8, such as {example}",
        share,
        layers,
        units=units,
    )


def _odd_sizes(tags: list[Tag]) -> list[int]:
    """GEMM sizes of a half-precision layer that are not divisible by 8."""
    sizes: set[int] = set()
    for tag in tags:
        first = tag.tensors[0]
        if first.dtype not in _HALF or len(first.shape) < 2:
            continue
        channels = first.shape[1] if "Conv" in tag.module else first.shape[-1]
        outputs = dict(tag.arguments).get("out")
        sizes |= {size for size in (channels, outputs) if isinstance(size, int) and size % 8}
    return sorted(sizes)


def channels_last(facts: Facts) -> Advice | None:
    """Kernels that convert between NCHW and NHWC.

    Evidence: names of conversion kernels of cuDNN, MIOpen and TensorRT, with at least 5 % of the step.
    """
    predicate = pl.col("name").str.contains(CONVERSIONS)
    share = facts.share(predicate)
    if share < LEAST_CHANGE:
        return None
    return Advice.of(
        "channels_last",
        f"{share:.0%} of {facts.time} is spent in conversions between NCHW and NHWC",
        share,
        facts.layers_of(predicate),
    )


def cudnn_benchmark(facts: Facts) -> Advice | None:
    """Convolutions of constant shapes in a run whose first step does not benchmark cuDNN algorithms.

    Evidence: layers of convolutions with one input shape each, at least 10 % of the step in convolution kernels, and
    two or more steps of which the first runs at most 1.1 times as many kernels as the others.
    """
    predicate = pl.col("kind") == "convolution"
    share = facts.share(predicate)
    convolutions = facts.layers.filter(pl.col("module").str.contains("Conv") & (pl.col("phase") == "forward"))
    constant = convolutions.height > 0 and bool((convolutions["shapes"].list.len() == 1).all())
    kernels = facts.all_steps["kernels"].to_list()
    tuned = len(kernels) < 2 or kernels[0] > 1.1 * sorted(kernels[1:])[len(kernels[1:]) // 2]
    if share < LEAST_SHARE or not constant or tuned:
        return None
    return Advice.of(
        "cudnn_benchmark",
        f"{share:.0%} of {facts.time} is spent in convolutions with constant shapes, "
        "and the first step runs no extra kernels",
        share,
        facts.layers_of(predicate),
    )


def fusion(facts: Facts) -> Advice | None:
    """Memory-bound operations that are not fused.

    Evidence: elementwise, normalisation, softmax and reduction kernels, not from Triton and not of an optimizer, that
    run directly before or after another memory-bound kernel of their stream, with at least 10 % of the step, in a run
    that the user can compile (`Facts.compilable`). Fusing needs two: calls of one operator, or of one kernel that is
    not elementwise, are independent. The softmax of attention in eager operations does not count: `eager_attention`
    advises on it.
    """
    if not facts.compilable:
        return None
    predicate = _OF_MODEL & pl.col("kind").is_in(_SMALL) & (pl.col("library") != "Triton")
    predicate &= ~pl.col("name").is_in(facts.kernels_of(facts.eager_attention))
    rows = facts.work.filter(predicate)
    if not facts.wall_ns or rows["wall_ns"].sum() < LEAST_SHARE * facts.wall_ns or _is_one_operator(facts, rows):
        return None
    rows = rows.join(_fusible_kernels(facts), on="name", how="left").with_columns(pl.col("fusible").fill_null(0.0))
    share = float((rows["wall_ns"] * rows["fusible"]).sum() / facts.wall_ns)
    if share < LEAST_SHARE:
        return None
    calls = round(float((rows["calls"] * rows["fusible"]).sum()) / max(facts.steps.height, 1))
    return Advice(
        "fusion",
        "Fuse memory-bound operations: compile the model.",
        f"{share:.0%} of {facts.time} is spent in {calls:,} elementwise, normalisation, softmax and reduction kernels "
        "that run one after another",
        "model = torch.compile(model)",
        share,
        facts.layers_of(predicate),
        _COMPILED,
    )


def _is_one_operator(facts: Facts, rows: pl.DataFrame) -> bool:
    """Whether all these activities are calls of one kernel by one operator with the same inputs."""
    names = rows["name"].unique().to_list()
    return len(names) == 1 and sum(names[0] in operator.kernels for operator in facts.operators) == 1


def _fusible_kernels(facts: Facts) -> pl.DataFrame:
    """Return name and fusible: which part of the kernels of a name runs beside another memory-bound kernel."""
    tables = [pl.DataFrame(schema={"name": pl.String, "beside": pl.Int64, "all": pl.Int64})]
    for block in facts.attribution.activity_blocks():
        stream = [name for name in ("process", "device", "stream") if name in block.columns]
        rows = with_classes(block.filter("kernel").select(*stream, "start", "name"))
        bound = pl.col("kind").is_in(_MEMORY_BOUND) & (pl.col("library") != "Triton")
        rows = rows.sort(*stream, "start").with_columns(bound.alias("bound"))
        chains = (pl.col("kind") == "elementwise") | (pl.col("name") != pl.col("name").shift(1))
        around = [pl.col("bound").shift(1, fill_value=False) & chains.fill_null(False)]
        around.append((pl.col("bound") & chains.fill_null(False)).shift(-1, fill_value=False))
        beside = pl.any_horizontal(side.over(stream) if stream else side for side in around)
        counts = pl.col("beside").sum().cast(pl.Int64), pl.len().cast(pl.Int64).alias("all")
        sums = rows.with_columns(beside=pl.col("bound") & beside).group_by("name").agg(counts)
        tables.append(sums.with_columns(pl.col("name").cast(pl.String)))
    sums = pl.concat(tables).group_by("name").agg(pl.all().sum())
    return sums.select("name", fusible=pl.col("beside") / pl.col("all"))


def short_kernels(facts: Facts) -> Advice | None:
    """Kernels that take no longer than their launch.

    Evidence: at least 10 kernels of each step, not of an optimizer, that take less than 10 µs, with at least 10 % of
    the step, in a run that the user can compile (`Facts.compilable`).
    """
    if not facts.compilable:
        return None
    short = _OF_MODEL & (pl.col("wall_ns") < _SHORT_NS * pl.col("calls"))
    share, count = facts.share(short), facts.calls(short)
    if share < LEAST_SHARE or count < 10:
        return None
    mean = share * facts.wall_ns / (count * max(facts.steps.height, 1)) / 1000
    return Advice.of(
        "short_kernels",
        f"{share:.0%} of {facts.time} is spent in {count:,.0f} short kernels, {mean:.1f} µs on average",
        share,
        facts.layers_of(short),
    )


def optimizer(facts: Facts) -> Advice | None:
    """An optimizer that launches separate kernels for each parameter.

    Evidence: at least 200 kernels in each range of an optimizer step, with at least 3 % of the step.
    """
    rows = facts.layers.filter((pl.col("phase") == "optimizer") & (pl.col("kernels_total") > 0))
    calls, kernels = rows.select("calls", "kernels_total").sum().row(0)
    share = facts.share(pl.col("phase") == "optimizer")
    if not calls or kernels / calls < 200 or share < LEAST_SETTING:
        return None
    # torch.profiler names the method too: "AdamW.step".
    name = re.sub(r"\W", "", re.sub(r"\.(?:step|zero_grad)$", "", rows["module"][0])) or "SGD"
    return Advice(
        "optimizer",
        "Use a fused optimizer, which updates all parameters in a few kernels.",
        f"{kernels / calls:,.0f} kernels per optimizer step take {share:.0%} of {facts.time}",
        f"torch.optim.{name}(model.parameters(), ..., fused=True)",
        share,
        changes=("fused", "foreach"),
    )


RULES: Final[tuple[Rule, ...]] = (
    mixed_precision,
    multiples_of_eight,
    channels_last,
    cudnn_benchmark,
    fusion,
    short_kernels,
    optimizer,
)
