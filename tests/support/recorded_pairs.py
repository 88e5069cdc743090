"""Small trainings that are recorded for comparisons: a program, and variants that are the same or another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from annot import batches, emit_ranges, record
from annot.analyze.comparison.digest import Digest, digest
from annot.runs.run import Run


class Block(torch.nn.Module):
    """Two linear layers around an activation, with a residual."""

    def __init__(self, width: int, activation: type[torch.nn.Module]) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.act, self.down = (
            torch.nn.Linear(width, 2 * width),
            activation(),
            torch.nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input plus what the layers make of it."""
        change: torch.Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + change


class Net(torch.nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self, *, depth: int = 3, width: int = 32, words: int = 64, activation: type = torch.nn.ReLU) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, activation) for _ in range(depth))
        self.head = torch.nn.Linear(width, words)

    def forward(self, x: torch.Tensor, skip: frozenset[int] = frozenset()) -> torch.Tensor:
        """Return the scores of the words."""
        x = self.tokens(x)
        for number, block in enumerate(self.blocks):
            x = x if number in skip else block(x)
        scores: torch.Tensor = self.head(x)
        return scores


def recorded(path: Path, **options: Any) -> Digest:
    """Record a training and return its digest.

    Args:
        path: file of the recording.
        options: depth, width, words, activation and dtype of the model; steps; batch; length of a text; last (size of
            the last batch); random (seed of random lengths); skipping (seed of blocks that are left out at random);
            validate (steps with a validation); accumulate (forwards in a step); autocast; compiled; seed; optimizer;
            model (instead of `Net`).
    """
    torch.manual_seed(options.get("seed", 0))
    shape = {name: options[name] for name in ("depth", "width", "words", "activation") if name in options}
    model = options.get("model") or Net(**shape)
    model = model.to(options.get("dtype", torch.float32))
    optimizer = getattr(torch.optim, options.get("optimizer", "SGD"))(model.parameters(), lr=0.01)
    run = torch.compile(model, backend="aot_eager") if options.get("compiled") else model
    with record(path), emit_ranges(model):
        for step, tokens in enumerate(batches(list(_texts(options)))):
            for _ in range(options.get("accumulate", 1)):
                with torch.autocast("cpu", enabled=options.get("autocast", False)):
                    run(tokens, **_skipped(options, step)).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in options.get("validate", ()):
                with torch.no_grad():
                    for _ in range(5):
                        run(torch.zeros(3, 50, dtype=torch.long))
    return digest(Run(path).attribution)


def _texts(options: dict[str, Any]) -> Iterator[torch.Tensor]:
    steps, batch = options.get("steps", 8), options.get("batch", 8)
    chance = torch.Generator().manual_seed(options.get("random", 0))
    for step in range(steps):
        size = options.get("last", batch) if step == steps - 1 else batch
        length = options.get("length", 16)
        if "random" in options:
            length = int(torch.randint(length // 2, 2 * length, (1,), generator=chance))
        yield torch.zeros(size, length, dtype=torch.long)


def _skipped(options: dict[str, Any], step: int) -> dict[str, Any]:
    if "skipping" not in options:
        return {}
    chance = torch.Generator().manual_seed(1000 * options["skipping"] + step)
    return {
        "skip": frozenset(torch.nonzero(torch.rand(options.get("depth", 3), generator=chance) < 0.4).flatten().tolist())
    }
