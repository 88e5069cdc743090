"""What ranges around PyTorch layers cost, beside hooks and torch.profiler doing the same.

Run by hand, with `tests` and `samples` on the path: ``make bench``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import nets
import nvtx
import torch
from harness import Timings, Variant, mode, null_tool_pushes, report, run_in_modes, time_variants
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from annot import emit_ranges

FORWARD_US: Final = {"native": 0.35, "python": 1.2}
STEP: Final = {"resnet": {"native": 1.08, "python": 1.15}, "gpt": {"native": 1.12, "python": 1.22}}
# Against hooks and torch.profiler only the C parts have a budget.
OF_HOOKS: Final = {"native": 0.1, "python": None}
OF_PROFILER: Final = {"native": 1 / 3, "python": None}
REPEATS: Final = 200
NONE: Final[Mapping[str, Any]] = {}


class Repeat(nn.Module):
    """Calls one layer many times, so that nothing but the layer's own calls counts."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> None:
        """Call the layer and drop what it returns."""
        layer = self.layer
        for _ in range(REPEATS):
            layer(x)


# ------------------------------------------------------------------ variants


def annot_ranges(model: nn.Module, **options: Any) -> Variant:
    """Return the variant with annot's ranges."""
    return lambda: emit_ranges(model, **options)


def forward_hooks(model: nn.Module) -> Variant:
    """Return the variant with forward hooks that tag each range with path, class, shapes and dtypes.

    They look at tensors passed by keyword too, and close the range after an exception, as annot does.
    """

    @contextmanager
    def enter() -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            before, after = _tagging_hooks(f"{path} {type(module).__name__}", "fwd")
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return enter


def backward_hooks(model: nn.Module) -> Variant:
    """Return the variant with full backward hooks that tag each range with the shapes of the gradients."""

    @contextmanager
    def enter() -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            before, after = _tagging_hooks(f"{path} {type(module).__name__}", "bwd")
            handles.append(module.register_full_backward_pre_hook(before))
            handles.append(module.register_full_backward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return enter


def torch_profiler() -> AbstractContextManager[object]:
    """Enter torch.profiler as it is used to get shapes per operation."""
    return profile(activities=[ProfilerActivity.CPU], record_shapes=True)


def _tagging_hooks(name: str, phase: str) -> tuple[Callable[..., None], Callable[..., None]]:
    domain = nvtx.get_domain("hooks")
    known: dict[Any, Any] = {}

    def before(module: nn.Module, tensors: Any, named: Mapping[str, Any] = NONE) -> None:
        key = tuple((t.shape, t.dtype) for t in tensors if isinstance(t, Tensor))
        if named:
            key += tuple((t.shape, t.dtype) for t in named.values() if isinstance(t, Tensor))
        attributes = known.get(key)
        if attributes is None:
            shapes = " ".join(f"{list(shape)}{dtype}" for shape, dtype in key)
            attributes = known[key] = domain.get_event_attributes(message=f"{name} {shapes} |{phase}")
        domain.push_range(attributes)

    def after(module: nn.Module, inputs: Any, outputs: Any) -> None:
        domain.pop_range()

    return before, after


# ------------------------------------------------------------------ what is measured


def measure_forward(name: str, layer: nn.Module, x: Tensor) -> None:
    """Compare a layer's plain call with its call inside a range."""
    model = Repeat(layer)
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "annot": annot_ranges(model, backward=False),
        "annot, with backward": annot_ranges(model),
        "hooks": forward_hooks(model),
    }
    pushed = _pushes_of(variants["annot"], lambda: model(x))
    timings = time_variants(variants, lambda: model(x), calls=5, rounds=60)
    hooks = timings.added("hooks") / REPEATS
    plain = f"plain {timings.median('plain') / REPEATS / 1000:.3f} µs, {pushed / REPEATS:.2f} ranges a call"
    for variant, budget in (("annot", FORWARD_US[mode()]), ("annot, with backward", None)):
        report(f"forward {name}: {variant}", timings.added(variant) / REPEATS / 1000, "µs", budget, plain)
    report(
        f"forward {name}: annot over hooks",
        timings.added("annot") / REPEATS / hooks,
        "×",
        OF_HOOKS[mode()],
        f"hooks {hooks / 1000:.3f} µs",
    )


def measure_backward() -> None:
    """Compare annot's backward ranges with full backward hooks, on a net where those do not raise."""
    net = nets.gpt()
    layers = sum(1 for _ in net.model.modules())
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "annot": annot_ranges(net.model, forward=False),
        "hooks": backward_hooks(net.model),
    }
    timings, pushed = _time_steps(net, variants)
    hooks = timings.added("hooks") / layers / 1000
    added = timings.added("annot") / layers / 1000
    report("backward GPT, per layer: annot", added, "µs", None, f"{pushed} ranges a step, {layers} layers")
    report("backward GPT, per layer: annot over hooks", added / hooks, "×", 1 / 3, f"hooks {hooks:.3f} µs")


def measure_step(name: str, net: nets.Net) -> None:
    """Compare forward and backward of a whole net: plain, with annot, under torch.profiler."""
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "annot": annot_ranges(net.model),
        "profiler": torch_profiler,
    }
    timings, pushed = _time_steps(net, variants)
    plain = f"plain {timings.median('plain') / 1e6:.2f} ms, {pushed} ranges a step"
    report(f"step {name}: annot over plain", timings.ratio("annot"), "×", STEP[name][mode()], plain)
    share = timings.added("annot") / timings.added("profiler")
    note = f"torch.profiler ×{timings.ratio('profiler'):.3f} of plain"
    report(f"step {name}: annot's cost over torch.profiler's", share, "×", OF_PROFILER[mode()], note)


def _time_steps(net: nets.Net, variants: dict[str, Variant]) -> tuple[Timings, int]:
    inputs, target = net.make_batch(0)

    def step() -> None:
        net.loss_fn(net.model(inputs), target).backward()  # type: ignore[no-untyped-call]

    pushed = _pushes_of(variants["annot"], step)
    return time_variants(variants, step, calls=10, rounds=60), pushed


def _pushes_of(variant: Variant, call: Callable[[], object]) -> int:
    with variant():
        before = null_tool_pushes()
        call()
        return null_tool_pushes() - before


def measure() -> None:
    """Print every figure of this process's mode."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    measure_forward("Identity", nn.Identity(), torch.randn(4, 8))
    measure_forward("ReLU", nn.ReLU(), torch.randn(4, 8))
    measure_forward("Linear", nn.Linear(8, 8), torch.randn(4, 8))
    measure_backward()
    measure_step("resnet", nets.small_resnet())
    measure_step("gpt", nets.gpt())


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    else:
        run_in_modes(__file__)
