"""torch.compile compiles no function of annot, whichever private function of PyTorch tells it so."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

import torch._dynamo as compiler  # noqa: E402
from compiled_nets import Net, X  # noqa: E402
from torch._dynamo.convert_frame import ConvertFrameAssert  # noqa: E402
from torch._dynamo.types import ConvertFrameReturn  # noqa: E402
from torch_smoke import check_internals  # noqa: E402

from annot import emit_ranges, native  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.torch import dynamo, internals  # noqa: E402

MARKS = [dynamo._mark_since_2_7, dynamo._mark_before_2_7]
PATH = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Start every test with nothing compiled, no mark tested, and every warning still to come."""
    compiler.reset()
    client.warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    compiler.reset()
    dynamo._marker.cache_clear()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """File and function of all frames that torch.compile has seen."""
    seen: set[tuple[str, str]] = set()
    original = ConvertFrameAssert.__call__

    def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_code.co_name))
        return original(self, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrameAssert, "__call__", convert)
    return seen


def whole_step(model: nn.Module) -> Callable[[], object]:
    """Compile forward, backward and update, with breaks between them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.zero_grad()
        model(X).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def update(model: nn.Module) -> Callable[[], object]:
    """Compile the step of an optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    step: Callable[[], object] = torch.compile(optimizer.step, backend="eager")
    return step


@pytest.mark.parametrize("call", [whole_step, update])
@pytest.mark.parametrize("options", [{}, {"ops": True}, {"memory": True}], ids=["ranges", "ops", "memory"])
def test_torch_compile_sees_no_frame_that_it_does_not_see_in_a_plain_run(
    tmp_path: Path, frames: set[tuple[str, str]], call: Callable[[nn.Module], Callable[[], object]],
    options: dict[str, Any],
) -> None:  # fmt: skip
    """And so none of annot, neither in the call of a layer nor around the backward, the optimizer and clipping."""
    model = Net(breaks=True)
    step = call(model)
    for _ in range(3):
        step()
    plain = set(frames)
    assert plain
    frames.clear()
    compiler.reset()
    model = Net(breaks=True)
    step = call(model)

    def body() -> None:
        with emit_ranges(model, **options):
            for _ in range(3):
                step()

    capture(tmp_path, body)
    assert frames - plain == set()
    assert frames


@pytest.mark.parametrize("inside", [False, True])
def test_a_mark_is_used_only_if_it_works(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This release has a mark that passes. Each way in which a release may differ fails the test."""
    (working,) = [mark for mark in MARKS if dynamo._works(mark, inside=inside)]
    assert not dynamo._works(lambda *_, **__: None, inside=inside)
    assert not dynamo._works(lambda code, **_: working(code, inside=not inside), inside=inside)
    original, kept = dynamo.set_callback, list[Any]()

    def keeps_a_reference(callback: Any) -> Any:
        kept.append(original(callback))
        return kept[-1]

    dynamo.skip(keeps_a_reference)
    for differs in (keeps_a_reference, lambda _: None, None):
        monkeypatch.setattr(dynamo, "set_callback", differs)
        assert not dynamo._works(working, inside=inside), differs
    assert original(None) is None


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Call a function that torch.compile would compile."""
    return doubled(left) + right


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return twice the argument."""
    return x * 2


@pytest.mark.parametrize("marks", [True, False], ids=["marked", "disabled"])
def test_a_function_is_skipped_with_all_that_it_calls(marks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the mark of this release, and without one by `torch.compiler.disable`: arguments and results arrive."""
    if not marks:
        monkeypatch.setattr(dynamo, "_marker", lambda *, inside: None if inside else dynamo._mark_since_2_7)
    for function in (add, doubled):
        function.__code__ = function.__code__.replace()  # a copy that torch.compile has neither seen nor skipped
    skipped, seen = dynamo.skip_all(add), set[str]()

    def callback(frame: Any, *_: Any) -> ConvertFrameReturn:
        seen.add(frame.f_code.co_name)
        return ConvertFrameReturn()

    def watched(function: Callable[..., Any]) -> Any:
        before = dynamo.set_callback(callback)
        try:
            return function(X, X)
        finally:
            dynamo.set_callback(before)

    assert torch.equal(watched(skipped), X * 3)
    assert not seen & {"call", "add", "doubled"}
    assert torch.equal(watched(lambda left, right: doubled(left) + right), X * 3)
    assert "doubled" in seen


def test_a_release_without_marks_warns_once_and_trains_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then torch.compile compiles functions of annot too, which changes no result."""
    monkeypatch.setattr(dynamo, "_marker", lambda *, inside: None)
    dynamo.skip_own_code.cache_clear()
    model = Net(breaks=True)
    wanted = torch.compile(model, backend="eager")(X)
    compiler.reset()

    def body() -> None:
        with pytest.warns(RuntimeWarning, match="also compiles functions of annot") as told, emit_ranges(model):
            assert torch.equal(torch.compile(model, backend="eager")(X), wanted)
        assert len(told) == 1

    capture(tmp_path, body)


def test_the_table_of_private_objects_is_right_and_complete() -> None:
    """Its releases fit this one, and annot writes no other private name of a module or class of PyTorch."""
    check_internals(Path())
    listed = {one.name for one in internals.INTERNALS}
    used = set()
    for path in Path(dynamo.__file__).parent.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        used |= {name for name in names if re.fullmatch(r"torch\.([\w.]+\.)?_[a-zA-Z]\w*", name)}
    assert used - listed == {"torch._C"}
    sources = [path.read_text(encoding="utf-8") for path in (Path(native.__file__).parent / "emit").glob("torch_*.c")]
    in_c = {name for source in sources for name in re.findall(r'"torch", "([\w.]+\._\w+)"', source)}
    assert in_c
    assert {f"torch.{name}" for name in in_c} <= listed


def test_a_release_that_lacks_a_private_object_trains_without_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning names it, and nothing is patched."""
    monkeypatch.setattr(internals, "missing", lambda: ("torch._C._renamed",))
    model = Net()
    before = nn.Module.__call__

    def body() -> None:
        for _ in range(2):
            with emit_ranges(model):
                assert nn.Module.__call__ is before
                model(X).sum().backward()

    with pytest.warns(RuntimeWarning, match=r"lacks torch\._C\._renamed") as told:
        captured = capture(tmp_path, body)
    assert len(told) == 1
    assert captured.ranges == []


@pytest.mark.slow
@pytest.mark.parametrize("has_c", [True, False], ids=["native", "python"])
def test_the_smoke_test_of_the_matrix_passes(has_c: bool) -> None:
    """It runs with other releases of PyTorch in `make test-matrix`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_"))}
    environ |= {"PYTHONPATH": PATH} | ({} if has_c else {"ANNOT_DISABLE_NATIVE": "1"})
    result = forked.python(Path(__file__).parents[1] / "support/torch_smoke.py", env=environ)
    assert result.returncode == 0, result.stdout + result.stderr
