"""Several blocks, models and threads at a time, as a real NVTX tool sees them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

from torch_block import Block  # noqa: E402

from annot import emit_ranges  # noqa: E402


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

    assert capture(tmp_path, body).trees == [("Block>", "fc>", "act>"), ("Sequential>", "0>")]


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
