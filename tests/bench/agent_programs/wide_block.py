"""A stack of eight equal blocks of which one is 16 times as wide inside as the others."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

STEPS, BATCH, WIDTH, WIDE = 8, 64, 128, 4096


class Block(nn.Module):
    """Two layers around a ReLU, beside the input."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of input and output."""
        return inputs + self.down(torch.relu(self.up(inputs)))  # type: ignore[no-any-return]


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(WIDE if number == 5 else 256) for number in range(8)))  # planted
    model = nn.Sequential(OrderedDict(blocks=blocks, head=nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in torch.randn(STEPS, BATCH, WIDTH):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
