"""A stack of blocks whose activations would fit into memory, but are recomputed in the backward pass."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEPS, BATCH, WIDTH = 8, 128, 384


class Stack(nn.Module):  # planted
    """Blocks under a checkpoint each."""

    def __init__(self) -> None:
        super().__init__()
        block = (nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4))
        self.blocks = nn.ModuleList(block)

    def forward(self, inputs: Tensor) -> Tensor:  # planted
        """Return the output of the last block."""
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=False)  # planted
        return inputs


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in torch.randn(STEPS, BATCH, WIDTH):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
