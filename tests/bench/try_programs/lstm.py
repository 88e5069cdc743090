"""A language model of two LSTM layers with clipped gradients and Adam, as for the Penn Treebank."""

import time

import torch
from torch import Tensor, nn

STEPS, BATCH, LENGTH, WIDTH, VOCABULARY = 30, 20, 35, 320, 2000


class LanguageModel(nn.Module):
    """Embedding, LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch, length, vocabulary)."""
        scores: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LanguageModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = [torch.randint(VOCABULARY, (BATCH, LENGTH + 1)) for _ in range(STEPS)]
    start = time.perf_counter()
    for step, tokens in enumerate(data):
        tokens = tokens.to(device)
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
