"""Print how a training differs under ranges where XLA may cluster it; run by tests/tensorflow/test_unranged_graphs.py.

Argument: ``jit`` for `set_jit`, ``session`` for a session with the same option, ``plain`` for neither.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from captured import capture
from tf_nets import weights

import annot


def fit(*, ranges: bool) -> list[bytes]:
    """Return the weights after two epochs of a net whose clusters round differently when they are cut."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    hidden = (keras.layers.Dense(32, "gelu"), keras.layers.LayerNormalization(), keras.layers.Dense(32, "swish"))
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.LayerNormalization(), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    x, y = (np.random.RandomState(0).rand(64, size).astype("float32") for size in (16, 3))
    with annot.emit_ranges(model) if ranges else contextlib.nullcontext():
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    return weights(model)


def run(*, ranges: bool) -> list[bytes]:
    """Return the result of a session that clusters, or not."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.optimizer_options.global_jit_level = 1
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        x = tf.compat.v1.placeholder(tf.float32, [8, 8])
        block = annot.tf.trace("block", enabled=ranges)
        result = block(lambda x: tf.math.softmax(tf.tanh(x * 3.0) @ x))(x)
        return [session.run(result, {x: np.random.RandomState(0).rand(8, 8)}).tobytes()]


def main() -> None:
    """Print whether the bits are the same, the number of ranges in graphs, and the warnings."""
    tf.config.experimental.enable_op_determinism()
    if "jit" in sys.argv:
        tf.config.optimizer.set_jit(True)
    work: Any = run if "session" in sys.argv else fit
    expected, got = work(ranges=False), []
    with warnings.catch_warnings(record=True) as caught, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        captured = capture(Path(folder), lambda: got.extend(work(ranges=True)))
    texts = [text for text in captured.texts if "Batch" not in text and "Epoch" not in text]
    said = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
    print(json.dumps([got == expected, len(texts), said]))


if __name__ == "__main__":
    main()
