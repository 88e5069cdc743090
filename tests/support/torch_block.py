"""PyTorch module for tests of ranges."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Linear layer with an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        found: torch.Tensor = self.act(self.fc(x)) * scale
        return found
