"""A module for tests of what PyTorch modules have for ranges."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """One dense layer whose activation works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.act(self.fc(x)) * scale
