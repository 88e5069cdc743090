"""A Keras program under collectors, as a user starts it: every range once a step, whatever collects and emits."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import annot, needs_nsys, write_script
from range_tables import ranges_of

from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step
from annot.profile import Profile

pytest.importorskip("tensorflow", reason="needs TensorFlow")

# 80 samples to train with and 20 to validate with, 20 in a batch: 4 and 1 steps an epoch.
FIT = """
import sys, annot, keras, numpy as np
layers = keras.layers
model = keras.Sequential(
    [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(10)],
    name="net",
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly="eager" in sys.argv)
x, y = np.random.rand(100, 8, 8, 3).astype("float32"), np.random.randint(0, 10, 100)
with annot.emit_ranges(model):
    model.fit(x, y, epochs=2, batch_size=20, validation_split=0.2, verbose=0)
"""
TRAINED, VALIDATED = 8, 2
LAYERS = {
    "net": "Sequential", "net/conv2d": "Conv2D", "net/batch_normalization": "BatchNormalization",
    "net/flatten": "Flatten", "net/dense": "Dense",
}  # fmt: skip


def fitted(folder: Path, collector: str, *words: str, says: str = "", **environ: str) -> Profile:
    """The profile of that program, which says something."""
    script = folder / "fit.py"
    script.write_text(FIT)
    done = annot("run", "--collector", collector, "-o", "out", "--", sys.executable, script, *words,
                 cwd=folder, **environ)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    # The answer is per step of training. Its unit depends on how fast the machine is.
    assert re.search(r", [mµ]s per step ", done.stderr.decode())
    assert says in done.stderr.decode()
    return load(folder / "out")


def check(profile: Profile) -> None:
    """Every layer has one range a step, in a batch, in an epoch, and host times that add up."""
    attribution = attribute(profile)
    rows = by_layer(attribution)
    calls = {(row["layer"], row["module"], row["phase"]): row["calls"] for row in rows.iter_rows(named=True)}
    forward = {(layer, module, "forward"): TRAINED + VALIDATED for layer, module in LAYERS.items()}
    backward = {(layer, module, "backward"): TRAINED for layer, module in LAYERS.items()}
    loop = {
        ("(epoch)", "", "other"): 2, ("(batch)", "", "other"): TRAINED, ("(epoch)", "validate", "other"): 2,
        ("(batch)", "validate", "other"): VALIDATED, ("", "Adam", "optimizer"): TRAINED,
    }  # fmt: skip
    data = calls.pop(("(data)", "", "data"))
    assert calls.pop(("(unattributed)", "outside ranges", "other"), 0) == 0  # between epochs
    assert calls == forward | backward | loop
    assert data >= TRAINED + VALIDATED, "where Python asks for data, it also asks whether there is more"
    steps = by_step(attribution)
    assert steps.height == TRAINED
    assert steps.select((pl.col("forward_ns") > 0).all() & (pl.col("backward_ns") > 0).all()).item()
    assert rows["host_self_ns"].sum() >= rows.filter(layer="(epoch)", module="")["host_ns"].sum()
    _check_self_times(ranges_of(attribution).rows(named=True))


def _check_self_times(ranges: list[dict[str, Any]]) -> None:
    """Of a range what none of its children fills, even where these run at the same time."""
    for place, row in enumerate(ranges):
        reached, rest = row["start"], 0
        for child in sorted((one["start"], one["end"]) for one in ranges if one["parent"] == place):
            rest += max(0, child[0] - reached)
            reached = max(reached, child[1])
        assert row["host_self_ns"] == rest + max(0, row["end"] - reached), row


def test_recorded(tmp_path: Path) -> None:
    """annot's own recorder, with graphs."""
    check(fitted(tmp_path, "recorder", ANNOT_DISABLE_NATIVE=""))


@pytest.mark.slow
@pytest.mark.parametrize("native", ["", "1"], ids=["native", "pure Python"])
def test_recorded_without_graphs(native: str, tmp_path: Path) -> None:
    """All that Keras runs eagerly."""
    check(fitted(tmp_path, "recorder", "eager", ANNOT_DISABLE_NATIVE=native))


@pytest.mark.slow
def test_graphs_without_the_c_parts(tmp_path: Path) -> None:
    """Epochs, batches and what Python waits for; a warning says that graphs have no ranges."""
    profile = fitted(tmp_path, "recorder", ANNOT_DISABLE_NATIVE="1", says="TensorFlow graphs cannot have ranges")
    rows = by_layer(attribute(profile))
    calls = {(row["layer"], row["module"]): row["calls"] for row in rows.iter_rows(named=True)}
    assert calls[("(batch)", "")] == TRAINED
    assert calls[("(batch)", "validate")] == VALIDATED
    assert not {"forward", "backward", "optimizer"} & {*rows["phase"]}


@needs_nsys
def test_in_nsight_systems(tmp_path: Path) -> None:
    """Nsight Systems, with graphs: ranges that begin and end on threads of TensorFlow's executor arrive."""
    check(fitted(tmp_path, "nsys"))


def test_torch_profiler_says_what_it_needs(tmp_path: Path) -> None:
    """It knows nothing of TensorFlow, and names those that do."""
    script = write_script(tmp_path, "")
    done = annot("run", "--collector", "torch", "-o", "out", "--", sys.executable, script, cwd=tmp_path)
    assert done.returncode == 0  # that of the command
    assert b"did not import torch" in done.stderr
    assert b"--collector nsys or recorder" in done.stderr
