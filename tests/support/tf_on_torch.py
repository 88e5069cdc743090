"""Keras on PyTorch, with the callback and the ranges of updates: a program for a test, with a folder.

It prints the texts of the ranges, whether the weights are those of training without, and whether TensorFlow was loaded.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

from captured import capture
from tf_nets import BATCH, network, samples, weights

from annot.keras.optimizer import OptimizerSteps
from annot.tf import AnnotCallback


def trained(*callbacks: Any) -> list[bytes]:
    """Train with validation, and return the weights."""
    model = network(optimizer="adam")
    x, y = samples(2)
    model.fit(x, y, BATCH, 2, 0, list(callbacks), validation_data=samples(1), shuffle=False)
    return weights(model)


def main() -> None:
    """Train with ranges and without."""
    seen = []

    def body() -> None:
        steps = OptimizerSteps()
        steps.install()
        seen.append(trained(AnnotCallback()))
        steps.undo()

    captured = capture(Path(sys.argv[1]), body)
    print(json.dumps([captured.texts, seen == [trained()], "tensorflow" in sys.modules]))


if __name__ == "__main__":
    main()
