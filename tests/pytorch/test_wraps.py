"""Wraps and modes of other libraries around modules, beside forward ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from torch_block import Block  # noqa: E402

from annot import emit_ranges  # noqa: E402

Run = Callable[[nn.Module, Callable[[], object]], list[object]]


@pytest.fixture
def forward(tmp_path: Path) -> Run:
    """Run a body inside `emit_ranges(model, backward=False)`; return the trees that were recorded."""

    def run(model: nn.Module, body: Callable[[], object]) -> list[object]:
        def inside() -> None:
            with emit_ranges(model, backward=False):
                body()

        return capture(tmp_path, inside).trees

    return run


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test PyTorch is as it was."""
    before = nn.Module.__call__, torch.autograd.Variable._execution_engine
    yield
    assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == before


def test_another_patch_of_call_may_leave_out_of_order(forward: Run) -> None:
    """If somebody else has patched `Module.__call__` inside the block, theirs stays and ours goes silent."""
    model = Block()
    original = nn.Module.__call__
    calls: list[nn.Module] = []

    def body() -> None:
        below = nn.Module.__call__

        def theirs(self: nn.Module, *args: object, **kwargs: object) -> object:
            calls.append(self)
            return below(self, *args, **kwargs)

        nn.Module.__call__ = theirs
        model(torch.ones(1, 3))

    try:
        assert forward(model, body) == [("Block>", "fc>", "act>")]
        assert nn.Module.__call__ is not original
        model(torch.ones(1, 3))
        assert len(calls) == 6
    finally:
        nn.Module.__call__ = original


def test_a_wrap_of_call_that_outlives_the_block(forward: Run) -> None:
    """Somebody wraps `__call__` inside a block and stays: later blocks still work, and so does taking it away."""
    model = Block()
    original = nn.Module.__call__
    inside: list[object] = []

    def wrap() -> None:
        below = nn.Module.__call__
        inside.append(below)
        nn.Module.__call__ = lambda self, *args, **kwargs: below(self, *args, **kwargs)

    tree = ("Block>", "fc>", "act>")
    try:
        forward(model, wrap)
        assert forward(model, lambda: model(torch.ones(1, 3))) == [tree]
        nn.Module.__call__ = inside[0]
        model(torch.ones(1, 3))
        assert forward(model, lambda: model(torch.ones(1, 3))) == [tree]
        nn.Module.__call__ = original
        assert forward(model, lambda: model(torch.ones(1, 3))) == [tree]
    finally:
        nn.Module.__call__ = original


@pytest.mark.parametrize("memory", [(False, True), (True, False)])
def test_a_wrap_of_call_stays_between_blocks_of_other_kinds(tmp_path: Path, memory: tuple[bool, bool]) -> None:
    """A block with `memory=True` calls modules in another way than one without."""
    model = Block()
    original = nn.Module.__call__

    def body() -> None:
        with emit_ranges(model, memory=memory[0]):
            below = nn.Module.__call__
            nn.Module.__call__ = lambda self, *args, **kwargs: below(self, *args, **kwargs)
        for kind in (*reversed(memory), memory[1]):
            with emit_ranges(model, memory=kind):
                model(torch.ones(1, 3)).sum().backward()

    try:
        captured = capture(tmp_path, body)
    finally:
        nn.Module.__call__ = original
    forward = ("Block>", "fc>", "act>")
    assert [tree for tree in captured.trees if tree == forward] == [forward] * 3
    assert captured.names.count("fc<") == 3
    assert bool(captured.marks)


def test_operations_that_a_mode_sees_are_the_same(forward: Run) -> None:
    """A `TorchFunctionMode` of the user's sees no look of ours at a tensor, once the shapes are known."""
    from annot.emit.client import IS_NATIVE

    if not IS_NATIVE:
        pytest.skip("in pure Python every look at a shape goes through the mode")

    class Log(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(
            self, function: object, types: object, args: tuple[object, ...] = (), kwargs: object = None
        ) -> object:
            self.seen.append(getattr(function, "__name__", "?"))
            return function(*args, **(kwargs or {}))  # type: ignore[operator, misc]

    model = Block()

    def log() -> list[str]:
        with Log() as mode:
            model(torch.ones(1, 3, requires_grad=True))
        return mode.seen

    plain = log()
    logs: list[list[str]] = []
    forward(model, lambda: logs.append(log()))
    assert logs == [plain]
