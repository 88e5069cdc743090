"""What a process of its own says of the way in which annot's operations got there; run by test_tf_library."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Record a step with a gradient; print the road and the texts, one a line."""
    from annot import native

    if "hide" in sys.argv:
        native.tf_library = lambda: None
    import tensorflow as tf
    from captured import capture

    import annot
    from annot.tf import library, trace

    weight = tf.Variable([[2.0, 1.0], [0.0, 3.0]])

    def body() -> None:
        block = trace("block")(lambda x: tf.tanh(x @ weight))

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(x))
            return tape.gradient(loss, weight)

        for _ in range(3):
            step(tf.ones([4, 2]))

    folder = Path(os.environ["TF_ROADS_FOLDER"]) / str(os.getpid())
    folder.mkdir()
    captured = capture(folder, body)
    loaded = library.load()
    print(loaded if isinstance(loaded, str) else loaded.road)
    print(annot.__file__)
    print("\n".join(captured.texts))


if __name__ == "__main__":
    main()
