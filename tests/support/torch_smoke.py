"""Smoke test of annot with the PyTorch of this interpreter: a minute of training, each check with and without ranges.

``python torch_smoke.py`` prints one line per check, and exits with 1 if one fails. `test_dynamo.py` runs it
with the PyTorch of the tests, `release_matrix.py` with other releases.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import platform
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from captured import Captured, capture
from torch import nn
from torch.utils.checkpoint import checkpoint

from annot import emit_ranges
from annot.torch import internals

STEPS = 500
FEW = 100
X = torch.linspace(-1, 1, 12).reshape(3, 4)
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
LAYERS = ("blocks.0", "blocks.0.fc", "blocks.0.act", "blocks.1", "blocks.1.fc", "blocks.1.act", "head")
LINEAR = {"blocks.0.fc", "blocks.1.fc", "head"}
REFERENCES = 20
"""References to None that may come and go in a run. A bookkeeping function that loses one loses hundreds."""


class Block(nn.Module):
    """Residual block with a keyword argument, so that its calls take the general path."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.Tanh()
        self.breaks = breaks

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Add what the layers make of `x` to it."""
        y = self.fc(x)
        if self.breaks:
            torch._dynamo.graph_break()
        result: torch.Tensor = x + self.act(y) * scale
        return result


class Net(nn.Module):
    """Two blocks and a head."""

    def __init__(self, *, breaks: bool = False, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(breaks=breaks), Block(breaks=breaks)])
        self.head = nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the layers one after the other."""
        for block in self.blocks:
            x = block(x, scale=0.5) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        result: torch.Tensor = self.head(x)
        return result


def none_references() -> int:
    """Return the references to None, without those of garbage."""
    gc.collect()
    return sys.getrefcount(None)


