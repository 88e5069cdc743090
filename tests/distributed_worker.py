"""What two processes do that train together, for the tests: a script for torchrun, and functions for spawned ones.

    torchrun --nproc-per-node 2 tests/distributed_worker.py KIND,KIND OUT

trains a small model for three steps, as each KIND says, without ranges and with, and writes losses, parameters and
gradients to OUT.RANK.pt. There is no `from __future__ import annotations`: DistributedDataParallel looks at them.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import annot


class Numbers(Dataset[torch.Tensor]):
    """Eight vectors; module-level, so that a spawned worker can unpickle it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


class Broken(Numbers):
    """A data set whose third item cannot be had."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise ValueError("no such item")
        return super().__getitem__(index)


def build() -> torch.nn.Sequential:
    """Return the model; the same in every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 4)
    )


def plain_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """A communication hook as users write them."""
    work: Any = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    future: Any = work.get_future()
    averaged: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
    return averaged


def data_parallel() -> torch.nn.Module:
    """DistributedDataParallel."""
    return DistributedDataParallel(build())


def hooked() -> torch.nn.Module:
    """DistributedDataParallel with a communication hook of the user."""
    model = DistributedDataParallel(build())
    model.register_comm_hook(None, plain_hook)
    return model


def sharded() -> torch.nn.Module:
    """FSDP2, a shard per linear layer and one for the rest."""
    model = build()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


KINDS: dict[str, Callable[[], torch.nn.Module]] = {"ddp": data_parallel, "hook": hooked, "fsdp": sharded}


def train(kind: str, *, ranges: bool) -> list[torch.Tensor]:
    """Train three steps; return this process's part of all parameters and gradients, and the losses."""
    model = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    with annot.emit_ranges(model) if ranges else contextlib.nullcontext():
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 8, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    parts = [part for one in model.parameters() for part in (one, one.grad) if part is not None]
    return [*losses, *(getattr(part, "_local_tensor", part).detach().clone() for part in parts)]


def main(kinds: str, out: str) -> None:
    """Train as each of the kinds says, with ranges and without."""
    dist.init_process_group("gloo")
    results = {(kind, ranges): train(kind, ranges=ranges) for kind in kinds.split(",") for ranges in (False, True)}
    torch.save(results, f"{out}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
