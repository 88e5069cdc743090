"""Model families of the ParaDnn study, for both frameworks: configurations, ranges of sizes, command-line options.

`paradnn.generate` builds a configuration as a PyTorch model, `paradnn_keras.generate` as a Keras model.
"""

import argparse
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias

CELLS: Final = ("rnn", "lstm", "gru")
BLOCKS: Final = ("residual", "bottleneck")


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


class _Sizes:
    """Base class that checks that all sizes are positive integers."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # the subclasses are dataclasses
            size = getattr(self, field.name)
            if field.type is int and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise ValueError(f"{field.name} must be a positive integer, got {size!r}")


@dataclass(frozen=True, slots=True)
class FullyConnected(_Sizes):
    """`layers` linear layers with `nodes` outputs and ReLU, then a linear layer with `output` outputs."""

    layers: int = 4
    nodes: int = 32
    input: int = 2000
    output: int = 200
    batch: int = 64


@dataclass(frozen=True, slots=True)
class Convolutional(_Sizes):
    """ResNet with four stages of `blocks` blocks. The number of filters doubles from stage to stage."""

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
    """Embedding, `layers` recurrent layers of the same size, and a score for each token at each of `length` steps."""

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
"""Smallest and largest value of each size in the ParaDnn study. Other positive values work too."""

KINDS: Final[dict[str, Config]] = {
    "fc": FullyConnected(),
    "residual": Convolutional("residual"),
    "bottleneck": Convolutional("bottleneck"),
    "rnn": Recurrent("rnn"),
    "lstm": Recurrent("lstm"),
    "gru": Recurrent("gru"),
}
"""Smallest model of each kind, by its name on the command line."""

SIZES: Final = sorted({name for sizes in RANGES.values() for name in sizes})
"""Names of the sizes of all families."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the model kind and its sizes to a parser that already has ``--batch``."""
    parser.add_argument("kind", choices=KINDS)
    for name in SIZES:
        if name != "batch":
            parser.add_argument(f"--{name}", type=int, help="default: the smallest value in the ParaDnn study")


def config_from(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Config:
    """Return the configuration for parsed options. An unsupported or invalid size is a usage error."""
    sizes = {name: vars(options)[name] for name in SIZES if vars(options)[name] is not None}
    kind = KINDS[options.kind]
    if extra := sizes.keys() - {field.name for field in fields(kind)}:
        parser.error(f"--{min(extra)} cannot be combined with {options.kind}")
    try:
        return replace(kind, **sizes)
    except ValueError as error:
        parser.error(str(error))
