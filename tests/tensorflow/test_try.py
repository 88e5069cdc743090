"""`annot try` about a Keras program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ANNOT, needs_recorder

TRAIN = """
import keras
import numpy

layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((8,)), *layers], name="net")
model.compile("sgd", "mse", jit_compile=False)
numbers = numpy.random.default_rng(0)
try:
    model.fit(numbers.random((4000, 8)), numbers.random((4000, 1)), batch_size=4, verbose=0)
finally:
    print("finally")
"""


@pytest.mark.slow
@needs_recorder
def test_the_answer_about_a_program_with_dropout(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    (tmp_path / "train.py").write_text(TRAIN)
    options = ("--collector", "recorder", "--steps", "10", "--repeat", "1", "-o", "out", "--format", "json")
    changes = "jit,mixed-bf16"
    words = ("try", *options, "--change", changes, "--", sys.executable, "train.py")
    done = subprocess.run([*ANNOT, *words], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode in (0, 5), done.stderr.decode()
    answer = json.loads(done.stdout)
    assert (answer["complete"], answer["framework"], answer["trains"]) == (True, "keras", True)
    rows = {row["changes"][0]: row for row in answer["rows"]}
    assert {name: row["applied"] for name, row in rows.items()} == {name: {name: "net"} for name in changes.split(",")}
    assert all(row["speedup"] > 0 and row["runs"] == 1 for row in rows.values())
    assert rows["mixed-bf16"]["training"] == "rounding"
    assert rows["jit"]["training"] == "unknown"
    assert rows["jit"]["training_text"].startswith("XLA draws other random numbers than TensorFlow, and losses differ")
    assert (tmp_path / "out" / "jit.timed1.txt").read_text().splitlines()[-1] == "finally"
    assert (tmp_path / "train.py").read_text() == TRAIN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.py"]
