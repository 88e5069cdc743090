"""Training and inference of the Keras samples: options, synthetic data, and `fit` with annot's ranges.

``with emit_ranges(model):`` is the only line that annot needs in a script.
"""

import argparse
from collections.abc import Callable
from typing import Any

import command_line
import keras
import numpy as np

from annot import emit_ranges


class SyntheticImages(keras.utils.PyDataset):
    """Noise images whose mean depends on the class, so that a model can learn.

    Args:
        steps: number of batches.
        batch: images per batch.
        image: height and width in pixels.
        classes: number of classes.
    """

    def __init__(self, steps: int, batch: int, image: int, classes: int = 10) -> None:
        super().__init__()
        self.steps, self.batch, self.image, self.classes = steps, batch, image, classes

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        source = np.random.default_rng(index)
        labels = source.integers(self.classes, size=self.batch)
        noise = source.standard_normal((self.batch, self.image, self.image, 3), dtype=np.float32)
        return noise + (labels / self.classes).astype(np.float32)[:, None, None, None], labels


class SyntheticText(keras.utils.PyDataset):
    """Token sequences that count up from a random start. The target is the next token.

    Args:
        steps: number of batches.
        batch: sequences per batch.
        length: tokens per sequence.
        vocabulary: number of different tokens.
    """

    def __init__(self, steps: int, batch: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.steps, self.batch, self.length, self.vocabulary = steps, batch, length, vocabulary

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        start = np.random.default_rng(index).integers(self.vocabulary, size=(self.batch, 1))
        tokens = ((start + np.arange(self.length + 1)) % self.vocabulary).astype(np.int32)
        return tokens[:, :-1], tokens[:, 1:]


def arguments(description: str, *, batch: int, steps: int = 4) -> argparse.ArgumentParser:
    """Return a parser with the options of every Keras sample. `batch` and `steps` are their defaults."""
    return _with_keras_options(command_line.arguments(description, batch=batch, steps=steps))


def image_arguments(description: str, *, batch: int, steps: int = 4, image: int = 224) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample and those of image models."""
    parser = arguments(description, batch=batch, steps=steps)
    parser.add_argument("--image", type=int, default=image, help="image size in pixels (default: %(default)s)")
    return parser


def text_arguments(description: str, *, batch: int, length: int, vocabulary: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample and those of text models."""
    return _with_keras_options(
        command_line.text_arguments(description, batch=batch, length=length, vocabulary=vocabulary)
    )


def _with_keras_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--device", help="for example cpu; default: the first GPU if there is one, otherwise the CPU")
    parser.add_argument("--eager", action="store_true", help="run eagerly instead of as a graph")
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    return parser


def run(build: Callable[[], keras.Model], data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Build the model, then train it or, with ``--inference``, run its forward on `data`."""
    keras.utils.set_random_seed(0)
    if options.bf16:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with keras.device(options.device or ("gpu:0" if keras.distribution.list_devices("gpu") else "cpu:0")):
        (infer if options.inference else train)(build(), data, options)


def train(model: keras.Model, data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Train for `options.epochs` epochs. Keras prints the loss of each epoch."""
    _compile(model, options)
    with emit_ranges(model):
        model.fit(with_static_shapes(data), epochs=options.epochs, verbose=2)


def infer(model: keras.Model, data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Run the forward of the model and print the mean score of every epoch."""
    _compile(model, options)
    with emit_ranges(model):
        for epoch in range(options.epochs):
            print(f"epoch {epoch}: mean {model.predict(with_static_shapes(data), verbose=0).mean():.4f}", flush=True)


def with_static_shapes(data: keras.utils.PyDataset) -> Any:
    """Return a dataset with static shapes, so that a TensorFlow graph knows the batch size.

    Keras leaves the batch dimension undefined. annot's operations read it when the graph runs, but the names of
    TensorFlow's own operations, which annot needs on a GPU and under XLA, do not show it. All batches have the shape of
    the first one.
    """
    if keras.backend.backend() != "tensorflow":
        return data
    import tensorflow as tf

    specs = tuple(tf.TensorSpec(array.shape, array.dtype) for array in data[0])
    batches = tf.data.Dataset.from_generator(lambda: map(data.__getitem__, range(len(data))), output_signature=specs)
    return batches.apply(tf.data.experimental.assert_cardinality(len(data)))


def _compile(model: keras.Model, options: argparse.Namespace) -> None:
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=options.eager, jit_compile=options.jit or "auto",
    )  # fmt: skip
