"""Rules about operators with recorded inputs: shapes, attention in pieces, older kernels, copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import polars as pl

from annot.analyze.advice.facts import LEAST_CHANGE, LEAST_SHARE, PRODUCTS, SOFTMAX, Advice, Facts, Rule
from annot.analyze.advice.gemm_causes import convolution_cause, gemm_cause
from annot.analyze.advice.operator_causes import (
    LOW_ROOF,
    Cause,
    Family,
    Operator,
    attention_cause,
    embedding_cause,
    experts_cause,
    is_fast,
    reduction_cause,
)
from annot.analyze.advice.texts import texts
from annot.analyze.roofline import operator_table
from annot.analyze.work.call import CONTRADICTIONS, Call
from annot.analyze.work.operators import REDUCTIONS
from annot.labels.tag import Tag

_FAMILIES: Final[dict[str, Family]] = {
    "conv": convolution_cause,
    "attention": attention_cause,
    "moe": experts_cause,
    "experts": experts_cause,
    "embedding": embedding_cause,
    "": lambda operator, call: gemm_cause(operator, call) or reduction_cause(operator, call),
}
"""Words in the names of operators, and the causes of their family; the first match wins."""


def cause_of(operator: Operator) -> Cause | None:
    """Return why an operator is slow; None: its inputs are unknown, or nothing is wrong with them."""
    if operator.tag is None or operator.tag.phase != "op":
        return None
    call = Call.of(operator.tag)
    family = next(family for word, family in _FAMILIES.items() if word in call.name)
    try:
        cause = family(operator, call)
    except CONTRADICTIONS:
        return None
    return cause or _low_roof(operator) or _low_intensity(operator)


def _low_roof(operator: Operator) -> Cause | None:
    """A compute-bound operator whose kernels that multiply are far below the roof of a known device.

    It saves at most what separates it from `LOW_ROOF`: a profile does not show that more is possible.
    """
    if operator.roof_share is None or operator.memory_bound or is_fast(operator):
        return None
    reached = operator.roof_share / operator.multiplies
    return Cause.of(
        "low_efficiency",
        f"{operator.roof_share:.0%} of the peak of the device at this precision",
        operator.multiplies * (1 - reached / LOW_ROOF),
    )


def _low_intensity(operator: Operator) -> Cause | None:
    """An operator that moves more bytes than a device can compute with. It has no advice: fusing needs two."""
    if not operator.memory_bound or operator.intensity is None:
        return None
    roof = "" if operator.roof_share is None else f", {operator.roof_share:.0%} of the memory bandwidth"
    return Cause("memory_bound", f"memory-bound with {operator.intensity:.2g} FLOPs per byte{roof}")


_GATHERS: Final = ("aten::index", "aten::index_select", "aten::gather", "aten::take_along_dim")
_OLDER: Final = r"flash_(?:fwd|bwd)_|fmha_cutlass[FB]_\w*_sm[5-8]\d"
"""Kernels of FlashAttention-2, unless they match `_NEWER`, and of CUTLASS for Ampere and older."""
_NEWER: Final = r"(?i)sm_?(?:90|1\d\d)"
_SINCE_HOPPER: Final = re.compile(r"\b(?:GH200|H[128]00|G?B[123]00)\b")


def longest_operator(facts: Facts) -> tuple[Operator, Cause | None] | None:
    """Return the operator with the most time in the steps and why it is slow; None: no operators."""
    longest = next(iter(facts.operators), None)
    return None if longest is None else (longest, cause_of(longest))


def _shape(facts: Facts, *, family: str) -> Advice | None:
    """The longest operator of a family whose shape or arguments are slow on a GPU.

    Evidence: the recorded inputs of an operator, its share of the step (at least 10 %), and the cause that follows from
    them; see `annot.analyze.advice.operators`.
    """
    matches = [
        (operator, cause)
        for operator in facts.operators
        if operator.share >= LEAST_SHARE / 4
        and (cause := cause_of(operator))
        and cause.advice
        and re.search(_WORDS[family], operator.name)
    ]
    shares: dict[str, float] = {}
    for operator, cause in matches:
        shares[cause.name] = shares.get(cause.name, 0.0) + operator.share
    name = max(shares, key=lambda name: shares[name], default="")
    if not name or shares[name] < LEAST_SHARE:
        return None
    same = [(operator, cause) for operator, cause in matches if cause.name == name]
    longest, cause = same[0]
    more = len(same) - 1
    others = f" ({shares[name]:.0%} with {more} other shape{'s' * (more > 1)})" if more else ""
    return Advice(
        f"{family}_shape",
        cause.advice,
        f"{longest.share:.0%} of {facts.time} goes to {longest.title}{others}: {cause.words}",
        cause.code,
        sum(operator.share * cause.saves for operator, cause in same),
        _layers(facts, [operator for operator, _ in same]),
        cause.changes,
    )


_WORDS: Final = {
    "gemm": r"::(?:linear|addmm|baddbmm|mm|bmm|matmul|mv|dot|_scaled_mm)$",
    "convolution": r"::\w*conv",
    "attention": r"::\w*attention",
    "experts": r"(?i)moe|experts",
    "reduction": rf"::(?:{'|'.join(REDUCTIONS)})$",
    "embedding": r"::embedding_dense_backward$",
}
"""Names of the operators of each family."""


def _named(function: Callable[..., Advice | None], name: str, **arguments: str) -> Rule:
    """A rule that calls a function with arguments, under its own name."""
    rule = partial(function, **arguments)
    rule.__name__ = name  # type: ignore[attr-defined]
    rule.__doc__ = function.__doc__
    return rule


def _layers(facts: Facts, operators: list[Operator]) -> list[str]:
    """The layers that call operators most often; operators outside layers name none."""
    forest, groups = facts.attribution.forest, operator_table(facts.attribution).groups
    rows = forest.tree.filter(groups.is_in([operator.group for operator in operators]))
    layers = forest.layers_of_nodes()[rows.filter(pl.col("path") >= 0)["path"]]
    layers = layers.filter((pl.col("module") != "") & (pl.col("layer") != ""))
    return layers.group_by("layer").len().sort("len", "layer", descending=[True, False])["layer"].head(5).to_list()


def eager_attention(facts: Facts) -> Advice | None:
    """Attention in eager operations: a matrix multiplication, softmax and another matrix multiplication.

    Evidence: operators of one thread in this order with elementwise operators between them, and their share of the
    step (at least 10 %).
    """
    operators = facts.eager_attention
    share = sum(operator.share for operator in operators)
    if not operators:
        return None
    softmax = next((operator for operator in operators if operator.name in SOFTMAX), operators[0])
    return Advice.of(
        "eager_attention",
        f"{share:.0%} of {facts.time} goes to attention in eager operations: matrix multiplication, {softmax.title}, "
        "matrix multiplication",
        share,
        _layers(facts, operators),
    )


def older_attention(facts: Facts) -> Advice | None:
    """An attention kernel that was written for an older GPU.

    Evidence: kernels of FlashAttention-2, or of CUTLASS for Ampere and older, on a device that is Hopper or newer by
    its name or compute capability, with at least 5 % of the step. Kernels of few queries do not count, as in decoding:
    newer kernels compute faster, and read no less.
    """
    predicate = pl.col("kernel") & pl.col("name").str.contains(_OLDER) & ~pl.col("name").str.contains(_NEWER)
    causes = [(operator, cause_of(operator)) for operator in facts.operators]
    decodes = [operator for operator, cause in causes if cause is not None and cause.name == "decode"]
    predicate &= ~pl.col("name").is_in(facts.kernels_of(decodes))
    device = next((name for name in map(_newer_device, facts.attribution.meta.get("devices") or ()) if name), "")
    share = facts.share(predicate) if device else 0.0
    if share < LEAST_CHANGE:
        return None
    name = facts.work.filter(predicate).sort("wall_ns", descending=True)["name"][0]
    kernel = "FlashAttention-2" if "flash" in name else "CUTLASS for an older GPU"
    return Advice.of(
        "older_attention",
        f"{share:.0%} of {facts.time} is spent in attention kernels of {kernel} on {device}",
        share / 2,
        facts.layers_of(predicate),
    )


def _newer_device(device: Mapping[str, Any]) -> str:
    """The name of a device of NVIDIA's Hopper or a newer architecture; empty: another, or unknown."""
    name, major = str(device.get("name", "")), device.get("computeMajor")
    capable = "NVIDIA" in name and isinstance(major, int) and major >= 9
    return name if capable or _SINCE_HOPPER.search(name) else ""


