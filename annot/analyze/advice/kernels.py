"""Advice about what runs on a device."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.tensor_cores import F32_KERNEL
from annot.tag import Tag

__all__ = ["channels_last", "cudnn_benchmark", "fusion", "mixed_precision", "multiples_of_eight", "optimizer"]

_LAYOUT: Final = r"(?i)nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw"
_LOW: Final = r"(?i)f16|fp16|half|hgemm|h884|h1688|h16816|bf16|bfloat|e4m3|e5m2|i8|int8"
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


def mixed_precision(facts: Facts) -> Advice | None:
    """Matrix products in 32 bits on a device that has Tensor Cores."""
    if facts.peaks is not None and not any(name.endswith("tensor") for name in facts.peaks.flops):
        return None
    by_layer = pl.col("layer").is_in(_computing_low(facts)) & ~pl.col("name").str.contains(F32_KERNEL.pattern)
    low = pl.col("name").str.contains(_LOW) | by_layer
    which = pl.col("matrix") & ~pl.col("tensor") & (pl.col("library") != "Triton") & ~low
    share = facts.share(which)
    if share < 0.2:
        return None
    bfloat = facts.peaks is None or "bf16 tensor" in facts.peaks.flops
    return Advice(
        "mixed_precision",
        f"Let matrix products run on Tensor Cores, in {'bfloat16, or at least in TF32' if bfloat else 'float16'}.",
        f"{share:.0%} of the device time are matrix products in 32 bits outside Tensor Cores",
        _AUTOCAST if bfloat else _SCALED,
        share, facts.layers_of(which),
    )  # fmt: skip


def _computing_low(facts: Facts) -> list[str]:
    """The layers whose ranges say that they compute in less than 32 bits."""
    return [
        layer for layer, tags in facts.tags.items()
        if all(dict(tag.arguments).get("autocast", tag.tensors[0].dtype) in _HALF for tag in tags)
    ]  # fmt: skip


def multiples_of_eight(facts: Facts) -> Advice | None:
    """Layers in half precision that miss Tensor Cores because of their sizes."""
    odd = {layer: sizes for layer, tags in facts.tags.items() if (sizes := _odd_sizes(tags))}
    misses = pl.col("matrix") & ~pl.col("tensor") & (pl.col("library") != "Triton")
    which = misses & pl.col("layer").is_in(list(odd))
    share = facts.share(which)
    if share < 0.05:
        return None
    layers = facts.layers_of(which)
    example = ", ".join(str(size) for size in odd[layers[0]]) if layers else ""
    return Advice(
        "multiples_of_eight",
        "Pad channels, features, classes and vocabulary to multiples of 8 (better 64), which Tensor Cores need.",
        f"{share:.0%} of the device time are products outside Tensor Cores whose sizes no 8 divides, such as {example}",
        "features = -(-features // 8) * 8",
        share, layers,
    )  # fmt: skip


def _odd_sizes(tags: list[Tag]) -> list[int]:
    """Sizes of a layer in half precision, as they go into products, that are no multiples of 8."""
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
    """Kernels that do nothing but turn NCHW into NHWC and back."""
    which = pl.col("name").str.contains(_LAYOUT)
    share = facts.share(which)
    if share < 0.03:
        return None
    return Advice(
        "channels_last",
        "Keep tensors of images in the layout channels-last.",
        f"{share:.0%} of the device time only changes the layout between NCHW and NHWC",
        "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)",
        share, facts.layers_of(which),
    )  # fmt: skip


def cudnn_benchmark(facts: Facts) -> Advice | None:
    """Convolutions of constant shapes, and no sign that cuDNN tried its algorithms."""
    which = pl.col("kind") == "convolution"
    share = facts.share(which)
    convolutions = facts.layers.filter(pl.col("module").str.contains("Conv") & (pl.col("phase") == "forward"))
    constant = convolutions.height > 0 and bool((convolutions["shapes"].list.len() == 1).all())
    kernels = facts.all_steps["kernels"].to_list()
    tuned = len(kernels) < 2 or kernels[0] > 1.1 * sorted(kernels[1:])[len(kernels[1:]) // 2]
    if share < 0.2 or not constant or tuned:
        return None
    return Advice(
        "cudnn_benchmark",
        "Let cuDNN choose its algorithms by trying them, if it does not: the shapes never change.",
        f"{share:.0%} of the device time are convolutions of constant shapes, and the first step tried no algorithms",
        "torch.backends.cudnn.benchmark = True",
        share, facts.layers_of(which),
    )  # fmt: skip


def fusion(facts: Facts) -> Advice | None:
    """Much time in small operations that nobody fused."""
    which = pl.col("kernel") & pl.col("kind").is_in(_SMALL) & (pl.col("library") != "Triton")
    share = facts.share(which)
    if share < 0.3:
        return None
    calls = int(facts.work.filter(which)["calls"].sum())
    return Advice(
        "fusion",
        "Fuse operations that only move memory: compile the model.",
        f"{share:.0%} of the device time are {calls:,} elementwise, normalising and reducing kernels",
        "model = torch.compile(model)",
        share, facts.layers_of(which),
    )  # fmt: skip


def optimizer(facts: Facts) -> Advice | None:
    """An optimizer that launches kernels parameter by parameter."""
    rows = facts.layers.filter((pl.col("phase") == "optimizer") & (pl.col("kernels_total") > 0))
    calls, kernels, gpu_ns = rows.select("calls", "kernels_total", "gpu_ns").sum().row(0)
    share = gpu_ns / facts.gpu_ns if facts.gpu_ns else 0.0
    if not calls or kernels / calls < 200 or share < 0.03:
        return None
    name = re.sub(r"\W", "", rows["module"][0]) or "SGD"
    return Advice(
        "optimizer",
        "Let the optimizer work on all parameters in few kernels.",
        f"an optimizer step launches {kernels / calls:,.0f} kernels, {share:.0%} of the device time",
        f"torch.optim.{name}(model.parameters(), ..., fused=True)",
        share,
    )
