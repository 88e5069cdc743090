"""What the Keras samples share: options, synthetic data, and `fit` with a range around every layer, batch and epoch.

This is the part that annot is about; ``with emit_ranges(model):`` is all that it adds to a script.
"""

import argparse
from collections.abc import Callable
from typing import Any

import command_line
import keras
import numpy as np

from annot import emit_ranges


class SyntheticImages(keras.utils.PyDataset):
    """Noise whose brightness depends on the class, so that there is something to learn.

    Args:
        steps: how many batches.
        batch: images in each.
        image: their side in pixels.
        classes: how many classes.
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
    """Token sequences that count up from a random start, each with the tokens that come next.

    Args:
        steps: how many batches.
        batch: sequences in each.
        length: tokens in each.
        vocabulary: how many different tokens.
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
    """Return a parser with the options of every Keras sample; `batch` and `steps` are its defaults."""
    return _with_keras_options(command_line.arguments(description, batch=batch, steps=steps))


def image_arguments(description: str, *, batch: int, steps: int = 4, image: int = 224) -> argparse.ArgumentParser:
    """Return the same for models of images."""
    parser = arguments(description, batch=batch, steps=steps)
    parser.add_argument("--image", type=int, default=image, help="side of the images (default: %(default)s)")
    return parser


def text_arguments(description: str, *, batch: int, length: int, vocabulary: int) -> argparse.ArgumentParser:
    """Return the same for models of text."""
    return _with_keras_options(
        command_line.text_arguments(description, batch=batch, length=length, vocabulary=vocabulary)
    )


def _with_keras_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--device", help="for example cpu; default: a GPU if there is one")
    parser.add_argument("--eager", action="store_true", help="run every operation alone instead of a graph")
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    return parser


def run(build: Callable[[], keras.Model], data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Build the model and train it, or with ``--inference`` use it, on `data`."""
    keras.utils.set_random_seed(0)
    if options.bf16:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with keras.device(options.device or ("gpu:0" if keras.distribution.list_devices("gpu") else "cpu:0")):
        (infer if options.inference else train)(build(), data, options)


def train(model: keras.Model, data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Train for `options.epochs` epochs; Keras prints the loss of each."""
    _compile(model, options)
    with emit_ranges(model):
        model.fit(of_one_size(data), epochs=options.epochs, verbose=2)


def infer(model: keras.Model, data: keras.utils.PyDataset, options: argparse.Namespace) -> None:
    """Run the model forward and print the mean score of every epoch."""
    _compile(model, options)
    with emit_ranges(model):
        for epoch in range(options.epochs):
            print(f"epoch {epoch}: mean {model.predict(of_one_size(data), verbose=0).mean():.4f}", flush=True)


def of_one_size(data: keras.utils.PyDataset) -> Any:
    """Return the same batches, all of the size of the first, so that a graph of TensorFlow knows each shape.

    Keras itself leaves the number of samples open. Operations of annot's find it when the graph runs; the names of what
    TensorFlow runs itself, as on a GPU and under XLA, are of no help there.
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