def train(model: nn.Module, call: Callable[..., Any], steps: int) -> tuple[list[torch.Tensor], int]:
    """Train; return all losses and weights, and the references to None that each third of the steps loses at least."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses, references = [], list[int]()
    for step in range(steps):
        if step % max(1, steps // 3) == 0:
            references.append(none_references())
        optimizer.zero_grad()
        loss = call(X.requires_grad_()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    lost = min(before - after for before, after in itertools.pairwise([*references, none_references()]))
    return [*losses, *(one.detach() for one in model.parameters())], lost


def compare(
    folder: Path, steps: int, make: Callable[[], nn.Module] = Net, wrap: Callable[[Any], Any] = lambda model: model,
    **options: Any,
) -> Captured:  # fmt: skip
    """Train with and without ranges, with the same results. Return the ranges."""
    plain = make()
    wanted, _ = train(plain, wrap(plain), steps)
    model, got = make(), list[Any]()

    def body() -> None:
        torch._dynamo.reset()
        with emit_ranges(model, **options):
            got.extend(train(model, wrap(model), steps))

    captured = capture(folder, body)
    assert all(map(torch.equal, wanted, got[0])), "ranges change losses or weights"
    assert got[1] < REFERENCES, f"{got[1]} references to None are lost"
    return captured


def check_training(folder: Path) -> None:
    """Each step has one range of each layer, forward and backward, of the optimizer and of the functions around it."""
    names = Counter(compare(folder, STEPS).names)
    layers = [f"{layer}{sign}" for layer in ("Net", *LAYERS) for sign in "><"]
    shown = {name.split()[0] if name.endswith("|opt") else name: count for name, count in names.items()}
    wanted = dict.fromkeys([*layers, "engine<", "Optimizer", "zero_grad", "clip_grad_norm_"], STEPS)
    assert shown == wanted, {name: (shown.get(name), wanted.get(name)) for name in {*shown, *wanted}}


def check_operations(folder: Path) -> None:
    """`ops=True` has a range for each function of a layer."""
    texts = Counter(text.split(" [")[0] for text in compare(folder, FEW, ops=True).texts if text.endswith("|op"))
    wanted = {f"{layer} Linear linear": FEW for layer in LINEAR}
    assert wanted.items() <= texts.items(), texts


def check_memory(folder: Path) -> None:
    """`memory=True` has two marks for each range."""
    captured = compare(folder, FEW, memory=True)
    assert len(captured.marks) >= 2 * len(LAYERS) * FEW


def check_checkpointing(folder: Path) -> None:
    """The recomputed forward of a checkpoint has ranges of its own phase, with and without reentrant autograd."""
    for reentrant in (False, True):
        names = Counter(compare(folder, FEW, functools.partial(Net, reentrant=reentrant)).names)
        for layer in LAYERS[:6]:
            counts = [names[f"{layer}{sign}"] for sign in (">", ">>", "<")]
            assert counts == [FEW] * 3, (reentrant, layer, counts)


def check_graph_breaks(folder: Path) -> None:
    """torch.compile sees the same frames with ranges: none of annot."""
    frames: list[int] = []

    def compiled(model: nn.Module) -> Any:
        torch._dynamo.reset()
        frames.append(seen["total"])
        return torch.compile(model, backend="aot_eager")

    seen = torch._dynamo.utils.counters["frames"]
    names = compare(folder, FEW, lambda: Net(breaks=True), compiled).names
    frames.append(seen["total"])
    assert frames[1] - frames[0] == frames[2] - frames[1] > 0, frames
    assert {*names} >= {f"{layer}{sign}" for layer in ("Net", "blocks.0", "blocks.1") for sign in "><"}, Counter(names)


def check_fullgraph(folder: Path) -> None:
    """A model, and a function that calls it, compile as one graph inside a block."""

    def function(model: nn.Module) -> Any:
        return torch.compile(lambda x: model(x) * 2, backend="aot_eager", fullgraph=True)

    compare(folder, 10, wrap=lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))
    compare(folder, 10, wrap=function)


def check_inductor(folder: Path) -> None:
    """Graphs of Inductor name the layers of their kernels, forward and backward, and no others."""
    # Otherwise Inductor compiles a program for each instruction set of the CPU, and its headers first.
    faster = {"cpp.vec_isa_ok": True}
    if hasattr(torch._inductor.config, "cpp_cache_precompile_headers"):
        faster["cpp_cache_precompile_headers"] = False
    with warnings.catch_warnings(record=True) as caught, torch._inductor.config.patch(faster):
        warnings.simplefilter("always")
        ranges = compare(folder, 10, wrap=torch.compile).ranges
    told = [str(one.message) for one in caught if "compiled graphs show no layers" in str(one.message)]
    assert not told, told
    for sign in "><":
        named = {layer for one in ranges if one.tag and one.name.endswith(sign) for layer in one.tag.layer.split("+")}
        assert named >= LINEAR, f"kernels {sign} of {LINEAR - named} have no layers"
        assert named <= {"", *LAYERS, "engine"}, f"{named - {*LAYERS}} are no layers of the model"
    assert any(one.tag and one.tag.module.startswith("CompiledGraph") for one in ranges)


def check_export(folder: Path) -> None:
    """An exported program is the same, with the same names."""
    for strict in (True, False):
        model = Net()
        plain = torch.export.export(model, (X.detach(),), strict=strict)
        made: list[Any] = []

        def body(model: Any = model, strict: bool = strict, made: list[Any] = made) -> None:
            with emit_ranges(model):
                made.append(torch.export.export(model, (X.detach(),), strict=strict))

        capture(folder, body)
        assert made[0].graph_module.code == plain.graph_module.code
        assert made[0].graph_signature == plain.graph_signature


def check_profiler(_: Path) -> None:
    """torch.profiler gets the ranges, and with stacks."""
    model = Net()
    # On Python 3.13, PyTorch 2.5 and 2.6 crash with stacks, also without annot.
    stacks = RELEASE >= (2, 7) or sys.version_info < (3, 13)
    with torch.profiler.profile(with_stack=stacks) as profile, emit_ranges(model):
        model(X).sum().backward()
    keys = {event.key.split(" [")[0] for event in profile.key_averages()}
    assert {f"{layer} Linear" for layer in LINEAR} <= keys, sorted(keys)


def check_internals(_: Path) -> None:
    """The table of private objects is right for this release."""
    for one in internals.INTERNALS:
        first, last = (tuple(map(int, release.split("."))) if release else RELEASE for release in one.releases)
        has = internals.internal(one.name) is not None
        assert has == (first <= RELEASE <= last), f"{one.name}: {has}, the table says {one.releases}"


def state() -> tuple[object, ...]:
    """Return what a block patches."""
    optimizer: Any = torch.optim.Optimizer
    profiler: Any = torch.autograd.profiler
    return (
        nn.Module.__call__, torch.autograd.Variable._execution_engine, nn.Module._replicate_for_data_parallel,
        optimizer.zero_grad, optimizer._patch_step_function, nn.utils.clip_grad_norm_,
        profiler._enable_profiler, torch._C._len_torch_function_stack(),
    )  # fmt: skip


CHECKS = (
    *(
        check_internals,
        check_training,
        check_operations,
        check_memory,
        check_checkpointing,
        check_export,
        check_fullgraph,
    ),
    *(check_graph_breaks, check_inductor, check_profiler),
)
COMPILE = (check_export, check_fullgraph, check_graph_breaks, check_inductor)
"""Checks that need torch.compile."""


def compiles() -> bool:
    """Return whether this PyTorch has torch.compile for this Python: 2.5 has none for 3.13."""
    try:
        torch.compile(nn.Identity())
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Assert that nothing stays patched, and that annot has nothing to warn of."""
    before = state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert state() == before, "patches are left"
    ours = [str(one.message) for one in caught if "annot" in f"{one.message} {one.filename}"]
    assert not ours, ours


def _cpu_time() -> float:
    """Return the CPU time of this process and its children (s)."""
    return sum(os.times()[:4])


def main(folder: Path) -> int:
    """Run all checks, and return the exit status."""
    torch.set_num_threads(1)
    failed = 0
    print(f"torch {torch.__version__} python {platform.python_version()}", flush=True)
    able = compiles()
    for check in CHECKS:
        name, start = check.__name__.removeprefix("check_"), _cpu_time()
        if not able and check in COMPILE:
            print("skip", name, "PyTorch has no torch.compile for this Python", flush=True)
            continue
        try:
            torch._dynamo.reset()
            with unchanged():
                check(folder)
            print("ok", name, f"{_cpu_time() - start:.0f} s", flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc(limit=-2, file=sys.stdout)
            print("FAIL", name, f"{type(error).__name__}: {error}"[:300].replace("\n", " "), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    import tempfile

    import torch._dynamo
    import torch._inductor.config

    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(Path(scratch)))
