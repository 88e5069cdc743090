"""`annot run --layers` with Keras: models are found when they are first called or trained."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
from captured import capture  # noqa: E402
from commands import annot as command_line  # noqa: E402
from commands import needs_recorder  # noqa: E402
from tf_nets import BATCH, network, samples, weights  # noqa: E402

from annot import load  # noqa: E402
from annot.collect.model_search import search_when_imported  # noqa: E402
from annot.emit import search  # noqa: E402
from annot.tf import emit_ranges  # noqa: E402

pytestmark = needs_recorder


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Search for models as `annot run --layers` does from the start of the process."""
    search_when_imported()
    try:
        yield
    finally:
        search.end()


def fit(model: Any) -> None:
    x, y = samples(3)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False, validation_data=samples(1))


def on_batches(model: Any) -> None:
    x, y = samples(1)
    for _ in range(2):
        model.train_on_batch(x, y)


def in_a_loop(model: Any) -> None:
    x, y = samples(1)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        model.optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights, strict=True))

    for _ in range(2):
        step(tf.constant(x), tf.constant(y))


def eagerly(model: Any) -> None:
    model(samples(1)[0])


@pytest.mark.parametrize("train", [fit, on_batches, in_a_loop, eagerly])
def test_ranges_and_bits_are_those_of_emit_ranges(train: Callable[[Any], None], tmp_path: Path) -> None:
    """A found model has exactly the ranges of a block around its training, from its first call on, and all bits."""
    found, named, plain = network(), network(), network()

    def search_and_train() -> None:
        with searching():
            train(found)

    def train_in_block() -> None:
        with emit_ranges(named):
            train(named)

    texts = sorted(capture(tmp_path, search_and_train).texts)
    assert texts == sorted(capture(tmp_path, train_in_block).texts)
    assert any(text.startswith("net/one Dense") for text in texts)
    train(plain)
    assert weights(found) == weights(plain)


def test_outermost_models_are_found(tmp_path: Path) -> None:
    """A model inside a model has the path there; a symbolic call, which builds the larger model, finds nothing."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="fc")], name="inner")

    def work() -> None:
        with searching():
            inputs = keras.Input((3,))
            outer = keras.Model(inputs, keras.layers.Dense(1, name="head")(inner(inputs)), name="outer")
            outer(samples(1)[0])

    layers = {text.split()[0] for text in capture(tmp_path, work).texts}
    assert layers == {"outer", "outer/inner", "outer/inner/fc", "outer/head"}


def test_own_blocks_end_the_search(tmp_path: Path) -> None:
    """A script that uses emit_ranges has its own ranges once, and no others; nothing stays patched."""
    before = {name: getattr(keras.Model, name) for name in ("fit", "__call__", "train_on_batch")}
    own, other, alone = network(), network(), network()

    def work() -> None:
        with searching():
            with emit_ranges(own, include="one"):
                fit(own)
            fit(other)

    def block() -> None:
        with emit_ranges(alone, include="one"):
            fit(alone)

    assert sorted(capture(tmp_path, work).texts) == sorted(capture(tmp_path, block).texts)
    assert {name: getattr(keras.Model, name) for name in before} == before


def test_at_most_eight_models_stay_open(tmp_path: Path) -> None:
    """A loop over many models keeps the last eight alive, and does not open a block of a model twice."""
    models = [network() for _ in range(10)]

    def work() -> None:
        with searching():
            for model in (*models, models[0]):
                eagerly(model)
            assert sum("call" in vars(model.layers[0]) for model in models) == 8

    assert len([text for text in capture(tmp_path, work).texts if text.startswith("net/one Dense")]) == 10
    assert not any("call" in vars(model.layers[0]) for model in models)


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    """`annot run --layers` finds the model of an unchanged script at its fit, from the first epoch on."""
    (tmp_path / "train.py").write_text(
        "import keras, numpy\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name='fc')], name='net')\n"
        "model.compile('sgd', 'mse', jit_compile=False)\n"
        "model.fit(numpy.ones((8, 3)), numpy.ones((8, 4)), batch_size=4, epochs=2, verbose=0)\n"
    )
    options = ["--layers", "--collector", "recorder", "--no-report", "-o", "out.sqlite"]
    done = command_line("run", *options, "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    texts = load(tmp_path / "out.sqlite").ranges["text"].to_list()
    for layer, number in (("Epoch 0 |epoch", 1), ("Batch 1 |step", 2), ("net/fc Dense [4,3]f32", 4)):
        assert sum(text.startswith(layer) for text in texts) >= number, texts
