"""Worker of distributed training, for tests: a script for torchrun, and functions for spawned processes.

    torchrun --nproc-per-node 2 tests/support/distributed_worker.py KIND,KIND OUT

For each KIND, trains a small model for three steps without and with ranges, and writes losses, parameters and
gradients to OUT.RANK.pt. DistributedDataParallel checks the annotations of communication hooks, so this file does
without `from __future__ import annotations`.
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
    """Eight vectors. At module level, so that spawned workers can unpickle it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


class Broken(Numbers):
    """Dataset whose third item raises an exception."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise ValueError("no such item")
        return super().__getitem__(index)


def build() -> torch.nn.Sequential:
    """Return the model, with the same weights in every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 4)
    )


def plain_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average gradients in a communication hook, as users write it."""
    work: Any = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    future: Any = work.get_future()
    averaged: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
    return averaged


def data_parallel() -> torch.nn.Module:
    """Return the model in DistributedDataParallel."""
    return DistributedDataParallel(build())


def hooked() -> torch.nn.Module:
    """Return the model in DistributedDataParallel with a communication hook."""
    model = DistributedDataParallel(build())
    model.register_comm_hook(None, plain_hook)
    return model


def sharded() -> torch.nn.Module:
    """Return the model in FSDP2, with one shard per linear layer and one for the rest."""
    model = build()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


KINDS: dict[str, Callable[[], torch.nn.Module]] = {"ddp": data_parallel, "hook": hooked, "fsdp": sharded}


def train(kind: str, *, ranges: bool) -> list[torch.Tensor]:
    """Train three steps. Return the parameters and gradients of this process, and the losses."""
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
    """Train each kind with and without ranges."""
    dist.init_process_group("gloo")
    results = {(kind, ranges): train(kind, ranges=ranges) for kind in kinds.split(",") for ranges in (False, True)}
    torch.save(results, f"{out}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
