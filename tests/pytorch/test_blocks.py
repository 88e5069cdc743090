"""Several blocks, models and threads at a time, as a real NVTX tool sees them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from captured import Captured, capture
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.optim.swa_utils import AveragedModel  # noqa: E402
from torch_block import Block  # noqa: E402

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.torch import module_paths, ranges  # noqa: E402
from annot.torch.module_sites import Numbered, numbered  # noqa: E402
from annot.util import lru_cache  # noqa: E402


def test_threads_have_ranges_of_their_own(tmp_path: Path) -> None:
    """Each thread's calls nest on that thread."""
    model = Block()
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            model(torch.ones(1, 3))

    def body() -> None:
        with emit_ranges(model):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    captured = capture(tmp_path, body)
    assert captured.trees == [("Block>", "fc>", "act>")] * 80
    assert len({one.thread for one in captured.ranges}) == 4


def test_two_models_side_by_side(tmp_path: Path) -> None:
    """Blocks of two models may overlap and end in any order."""
    one, two = Block(), nn.Sequential(nn.Tanh())

    def body() -> None:
        first, second = emit_ranges(one), emit_ranges(two)
        first.__enter__()
        second.__enter__()
        one(torch.ones(1, 3))
        first.__exit__(None, None, None)
        one(torch.ones(1, 3))
        two(torch.ones(1, 3))
        second.__exit__(None, None, None)
        two(torch.ones(1, 3))

    assert capture(tmp_path, body).trees == [("Block>", "Block.fc>", "Block.act>"), ("Sequential>", "Sequential.0>")]


def test_overlapping_blocks_of_one_model(tmp_path: Path) -> None:
    """Two blocks hold the model; the one that ends first does not take it from the other."""
    model = Block()

    def body() -> None:
        first, second = emit_ranges(model), emit_ranges(model)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        model(torch.ones(1, 3))
        second.__exit__(None, None, None)
        model(torch.ones(1, 3))

    assert capture(tmp_path, body).trees == [("Block>", "fc>", "act>")]


def names_of(captured: Captured) -> list[str]:
    return list(dict.fromkeys(one.tag.layer for one in captured.ranges if one.tag and one.tag.module))


def gan() -> tuple[nn.Module, nn.Module]:
    """Return a generator and a discriminator of one class."""
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3))


def test_two_models_of_a_class_have_rows_of_their_own(tmp_path: Path) -> None:
    """Forward and backward of two models in nested blocks are told apart, without a word from the user."""
    generator, discriminator = gan()

    def body() -> None:
        with emit_ranges(generator), emit_ranges(discriminator):
            discriminator(generator(torch.ones(1, 3))).sum().backward()

    captured = capture(tmp_path, body)
    assert names_of(captured) == [
        "Sequential", "Sequential.0", "Sequential.1", "Sequential#2", "Sequential#2.0",
    ]  # fmt: skip
    assert [one.name for one in captured.ranges if one.name.endswith("<")] == [
        "engine<", "Sequential#2<", "Sequential#2.0<", "Sequential<", "Sequential.1<", "Sequential.0<",
    ]  # fmt: skip


def test_models_have_the_names_that_the_user_gives(tmp_path: Path) -> None:
    """`name` begins every path, of modules that come later too; patterns and depths do not see it."""
    generator, discriminator = gan()

    def body() -> None:
        with emit_ranges(generator, name="G", include=["", "0", "2"], depth=1), emit_ranges(discriminator, name="D"):
            generator.append(nn.Identity())
            discriminator(generator(torch.ones(1, 3)))

    assert names_of(capture(tmp_path, body)) == ["G", "G.0", "G.2", "D", "D.0"]
    with pytest.raises(TypeError, match="name must be a str or None, got 3"):
        emit_ranges(generator, name=3)  # type: ignore[arg-type]


def test_one_name_is_enough(tmp_path: Path) -> None:
    """A model whose paths are its own anyway needs no other name; an empty one is a name."""
    generator, discriminator = gan()

    def body() -> None:
        with emit_ranges(generator), emit_ranges(discriminator, name="D"):
            discriminator(generator(torch.ones(1, 3)))
        with emit_ranges(generator, name=""), emit_ranges(discriminator):
            discriminator(generator(torch.ones(1, 3)))

    assert names_of(capture(tmp_path, body)) == ["", "0", "1", "D", "D.0", "Sequential", "Sequential.0"]


