"""Program that trains on the two logical CPUs of `tf_recorded`. Argument: a folder.

Prints the names of the ranges, and whether the weights equal those of training without ranges.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from captured import capture
from tf_nets import BATCH, network, samples, weights
from tf_recorded import installed

from annot.keras.callback import AnnotCallback
from annot.keras.optimizer import OptimizerSteps
from annot.tf import owners
from annot.tf.training_loop import DataWaits


def trained(*callbacks: Any) -> list[bytes]:
    """Train with a strategy over both devices and return the weights."""
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = network(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    data = tf.data.Dataset.from_tensor_slices(samples(3)).batch(BATCH)
    model.fit(data, verbose=0, callbacks=list(callbacks))
    return weights(model)


def main() -> None:
    """Train with and without ranges."""
    seen = []

    def body() -> None:
        with installed(DataWaits(), OptimizerSteps(owners.gradients_first)):
            seen.append(trained(AnnotCallback()))

    captured = capture(Path(sys.argv[1]), body)
    print(json.dumps([captured.texts, seen == [trained()]]))


if __name__ == "__main__":
    main()
