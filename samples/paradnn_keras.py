"""Parameterized Keras models after ParaDnn, the Keras version of `paradnn`.

Build a model and its batches with one call:

    from paradnn_keras import generate
    from paradnn_family import FullyConnected
    workload = generate(FullyConnected(layers=8, nodes=512, batch=64))
    workload.model.compile("sgd", workload.loss)
    workload.model.fit(*workload.make_batch(0), batch_size=64)

Run as a script to train a model, or run its forward with --inference:

    annot run -- python samples/paradnn_keras.py lstm --layers 2 --embedding 200 --batch 1 --inference
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import keras
import numpy as np
from keras import layers
from keras_training import arguments, run
from paradnn_family import Config, Convolutional, FullyConnected, Recurrent, add_options, config_from
from resnet_keras import Bottleneck, Residual, ResNet

CELLS: Final = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}
BLOCKS: Final = {"residual": Residual, "bottleneck": Bottleneck}


class Workload(NamedTuple):
    """A model with its batches and its loss."""

    model: keras.Model
    make_batch: Callable[[int], tuple[Any, Any]]
    """Returns inputs and target of a batch. The same number returns the same batch."""
    loss: keras.losses.Loss


def generate(config: Config) -> Workload:
    """Return the model of a configuration and its batches. Weights come from Keras's default random generator.

    Example:
        >>> workload = generate(Recurrent("gru", layers=2, batch=1))
        >>> inputs, target = workload.make_batch(0)
        >>> workload.model(inputs).shape
        TensorShape([1, 10, 2])
    """
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Workload(_model(config), partial(_make_batch, config), loss)


def count_parameters(config: Config) -> int:
    """Return the number of trainable weights of the model without allocating them."""

    def count() -> int:
        with keras.StatelessScope(initialize_variables=False):
            variables = generate(config).model.trainable_variables
            return sum(math.prod(variable.shape) for variable in variables)

    # Keras 3 keeps deferred variables per thread and would initialize them when this thread builds its next model.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count).result()


class Batches(keras.utils.PyDataset):
    """Batches of a configuration."""

    def __init__(self, config: Config, count: int) -> None:
        super().__init__()
        self.config, self.count = config, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return _make_batch(self.config, index)


def _model(config: Config) -> keras.Model:
    if isinstance(config, FullyConnected):
        return _fully_connected(config)
    if isinstance(config, Convolutional):
        stages = (config.blocks,) * 4
        return ResNet(stages, config.filters, config.image, config.output, BLOCKS[config.block])
    return _recurrent(config)


def _fully_connected(config: FullyConnected) -> keras.Model:
    names = (f"hidden{number + 1}" for number in range(config.layers))
    hidden = [layers.Dense(config.nodes, activation="relu", name=name) for name in names]
    head = layers.Dense(config.output, name="output")
    return keras.Sequential([layers.Input((config.input,)), *hidden, head], name="fully_connected")


def _recurrent(config: Recurrent) -> keras.Model:
    cell, size = CELLS[config.cell], config.embedding
    tokens = [
        layers.Input((config.length,), dtype="int32"), layers.Embedding(config.vocabulary, size, name="embedding"),
    ]  # fmt: skip
    cells = [cell(size, return_sequences=True, name=f"{config.cell}{number + 1}") for number in range(config.layers)]
    return keras.Sequential([*tokens, *cells, layers.Dense(config.vocabulary, name="head")], name=config.cell)


def _make_batch(config: Config, index: int) -> tuple[Any, Any]:
    source = np.random.default_rng(index)
    if isinstance(config, Recurrent):
        tokens = source.integers(config.vocabulary, size=(config.batch, config.length + 1), dtype=np.int32)
        return tokens[:, :-1], tokens[:, 1:]
    shape = (config.input,) if isinstance(config, FullyConnected) else (config.image, config.image, 3)
    inputs = source.standard_normal((config.batch, *shape), dtype=np.float32)
    return inputs, source.integers(config.output, size=config.batch)


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train a ParaDnn model on random data.", batch=16)
    add_options(parser)
    options = parser.parse_args()
    config = config_from(parser, options)
    run(lambda: generate(config).model, Batches(config, options.steps), options)


if __name__ == "__main__":
    main()
