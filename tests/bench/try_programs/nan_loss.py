"""A classifier whose learning rate is too high: the loss is NaN after some steps."""

import time

import torch
from torch import Tensor, nn

STEPS, BATCH, WIDTH = 40, 512, 1024


class Classifier(nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        scores: Tensor = self.layers(features)
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    start = time.perf_counter()
    for step in range(STEPS):
        features, labels = torch.randn(BATCH, 64, device=device), torch.randint(10, (BATCH,), device=device)
        scores = model(features)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
