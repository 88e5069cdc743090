"""Training on the CPU, for tests: a run whose ranks compute for different times, and a small run with slow data.

torchrun --nproc-per-node 2 tests/support/cpu_runs.py ranks
python tests/support/cpu_runs.py data
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import annot

LATE = 1
"""Rank with a batch sixteen times as large as the other's."""


class Slow(Dataset[torch.Tensor]):
    """Items that take a while to compute."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.full((400, 400), float(index))
        for _ in range(4):
            noise = noise @ noise / 1e6
        return noise[:2, :8].flatten()


def ranks() -> None:
    """Train in DistributedDataParallel."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    size = 1024 if dist.get_rank() == LATE else 64
    with annot.emit_ranges(model):
        for batch in annot.batches([torch.randn(size, 256) for _ in range(6)]):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    # DDP keeps gloo's threads alive until the process exits. A thread that still frees its last tensors at that moment
    # aborts the process (https://github.com/pytorch/pytorch/pull/179291). They are free once another operation ran.
    dist.barrier()
    dist.destroy_process_group()


def data() -> None:
    """Train with a loader that takes most of the time."""
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with annot.emit_ranges(model):
        for batch in annot.batches(DataLoader(Slow(), 8)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    {"ranks": ranks, "data": data}[sys.argv[1]]()
