"""A GPT of four blocks whose attention multiplies, masks and normalises matrices itself, with AdamW."""

import math
import time

import torch
from torch import Tensor, nn

STEPS, BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 30, 6, 128, 192, 6, 1000


class Attention(nn.Module):
    """Causal self-attention without scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed hidden states."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        mixed: Tensor = self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """Attention and two linear layers, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states."""
        x = x + self.attention(self.norm1(x))
        hidden: Tensor = x + self.mlp(self.norm2(x))
        return hidden


class GPT(nn.Module):
    """Embeddings, blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(LENGTH, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [torch.randint(VOCABULARY, (BATCH, LENGTH + 1)) for _ in range(STEPS)]
    start = time.perf_counter()
    for step, tokens in enumerate(data):
        tokens = tokens.to(device)
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
