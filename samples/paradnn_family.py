"""The families of models that ParaDnn's study measured, for both frameworks: sizes, their ranges, and options.

`paradnn.generate` makes a model in PyTorch of a configuration, `paradnn_keras.generate` the same in Keras.
"""

import argparse
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias

CELLS: Final = ("rnn", "lstm", "gru")
BLOCKS: Final = ("residual", "bottleneck")


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

SIZES: Final = sorted({name for sizes in RANGES.values() for name in sizes})
"""The names of all sizes of all families."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let a parser, which has ``--batch``, take a kind and the sizes of its model."""
    parser.add_argument("kind", choices=KINDS)
    for name in SIZES:
        if name != "batch":
            parser.add_argument(f"--{name}", type=int, help="default: the least of ParaDnn's study")


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Config:
    """Return the configuration that the options tell; a size that it has not, or that is none, ends the program."""
    sizes = {name: vars(options)[name] for name in SIZES if vars(options)[name] is not None}
    kind = KINDS[options.kind]
    if extra := sizes.keys() - {field.name for field in fields(kind)}:
        parser.error(f"{options.kind} has no --{min(extra)}")
    try:
        return replace(kind, **sizes)
    except ValueError as error:
        parser.error(str(error))
