"""What the range of an optimizer's step says, and the work that follows from it, against what PyTorch calls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from captured import capture  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import annot  # noqa: E402
from annot.analyze.work.formulas import expected  # noqa: E402
from annot.labels.tag import parse  # noqa: E402

PER_ELEMENT = {
    "mul_": 1, "mul": 1, "neg": 1, "sqrt": 1, "sqrt_": 1, "div_": 1, "div": 1, "maximum": 1, "abs": 1, "rsqrt": 1,
    "lerp_": 3, "addcmul_": 3, "addcmul": 3, "addcdiv_": 3, "sub": 1, "reciprocal": 1,
}  # fmt: skip
"""Operations an element of what an optimizer calls; a scale of one costs nothing."""
COPIES = ("clone", "copy_", "zeros_like", "empty_like", "detach", "is_same_size", "_to_copy", "view", "unsqueeze")


class Counter(TorchDispatchMode):  # type: ignore[misc]  # PyTorch does not say its type
    """Counts the operations on tensors of more than one element."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if isinstance(result, torch.Tensor) and result.numel() > 1 and name not in COPIES:
            self.flops += self.each(name, args, kwargs or {}) * result.numel()
        return result

    def each(self, name: str, args: Any, kwargs: Any) -> int:
        """Operations an element."""
        if name in ("add", "add_"):
            return 1 if kwargs.get("alpha", 1) == 1 else 2
        unscaled = name.startswith("addc") and kwargs.get("value", 1) == 1
        return PER_ELEMENT[name] - unscaled


def texts(folder: Path, *optimizers: Any) -> list[str]:
    """The texts of one step of each."""

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity()):
            for optimizer in optimizers:
                optimizer.step()

    return [text for text in capture(folder, body).texts if text.startswith("Optimizer")]


def weights(*shapes: tuple[int, ...], dtype: Any = torch.float32) -> list[Any]:
    """Parameters with gradients."""
    found = [torch.nn.Parameter(torch.rand(shape, dtype=dtype) + 0.5) for shape in shapes]
    for parameter in found:
        parameter.grad = torch.rand_like(parameter)
    return found


CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("Adagrad", {"weight_decay": 0.1}),
    ("Adadelta", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_work_is_what_pytorch_calls(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """FLOPs of a step that has its state; parameters and state are read and written, gradients are read."""
    optimizer = getattr(torch.optim, name)(weights((3, 4), (5,)), lr=0.01, foreach=False, **options)
    optimizer.step()
    (text,) = texts(tmp_path, optimizer)
    with Counter() as counter:
        optimizer.step()
    tag = parse(text)
    assert tag is not None
    work = expected(tag)
    assert work is not None, text
    assert (work.flops, work.params) == (counter.flops, 17)
    states = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v) and v.dim()]
    moved = sum(state.numel() for state in states) + 17
    assert (work.bytes_read, work.bytes_written) == (4 * (moved + 17), 4 * moved)


def test_text_follows_the_groups(tmp_path: Path) -> None:
    """Alike groups are one; a group that comes later counts; another object of the class has its own number."""
    decayed, plain = weights((3, 4)), weights((4,), (2, 2))
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}])
    assert texts(tmp_path, optimizer) == ["Optimizer AdamW params=12,8 weight_decay=decoupled,False |opt"]
    optimizer.add_param_group({"params": weights((5,))})
    other = torch.optim.AdamW([{"params": weights((7,), dtype=torch.bfloat16)}], weight_decay=0.0, amsgrad=True)
    assert texts(tmp_path, optimizer, other, optimizer) == [
        "Optimizer AdamW params=17,8 weight_decay=decoupled,False |opt",
        "Optimizer AdamW params=7 dtype=bf16 amsgrad=True |opt",
        "Optimizer AdamW params=17,8 weight_decay=decoupled,False |opt",
    ]


def test_kinds_of_parameters_add_up() -> None:
    """Each kind has its own number of operations and bytes an element."""
    tag = parse("Optimizer AdamW params=12,8 dtype=f32,bf16 weight_decay=decoupled,False |opt")
    work = expected(tag) if tag else None
    assert work is not None
    assert (work.flops, work.params) == (12 * 14 + 8 * 13, 20)
    assert (work.bytes_read, work.bytes_written) == (4 * (12 * 4 + 8 * 2), 3 * (12 * 4 + 8 * 2))


def test_classes_of_somebodys_own(tmp_path: Path) -> None:
    """One that inherits its step says from where; one with another step computes what nobody knows."""

    class Named(torch.optim.SGD):
        pass

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    found = texts(tmp_path, *(cls(weights((3,)), lr=0.1) for cls in (Named, Own)))
    assert found == ["Optimizer Named base=SGD params=3 |opt", "Optimizer Own params=3 |opt"]
    known = [expected(tag) for text in found if (tag := parse(text))]
    assert (known[0] and known[0].flops, known[1]) == (6, None)


def test_a_switch_that_is_a_tensor_is_not_read(tmp_path: Path) -> None:
    """To read it would wait for its device; a learning rate that is one changes nothing."""
    optimizer = torch.optim.SGD(weights((3,)), lr=torch.tensor(0.1))
    optimizer.param_groups[0]["weight_decay"] = torch.tensor(math.nan)
    with torch.no_grad():
        assert texts(tmp_path, optimizer) == ["Optimizer SGD params=3 |opt"]


def test_an_optimizer_with_groups_of_another_kind(tmp_path: Path) -> None:
    """Its step has a range that says its class alone, and raises nothing that it does not raise without."""
    steps: list[Any] = []

    class ByName(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})
            self.param_groups = {"decay": self.param_groups[0]}  # type: ignore[assignment]

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            steps.append(closure)

    def body() -> None:
        with annot.emit_ranges(torch.nn.Linear(1, 1)):
            optimizer.step()

    optimizer = ByName([torch.nn.Parameter(torch.ones(1))])
    assert capture(tmp_path, body).texts == ["Optimizer ByName |opt"]
    assert steps == [None]
