"""What one training step costs with annot and with everything else that says which layer runs.

Run by hand, with `tests` and `samples` on the path: ``make bench``. The figures go into samples/RESULTS.md.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import nets
import rivals
import torch
from harness import Timings, Variant, mode, report, run_in_modes, time_variants

from annot import emit_ranges

OF_HOOKS: Final = {"native": 0.2, "python": None}
CHEAPEST: Final = {"native": 1.0, "python": None}
ROUNDS: Final = 25


@contextmanager
def paused(net: nets.Net) -> Iterator[None]:
    """Enter a block that is switched off."""
    with emit_ranges(net.model) as block:
        block.pause()
        yield


def forward_variants(net: nets.Net) -> dict[str, Variant]:
    """Return what puts a range around the forward of every layer."""
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "annot": lambda: emit_ranges(net.model, backward=False),
        "hooks, dictionary as text": rivals.dict_hooks(net.model),
        "record_function by hooks": rivals.recorded_functions(net.model),
    }
    return variants | ({"MONAI Range": rivals.monai_ranges(net.model)} if rivals.HAS_MONAI else {})


def step_variants(net: nets.Net, *, full_hooks: bool) -> dict[str, Variant]:
    """Return what tells of forward and backward."""
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "annot": lambda: emit_ranges(net.model),
        "annot, memory": lambda: emit_ranges(net.model, memory=True),
        "annot, paused": lambda: paused(net),
        "torch.profiler, shapes": rivals.torch_profiler,
        "nvtx.Profile": rivals.nvtx_profile,
    }
    return variants | ({"forward and full backward hooks": rivals.full_hooks(net.model)} if full_hooks else {})


def measure(name: str, net: nets.Net, *, full_hooks: bool) -> None:
    """Print the forward, then the whole step."""
    inputs, target = net.make_batch(0)

    def step() -> None:
        net.loss_fn(net.model(inputs), target).backward()  # type: ignore[no-untyped-call]

    forward = time_variants(forward_variants(net), lambda: net.model(inputs), calls=10, rounds=ROUNDS)
    _print(f"{name} forward", forward, cheapest=list(forward.rounds)[2:])
    hooks = forward.added("annot") / forward.added("hooks, dictionary as text")
    report(f"{name} forward: annot over hooks", hooks, "×", OF_HOOKS[mode()])
    whole = time_variants(step_variants(net, full_hooks=full_hooks), step, calls=5, rounds=ROUNDS)
    _print(f"{name} step", whole, cheapest=["forward and full backward hooks"] if full_hooks else [])


def _print(what: str, timings: Timings, cheapest: list[str]) -> None:
    """Print every variant; annot must add less than each of those that are named."""
    report(f"{what}: plain", timings.median("plain") / 1e6, "ms")
    for name in timings.rounds:
        if name != "plain":
            note = f"×{timings.ratio(name):.3f}"
            report(f"{what}: {name} adds", timings.added(name) / 1000, "µs", note=note, width=60)
    for name in cheapest:
        report(
            f"{what}: annot over {name}", timings.added("annot") / timings.added(name), "×", CHEAPEST[mode()], width=60
        )


def measure_all() -> None:
    """Print every figure of this process's mode."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    if not rivals.HAS_MONAI:
        print("  MONAI is not installed and not measured: pip install --no-deps monai")
    # Full backward hooks raise on the in-place operations of a ResNet.
    measure("gpt", nets.gpt(), full_hooks=True)
    measure("resnet", nets.small_resnet(), full_hooks=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure_all()
    else:
        run_in_modes(__file__)
