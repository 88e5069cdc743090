"""Changes of programs in Keras on TensorFlow."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from annot.analyze.advice.facts import LEAST_SETTING, Facts
from annot.changes.change import Change
from annot.changes.numbers import IN_BFLOAT16, IN_TEN_BITS, REORDERED

_LIVE: Final = "annot.live.keras_changes"


def _may_help(facts: Facts) -> str:
    """The profile does not show whether the change helps."""
    return ""


def _waits_for_data(facts: Facts) -> str:
    waits = facts.shares["data"] >= LEAST_SETTING
    return "" if waits else "the steps do not wait for data"


def _jit(facts: Facts) -> str:
    compiled = facts.work.filter(pl.col("library") == "XLA").height
    return "XLA compiles the model already" if compiled else ""


def _half(facts: Facts, dtype: str) -> str:
    first = {tag.tensors[0].dtype for tags in facts.tags.values() for tag in tags}
    if first and first <= {"f16", "bf16"}:
        return "the layers compute in 16 bits already"
    return "float16 needs a GPU" if dtype == "float16" and facts.on_cpu else ""


CHANGES: Final = (
    Change(
        name="jit",
        title="XLA",
        framework="keras",
        live=f"{_LIVE}:jit",
        numbers="rounding",
        tolerance=REORDERED,
        code="model.compile(optimizer, loss, jit_compile=True)",
        fits=_jit,
        other_random_in_model="XLA draws other random numbers than TensorFlow",
    ),
    Change(
        name="mixed-bf16",
        title="mixed precision, bfloat16",
        framework="keras",
        live=f"{_LIVE}:mixed_bf16",
        numbers="rounding",
        tolerance=IN_BFLOAT16,
        code='keras.mixed_precision.set_global_policy("mixed_bfloat16")      # before the model is built',
        fits=partial(_half, dtype="bfloat16"),
        group="dtype",
    ),
    Change(
        name="mixed-fp16",
        title="mixed precision, float16",
        framework="keras",
        live=f"{_LIVE}:mixed_fp16",
        numbers="rounding",
        tolerance=IN_TEN_BITS,
        code='keras.mixed_precision.set_global_policy("mixed_float16")      # before the model is built',
        fits=partial(_half, dtype="float16"),
        group="dtype",
    ),
    Change(
        name="steps-per-execution",
        title="several steps per call",
        framework="keras",
        live=f"{_LIVE}:steps_per_execution",
        numbers="same bits",
        code="model.compile(optimizer, loss, steps_per_execution=10)",
        fits=_may_help,
    ),
    Change(
        name="prefetch",
        title="prefetched batches",
        framework="keras",
        live=f"{_LIVE}:prefetch",
        numbers="same bits",
        code="dataset = dataset.prefetch(tf.data.AUTOTUNE)",
        fits=_waits_for_data,
    ),
    Change(
        name="cache",
        title="cached data set",
        framework="keras",
        live=f"{_LIVE}:cache",
        numbers="another algorithm",  # later epochs repeat the random augmentation and the order of the first
        code="dataset = dataset.cache()      # before shuffle and random augmentation, if it fits into memory",
        fits=_waits_for_data,
    ),
    Change(
        name="no-eager",
        title="graph instead of eager execution",
        framework="keras",
        live=f"{_LIVE}:no_eager",
        numbers="rounding",
        tolerance=REORDERED,
        code="model.compile(optimizer, loss, run_eagerly=False)",
        fits=_may_help,
        other_random_in_model="functions of tf.random draw other numbers in a graph",
    ),
)
