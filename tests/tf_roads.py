"""What a process of its own says of its ranges in graphs and of where they come from; run by test_tf_library."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Record a step with a gradient in a graph and in eager mode; print the road, the texts of both, and warnings."""
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

    folder = Path(os.environ["TF_ROADS_FOLDER"]) / str(os.getpid())
    folder.mkdir()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        texts = [capture(folder, lambda graph=graph: steps(graph=graph)).texts for graph in (True, False)]
    loaded = library.load()
    road = loaded if isinstance(loaded, str) else "loaded"
    print(json.dumps([road, *texts, [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]]))


if __name__ == "__main__":
    main()