def gathered_weights(facts: Facts) -> Advice | None:
    """Weights of experts that are copied by index before a batched matrix multiplication.

    Evidence: an index operator on a tensor of matrices whose sizes are those of an operand of a batched matrix
    multiplication, with at least 10 % of the step.
    """
    matrices = {size for operator in facts.operators if operator.name in PRODUCTS for size in _matrices(operator.tag)}
    gathers = [
        operator
        for operator in facts.operators
        if operator.name in _GATHERS and matrices.intersection(_matrices(operator.tag, first=True))
    ]
    share = sum(operator.share for operator in gathers)
    if share < LEAST_SHARE:
        return None
    return Advice.of(
        "gathered_weights",
        f"{share:.0%} of {facts.time} goes to {gathers[0].title}, which copies weights of experts by index",
        share,
        _layers(facts, gathers),
    )


def _copies(facts: Facts, *, kind: str) -> Advice | None:
    """Operators that copy tensors on the device, of one kind: concatenations, casts or other copies.

    Evidence: the names of operators, for copies also the dtypes of both tensors, and at least 10 % of the step without
    copies from and to the host, in a program that the user can change (no serving engine).
    """
    operators = [operator for operator in facts.operators if _kind_of_copy(operator) == kind]
    shares = [operator.share * (1 - operator.from_host) for operator in operators]
    if facts.engine or sum(shares) < LEAST_SHARE:
        return None
    text = texts().copies[kind]
    longest = operators[shares.index(max(shares))]
    others = f", of which {max(shares):.0%} to {longest.title}" if len(operators) > 1 else f": {longest.title}"
    evidence = f"{sum(shares):.0%} of {facts.time} goes to {text.what}{others}"
    return Advice(kind, text.advice, evidence, text.code, sum(shares), _layers(facts, operators))


