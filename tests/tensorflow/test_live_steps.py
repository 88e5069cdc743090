"""Steps, losses and parameters that `annot try` measures in Keras programs."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from commands import annot as command_line  # noqa: E402
from commands import needs_recorder  # noqa: E402
from keras_live import adversarially, eagerly, fit, fit_data, in_a_function, measured, on_batches  # noqa: E402
from tf_nets import BATCH, network, samples  # noqa: E402

from annot import load  # noqa: E402
from annot.collect.measured_run import read_result  # noqa: E402
from annot.live.request import Request, variables  # noqa: E402

PROGRAMS = [
    pytest.param(fit, {}, id="fit"),
    pytest.param(fit, {"run_eagerly": True}, id="eager fit"),
    pytest.param(fit_data, {}, id="fit of a data set"),
    pytest.param(on_batches, {}, id="batches"),
    pytest.param(eagerly, {}, id="eager loop"),
    pytest.param(in_a_function, {}, id="function"),
    pytest.param(adversarially, {}, id="two models"),
]


def exact_losses(steps: int) -> tuple[list[float], str]:
    """Return the loss of each step, and the hash of the weights after them."""
    model = network()
    x, y = samples(10)
    losses = []
    for number in range(steps):
        at = BATCH * (number % 10)
        losses.append(model.train_on_batch(x[at : at + BATCH], y[at : at + BATCH]))
    digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in model.get_weights()))
    return [float(loss) for loss in losses], digest.hexdigest()


@pytest.mark.parametrize(("train", "compiled"), PROGRAMS)
def test_a_step_is_an_update_of_the_first_optimizer(train: Callable[[Any], None], compiled: dict[str, Any]) -> None:
    """A program ends after exactly the requested updates; validation and other models do not count."""
    model = network(**compiled)
    with measured(warmup=4, steps=13, losses=12, parameters=True) as session:
        train(model)
    result = session.result
    assert int(model.optimizer.iterations) == 17 == len(result.step_ns)
    assert (result.framework, result.warmup, result.ended, result.device) == ("keras", 4, "steps", "cpu")
    assert result.window_ns is not None
    assert result.window_ns >= sum(result.step_ns[4:]) > 0
    losses, parameters = exact_losses(12)
    assert result.losses == pytest.approx(losses, rel=1e-5)
    assert result.trains
    if train in (fit_data, on_batches) or (train is fit and not compiled):
        assert result.parameters == parameters


@pytest.mark.parametrize(("together", "counts"), [(4, [4, 4, 2, 4]), (16, [10, 10])])
@pytest.mark.parametrize("train", [fit, fit_data])
def test_steps_that_run_together(train: Callable[[Any], None], together: int, counts: list[int]) -> None:
    """An execution has as many steps as batches, and less at the end of an epoch. Its time is that of equal steps."""
    model = network(steps_per_execution=together)
    with measured(warmup=3, steps=10, losses=9) as session:
        train(model)
    result = session.result
    assert len(result.step_ns) == int(model.optimizer.iterations) == sum(counts)
    assert result.warmup == counts[0]
    assert [len(list(equal)) for _, equal in itertools.groupby(result.step_ns)] == counts
    assert result.losses == pytest.approx(exact_losses(9)[0], rel=1e-5)


@pytest.mark.parametrize("train", [fit, in_a_function])
def test_a_distribution_strategy(train: Callable[[Any], None]) -> None:
    """Steps of a program that distributes its training are counted. Its losses are not read."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = network()
    with measured(warmup=2, steps=5, losses=2, parameters=True) as session:
        if train is fit:
            fit(model)
        else:
            in_a_function(model, strategy)
    assert int(model.optimizer.iterations.value.read_value()) == 7 == len(session.result.step_ns)
    assert (session.result.losses, len(session.result.parameters)) == ([], 64)


def test_gradients_from_a_function() -> None:
    """Updates in eager mode count also if a function has computed the gradients; its losses are not known."""
    model = network()
    x, y = map(tf.constant, samples(1))

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    with measured(warmup=2, steps=5, losses=2) as session:
        for _ in range(30):
            model.optimizer.apply(gradients(), model.trainable_variables)
    assert int(model.optimizer.iterations) == 7 == len(session.result.step_ns)
    assert session.result.losses == []


def test_a_function_that_trains_keeps_counting() -> None:
    """A function that is traced again without an update still is the one that trains."""
    model = network()
    data = tuple(map(tf.constant, samples(1)))
    step = tf.function(lambda trains: model.train_step(data) if trains else model(data[0]))
    with measured(warmup=2, steps=5) as session:
        for number in range(30):
            step(number != 1)
    assert len(session.result.step_ns) == 7


