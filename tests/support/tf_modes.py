"""Print the mode, ranges and warnings of a separate TensorFlow process; run by tests/tensorflow/test_library.py."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Record a step with a gradient in a graph and in eager mode; print the mode, the texts, and the warnings."""
    from annot import native

    if "hide" in sys.argv:
        native.tf_library = lambda: None
    import tensorflow as tf
    from captured import capture

    if "other" in sys.argv:
        ctypes.CDLL(sys.argv[-1])

    from annot.tf import library, trace

    weight = tf.Variable([[2.0, 1.0], [0.0, 3.0]])

    def steps(*, graph: bool) -> None:
        block = trace("block")(lambda x: tf.tanh(x @ weight))

        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(x) ** 2)
            return tape.gradient(loss, weight)

        run = tf.function(step) if graph else step
        for _ in range(3):
            run(tf.ones([4, 2]))

    folder = Path(os.environ["TF_MODES_FOLDER"]) / str(os.getpid())
    folder.mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = [capture(folder, functools.partial(steps, graph=graph)).texts for graph in (True, False)]
    loaded = library.load()
    mode = loaded if isinstance(loaded, str) else "loaded"
    print(json.dumps([mode, *texts, [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]]))


if __name__ == "__main__":
    main()
