"""Changes of a running Keras program: each function installs one in a session, which says where it took effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import keras
import tensorflow as tf
from ml_dtypes import finfo

from annot.emit.patches import Patches
from annot.live.keras_datasets import available_bytes, is_prefetched, transformations, why_not_cached
from annot.live.keras_session import KerasSession
from annot.live.keras_steps import LOOPS

_STEPS: Final = 10
"""Batches of an execution. The default number of measured steps is a multiple."""
_NO_LOOP: Final = "the program calls neither fit nor train_on_batch, evaluate or predict"


# -------------------------------------------------------------------- how models run


def jit(session: KerasSession) -> None:
    """Compile the steps of `fit`, `evaluate` and `predict` with XLA."""

    def compile_steps(model: Any, method: str) -> None:
        if model.run_eagerly:
            session.skipped("jit", f"{model.name} runs eagerly")
        elif model.jit_compile:
            session.skipped("jit", f"{model.name} is compiled with XLA")
        else:
            model.jit_compile = True
            if model.jit_compile:
                session.applied("jit", model.name)
            else:
                session.skipped("jit", f"Keras cannot compile {model.name} with XLA")

    session.skipped("jit", f"{_NO_LOOP}: its own functions need tf.function(jit_compile=True)")
    session.on_loop(compile_steps)


def steps_per_execution(session: KerasSession) -> None:
    """Run several batches of `fit`, `evaluate` and `predict` in one call of a compiled function.

    If losses are kept, the first execution has exactly their steps.
    """
    name = "steps-per-execution"
    steps = session.request.losses if session.request.losses > 1 else _STEPS

    def run_together(model: Any, method: str) -> None:
        if method not in LOOPS:
            session.skipped(name, f"{method} runs one batch")
        elif model.run_eagerly:
            session.skipped(name, f"{model.name} runs eagerly")
        elif model.steps_per_execution != 1:
            session.skipped(name, f"{model.name} has {model.steps_per_execution} steps per execution")
        else:
            model.steps_per_execution = steps
            session.applied(name, f"{model.name} ({steps} steps)")

    session.skipped(name, _NO_LOOP)
    session.on_loop(run_together)


def no_eager(session: KerasSession) -> None:
    """Compile functions and the steps of models that the program has set to run eagerly."""
    name = "no-eager"

    def compile_functions(model: Any) -> None:
        if tf.config.functions_run_eagerly():
            tf.config.run_functions_eagerly(False)
            session.applied(name, "tf.function")

    def compile_steps(model: Any, method: str) -> None:
        if model.run_eagerly:
            model.run_eagerly = False
            session.applied(name, model.name)

    session.skipped(name, "nothing is set to run eagerly")
    session.on_model(compile_functions)
    session.on_loop(compile_steps, first=True)


# -------------------------------------------------------------------- numbers


def mixed_bf16(session: KerasSession) -> None:
    """Compute in bfloat16, and keep variables in float32."""
    _set_policy(session, "mixed-bf16", "mixed_bfloat16")


def mixed_fp16(session: KerasSession) -> None:
    """Compute in float16, and keep variables in float32. `compile` puts a `LossScaleOptimizer` around the optimizer.

    A training step of the program itself must scale the loss. Otherwise small gradients vanish, or updates are too
    small.
    """
    patches, scaled = Patches(), []

    def scale(original: Any, *args: Any, **kwargs: Any) -> Any:
        scaled.append(True)
        return original(*args, **kwargs)

    def check_scale(optimizer: Any) -> None:
        patches.undo()
        if not scaled:
            session.withdraw("mixed-fp16", "the program does not scale the loss with LossScaleOptimizer.scale_loss")

    _set_policy(session, "mixed-fp16", "mixed_float16")
    patches.wrap(keras.optimizers.LossScaleOptimizer, "scale_loss", scale)
    session.on_optimizer(check_scale)


def _set_policy(session: KerasSession, name: str, policy: str) -> None:
    """Set the dtype policy of all layers that the program makes without another one."""

    def check(model: Any) -> None:
        layers = [layer for layer in model._flatten_layers() if not isinstance(layer, keras.Model)] or [model]
        if any(layer.dtype_policy.name == policy for layer in layers):
            session.applied(name, model.name)
        else:
            session.skipped(name, f"the layers of {model.name} have the policy {layers[-1].dtype_policy.name}")

    keras.config.set_dtype_policy(policy)
    session.on_model(check)
    if session.request.losses:
        session.patches.wrap(tf.nn.experimental, "stateless_dropout", _drop_as_in_float32)


def _drop_as_in_float32(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw the mask of float32, so that losses can be compared: TensorFlow draws other numbers in 16 bits."""
    mask = original(tf.ones_like(x, dtype=tf.float32), *args, **kwargs)
    return x * tf.cast(mask, x.dtype)


# -------------------------------------------------------------------- data


def prefetch(session: KerasSession) -> None:
    """Prepare batches of a data set while earlier ones are in use."""

    def prefetched(dataset: Any, keras_made: bool) -> Any:
        if keras_made:
            session.skipped("prefetch", "Keras makes the batches, and prefetches them")
            return None
        if is_prefetched(dataset):
            session.skipped("prefetch", "the data set ends with prefetch")
            return None
        session.applied("prefetch", _name(dataset))
        return dataset.prefetch(tf.data.AUTOTUNE)

    session.skipped("prefetch", "the program iterates over no tf.data.Dataset")
    session.on_data(prefetched)


def cache(session: KerasSession) -> None:
    """Keep the batches of a small data set in memory, if each epoch has the same ones. Epochs before do not count."""

    def cached(dataset: Any, keras_made: bool) -> Any:
        most = session.request.warmup + session.request.steps
        reason = "fit reads arrays" if keras_made else why_not_cached(dataset, most, available_bytes())
        if reason:
            session.skipped("cache", reason)
            return None
        session.warmup = max(session.warmup, int(dataset.cardinality()))
        session.applied("cache", _name(dataset))
        return dataset.cache()

    session.skipped("cache", "the program iterates over no tf.data.Dataset")
    session.on_data(cached)


# -------------------------------------------------------------------- rounding


def rounding(session: KerasSession) -> None:
    """Change weights in their last bit, to see in the losses how far rounding grows."""

    def change(model: Any) -> None:
        with tf.init_scope():  # the first call may trace a function
            for weight in model.trainable_weights:
                eps = finfo(weight.dtype).eps  # type: ignore[no-untyped-call]
                weight.assign(weight * (1 + eps))
                session.applied("rounding", model.name)

    session.skipped("rounding", "the model has no weights before its first batch")
    session.on_model(change)


# -------------------------------------------------------------------- all


def _name(dataset: Any) -> str:
    return f"data set that ends with {next(transformations(dataset))[0]}"