def test_a_model_keeps_the_paths_that_its_ranges_had(tmp_path: Path) -> None:
    """A block that opens while another one runs names its own model; pausing and resuming change no name."""
    generator, discriminator = gan()

    def body() -> None:
        with emit_ranges(generator) as block:
            generator(torch.ones(1, 3))
            for _ in range(2):
                with emit_ranges(discriminator) as inner:
                    inner.pause()
                    block.pause()
                    inner.resume()
                    block.resume()
                    discriminator(generator(torch.ones(1, 3)))

    earlier, later = ("Sequential>", "0>", "1>"), ("Sequential>", "Sequential.0>")
    assert capture(tmp_path, body).trees == [earlier, *[earlier, later] * 2]


def test_models_of_blocks_that_are_off_are_told_apart(tmp_path: Path) -> None:
    """Paused, before its active steps, or on: a block that is open has paths of its own, and gives them back after."""
    generator, discriminator = gan()

    def off(first: Any, second: Any) -> Captured:
        def body() -> None:
            with first, second:
                for block in (first, second):
                    block.step()
                    block.resume()
                discriminator(generator(torch.ones(1, 3)))
            with emit_ranges(discriminator):
                discriminator(torch.ones(1, 3))

        for block in (first, second):
            block.pause()
        return capture(tmp_path, body)

    alone = ("Sequential>", "0>")
    told = [
        ("Sequential>", "Sequential.0>", "Sequential.1>"), ("Sequential#2>", "Sequential#2.0>"), alone
    ]  # fmt: skip
    late = annot.schedule(wait=1, active=1)
    assert off(emit_ranges(generator), emit_ranges(discriminator)).trees == told
    assert off(emit_ranges(generator, schedule=late), emit_ranges(discriminator, schedule=late)).trees == told

    def used() -> None:
        with emit_ranges(generator) as block:
            generator(torch.ones(1, 3))
            block.pause()
            with emit_ranges(discriminator):
                block.resume()
                discriminator(generator(torch.ones(1, 3)))

    plain = ("Sequential>", "0>", "1>")
    assert capture(tmp_path, used).trees == [plain, plain, ("Sequential>", "Sequential.0>")]


def test_a_part_of_a_model_whose_block_is_off_has_the_paths_of_the_model(tmp_path: Path) -> None:
    """They are those that it has when the block is on again."""
    model = nn.Sequential(Block(), nn.Tanh())

    def body() -> None:
        with emit_ranges(model) as whole:
            whole.pause()
            with emit_ranges(model[0]):
                model(torch.ones(1, 3))
                whole.resume()
                model(torch.ones(1, 3))

    part = ("0>", "0.fc>", "0.act>")
    assert capture(tmp_path, body).trees == [part, ("Sequential>", part, "1>")]


