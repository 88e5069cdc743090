"""Changes that `annot try` applies to Keras programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
from keras_live import eagerly, fit, fit_data, in_a_function, measured, on_batches  # noqa: E402
from tf_nets import BATCH, network, samples  # noqa: E402

from annot.collect.measured_run import MeasuredRun  # noqa: E402
from annot.live.keras_datasets import why_not_cached  # noqa: E402
from annot.live.request import Request, Result  # noqa: E402

AMPLE = 1 << 40


def tried(
    change: str, train: Callable[[Any], None] = fit, model: Any = None, *layers: Any, **compiled: Any
) -> tuple[Any, Result]:
    """Return the model and the result of a short training with a change. The model is made after the change."""
    with measured(*change.split(","), warmup=1, steps=2) as session:
        model = network(*layers, **compiled)
        train(model)
    assert session.result.ended == "steps"
    return model, session.result


class Unknown(keras.layers.Layer):  # type: ignore[misc]
    """Layer with an operation that XLA cannot compile."""

    def call(self, x: Any) -> Any:
        """Return the input after a call of Python."""
        return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), x.shape)


def test_jit_compiles_the_steps() -> None:
    """XLA compiles the step of a model, and fails where it would fail with jit_compile=True."""
    model, result = tried("jit")
    assert (model.jit_compile, result.applied, result.skipped) == (True, {"jit": "net"}, {})
    with pytest.raises(tf.errors.InvalidArgumentError, match="EagerPyFunc"):
        tried("jit", fit, None, Unknown(), keras.layers.Dense(1))


@pytest.mark.parametrize(
    ("change", "train", "compiled", "reason"),
    [
        ("jit", in_a_function, {}, "its own functions need tf.function(jit_compile=True)"),
        ("jit", fit, {"run_eagerly": True}, "runs eagerly"),
        ("jit", fit, {"jit_compile": True}, "is compiled with XLA"),
        ("steps-per-execution", on_batches, {}, "train_on_batch runs one batch"),
        ("steps-per-execution", fit, {"run_eagerly": True}, "runs eagerly"),
        ("steps-per-execution", fit, {"steps_per_execution": 2}, "has 2 steps per execution"),
        ("steps-per-execution", eagerly, {}, "calls neither fit"),
        ("no-eager", fit, {}, "nothing is set to run eagerly"),
        ("prefetch", fit, {}, "Keras makes the batches"),
        ("prefetch", on_batches, {}, "iterates over no tf.data.Dataset"),
        ("cache", fit, {}, "fit reads arrays"),
        ("cache", on_batches, {}, "iterates over no tf.data.Dataset"),
        ("mixed-fp16", eagerly, {}, "does not scale the loss"),
    ],
)
def test_a_change_that_cannot_help_is_skipped(
    change: str, train: Callable[[Any], None], compiled: dict[str, Any], reason: str
) -> None:
    """The reason says what the program does instead."""
    _, result = tried(change, train, **compiled)
    assert (result.applied, list(result.skipped)) == ({}, [change])
    assert reason in result.skipped[change]


def test_several_steps_run_in_one_execution() -> None:
    """Callbacks are called once for ten batches. With losses, the first execution has just their steps."""
    ends: list[int] = []
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
    with measured("steps-per-execution", warmup=1, steps=20, keep_going=True) as session:
        network().fit(*samples(20), batch_size=BATCH, epochs=2, verbose=0, callbacks=[counter])
    assert ends == [9, 19, 9, 19]
    assert (session.result.warmup, len(session.result.step_ns)) == (10, 30)
    results = []
    for changes in ([], ["steps-per-execution"]):
        with measured(*changes, warmup=1, steps=9, losses=4, parameters=True) as session:
            fit(network())
        results.append(session.result)
    assert [result.warmup for result in results] == [1, 4]
    assert results[0].losses == results[1].losses
    assert results[0].parameters == results[1].parameters


def test_no_eager_compiles_models_and_functions() -> None:
    """Models and functions that were set to run eagerly are compiled, so that XLA can compile them too."""
    model, result = tried("jit,no-eager", run_eagerly=True)
    assert (model.run_eagerly, model.jit_compile) == (False, True)
    assert result.applied == {"no-eager": "net", "jit": "net"}
    tf.config.run_functions_eagerly(True)
    try:
        _, result = tried("no-eager", in_a_function)
        assert not tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    assert result.applied == {"no-eager": "tf.function"}


@pytest.mark.parametrize(("change", "dtype"), [("mixed-bf16", "bfloat16"), ("mixed-fp16", "float16")])
def test_mixed_precision(change: str, dtype: str) -> None:
    """Layers compute in the lower precision with variables in float32. Losses differ by rounding, without the scale.

    The optimizer of a float16 model leaves the first updates out, until the scale suits the gradients.
    """
    with measured(warmup=1, steps=5, losses=5) as session:
        fit(network())
    exact = session.result.losses
    with measured(change, warmup=1, steps=5, losses=5) as session:
        model = network()
        fit(model)
    assert session.result.applied == {change: "net"}
    assert (model.layers[0].compute_dtype, model.layers[0].kernel.dtype) == (dtype, "float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (dtype == "float16")
    assert session.result.losses != exact
    count = 1 if dtype == "float16" else 5
    assert session.result.losses[:count] == pytest.approx(exact[:count], rel=0.05)


def test_layers_with_a_policy_of_their_own_are_left_alone() -> None:
    """A program that sets the policy itself is not changed, which the result tells."""
    with measured("mixed-bf16", warmup=1, steps=2) as session:
        keras.config.set_dtype_policy("float32")
        fit(network())
    assert session.result.applied == {}
    assert session.result.skipped == {"mixed-bf16": "the layers of net have the policy float32"}


def test_prefetch_follows_the_last_transformation() -> None:
    """A data set gets a prefetch in loops and in fit, unless it ends with one."""
    plain = tf.data.Dataset.range(6).batch(2)
    with measured("prefetch") as session:
        assert type(iter(plain)._dataset).__name__ == "_PrefetchDataset"
        assert [batch.numpy().tolist() for batch in plain] == [[0, 1], [2, 3], [4, 5]]
    assert session.result.applied == {"prefetch": "data set that ends with Batch"}
    assert type(iter(plain)._dataset).__name__ == "_BatchDataset"
    _, result = tried("prefetch", fit_data)
    assert result.applied == {"prefetch": "data set that ends with Batch"}
    with measured("prefetch") as session:
        list(tf.data.Dataset.range(6).prefetch(1).with_options(tf.data.Options()))
    assert session.result.skipped == {"prefetch": "the data set ends with prefetch"}


def test_a_cache_keeps_the_first_epoch(tmp_path: Path) -> None:
    """A second epoch reads no file again, and only later steps are measured."""
    (tmp_path / "text").write_text("old")
    files = tf.data.Dataset.from_tensor_slices([str(tmp_path / "text")] * 2).map(
        lambda path: tf.io.decode_raw(tf.io.read_file(path), tf.uint8)
    )
    with measured("cache") as session:
        before = [bytes(element.numpy()) for element in files]
        (tmp_path / "text").write_text("new")
        assert [bytes(element.numpy()) for element in files] == before == [b"old"] * 2
    assert session.result.applied == {"cache": "data set that ends with Map"}
    with measured("cache", warmup=3, steps=7) as session:
        fit_data(network())
    assert (session.result.warmup, len(session.result.step_ns)) == (10, 17)


@pytest.mark.parametrize("is_array", [True, False])
def test_a_validation_is_not_cached(is_array: bool) -> None:
    """The data of a validation is left alone, and the reason is that of the training."""
    data = tf.data.Dataset.from_tensor_slices(samples(10))
    with measured("cache", warmup=1, steps=20) as session:
        validation = samples(2) if is_array else data.batch(BATCH)
        network().fit(data.shuffle(9).batch(BATCH), validation_data=validation, epochs=9, verbose=0)
    assert session.result.applied == {}
    assert session.result.skipped == {"cache": "the data set shuffles, and a cache belongs before the shuffle"}


RANGE = tf.data.Dataset.range(8)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (RANGE.batch(2), ""),
        (RANGE.map(lambda x: x + tf.random.stateless_uniform([], [1, 2], maxval=9, dtype=tf.int64)), ""),
        (RANGE.cache().batch(2), "has a cache"),
        (RANGE.shuffle(8).batch(2), "shuffles"),
        (RANGE.map(lambda x: x + tf.random.uniform([], maxval=9, dtype=tf.int64)), "RandomUniformInt"),
        (RANGE.map(lambda x: tf.numpy_function(abs, [x], tf.int64)), "PyFunc"),
        (RANGE.map(tf.function(lambda x: tf.cond(x > 1, lambda: tf.random.normal([]), lambda: 0.0))), "RandomStandard"),
        (tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([])), "PyFunc"),
        (RANGE.repeat(), "without end"),
        (RANGE.filter(lambda x: x > 2), "size is unknown"),
        (RANGE.map(tf.strings.as_string), "size of its elements"),
        (tf.data.Dataset.range(9), "9 batches"),
        (RANGE.take(1), "one batch"),
    ],
)
def test_what_a_cache_needs(dataset: Any, reason: str) -> None:
    """A cache needs epochs of known size that are all alike."""
    found = why_not_cached(dataset, 8, AMPLE)
    assert (reason in found) if reason else found == ""


def test_a_cache_takes_half_of_the_memory() -> None:
    """Eight elements of 8 bytes fit into 128 bytes, but not into 127."""
    assert why_not_cached(RANGE, 8, 128) == ""
    assert why_not_cached(RANGE, 8, 127).endswith("more than half of the available memory")


@pytest.mark.slow
def test_a_program_that_breaks_under_a_change(tmp_path: Path) -> None:
    """The result names the error of a program that XLA cannot compile; the exit status is that of the program."""
    (tmp_path / "train.py").write_text(
        "import keras, numpy, tensorflow as tf\n"
        "class Unknown(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), x.shape)\n"
        "model = keras.Sequential([keras.Input((3,)), Unknown(), keras.layers.Dense(1)], name='net')\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(numpy.ones((40, 3)), numpy.ones((40, 1)), verbose=0)\n"
    )
    run = MeasuredRun(
        command=[sys.executable, "train.py"],
        request=Request(result=str(tmp_path / "result.json"), changes={"jit": "annot.live.keras_changes:jit"}),
        log=tmp_path / "log.txt",
        folder=tmp_path,
    )
    status = run.run()
    result = run.result(status)
    assert isinstance(result, Result)
    assert (status, result.applied, result.ended, result.step_ns) == (1, {"jit": "net"}, "program", [])
    assert result.error.startswith("InvalidArgumentError: ")


@pytest.mark.parametrize("train", [fit, in_a_function])
def test_rounding_changes_weights_in_their_last_bit(train: Callable[[Any], None]) -> None:
    optimizer = keras.optimizers.SGD(0.0)
    (model, result), kept = tried("rounding", train, optimizer=optimizer), network()
    assert result.applied == {"rounding": "net"}
    for weight, other in zip(model.trainable_weights, kept.trainable_weights, strict=True):
        assert (weight == other * (1 + 2.0**-23)).numpy().all()


def losses_of(model: Callable[..., Any], *changes: str, **compiled: Any) -> tuple[list[float | None], bool]:
    """Return the first losses of a model with changes, and whether it draws random numbers."""
    with measured(*changes, warmup=1, steps=5, losses=4) as session:
        fit(model(**compiled))
    assert session.result.applied.keys() == set(changes)
    return session.result.losses, session.result.draws


def with_dropout(**compiled: Any) -> Any:
    """Return a model with dropout."""
    keras.utils.set_random_seed(0)  # before the layers draw seeds
    layers = (keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1))
    return network(*layers, **compiled)


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}])
def test_random_numbers_of_steps_are_noted(compiled: dict[str, Any]) -> None:
    class Noisy(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return self.dense(x + tf.random.normal(tf.shape(x)))

    def noisy(**compiled: Any) -> Any:
        model = Noisy()
        model.dense = keras.layers.Dense(1)
        model.compile("sgd", "mse", **compiled)
        return model

    assert [losses_of(model, **compiled)[1] for model in (network, with_dropout, noisy)] == [False, True, True]


def test_dropout_in_16_bits_draws_the_masks_of_float32() -> None:
    plain, changed = losses_of(with_dropout)[0], losses_of(with_dropout, "mixed-bf16")[0]
    assert changed == pytest.approx(plain, rel=0.02)