def test_the_program_goes_on_if_it_is_asked_to() -> None:
    """With keep_going only the requested steps are measured. A program that is shorter has no window."""
    long, short = network(), network()
    with measured(warmup=2, steps=5, keep_going=True) as session:
        fit(long)
    assert int(long.optimizer.iterations) == 30
    assert (len(session.result.step_ns), session.result.ended) == (7, "program")
    with measured(warmup=2, steps=500) as session:
        fit(short)
    assert (len(session.result.step_ns), session.result.window_ns, session.result.ended) == (30, None, "program")


@pytest.mark.parametrize("method", ["predict", "evaluate", "call", "function", "predict_on_batch"])
def test_inference_counts_if_nothing_trains(method: str) -> None:
    """Without training, batches of predict and evaluate and calls of the outermost model are steps."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model = network(inner, keras.layers.Dense(1))
    x, y = samples(10)
    function = tf.function(lambda x: model(x))
    with measured(warmup=2, steps=5) as session:
        for _ in range(9):
            if method in ("predict", "evaluate"):
                getattr(model, method)(x, *([y] if method == "evaluate" else []), batch_size=BATCH, verbose=0)
            else:
                {"call": model, "function": function, "predict_on_batch": model.predict_on_batch}[method](x)
    assert not session.result.trains
    assert (len(session.result.step_ns), session.result.ended) == (7, "steps")


def test_a_prediction_before_the_training_does_not_count() -> None:
    """The steps of a program that trains are only those of its training, from its first call on."""
    model = network()
    with measured(warmup=1, steps=4) as session:
        model.predict(samples(2)[0], batch_size=BATCH, verbose=0)
        fit(model)
    assert int(model.optimizer.iterations) == 5 == len(session.result.step_ns)


def test_graphs_of_measured_steps_are_counted() -> None:
    """A function that is traced at each measured step shows it; one that was traced before does not."""
    model = network()
    x, y = samples(10)

    def train(sizes: list[int]) -> int:
        with measured(warmup=2, steps=3) as session:
            step = tf.function(lambda x, y: model.train_step((x, y)))
            for size in sizes:
                step(tf.constant(x[:size]), tf.constant(y[:size]))
        return session.result.recompiled

    assert train([4, 4, 4, 4, 4]) == 0
    assert train([1, 2, 3, 4, 5]) == 3


def test_a_loss_that_is_not_finite_is_none() -> None:
    """Losses of a training that diverges are kept as None."""
    model = network(optimizer=keras.optimizers.SGD(1e30))
    with measured(warmup=2, steps=5, losses=5) as session:
        fit(model)
    assert session.result.losses[0] is not None
    assert session.result.losses[2:] == [None, None, None]


def test_nothing_stays_patched_and_the_training_is_the_same() -> None:
    """A measured training has the bits of a plain one, and leaves no patch."""
    names = ("fit", "__call__", "train_function", "train_on_batch")
    before = [getattr(keras.Model, name, None) for name in names]
    plain, model = network(optimizer="adam"), network(optimizer="adam")
    fit(plain)
    with measured(warmup=2, steps=5, losses=6, parameters=True, keep_going=True):
        fit(model)
    assert all(np.array_equal(*pair) for pair in zip(plain.get_weights(), model.get_weights(), strict=True))
    assert [getattr(keras.Model, name, None) for name in names] == before


PROGRAM = """
import atexit, keras, numpy
atexit.register(print, "at the exit")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="fc"), keras.layers.Dense(1)], name="net")
model.compile("sgd", "mse")
try:
    model.fit(numpy.ones((40, 3)), numpy.ones((40, 1)), batch_size=4, epochs=99, verbose=0)
finally:
    print("finally")
print("not printed")
"""


@needs_recorder
@pytest.mark.slow
def test_a_profiled_run(tmp_path: Path) -> None:
    """A program that is profiled and measured at once has the layers of its steps, and ends as after `sys.exit`."""
    (tmp_path / "train.py").write_text(PROGRAM)
    change = {"steps-per-execution": "annot.live.keras_changes:steps_per_execution"}
    request = Request(result=str(tmp_path / "result.json"), changes=change, warmup=1, steps=12, losses=4, seed=3)
    run = command_line(
        "run", "--layers", "--no-report", "-o", "out.sqlite", "--", sys.executable, "train.py",
        cwd=tmp_path, **variables(request),
    )  # fmt: skip
    assert (run.returncode, run.stdout.split(b"\n")[:2]) == (0, [b"finally", b"at the exit"])
    assert b"not printed" not in run.stdout
    result = read_result(tmp_path / "result.json")
    assert result is not None
    assert (result.error, result.ended, len(result.losses)) == ("", "steps", 4)
    assert result.applied == {"steps-per-execution": "net (4 steps)"}
    assert (result.warmup, len(result.step_ns)) == (4, 18)  # 4 + 4 + 2 in each epoch
    texts = list(load(tmp_path / "out.sqlite").ranges["text"])
    assert sum(text.startswith("net/fc Dense") and "|" in text for text in texts) >= 18
