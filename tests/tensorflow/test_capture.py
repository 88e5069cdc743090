"""`annot.schedule(capture=True)` with Keras: what a collector is told, and what Nsight Systems then holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import needs_nsys, needs_recorder, window_seen_by_nsys

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from tf_nets import network, samples, weights  # noqa: E402
from tf_recorded import recorded  # noqa: E402

import annot  # noqa: E402
from annot.tf import emit_ranges  # noqa: E402


@needs_recorder
@pytest.mark.filterwarnings("ignore:capture=True")
def test_the_capture_range_holds_the_active_steps(tmp_path: Path) -> None:
    """Ranges are there during the warm-up, outside the capture range; each window has one."""
    model, plain = network(), network()
    x, y = samples(8)
    schedule = annot.schedule(wait=1, warmup=1, active=2, repeat=2, capture=True)

    def body() -> None:
        with emit_ranges(model, schedule=schedule, mode="ops", data=False, optimizer=False):
            model.fit(x, y, batch_size=4, verbose=0)

    captured = recorded(tmp_path, body)
    plain.fit(x, y, batch_size=4, verbose=0)
    assert weights(model) == weights(plain)
    forward = [one for one in captured.ranges if one.tag and one.tag.layer == "net/one" and one.tag.phase == "forward"]
    windows = [one for one in captured.ranges if one.text == "capture"]
    assert [[one in forward and window.start < one.start < window.end for one in forward] for window in windows] == [
        [False, True, True, False, False, False],
        [False, False, False, False, True, True],
    ]


WINDOWED = """
import annot, keras, numpy
layers = [keras.layers.Dense(3, name=f"dense{number}") for number in range(8)]
model = keras.Sequential(layers, name="net")
x = numpy.ones((1, 3), "float32")
model(x)
with annot.emit_ranges(model, schedule=annot.schedule(wait=3, warmup=1, active=2, capture=True)):
    for layer in annot.batches(layers):
        layer(x)
"""


@needs_nsys
def test_nsight_systems_captures_the_window(tmp_path: Path) -> None:
    """`--capture-range=nvtx` finds the range by its name: what the report holds is the active steps."""
    assert window_seen_by_nsys(WINDOWED, tmp_path) == ["net/dense4", "net/dense5"]
