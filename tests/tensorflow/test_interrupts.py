"""Exceptions that come from outside, wherever CPython lets a signal handler raise in annot."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from captured import capture
from interrupted import IS_NATIVE, Timeout, interrupt_at, where

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops import iterator_ops

import annot
from annot.emit import client
from annot.tf import library, operation_owners, ranges
from annot.util.weak_keys import WeakKeys


def state(model: Any) -> dict[str, Any]:
    """Return all that a block changes."""
    loaded = library.load()
    return {
        "layers": [dict(vars(layer)).get("call") for layer in (model, *model.layers)],
        "fit": vars(model).get("fit"),
        "apply": keras.optimizers.Optimizer.apply,
        "next": iterator_ops.OwnedIterator.__next__,
        "execute": pywrap_tfe.TFE_Py_FastPathExecute,
        "create": tf.Graph._create_op_internal,
        "depth": client.depth(),
        "open": dict(ranges._INSTALLED._blocks),
        "undo": list(ranges._INSTALLED._undo),
        "wrappers": dict(ranges._INSTALLED._layers._wrappers),
        "noting": set(operation_owners._users),
        "graphs": set() if isinstance(loaded, str) else set(loaded.users),
        "followers": list(annot.emit.loop.followers.of_batches),
    }


needs_native = pytest.mark.skipif(not IS_NATIVE, reason="graphs have ranges by the C parts")


@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        pytest.param("ops", 30, marks=needs_native),
        pytest.param("ops", 3, marks=[needs_native, pytest.mark.slow]),
        pytest.param("names", 3, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_anywhere_reaches_the_user(
    tmp_path: Path, request: pytest.FixtureRequest, mode: Any, stride: int
) -> None:
    """And leaves nothing installed, no range open, and nothing that a later block would stumble over."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.ReLU()])
    model.compile("sgd", "mse")
    model.make_train_function()
    x = tf.ones((2, 3))

    def work() -> None:
        with annot.tf.emit_ranges(model, mode=mode) as block:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            block.pause()
            block.resume()
            gradients = tape.gradient(loss, model.trainable_weights)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    gc.collect()
    gc.disable()  # what callbacks and finalizers of garbage raise is lost in any program
    request.addfinalizer(gc.enable)
    capture(tmp_path, work)
    before, expected = state(model), capture(tmp_path, work).trees
    number = 0
    with annot.record(tmp_path / "interrupted.sqlite"):
        while interrupt_at(number, work, Timeout):
            if not IS_NATIVE:
                client.pop_to(0)
            assert state(model) == before, f"point {number}, {where}"
            number += stride
    assert number > 500
    assert capture(tmp_path, work).trees == expected


@pytest.mark.slow
@needs_native
def test_an_interrupt_while_a_graph_is_made_reaches_the_user(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow traces a function and has annot rewrite the graph, on the user's thread."""
    monkeypatch.setattr(operation_owners, "graphs", WeakKeys())  # the graphs of other tests are there, too
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = tf.ones((2, 3))
    found: set[str] = set()

    def work() -> None:
        tf.function(lambda: model(x), autograph=False)()

    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    with annot.record(tmp_path / "graphs.sqlite"), annot.tf.emit_ranges(model, mode="ops"):
        work()
        number = 0
        while interrupt_at(number, work, Timeout):
            found.add(where[0])
            number += 3
            if not number % 60:
                gc.collect()  # the graphs of the steps before, among which annot looks
        assert "rewrite" in found
        work()