def _kind_of_copy(operator: Operator) -> str:
    """What an operator copies for; empty: it computes."""
    kind = next((kind for kind, names in _COPYING.items() if operator.name.removeprefix("aten::") in names), "")
    dtypes = {tensor.dtype for tensor in operator.tag.tensors} if operator.tag else set()
    return "casts" if operator.name == "aten::copy_" and len(dtypes) > 1 else kind


_COPYING: Final = {
    "concatenations": ("cat", "stack"),
    "casts": ("to", "_to_copy", "type_as"),
    "tensor_copies": ("copy_", "clone", "contiguous", "repeat"),
}
"""Operators by what they copy for."""


def _matrices(tag: Tag | None, *, first: bool = False) -> set[frozenset[int]]:
    """The sizes of the matrices in tensors of at least three dimensions, in any order; `first`: of the first tensor."""
    tensors = tag.tensors[:1] if tag and first else tag.tensors if tag else ()
    return {
        frozenset(size or 0 for size in tensor.shape[-2:])
        for tensor in tensors
        if len(tensor.shape) > 2 and min(size or 0 for size in tensor.shape[-2:]) > 1
    }


RULES: Final[tuple[Rule, ...]] = (
    *(_named(_shape, f"{family}_shape", family=family) for family in _WORDS),
    eager_attention,
    older_attention,
    gathered_weights,
    *(_named(_copies, kind, kind=kind) for kind in _COPYING),
)
