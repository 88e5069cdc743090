"""Windows of steps: ranges in some, nothing installed in the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import pytest
from captured import Captured, capture
from commands import needs_nsys, window_seen_by_nsys

torch = pytest.importorskip("torch")
nn = torch.nn

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.emit import loop  # noqa: E402

X = torch.ones(2, 3)
CALL, ENGINE = nn.Module.__call__, torch.autograd.Variable._execution_engine


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test PyTorch is as it was, and nobody waits for batches."""
    yield
    assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == (CALL, ENGINE)
    assert loop.followers.of_batches == []


def installed() -> bool:
    """Whether annot has put anything into PyTorch."""
    assert (nn.Module.__call__ is CALL) == (torch.autograd.Variable._execution_engine is ENGINE)
    return nn.Module.__call__ is not CALL


def steps_with_ranges(
    folder: Path, schedule: Any, drive: Callable[[Any, Callable[[int], None]], None]
) -> tuple[list[int], list[int], Captured]:
    """Drive a block with this schedule; return the steps with ranges, and those with annot in PyTorch."""
    models = [nn.Sequential(nn.Linear(3, 3)) for _ in range(20)]
    seen: list[int] = []
    model = nn.Sequential(*models)

    def step(number: int) -> None:
        if installed():
            seen.append(number)
        models[number](X).sum().backward()

    def body() -> None:
        with emit_ranges(model, schedule=schedule, exclude=["", "*.*"]) as block:
            drive(block, step)
        assert not installed()

    captured = capture(folder, body)
    tags = [one.tag for one in captured.ranges if one.tag and one.tag.layer]
    forward, backward = ([int(tag.layer) for tag in tags if tag.phase == phase] for phase in ("forward", "backward"))
    assert forward == backward
    return forward, seen, captured


def by_batches(block: Any, step: Callable[[int], None]) -> None:
    for number in annot.batches(range(12)):
        step(number)


def by_batch(block: Any, step: Callable[[int], None]) -> None:
    for number in range(12):
        with annot.batch(100 + number):
            step(number)


def by_hand(block: Any, step: Callable[[int], None]) -> None:
    for number in range(12):
        step(number)
        block.step()


def by_hand_in_batches(block: Any, step: Callable[[int], None]) -> None:
    for number in annot.batches(range(12)):
        step(number)
        block.step()


@pytest.mark.parametrize("drive", [by_batches, by_batch, by_hand, by_hand_in_batches])
@pytest.mark.parametrize(
    ("counts", "steps"),
    [
        ({"active": 1}, list(range(12))),
        ({"wait": 2, "active": 2}, [2, 3, 6, 7, 10, 11]),
        ({"wait": 1, "warmup": 1, "active": 2, "repeat": 2}, [2, 3, 6, 7]),
        ({"skip_first": 5, "active": 3, "repeat": 1}, [5, 6, 7]),
        ({"skip_first": 20, "active": 1}, []),
    ],
)
def test_ranges_in_active_steps_only(tmp_path: Path, drive: Any, counts: dict[str, int], steps: list[int]) -> None:
    """However the steps are counted, the others have no ranges, and nothing of annot in PyTorch."""
    ranges, seen, _ = steps_with_ranges(tmp_path, annot.schedule(**counts), drive)
    assert ranges == seen == steps


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_windows_are_those_of_torch_profiler() -> None:
    """The same counts give the same steps."""
    for counts in ({"wait": 1, "warmup": 2, "active": 3}, {"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
                   {"wait": 2, "warmup": 0, "active": 1, "repeat": 1, "skip_first": 3}):  # fmt: skip
        theirs = torch.profiler.schedule(**counts)
        names = {"NONE": "wait", "WARMUP": "warmup", "RECORD": "active", "RECORD_AND_SAVE": "active"}
        ours = annot.schedule(**counts)
        assert [ours.phase(step) for step in range(25)] == [names[theirs(step).name] for step in range(25)]


def test_training_is_the_same(tmp_path: Path) -> None:
    """Switching between steps changes no bit."""
    plain = nets.train(nets.gpt(), steps=6)
    net = nets.gpt()
    traced: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(net.model, schedule=annot.schedule(wait=1, active=1)) as block:
            stepping = net._replace(make_batch=lambda index: (index and block.step(), net.make_batch(index))[1])
            traced.extend(nets.train(stepping, steps=6))

    captured = capture(tmp_path, body)
    assert captured.names.count("Gpt>") == 3
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))


def test_batches_of_other_threads_are_not_counted(tmp_path: Path) -> None:
    """Whoever enters the block counts the steps."""

    def drive(block: Any, step: Callable[[int], None]) -> None:
        thread = threading.Thread(target=lambda: list(annot.batches(range(7))))
        thread.start()
        thread.join()
        by_batches(block, step)

    assert steps_with_ranges(tmp_path, annot.schedule(wait=1, active=1, repeat=1), drive)[0] == [1]


