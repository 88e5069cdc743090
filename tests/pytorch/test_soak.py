"""A long run: nothing grows, nothing stays open, whatever is raised on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.emit import client  # noqa: E402

STEPS = 100_000
EXCEPTIONS = STEPS // 10
WARM = STEPS // 4  # by then there are as many texts and notes as are ever kept
SHAPES = 4000  # with 6 texts each
GROWTH = 10 * 2**20


class Tripping(nn.Module):
    """The identity, which raises when told to, in forward or in backward."""

    trips = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.trips == "forward":
            raise ValueError("forward")
        if self.trips == "backward":
            x = x.clone()
            x.register_hook(self._trip)
        return x

    def _trip(self, gradient: torch.Tensor) -> None:
        raise ValueError("backward")


def memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.filterwarnings("ignore:too many different input shapes")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.simulation
def test_a_long_run_with_changing_shapes_and_exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 steps of ever other shapes, every tenth raising: no growth beyond 10 MB, no range open."""
    # The texts of this run would take the room of those of the tests that follow.
    monkeypatch.setattr(client, "_texts", set())
    monkeypatch.setattr(client, "_events", {})
    depth = client.depth()
    tripping = Tripping()
    model = nn.Sequential(nn.Linear(2, 2), tripping)
    raised: list[str] = []
    before = 0
    with annot.record(tmp_path / "soak.sqlite") as recorder, emit_ranges(model):
        for step in range(STEPS):
            if step == WARM:
                before = memory()
            tripping.trips = ("forward", "backward")[step // 10 % 2] if step % 10 == 3 else ""
            try:
                model(torch.ones(1 + step % SHAPES, 2)).sum().backward()
            except ValueError as error:
                raised.append(str(error))
        growth = memory() - before
        assert client.depth() == depth
    assert [raised.count(phase) for phase in ("forward", "backward")] == [EXCEPTIONS // 2] * 2
    assert growth <= GROWTH
    assert recorder.recording is not None
    assert (recorder.recording.open_ranges, recorder.recording.unmatched_pops) == (0, 0)
    assert recorder.recording.ranges >= 6 * (STEPS - EXCEPTIONS)
