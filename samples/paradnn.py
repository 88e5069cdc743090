"""Models made to measure, after ParaDnn: fully connected, convolutional, recurrent; 10 thousand to 1 billion weights.

One call makes a model and its batches:

    from paradnn import FullyConnected, generate
    workload = generate(FullyConnected(layers=8, nodes=512, batch=64))
    loss = workload.loss(workload.model(inputs), target)  # with inputs, target = workload.make_batch(0)

As a script it trains one, or with --inference uses one:

    annot run -- python samples/paradnn.py lstm --layers 2 --embedding 200 --batch 1 --inference
"""

import argparse
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from resnet50 import Bottleneck, Residual, ResNet
from torch import Tensor, nn
from torch.nn import functional
from training import arguments, infer, train

CELLS: Final[dict[str, type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
BLOCKS: Final[dict[str, type[Residual] | type[Bottleneck]]] = {"residual": Residual, "bottleneck": Bottleneck}


def _check_choice(name: str, chosen: str, choices: Collection[str]) -> None:
    if chosen not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {chosen!r}")


class _Sizes:
    """A size that is no positive integer is refused."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # the subclasses are dataclasses
            size = getattr(self, field.name)
            if field.type is int and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise ValueError(f"{field.name} must be an integer from 1, got {size!r}")


@dataclass(frozen=True, slots=True)
class FullyConnected(_Sizes):
    """`layers` linear layers of `nodes` outputs each with a ReLU, then one of `output`."""

    layers: int = 4
    nodes: int = 32
    input: int = 2000
    output: int = 200
    batch: int = 64


@dataclass(frozen=True, slots=True)
class Convolutional(_Sizes):
    """A residual network of four stages of `blocks` blocks; `filters` double from stage to stage."""

    block: Literal["residual", "bottleneck"] = "residual"
    blocks: int = 1
    filters: int = 16
    image: int = 200
    output: int = 500
    batch: int = 64

    def __post_init__(self) -> None:
        _Sizes.__post_init__(self)
        _check_choice("block", self.block, BLOCKS)


@dataclass(frozen=True, slots=True)
class Recurrent(_Sizes):
    """An embedding, `layers` recurrent layers of its size, and a score for each token at each of `length` steps."""

    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: int = 1
    embedding: int = 100
    length: int = 10
    vocabulary: int = 2
    batch: int = 16

    def __post_init__(self) -> None:
        _Sizes.__post_init__(self)
        _check_choice("cell", self.cell, CELLS)


Config: TypeAlias = FullyConnected | Convolutional | Recurrent

RANGES: Final[dict[type[Config], dict[str, tuple[int, int]]]] = {
    FullyConnected: {
        "layers": (4, 128), "nodes": (32, 8192), "input": (2000, 8000), "output": (200, 1000), "batch": (64, 16384),
    },
    Convolutional: {
        "blocks": (1, 8), "filters": (16, 64), "image": (200, 300), "output": (500, 1500), "batch": (64, 1024),
    },
    Recurrent: {
        "layers": (1, 13), "embedding": (100, 900), "length": (10, 90), "vocabulary": (2, 1024), "batch": (16, 1024),
    },
}  # fmt: skip
"""The least and the most that ParaDnn's study took of each size; other sizes are as good, batches from 1."""

KINDS: Final[dict[str, Config]] = {
    "fc": FullyConnected(),
    "residual": Convolutional("residual"),
    "bottleneck": Convolutional("bottleneck"),
    "rnn": Recurrent("rnn"),
    "lstm": Recurrent("lstm"),
    "gru": Recurrent("gru"),
}
"""The least model of each kind, by the name that the command line gives it."""

_SIZES: Final = sorted({name for sizes in RANGES.values() for name in sizes})


class Workload(NamedTuple):
    """A model with what is needed to run it."""

    model: nn.Module
    make_batch: Callable[[int], tuple[Tensor, Tensor]]
    """Gives inputs and target of a batch; the same number gives the same batch."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Takes what the model gives, and the target."""


def generate(config: Config) -> Workload:
    """Return the model of a configuration, with weights from PyTorch's generator, and its batches.

    On another device than the CPU: ``with torch.device("cuda"): generate(config)``; ``torch.device("meta")`` takes no
    memory, for counting.

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
    """Return how many weights the model has, without making them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in generate(config).model.parameters())


class RecurrentNetwork(nn.Module):
    """Gives a score per token at each step, steps and sequences in one dimension."""

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
    """The batches of a workload, made anew in each epoch."""

    def __init__(self, workload: Workload, count: int) -> None:
        self.workload, self.count = workload, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.workload.make_batch, range(self.count))


def _parser() -> argparse.ArgumentParser:
    parser = arguments("Train a model of ParaDnn on noise.", batch=16)
    parser.add_argument("kind", choices=KINDS)
    for name in _SIZES:
        if name != "batch":
            parser.add_argument(f"--{name}", type=int, help="default: the least of ParaDnn's study")
    return parser


def main() -> None:
    """Read the options, then train."""
    parser = _parser()
    options = parser.parse_args()
    sizes = {name: vars(options)[name] for name in _SIZES if vars(options)[name] is not None}
    kind = KINDS[options.kind]
    if extra := sizes.keys() - {field.name for field in fields(kind)}:
        parser.error(f"{options.kind} has no --{min(extra)}")
    try:
        config = replace(kind, **sizes)
    except ValueError as error:
        parser.error(str(error))
    torch.manual_seed(0)
    workload = generate(config)
    model = workload.model.to(options.device)
    (infer if options.inference else train)(model, _Batches(workload, options.steps), options)


if __name__ == "__main__":
    main()
