"""Script for torchrun: three steps of a pipeline on two ranks, as a trace of torch.profiler per rank.

    torchrun --nproc-per-node 2 tests/support/pipeline_worker.py SCHEDULE [ranges]

The trace of a rank is rankN.json. ``ranges`` adds annot's ranges, which name the waits.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile
from torch.profiler import schedule as steps

import annot

WIDTH, BATCH, MICROBATCHES = 256, 64, 4


def layers() -> torch.nn.Sequential:
    """Return the layers of a stage."""
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def made(name: str) -> tuple[Any, list[torch.nn.Module]]:
    """Return the schedule, and the stages of this rank: two of an interleaved schedule, else one."""
    rank, kind = dist.get_rank(), getattr(schedules, name)
    interleaved = issubclass(kind, schedules.PipelineScheduleMulti)
    numbers = (rank, rank + 2) if interleaved else (rank,)
    modules: list[torch.nn.Module] = [layers() for _ in numbers]
    count = 2 * len(numbers)
    stages = [
        PipelineStage(module, number, count, torch.device("cpu"))
        for number, module in zip(numbers, modules, strict=True)
    ]
    loss = torch.nn.functional.mse_loss
    return kind(stages if interleaved else stages[0], MICROBATCHES, loss_fn=loss), modules


def main(name: str, *ranges: str) -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    schedule, modules = made(name)
    data = torch.randn(BATCH, WIDTH)
    named = annot.emit_ranges(torch.nn.ModuleList(modules)) if ranges else contextlib.nullcontext()
    options: dict[str, Any] = {
        "schedule": steps(wait=0, warmup=1, active=3, repeat=1),
        "on_trace_ready": lambda one: one.export_chrome_trace(f"rank{dist.get_rank()}.json"),
    }
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler, named:
        for _ in range(4):
            first, last = dist.get_rank() == 0, dist.get_rank() == 1
            schedule.step(*[data] * first, **({"target": data} if last else {}))
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
