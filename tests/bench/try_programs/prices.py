"""A regression of house prices from features that nobody scaled: they exceed the range of float16.

In float32 and bfloat16 it trains. Under float16 the largest number is 65504, the first layer returns infinity, and the
loss is NaN.
"""

import time

import torch
from torch import Tensor, nn

STEPS, BATCH, WIDTH = 40, 256, 1024


class Regression(nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return a price per house."""
        prices: Tensor = self.layers(features)
        return prices


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Regression().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    features = torch.rand(STEPS, BATCH, 32) * 300_000
    prices = features.mean(2, keepdim=True)
    start = time.perf_counter()
    for step in range(STEPS):
        inputs, targets = features[step].to(device), prices[step].to(device)
        estimates = model(inputs)
        loss = nn.functional.l1_loss(estimates, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
