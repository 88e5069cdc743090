"""Every model in every mode: the same bits, a range for every layer that ran, nothing left.

A model joins with a line in `nets.MATRIX`, a mode with an entry of `MODES`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nets
import pytest
from captured import Captured, capture
from matrices import matrix

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.utils.checkpoint import checkpoint  # noqa: E402

from annot import emit_ranges  # noqa: E402
from annot.torch.ranges import choose  # noqa: E402

LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.LSTM, nn.Embedding)


def call_model(net: nets.Net, inputs: torch.Tensor) -> torch.Tensor:
    return net.model(inputs)  # type: ignore[no-any-return]


def checkpointed(net: nets.Net, inputs: torch.Tensor, reentrant: bool) -> torch.Tensor:
    """Run the model so that its backward runs it again."""
    inputs = inputs.clone().requires_grad_(inputs.is_floating_point())
    return checkpoint(net.model, inputs, use_reentrant=reentrant)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class Mode:
    """One way to run a model.

    Args:
        options: those of `emit_ranges`.
        around: what is entered for forward and loss.
        call: runs the model.
        prepare: changes the model before.
        applies: whether it can be done with such an input.
        trains: whether there is a backward.
    """

    options: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    call: Callable[[nets.Net, torch.Tensor], torch.Tensor] = call_model
    prepare: Callable[[nn.Module], object] = nn.Module.train
    applies: Callable[[torch.Tensor], bool] = lambda inputs: True
    trains: bool = True


def images(inputs: torch.Tensor) -> bool:
    return inputs.dim() == 4


# `make test` runs the first model in the first mode, the second in the second, and so on: the first five take images.
MODES = {
    "train": Mode(),
    "channels_last": Mode(prepare=lambda model: model.train().to(memory_format=torch.channels_last), applies=images),
    "reentrant": Mode(call=functools.partial(checkpointed, reentrant=True), applies=torch.is_floating_point),
    "eval": Mode(prepare=nn.Module.eval),
    "no_grad": Mode(around=torch.no_grad, prepare=nn.Module.eval, trains=False),
    "inference": Mode(around=torch.inference_mode, prepare=nn.Module.eval, trains=False),
    "autocast": Mode(around=functools.partial(torch.autocast, "cpu", torch.bfloat16)),
    "checkpoint": Mode(call=functools.partial(checkpointed, reentrant=False)),
    "anomaly": Mode(around=functools.partial(torch.autograd.detect_anomaly, check_nan=False)),
    "no shapes": Mode({"shapes": False}),
    "forward only": Mode({"backward": False}),
    "backward only": Mode({"forward": False}),
    "no optimizer": Mode({"optimizer": False}),
    "ops": Mode({"ops": True}),
    "memory": Mode({"memory": True}),
    "depth": Mode({"depth": 1}),
    "include": Mode({"include": LAYERS}),
    "exclude": Mode({"exclude": ["**.0", nn.Sequential]}),
}


@functools.cache
def built(name: str) -> nets.Net:
    return nets.MATRIX[name]()


def run(net: nets.Net, mode: Mode) -> list[torch.Tensor]:
    """Run one step; return the loss, what the step left in the model, and the gradients."""
    torch.manual_seed(3)
    net.model.zero_grad()
    inputs, target = net.make_batch(0)
    with mode.around():
        loss = net.loss_fn(mode.call(net, inputs), target)
        if mode.trains:
            loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(b.clone() for b in net.model.buffers()), *gradients(net.model).values()]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {path: p.grad.clone() for path, p in model.named_parameters() if p.grad is not None}


def calls_of_leaves(model: nn.Module, body: Callable[[], object]) -> Counter[str]:
    """Count how often each module without children is called."""
    seen: Counter[str] = Counter()
    leaves = {path: module for path, module in model.named_modules() if not list(module.children())}
    handles = [
        module.register_forward_pre_hook(lambda *_, path=path: seen.update([path])) for path, module in leaves.items()
    ]
    body()
    for handle in handles:
        handle.remove()
    return seen


def ranges_of(captured: Captured, phase: str) -> Counter[str]:
    """Count the ranges of each layer."""
    return Counter(one.tag.layer for one in captured.ranges if one.tag and one.tag.phase == phase and one.tag.module)


def state_of_torch() -> list[object]:
    """All that annot replaces or registers anywhere."""
    hooks, modules = (
        importlib.import_module("torch.optim.optimizer"),
        importlib.import_module("torch.nn.modules.module"),
    )
    return [
        nn.Module.__call__, torch.autograd.Variable._execution_engine, vars(torch.optim.SGD)["step"],
        vars(torch.optim.Optimizer)["_patch_step_function"], dict(hooks._global_optimizer_pre_hooks),
        dict(hooks._global_optimizer_post_hooks), *(dict(d) for n, d in vars(modules).items() if n.startswith("_global")
                                                   and isinstance(d, dict)),
    ]  # fmt: skip


def hooks_of(model: nn.Module) -> list[object]:
    return [vars(module).get(name) and dict(vars(module)[name])
            for module in model.modules() for name in vars(module) if name.endswith("_hooks")]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On layers as small as these, threads that wait for each other on busy cores take a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def optimizer_class_in_use() -> Iterator[None]:
    """PyTorch patches the class of an optimizer when the first one is made; that is no doing of ours."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    yield
    built.cache_clear()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(("name", "mode_name"), matrix(nets.MATRIX, MODES))
def test_every_model_in_every_mode(tmp_path: Path, name: str, mode_name: str) -> None:
    """Balanced, complete, bit-identical, and gone."""
    net, mode = built(name), MODES[mode_name]
    net = net._replace(model=copy.deepcopy(net.model))
    if not mode.applies(net.make_batch(0)[0]):
        pytest.skip("does not apply")
    mode.prepare(net.model)
    buffers = [buffer.clone() for buffer in net.model.buffers()]
    plain: list[torch.Tensor] = []
    try:
        expected = calls_of_leaves(net.model, lambda: plain.extend(run(net, mode)))
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip(f"oneDNN cannot run it on this CPU: {error}")
    trained = {path.rpartition(".")[0] for path in gradients(net.model)}
    for buffer, old in zip(net.model.buffers(), buffers, strict=True):
        buffer.copy_(old)
    before, hooks = state_of_torch(), hooks_of(net.model)
    traced: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(net.model, **mode.options):
            traced.extend(run(net, mode))

    captured = capture(tmp_path, body)
    assert len(traced) == len(plain) > 0
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))
    assert (state_of_torch(), hooks_of(net.model)) == (before, hooks)

    choice = choose(*(mode.options.get(option) for option in ("include", "exclude", "depth")))
    chosen = {path for path, module in net.model.named_modules() if choice.takes(path, module)}
    forward = ranges_of(captured, "forward") + ranges_of(captured, "recompute")
    backward = ranges_of(captured, "backward")
    if mode.options.get("forward", True):
        assert {path: forward[path] for path in expected} == {
            path: n * (path in chosen) for path, n in expected.items()
        }
        assert set(forward) <= chosen
    else:
        assert not forward
    if mode.options.get("backward", True):
        assert trained & chosen <= set(backward) <= chosen
    else:
        assert not backward
    assert bool(trained) == mode.trains


def test_every_sample_is_registered() -> None:
    """A model of samples/ takes part under the name of its file."""
    folder = Path(inspect.getfile(nets.AlexNet)).parent
    samples = {path.stem for path in folder.glob("*.py") if "nn.Module)" in path.read_text(encoding="utf-8")}
    assert {"alexnet", "resnet50"} <= samples <= set(nets.MATRIX)