def test_pausing_goes_before_the_schedule(tmp_path: Path) -> None:
    """Steps are counted while paused."""

    def drive(block: Any, step: Callable[[int], None]) -> None:
        for number in annot.batches(range(12)):
            if number == 3:
                block.pause()
            if number == 7:
                block.resume()
            step(number)

    assert steps_with_ranges(tmp_path, annot.schedule(wait=2, active=2), drive)[0] == [2, 7, 10, 11]


def test_a_block_that_ends_early_and_is_entered_again(tmp_path: Path) -> None:
    """An exception in an active step leaves nothing; counting begins anew."""
    model, call = nn.Linear(3, 3), CALL
    block = emit_ranges(model, schedule=annot.schedule(wait=1, active=5))

    def body() -> None:
        for _ in range(2):
            with pytest.raises(KeyError), block:
                for number in annot.batches(range(5)):
                    model(X)
                    if number == 2:
                        raise KeyError
            assert nn.Module.__call__ is call

    assert capture(tmp_path, body).names.count("Linear>") == 4


def windows(captured: Captured) -> list[list[str]]:
    """What began inside each capture range."""
    return [
        [one.text for one in captured.ranges if around.start < one.start < around.end and one.tag and one.tag.layer]
        for around in captured.ranges
        if around.text == "capture"
    ]


@pytest.mark.filterwarnings("ignore:capture=True")
def test_the_capture_range_holds_the_active_steps(tmp_path: Path) -> None:
    """Ranges are there during the warm-up, outside the capture range; each window has one."""
    schedule = annot.schedule(wait=2, warmup=1, active=2, repeat=2, capture=True)
    ranges, seen, captured = steps_with_ranges(tmp_path, schedule, by_batches)
    assert ranges == seen == [2, 3, 4, 7, 8, 9]
    assert [[text.split()[0] for text in window if text.endswith("|fwd")] for window in windows(captured)] == [
        ["3", "4"], ["8", "9"],
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:capture=True")
def test_the_capture_ends_with_the_block(tmp_path: Path) -> None:
    """Leaving or pausing the block inside a window closes its range."""
    model = nn.Linear(3, 3)

    def body() -> None:
        with emit_ranges(model, schedule=annot.schedule(active=9, capture=True)) as block:
            model(X)
            block.pause()
            block.resume()

    assert capture(tmp_path, body).names == ["capture", "Linear>", "capture"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_the_profiler_api_is_not_called(tmp_path: Path) -> None:
    """It is said once."""
    model = nn.Linear(3, 3)

    def body() -> None:
        with emit_ranges(model, schedule=annot.schedule(wait=1, active=1, capture=True)) as block:
            for _ in range(4):
                block.step()

    annot.emit.client.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="CUDA is not available") as said:
        capture(tmp_path, body)
    assert len(said) == 1


WINDOWED = """
import annot, torch
layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(8))
with annot.emit_ranges(layers, schedule=annot.schedule(wait=3, warmup=1, active=2, capture=True)):
    for layer in annot.batches(layers):
        layer(torch.ones(2, 3))
"""


@needs_nsys
def test_nsight_systems_captures_the_window(tmp_path: Path) -> None:
    """`--capture-range=nvtx` finds the range by its name: what the report holds is the active steps."""
    assert window_seen_by_nsys(WINDOWED, tmp_path) == ["4", "5"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_cuda_the_profiler_api_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at the start and once at the end of each window, with the real calls."""
    model, calls = nn.Linear(3, 3), []
    for name in ("start", "stop"):
        real = getattr(torch.cuda.profiler, name)
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name, real=real: (calls.append(name), real()))

    def body() -> None:
        with emit_ranges(model, schedule=annot.schedule(wait=1, active=1, repeat=2, capture=True)) as block:
            for _ in range(6):
                block.step()

    capture(tmp_path, body)
    assert calls == ["start", "stop"] * 2


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ({"active": 0}, ValueError, "active must be at least 1, got 0"),
        ({"active": 1, "wait": -1}, ValueError, "wait must be at least 0, got -1"),
        ({"active": 1.5}, TypeError, "active must be an int, got 1.5"),
        ({"active": 1, "repeat": True}, TypeError, "repeat must be an int, got True"),
        ({}, TypeError, "active"),
    ],
)
def test_wrong_counts_are_said(counts: dict[str, Any], error: type[Exception], message: str) -> None:
    """A schedule that cannot be meant is no schedule."""
    with pytest.raises(error, match=message):
        annot.schedule(**counts)


def test_off_means_that_nothing_is_there() -> None:
    """With no tool attached the steps go by, and nothing is installed."""
    with emit_ranges(nn.Linear(3, 3), schedule=annot.schedule(active=1)) as block:
        for _ in range(3):
            assert not installed()
            block.step()
