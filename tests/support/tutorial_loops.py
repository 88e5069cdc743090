"""Training loops as tutorials write them, without annot. Each prints its number of steps and the time of the loop (ns).

python tests/support/tutorial_loops.py early_stopping
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Decoder(nn.Module):
    """A decoder that the loop calls once for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the state after the tokens."""
        output, state = self.gru(self.embedding(tokens), state)
        return output, state


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def _loss(output: Tensor) -> Any:
    return functional.cross_entropy(output, torch.randint(0, 4, (8,)))


def early_stopping() -> int:
    """Three epochs of eight steps, each with a validation and a step of a scheduler."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        for _ in range(8):
            optimizer.zero_grad()
            _loss(model(torch.randn(8, 16))).backward()
            optimizer.step()
        with torch.no_grad():
            scheduler.step(_loss(model(torch.randn(8, 16))).item())
    return 24


def sequences() -> int:
    """Ten steps with two optimizers, in which a decoder runs for sequences of different lengths."""
    encoder, decoder = nn.GRU(16, 16, batch_first=True), Decoder()
    optimizers = [torch.optim.Adam(net.parameters()) for net in (encoder, decoder)]
    for _ in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        state, tokens = encoder(torch.randn(8, 6, 16))[1], torch.zeros(8, 1, dtype=torch.long)
        loss: Any = torch.zeros(())
        for _ in range(random.randint(3, 9)):
            output, state = decoder(tokens, state)
            loss = loss + output.square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return 10


def distillation() -> int:
    """Fifteen steps of a student beside its teacher, after ten steps that train the teacher."""
    teacher, student = _net(), nn.Linear(16, 4)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(teacher.parameters())
    for _ in range(10):
        optimizer.zero_grad()
        _loss(teacher(torch.randn(8, 16))).backward()
        optimizer.step()
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    for _ in range(15):
        optimizer.zero_grad()
        batch = torch.randn(8, 16)
        with torch.no_grad():
            target = teacher(batch)
        (student(batch) - target).square().mean().backward()
        optimizer.step()
    return 15


def adversarial() -> int:
    """Twelve steps of a generator and its discriminator, as in the tutorial of DCGAN."""
    generator, critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Sequential(nn.Linear(16, 1), nn.Sigmoid())
    optimizers = [torch.optim.Adam(net.parameters()) for net in (critic, generator)]
    criterion = nn.BCELoss()
    for _ in range(12):
        critic.zero_grad()
        criterion(critic(torch.randn(8, 16)).view(-1), torch.ones(8)).backward()
        fake = generator(torch.randn(8, 8))
        criterion(critic(fake.detach()).view(-1), torch.zeros(8)).backward()
        optimizers[0].step()
        generator.zero_grad()
        criterion(critic(fake).view(-1), torch.ones(8)).backward()
        optimizers[1].step()
    return 12


def inference() -> int:
    """Thirty calls without a backward pass: no steps."""
    model = _net().eval()
    with torch.inference_mode():
        for _ in range(30):
            model(torch.randn(1, 16)).argmax().item()
    return 0


LOOPS = {loop.__name__: loop for loop in (early_stopping, sequences, distillation, adversarial, inference)}

if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    begin = time.perf_counter_ns()
    print(LOOPS[sys.argv[1]](), time.perf_counter_ns() - begin)
