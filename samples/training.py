"""Training and inference of the PyTorch samples: options, synthetic data, and a training loop with annot's ranges.

A script needs only `emit_ranges`, `epochs` and `batches` from annot.
"""

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import command_line
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from annot import batches, emit_ranges, epochs

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Batches of inputs and targets."""


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Noise images whose mean depends on the class, so that a model can learn.

    Args:
        count: number of images.
        image: height and width in pixels.
        classes: number of classes.
    """

    def __init__(self, count: int, image: int, classes: int = 10) -> None:
        self.count, self.image, self.classes = count, image, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % self.classes
        noise = torch.randn(3, self.image, self.image, generator=torch.Generator().manual_seed(index))
        return noise + label / self.classes, label


class SyntheticText(Dataset[tuple[Tensor, Tensor]]):
    """Token sequences that count up from a random start. The target is the next token.

    Args:
        count: number of sequences.
        length: tokens per sequence.
        vocabulary: number of different tokens.
    """

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = torch.randint(self.vocabulary, (1,), generator=torch.Generator().manual_seed(index))
        tokens = (start + torch.arange(self.length + 1)) % self.vocabulary
        return tokens[:-1], tokens[1:]


def arguments(description: str, *, batch: int, steps: int = 4) -> argparse.ArgumentParser:
    """Return a parser with the options of every PyTorch sample. `batch` and `steps` are their defaults."""
    return _with_device(command_line.arguments(description, batch=batch, steps=steps))


def text_arguments(description: str, *, batch: int, length: int, vocabulary: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample and those of text models."""
    return _with_device(command_line.text_arguments(description, batch=batch, length=length, vocabulary=vocabulary))


def _with_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile with torch.compile")
    return parser


def run(
    build: Callable[[], nn.Module], data: Dataset[tuple[Tensor, int | Tensor]], options: argparse.Namespace
) -> None:
    """Build the model, then train it or, with ``--inference``, run its forward on `options.steps` batches of `data`."""
    torch.manual_seed(0)
    model = build().to(options.device)
    if options.compile:
        model.compile()
    loader = DataLoader(data, options.batch, shuffle=True)
    (infer if options.inference else train)(model, loader, options)


def train(model: nn.Module, loader: Pairs, options: argparse.Namespace) -> None:
    """Train for `options.epochs` epochs and print the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    with emit_ranges(model):
        for epoch in epochs(options.epochs):
            for step, (inputs, labels) in enumerate(batches(loader)):
                with precision(options):
                    scores = model(inputs.to(options.device))
                    loss = loss_of(scores.flatten(0, -2), labels.to(options.device).flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}", flush=True)


@torch.inference_mode()
def infer(model: nn.Module, loader: Pairs, options: argparse.Namespace) -> None:
    """Run the forward of the model and print the mean score of every step."""
    model.eval()
    with emit_ranges(model):
        for epoch in epochs(options.epochs):
            for step, (inputs, _) in enumerate(batches(loader)):
                with precision(options):
                    scores = model(inputs.to(options.device))
                print(f"epoch {epoch} step {step}: mean {scores.float().mean().item():.4f}", flush=True)


def precision(options: argparse.Namespace) -> AbstractContextManager[object]:
    """Return an autocast context, enabled by ``--bf16``."""
    return torch.autocast(torch.device(options.device).type, torch.bfloat16, enabled=options.bf16)
