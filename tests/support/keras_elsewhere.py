"""Program that runs Keras on a backend without layer ranges. Arguments: the backend and a folder.

Prints the error of `emit_ranges`, the names of the callback's ranges, and whether training is the same with and without
ranges.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np
from captured import capture

import annot
from annot.tf import AnnotCallback

DATA = np.random.default_rng(0).random((4, 8), dtype="float32"), np.ones((4, 2), "float32")


def build() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def results(model: keras.Model, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
    if keras.config.backend() != "numpy":  # Keras cannot train on NumPy
        model.fit(*DATA, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return [*model.get_weights(), model.predict(DATA[0], batch_size=2, verbose=0, callbacks=list(callbacks))]


def main() -> None:
    plain = results(build())
    found: list[np.ndarray] = []
    captured = capture(Path(sys.argv[2]), lambda: found.extend(results(build(), AnnotCallback())))
    same = all(np.array_equal(one, other) for one, other in zip(plain, found, strict=True))
    message = ""
    try:
        annot.emit_ranges(build())
    except annot.AnnotError as error:
        message = str(error)
    print(json.dumps([message, captured.texts, same]))


if __name__ == "__main__":
    main()
