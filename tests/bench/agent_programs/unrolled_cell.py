"""A tagger that calls a cell for each position of a text, where one call of `nn.LSTM` would do."""

import torch
from torch import Tensor, nn

STEPS, BATCH, LENGTH, WIDTH = 8, 16, 60, 64


class Tagger(nn.Module):  # planted
    """Embedding, a cell for all positions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(500, WIDTH), nn.Linear(WIDTH, 8)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)  # planted

    def forward(self, tokens: Tensor) -> Tensor:  # planted
        """Return scores of each position."""
        state, outputs = (torch.zeros(len(tokens), WIDTH), torch.zeros(len(tokens), WIDTH)), []
        for embedded in self.words(tokens).unbind(1):
            state = self.cell(embedded, state)  # planted
            outputs.append(state[0])
        scores: Tensor = self.head(torch.stack(outputs, 1))
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for tokens in torch.randint(500, (STEPS, BATCH, LENGTH)):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 8)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


if __name__ == "__main__":
    main()
