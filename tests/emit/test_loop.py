"""Epochs, batches and the wait for data, as a real NVTX tool sees them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from captured import Captured, capture

import annot
from annot import batch, batches, epoch, epochs, mark
from annot.emit.client import IS_NATIVE


def numbered(text: str) -> str:
    """The text that the client in use shows: the nvtx package only sends registered texts, so no numbers."""
    title, _, code = text.split(" ")
    return text if IS_NATIVE else f"{title} {code}"


def order(captured: Captured) -> list[str]:
    """Texts of all ranges in the order in which they began."""
    return captured.texts


def test_epochs_hold_batches_and_waits(tmp_path: Path) -> None:
    """Epoch e › Batch i, and before each batch the wait for it."""

    def body() -> None:
        for _ in epochs(1):
            for x in batches(["a", "b"]):
                mark(x)

    captured = capture(tmp_path, body)
    wait = "Data |data"
    first, *rest = order(captured)
    assert first == numbered("Epoch 0 |epoch")
    assert rest == [wait, numbered("Batch 0 |step"), wait, numbered("Batch 1 |step"), wait]
    outer = captured.ranges[0]
    inside = [one for one in captured.ranges if one.text.startswith("Batch")]
    assert all(outer.start <= one.start <= one.end <= outer.end for one in inside)
    for one, (at, text, _) in zip(inside, captured.marks, strict=True):
        assert one.start <= at <= one.end
        assert text in "ab"
    waits = [one for one in captured.ranges if one.text == wait]
    assert all(wait.end <= one.start for wait, one in zip(waits, inside, strict=False))


def test_without_a_tool_the_loader_itself_comes_back() -> None:
    """Off means free."""
    loader = ["a"]
    assert batches(loader) is loader
    assert epochs(3) == range(3)
    assert epochs(loader) is loader


def test_a_batch_left_by_break_is_closed(tmp_path: Path) -> None:
    """`break`, `return` and exceptions close the batch; what follows is not inside it."""

    def body() -> None:
        for _ in epochs(2):
            for _ in batches([1, 2, 3]):
                break
            mark("after")
        with pytest.raises(ValueError, match="mine"):
            for _ in batches([1]):
                raise ValueError("mine")

    captured = capture(tmp_path, body)
    inside = [one for one in captured.ranges if one.text.startswith("Batch")]
    assert len(inside) == 3
    for at, _, _ in captured.marks:
        assert not any(one.start <= at <= one.end for one in inside)


def test_an_iterator_that_outlives_its_loop_disturbs_nobody(tmp_path: Path) -> None:
    """While something holds the iterator of a broken loop, other ranges still nest and close."""

    def body() -> None:
        held: Iterator[int] = iter(batches([1, 2]))
        with annot.trace("around"):
            next(held)
        with annot.trace("later"):
            pass
        del held

    captured = capture(tmp_path, body)
    assert [tree for tree in captured.trees if tree != "Data |data"] == [("around", "Data |data"), "later"]


def test_errors_of_the_loader_pass_through(tmp_path: Path) -> None:
    """An exception of the loader comes out as it is, and the wait for it is closed."""

    def failing() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    def body() -> None:
        with pytest.raises(OSError, match="disk"):
            for _ in batches(failing()):
                pass

    assert order(capture(tmp_path, body)) == ["Data |data", numbered("Batch 0 |step"), "Data |data"]


def test_length_and_attributes_of_the_loader_show_through(tmp_path: Path) -> None:
    """A progress bar that asks for the length, or code that asks for the data set, gets the loader's own."""

    class Loader(list[int]):
        batch_size = 7

    def body() -> None:
        wrapped = batches(Loader([1, 2]))
        assert len(wrapped) == 2  # type: ignore[arg-type]
        assert wrapped.batch_size == 7  # type: ignore[attr-defined]
        assert list(wrapped) == [1, 2]
        assert list(epochs(["x", "y"])) == ["x", "y"]

    capture(tmp_path, body)


def test_blocks_with_numbers(tmp_path: Path) -> None:
    """`epoch` and `batch` put ranges around blocks of the user's own loop."""

    def body() -> None:
        with epoch(2), batch(12):
            pass

    assert order(capture(tmp_path, body)) == [numbered("Epoch 2 |epoch"), numbered("Batch 12 |step")]


def test_wrong_arguments() -> None:
    """What cannot be looped over, and what is no number, is named."""
    with pytest.raises(TypeError, match="batches expects an iterable, got int"):
        batches(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="epochs expects an int or an iterable, got float"):
        epochs(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an int, got 'x'"):
        batch("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        epoch(-1)


def test_a_loader_is_iterated_once(tmp_path: Path) -> None:
    """Asking for batches starts nothing: a DataLoader's workers, and its draw of a seed, come with the loop."""

    class Loader:
        started = 0

        def __iter__(self) -> Iterator[int]:
            self.started += 1
            return iter([1, 2])

    loader = Loader()

    def body() -> None:
        wrapped = batches(loader)
        assert loader.started == 0
        assert list(wrapped) == [1, 2]

    assert batches(loader) is loader
    capture(tmp_path, body)
    assert loader.started == 1


def test_what_is_wrapped_behaves_like_the_original(tmp_path: Path) -> None:
    """Truth, indexing, reversal, containment, copies and pickles are the original's own."""

    def body() -> None:
        items = batches([3, 4])
        assert items[0] == 3  # type: ignore[index]
        assert list(reversed(items)) == [4, 3]  # type: ignore[call-overload]
        assert 4 in items
        assert copy.copy(items) is items
        assert pickle.loads(pickle.dumps(items)) == [3, 4]
        assert bool(batches(iter([])))
        assert next(batches(iter([7]))) == 7  # type: ignore[call-overload]
        assert epochs(5)[1:] == range(1, 5)  # type: ignore[index]

    capture(tmp_path, body)
