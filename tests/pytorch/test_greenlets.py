"""Greenlets that leave calls of modules in another order than they entered them, as servers under gevent do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from captured import capture
from sanitized import run_sanitized

torch = pytest.importorskip("torch")
greenlet = pytest.importorskip("greenlet")

from annot import emit_ranges, mark, native  # noqa: E402

needs_native = pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off")

BLOCKS = """
import greenlet, torch, annot

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def forward(self, x):
        y = self.one(x)
        greenlet.getcurrent().parent.switch()
        return self.two(y)

models = torch.nn.ModuleList([Block() for _ in range(4)])
x = torch.ones(2, 4)

def take_turns():
    "All enter, and the first that has entered is the first to leave."
    running = [greenlet.greenlet(model) for model in models]
    for one in running: one.switch(x)
    outputs = [one.switch() for one in running]
    assert all(one.dead for one in running)
    return outputs
"""

UNKNOWN = """
class Nowhere:
    parent = object()
nowhere = Nowhere()
"Other switchers of stacks than greenlet are unknown: to annot all calls are those of one coroutine."
import annot.torch.module_calls
annot.native.emitter().watch_greenlets(lambda: nowhere)
"""


class Block(torch.nn.Module):
    """Two layers; between them another greenlet runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Switch to the parent amid the call."""
        y = self.one(x)
        greenlet.getcurrent().parent.switch()
        return self.two(y)


class Late(torch.nn.Module):
    """Computes after the switch, before it calls another layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.fc = name, torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Switch to the parent amid the call."""
        y = self.fc(x)
        greenlet.getcurrent().parent.switch()
        z = y.exp()
        z.grad_fn.register_hook(lambda *_: mark(self.name))
        return z


@pytest.mark.parametrize("on", ["this thread", "another thread"])
def test_what_runs_after_a_switch_belongs_to_its_own_greenlet(tmp_path: Path, on: str) -> None:
    """A tracer of switches that is there already hears of them, too."""
    models = torch.nn.ModuleDict({name: Late(name) for name in "ab"})
    switches: list[str] = []

    def turns() -> None:
        before = greenlet.gettrace()

        def heard(event: str, pair: Any) -> None:
            switches.append(event)
            if before is not None:
                before(event, pair)

        greenlet.settrace(heard)
        outputs: list[torch.Tensor] = []
        running = [greenlet.greenlet(lambda name=name: outputs.append(models[name](torch.ones(2, 4)))) for name in "ab"]
        for _ in range(2):
            for one in running:
                one.switch()
        for output in outputs:
            output.sum().backward()
        greenlet.settrace(before)

    def body() -> None:
        with emit_ranges(models):
            if on == "this thread":
                turns()
            else:
                thread = threading.Thread(target=turns)
                thread.start()
                thread.join()

    captured = capture(tmp_path, body)
    found = {text: captured.innermost(at, thread) for at, text, thread in captured.marks}
    assert {text: one and one.name for text, one in found.items()} == {"a": "a<", "b": "b<"}
    assert switches == ["switch"] * 8


@pytest.mark.parametrize("leave", [(0, 1), (1, 0)], ids=["first in, first out", "nested"])
def test_greenlets_have_calls_of_their_own(tmp_path: Path, leave: tuple[int, int]) -> None:
    """Backward ranges name the layers of the greenlet that made the graph, and nest as its calls did."""
    models = torch.nn.ModuleList([Block(), Block()])
    x = torch.ones(2, 4)

    def body() -> None:
        with emit_ranges(models, forward=False):
            running = [greenlet.greenlet(model) for model in models]
            for one in running:
                one.switch(x)
            outputs = {place: running[place].switch() for place in leave}
            for place in range(2):
                outputs[place].sum().backward()

    expected = [("engine<", (f"{place}<", f"{place}.two<", f"{place}.one<")) for place in range(2)]
    assert capture(tmp_path, body).trees == expected


def test_a_call_after_greenlets_stands_by_itself(tmp_path: Path) -> None:
    """What is called when all greenlets are done is no part of their calls."""
    models = torch.nn.ModuleList([Block(), Block()])

    def body() -> None:
        with emit_ranges(models, forward=False):
            running = [greenlet.greenlet(model) for model in models]
            for one in running:
                one.switch(torch.ones(2, 4))
            for one in running:
                one.switch()
            models[0].one(torch.ones(2, 4)).sum().backward()

    assert capture(tmp_path, body).trees == [("engine<", "0.one<")]


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("switcher", ["", UNKNOWN], ids=["greenlet", "unknown"])
def test_calls_that_end_in_another_order_touch_nothing_freed(tmp_path: Path, switcher: str) -> None:
    """Nor do calls that come later, here or on another thread, with and without gradients."""
    program = f"""{BLOCKS}{switcher}
import threading
for grad in (True, False):
    with annot.emit_ranges(models, backward=grad), torch.set_grad_enabled(grad):
        for _ in range(50):
            for output in take_turns():
                if grad: output.sum().backward()
            models[0].one(x)
            torch.nn.MSELoss()(x, x)
        thread = threading.Thread(target=lambda: [one.sum() for one in take_turns()])
        thread.start(); thread.join()
print("survived")
"""
    assert run_sanitized(program, tmp_path) == "survived\n"


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("switcher", ["", UNKNOWN], ids=["greenlet", "unknown"])
def test_many_calls_that_overlap_are_freed_on_a_small_stack(tmp_path: Path, switcher: str) -> None:
    """No chain of calls grows without bound, and none is freed by recursion."""
    program = f"""{BLOCKS}{switcher}
import threading
def serve():
    with torch.no_grad():
        last = greenlet.greenlet(models[0])
        last.switch(x)
        for _ in range(2_000):  # a server that is never idle: a call begins before the last one ends
            following = greenlet.greenlet(models[1])
            following.switch(x)
            last.switch()
            last = following
        last.switch()
        for _ in range(5_000): take_turns()
threading.stack_size(1 << 17)
with annot.emit_ranges(models):
    thread = threading.Thread(target=serve)
    thread.start(); thread.join()
    for _ in range(5):  # one of them frees what the first has left
        thread = threading.Thread(target=lambda: models[0].one(x))
        thread.start(); thread.join()
print("survived")
"""
    assert run_sanitized(program, tmp_path) == "survived\n"


def test_calls_that_greenlets_leave_in_the_order_of_entry(tmp_path: Path) -> None:
    """The one that ends closes no range of the one that goes on."""
    models = {name: Block() for name in ("first", "second")}

    def body() -> None:
        with emit_ranges(torch.nn.ModuleDict(models)):
            running = [greenlet.greenlet(model) for model in models.values()]
            for one in running:
                one.switch(torch.ones(2, 4))
            for one in running:
                one.switch()

    captured = capture(tmp_path, body)
    assert (captured.open_ranges, captured.unmatched_pops) == (0, 0)
