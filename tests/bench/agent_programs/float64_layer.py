"""A convolutional network of which one layer computes in float64."""

import torch
from torch import Tensor, nn

STEPS, BATCH, CHANNELS = 8, 8, 32


class InDouble(nn.Conv2d):  # planted
    """Convolution in double precision."""

    def forward(self, inputs: Tensor) -> Tensor:  # planted
        """Return the output in the precision of the input."""
        return super().forward(inputs.double()).to(inputs.dtype)  # planted


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(4)]
    convolutions[2] = InDouble(CHANNELS, CHANNELS, 3, padding=1).double()
    layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *layers, nn.Flatten(), nn.LazyLinear(10))
    data = torch.randn(STEPS, BATCH, 3, 32, 32)
    model(data[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in data:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