def test_two_models_of_one_name_are_said(tmp_path: Path) -> None:
    """Two blocks of one model may have the same name, and two models one after the other."""
    generator, discriminator = gan()

    def body() -> None:
        with emit_ranges(generator, name="G"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with emit_ranges(generator, name="G"), emit_ranges(AveragedModel(generator).module, name="D"):
                    pass
                with emit_ranges(discriminator, name="D"):
                    pass
            with pytest.warns(RuntimeWarning, match="two open models have the name 'G'"):
                emit_ranges(discriminator, name="G").__enter__().__exit__(None, None, None)

    capture(tmp_path, body)


def test_blocks_have_no_names_while_no_tool_listens() -> None:
    model = Block()
    with emit_ranges(model):
        assert ranges._INSTALLED._open == {}


def test_modules_that_are_made_and_kept_are_named_without_a_look_at_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the lowest number that is free; the names of those that have died are free again."""
    looked = 0

    class Counting(dict[int, Any]):
        def values(self) -> Any:
            nonlocal looked
            looked += len(self)
            return super().values()

    class Makes(nn.Module):
        def forward(self, x: Any) -> Any:
            kept.append(nn.Linear(3, 3))
            return kept[-1](x)

    kept: list[nn.Module] = []
    model = Makes()

    def body() -> None:
        with emit_ranges(model):
            for _ in range(300):
                model(torch.ones(1, 3))
            del kept[3], kept[100]
            for _ in range(3):
                model(torch.ones(1, 3))

    monkeypatch.setattr(ranges._INSTALLED._sites, "by_id", Counting())
    names = [one.name for one in capture(tmp_path, body).ranges if "Linear" in one.name]
    assert names[:2] + names[299:] == ["Linear>", "Linear#2>", "Linear#300>", "Linear#4>", "Linear#102>", "Linear#301>"]
    assert looked < 1500


@pytest.mark.parametrize("where", ["modules", "attributes", "caches"])
def test_finalizers_that_change_what_is_being_read(where: str) -> None:
    """Up to CPython 3.11 the garbage collector may run amid a list of items, and then other threads."""
    model = nn.Sequential(*[nn.Identity() for _ in range(300)])
    vars(model).update({f"plain{i}": i for i in range(300)})
    kept: list[Any] = []

    class Node:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            kept.append(lru_cache.Recent())
            number = len(kept)
            vars(model)[f"more{number}"] = model._modules[f"more{number}"] = None  # type: ignore[assignment]

    read = {
        "modules": lambda: list(module_paths.paths(model)),
        "attributes": lambda: module_paths.path_to(nn.Identity(), model, deep=False),
        "caches": lru_cache._prune,
    }
    kept.extend(lru_cache.Recent() for _ in range(300))
    gc.collect()
    before = gc.get_threshold()
    for _ in range(50):
        Node()
    try:
        gc.set_threshold(200, 1, 1)
        read[where]()
    finally:
        gc.set_threshold(*before)


@given(st.lists(st.tuples(st.sampled_from(["a", "a#2", "b"]), st.integers(0, 5))))
def test_the_lowest_free_number(steps: list[tuple[str, int]]) -> None:
    """As a look at all names that are taken finds it; an unused one comes again."""
    taken: list[str] = []
    names = Numbered(lambda name: name in taken)
    for name, drop in steps:
        found = names.lowest(name)
        assert found == next(one for n in range(1, 99) if (one := numbered(name, n)) not in taken)
        if drop:
            taken.append(found)
        for one in taken[:: drop + 3] if drop < 3 else []:
            taken.remove(one)
            names.free(one)


def test_a_part_of_a_model_needs_no_name(tmp_path: Path) -> None:
    """Blocks of a model and of a part of it show the paths of the model; a module that two models share has one."""
    actor, critic = nn.Sequential(Block(), nn.Tanh()), nn.Sequential()

    def body() -> None:
        with emit_ranges(actor), emit_ranges(actor[0]):
            actor(torch.ones(1, 3))

    assert names_of(capture(tmp_path, body)) == ["", "0", "0.fc", "0.act", "1"]
    critic.extend([actor[0], nn.Linear(3, 1)])

    def both() -> None:
        with emit_ranges(actor, name="actor"), emit_ranges(critic, name="critic"):
            critic(actor(torch.ones(1, 3)))

    assert names_of(capture(tmp_path, both)) == [
        "actor", "actor.0", "actor.0.fc", "actor.0.act", "actor.1", "critic", "critic.1",
    ]  # fmt: skip


def test_a_part_that_the_outer_block_leaves_out_has_a_name(tmp_path: Path) -> None:
    """Its paths would begin as those of the model do."""
    model = nn.ModuleDict({"x": nn.Sequential(nn.Tanh()), "y": nn.Sequential(nn.Tanh())})

    def body() -> None:
        with emit_ranges(model, include="x*"), emit_ranges(model["y"]):
            model["y"](model["x"](torch.ones(1, 3)))

    assert names_of(capture(tmp_path, body)) == ["ModuleDict.x", "Sequential", "Sequential.0"]


def test_a_wrapped_model_has_the_name_of_what_is_inside(tmp_path: Path) -> None:
    one, two = nn.Sequential(nn.Tanh()), AveragedModel(nn.Sequential(nn.Tanh()))

    def body() -> None:
        with emit_ranges(one), emit_ranges(two):
            two(one(torch.ones(1, 3)))

    assert names_of(capture(tmp_path, body)) == ["Sequential", "Sequential.0", "Sequential#2", "Sequential#2.0"]


def test_threads_find_modules_at_the_same_time(tmp_path: Path) -> None:
    """No call raises, and each module has a path of its own."""
    outside = [nn.Linear(3, 3) for _ in range(200)]

    class Part(nn.Module):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place, self.many = place, nn.ModuleList([nn.Identity() for _ in range(200)])

        def forward(self, x: Any) -> Any:
            for one in outside[self.place :: 4]:
                x = one(x)
            return x

    model = nn.ModuleList([Part(place) for place in range(4)])
    failed: list[BaseException] = []

    def work(part: nn.Module) -> None:
        try:
            part(torch.ones(1, 3))
        except BaseException as error:
            failed.append(error)

    def body() -> None:
        with emit_ranges(model):
            threads = [threading.Thread(target=work, args=(part,)) for part in model]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        captured = capture(tmp_path, body)
    finally:
        sys.setswitchinterval(before)
    assert failed == []
    found = [one.name for one in captured.ranges if "Linear" in one.name]
    assert len(found) == len(set(found)) == 200


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_enters_a_block(tmp_path: Path) -> None:
    """The thread that holds the lock is not there in the child, which can enter a block all the same."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ranges._INSTALLED._lock, ranges._INSTALLED._sites._lock:
            held.set()
            done.wait()

    def body() -> None:
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(60)
            with emit_ranges(nn.Linear(1, 1)) as block:
                block.pause()
                block.resume()
            os._exit(0)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0

    capture(tmp_path, body)
