"""Train a Keras model on PyTorch with and without ranges. Print the ranges and whether results are bit-identical."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from captured import capture
from keras import layers

import annot

DATA = np.random.default_rng(0).random((4, 8), dtype="float32"), np.ones((4, 2), "float32")


def build() -> keras.Model:
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(4, name="fc"), layers.ReLU(name="relu")], name="inner")
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="stem"), inner, layers.Dense(2, name="head")])
    model.compile("sgd", "mse")
    return model


def trained(model: keras.Model) -> list[np.ndarray]:
    model.fit(*DATA, batch_size=2, shuffle=False, verbose=0)
    return [*model.get_weights(), model.predict(DATA[0], verbose=0)]


def main() -> None:
    plain = trained(build())
    model = build()
    results: list[np.ndarray] = []

    def body() -> None:
        with annot.emit_ranges(model):
            results.extend(trained(model))

    captured = capture(Path(sys.argv[1]), body)
    same = all(np.array_equal(one, other) for one, other in zip(plain, results, strict=True))
    print(json.dumps([captured.texts, same, "tensorflow" in sys.modules]))


if __name__ == "__main__":
    main()
