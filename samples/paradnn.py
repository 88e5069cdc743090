"""Parameterized models after ParaDnn: fully connected, convolutional and recurrent, 10 thousand to 1 billion weights.

Build a model and its batches with one call:

    from paradnn import FullyConnected, generate
    workload = generate(FullyConnected(layers=8, nodes=512, batch=64))
    loss = workload.loss(workload.model(inputs), target)  # with inputs, target = workload.make_batch(0)

Run as a script to train a model, or run its forward with --inference:

    annot run -- python samples/paradnn.py lstm --layers 2 --embedding 200 --batch 1 --inference
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from paradnn_family import (
    KINDS,
    RANGES,
    Config,
    Convolutional,
    FullyConnected,
    Recurrent,
    add_options,
    config_from,
)
from resnet50 import Bottleneck, Residual, ResNet
from torch import Tensor, nn
from torch.nn import functional
from training import arguments, infer, train

__all__ = ["KINDS", "RANGES", "Config", "Convolutional", "FullyConnected", "Recurrent", "count_parameters", "generate"]

CELLS: Final[dict[str, type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
BLOCKS: Final[dict[str, type[Residual] | type[Bottleneck]]] = {"residual": Residual, "bottleneck": Bottleneck}


class Workload(NamedTuple):
    """A model with its batches and its loss."""

    model: nn.Module
    make_batch: Callable[[int], tuple[Tensor, Tensor]]
    """Returns inputs and target of a batch. The same number returns the same batch."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Takes the model output and the target."""


def generate(config: Config) -> Workload:
    """Return the model of a configuration and its batches. Weights come from PyTorch's default random generator.

    Use ``with torch.device("cuda"): generate(config)`` to build the model on a GPU, and ``torch.device("meta")`` to
    count its weights without allocating them.

    Example:
        >>> workload = generate(Recurrent("gru", layers=2, batch=1))
        >>> inputs, target = workload.make_batch(0)
        >>> workload.model(inputs).shape
        torch.Size([10, 2])
    """
    if isinstance(config, FullyConnected):
        return Workload(_fully_connected(config), lambda index: _vectors(config, index), functional.cross_entropy)
    if isinstance(config, Convolutional):
        stages = (config.blocks,) * 4
        model = ResNet(stages, config.filters, config.output, BLOCKS[config.block])
        return Workload(model, lambda index: _images(config, index), functional.cross_entropy)
    return Workload(RecurrentNetwork(config), lambda index: _tokens(config, index), functional.cross_entropy)


def count_parameters(config: Config) -> int:
    """Return the number of weights of the model without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in generate(config).model.parameters())


class RecurrentNetwork(nn.Module):
    """Embedding, recurrent layers and a linear layer that scores every token at each step."""

    def __init__(self, config: Recurrent) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.cells = CELLS[config.cell](config.embedding, config.embedding, config.layers, batch_first=True)
        self.head = nn.Linear(config.embedding, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch * length, vocabulary)."""
        states, _ = self.cells(self.embedding(tokens))
        scores: Tensor = self.head(states)
        return scores.flatten(0, 1)


def _fully_connected(config: FullyConnected) -> nn.Sequential:
    widths = [config.input, *[config.nodes] * config.layers]
    hidden = (nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths))
    return nn.Sequential(*hidden, nn.Linear(config.nodes, config.output))


def _vectors(config: FullyConnected, index: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(index)
    inputs = torch.randn(config.batch, config.input, generator=source, device="cpu")
    return inputs, torch.randint(config.output, (config.batch,), generator=source, device="cpu")


def _images(config: Convolutional, index: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(index)
    inputs = torch.randn(config.batch, 3, config.image, config.image, generator=source, device="cpu")
    return inputs, torch.randint(config.output, (config.batch,), generator=source, device="cpu")


def _tokens(config: Recurrent, index: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(index)
    size = (config.batch, config.length + 1)
    tokens = torch.randint(config.vocabulary, size, generator=source, device="cpu")
    return tokens[:, :-1], tokens[:, 1:].flatten()


class _Batches:
    """Batches of a workload, generated again in each epoch."""

    def __init__(self, workload: Workload, count: int) -> None:
        self.workload, self.count = workload, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.workload.make_batch, range(self.count))


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train a ParaDnn model on random data.", batch=16)
    add_options(parser)
    options = parser.parse_args()
    config = config_from(parser, options)
    torch.manual_seed(0)
    workload = generate(config)
    model = workload.model.to(options.device)
    (infer if options.inference else train)(model, _Batches(workload, options.steps), options)


if __name__ == "__main__":
    main()
