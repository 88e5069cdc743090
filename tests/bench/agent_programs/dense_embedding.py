"""A classifier of short texts with a large table of words, whose gradient has all its rows."""

import torch
from torch import Tensor, nn

STEPS, BATCH, LENGTH, WORDS, WIDTH = 8, 32, 16, 100_000, 64


class Classifier(nn.Module):  # planted
    """The mean of the words, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4)  # planted

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores."""
        scores: Tensor = self.head(self.words(tokens).mean(1))  # planted
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for tokens in torch.randint(WORDS, (STEPS, BATCH, LENGTH)):
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 4)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


if __name__ == "__main__":
    main()
