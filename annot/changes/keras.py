"""Changes of programs in Keras on TensorFlow."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from annot.analyze.advice.facts import Facts
from annot.changes.change import built_in, waits_for_data


def _may_help(facts: Facts) -> str:
    """The profile does not show whether the change helps."""
    return ""


def _jit(facts: Facts) -> str:
    compiled = facts.work.filter(pl.col("library") == "XLA").height
    return "XLA compiles the model already" if compiled else ""


def _half(facts: Facts, dtype: str) -> str:
    first = {tag.tensors[0].dtype for tags in facts.tags.values() for tag in tags}
    if first and first <= {"f16", "bf16"}:
        return "the layers compute in 16 bits already"
    return "float16 needs a GPU" if dtype == "float16" and facts.on_cpu else ""


CHANGES: Final = built_in(
    "keras",
    {
        "jit": _jit,
        "mixed-bf16": partial(_half, dtype="bfloat16"),
        "mixed-fp16": partial(_half, dtype="float16"),
        "steps-per-execution": _may_help,
        "prefetch": waits_for_data,
        "cache": waits_for_data,
        "no-eager": _may_help,
    },
)
