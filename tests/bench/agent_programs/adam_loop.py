"""A deep narrow network whose optimizer updates one parameter after the other."""

import torch
from torch import nn

STEPS, BATCH, WIDTH, DEPTH = 8, 16, 32, 120


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)  # planted
    for inputs in torch.randn(STEPS, BATCH, WIDTH):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # planted


if __name__ == "__main__":
    main()
