"""Changes of programs in PyTorch."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.advice.facts import Facts
from annot.analyze.advice.kernels import fits_a_graph, multiplies_bfloat16, outside_matrix_units
from annot.analyze.advice.loop import workers_needed
from annot.attribution.layer_tables import LAYER_PHASES
from annot.changes.change import built_in, waits_for_data
from annot.labels.layer_path import containers
from annot.labels.tag import parse

_FUSED: Final = {"Adagrad", "Adam", "AdamW", "SGD"}
"""Optimizers of PyTorch with the argument ``fused``."""
_FOREACH: Final = {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", *_FUSED}
"""Optimizers of PyTorch with the argument ``foreach``."""
_HALF: Final = {"f16", "bf16"}
_ATTENTION: Final = r"(?i)attention|attn"
_NO_GPU: Final = "the run uses no GPU"


def _modules(facts: Facts) -> pl.Series:
    """Classes of the layers."""
    return facts.layers.filter(pl.col("phase").is_in(LAYER_PHASES))["module"]


def _optimizers(facts: Facts) -> set[str]:
    """Classes of the optimizers. torch.profiler names the method too: ``AdamW.step``."""
    modules = facts.layers.filter(pl.col("phase") == "optimizer", pl.col("layer") == "")["module"]
    return {re.sub(r"\.\w+$", "", module) for module in modules} - {""}


def _dtypes(facts: Facts) -> set[str]:
    """Dtypes in which layers compute, by their labels."""
    tags = [tag for tags in facts.tags.values() for tag in tags]
    return {str(dict(tag.arguments).get("autocast", tag.tensors[0].dtype)) for tag in tags}


def _compile(facts: Facts) -> str:
    if facts.engine:
        return f"{facts.engine} runs the model"
    return "the model is compiled already" if facts.is_compiled else ""


def _compile_blocks(facts: Facts) -> str:
    return _compile(facts) or ("" if _repeated_blocks(facts) else "no block of layers is repeated")


def _repeated_blocks(facts: Facts) -> bool:
    """Whether layers of one class with layers inside them differ in a number at the end of their paths."""
    rows = facts.layers.filter(pl.col("phase") == "forward", pl.col("module") != "").unique(["layer", "module"])
    blocks = rows.filter(pl.col("layer").is_in(list(containers(rows["layer"], rows["layer"]))))
    blocks = blocks.filter(pl.col("layer").str.contains(r"(?:^|\.)\d+$"))
    parents = blocks["layer"].str.replace(r"\d+$", "")
    return bool(pl.DataFrame({"parent": parents, "module": blocks["module"]}).is_duplicated().any())


def _compile_with_graphs(facts: Facts) -> str:
    return _compile(facts) or ("" if facts.on_device else "CUDA graphs need a GPU")


def _max_autotune(facts: Facts) -> str:
    return _compile(facts) or ("" if facts.on_device else "on a CPU it chooses kernels only for frozen weights")


def _half(facts: Facts, dtype: str) -> str:
    dtypes = _dtypes(facts)
    if dtypes and dtypes <= _HALF:
        return "the layers compute in 16 bits already"
    if dtypes and dtypes <= {"f64"}:
        return "autocast leaves float64 as it is"
    if dtype == "float16":
        return "" if facts.on_device else "a CPU is not faster in float16"
    return "" if not facts.on_device or multiplies_bfloat16(facts) else "the GPU does not multiply in bfloat16"


def _tf32(facts: Facts) -> str:
    if not facts.on_device:
        return _NO_GPU
    rows = outside_matrix_units(facts)
    if rows is None or not multiplies_bfloat16(facts):
        return "the GPU does not multiply in TF32"
    return "" if facts.share(rows) else "no matrix multiplication is in float32 outside Tensor Cores"


def _convolutions(facts: Facts, pattern: str) -> str:
    seen = _modules(facts).str.contains(pattern).any() or (facts.work["kind"] == "convolution").any()
    return "" if seen else "no layer is a convolution"


def _channels_last(facts: Facts) -> str:
    return _convolutions(facts, r"Conv\w*2d")


def _cudnn_benchmark(facts: Facts) -> str:
    return _convolutions(facts, r"Conv\w*[123]d") if facts.on_device else _NO_GPU


def _fused(facts: Facts) -> str:
    labels = facts.attribution.forest.labels.filter(pl.col("phase") == "optimizer")["text"]
    tags = [tag for tag in map(parse, labels) if tag is not None and tag.module]
    if tags and all(dict(tag.arguments).get("fused") is True for tag in tags):
        return "the optimizer is fused already"
    return _has_argument(facts, "fused", _FUSED)


def _foreach(facts: Facts) -> str:
    if not facts.on_device:
        return "on a CPU it computes one parameter after another, too"
    return _has_argument(facts, "foreach", _FOREACH)


def _has_argument(facts: Facts, argument: str, classes: set[str]) -> str:
    """Return why the argument of optimizers helps no optimizer of a program; empty: it may help."""
    optimizers = _optimizers(facts)
    if not optimizers:
        return "no optimizer steps"
    return "" if optimizers & classes else f"{' and '.join(sorted(optimizers))} has no argument {argument}"


def _workers(facts: Facts) -> str:
    count = facts.loader.workers
    if (reason := waits_for_data(facts)) or count is None:
        return reason
    return "" if workers_needed(facts, facts.shares["data"]) > count else f"{count} worker processes load the data"


def _pinned(facts: Facts) -> str:
    if not facts.on_device:
        return _NO_GPU
    return "batches are in pinned memory already" if facts.loader.pinned else ""


def _persistent(facts: Facts) -> str:
    if facts.loader.workers == 0:
        return "the DataLoader has no worker processes"
    return "the worker processes live on already" if facts.loader.persistent else waits_for_data(facts)


def _threads(facts: Facts) -> str:
    if not facts.on_cpu:
        return "a GPU computes"
    count, cores, ranks = (facts.cpu.get(name) for name in ("threads", "cores", "ranks"))
    if not count or not cores:
        return ""
    return "each core has a thread" if count == max(1, int(cores) // int(ranks or 1)) else ""


def _attention(facts: Facts, backend: str) -> str:
    names = facts.work["name"].cast(pl.String)
    operators = pl.Series([operator.name for operator in facts.operators], dtype=pl.String)
    if not any(texts.str.contains(_ATTENTION).any() for texts in (_modules(facts), names, operators)):
        return "no layer is attention"
    return _NO_GPU if backend == "efficient" and not facts.on_device else ""


def _set_to_none(facts: Facts) -> str:
    return "" if facts.has_backward and _optimizers(facts) else "no optimizer steps"


def _cuda_graphs(facts: Facts) -> str:
    if not facts.on_device:
        return "CUDA graphs need a GPU"
    if facts.engine:
        return f"{facts.engine} runs the model"
    if facts.graphs:
        return "the run launches CUDA graphs already"
    return "" if fits_a_graph(facts) else "the steps do not launch the same short kernels"


CHANGES: Final = built_in(
    "torch",
    {
        "compile": _compile,
        "compile-blocks": _compile_blocks,
        "compile-reduce-overhead": _compile_with_graphs,
        "compile-max-autotune": _max_autotune,
        "bf16": partial(_half, dtype="bfloat16"),
        "fp16": partial(_half, dtype="float16"),
        "tf32": _tf32,
        "channels-last": _channels_last,
        "fused": _fused,
        "foreach": _foreach,
        "cudnn-benchmark": _cudnn_benchmark,
        "workers": _workers,
        "pinned": _pinned,
        "persistent": _persistent,
        "threads": _threads,
        "sdpa-flash": partial(_attention, backend="flash"),
        "sdpa-efficient": partial(_attention, backend="efficient"),
        "sdpa-math": partial(_attention, backend="math"),
        "set-to-none": _set_to_none,
        "cuda-graphs": _cuda_graphs,
    },
)
