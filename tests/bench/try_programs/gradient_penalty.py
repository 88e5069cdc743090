"""The critic of a Wasserstein GAN with gradient penalty, which torch.compile cannot train.

The penalty is a derivative of a derivative. The compiled backward raises: it "does not support double backward".
"""

import time

import torch
from torch import Tensor, nn

STEPS, BATCH, WIDTH = 40, 256, 1024


class Critic(nn.Module):
    """Four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, samples: Tensor) -> Tensor:
        """Return a score per sample."""
        scores: Tensor = self.layers(samples)
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    critic = Critic().to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    start = time.perf_counter()
    for step in range(STEPS):
        real, fake = torch.randn(BATCH, 64, device=device) + 1, torch.randn(BATCH, 64, device=device)
        share = torch.rand(BATCH, 1, device=device)
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
