"""Keras on PyTorch: the callback and the optimizer, without TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import forked
import pytest
from commands import needs_recorder

from annot.emit.client import IS_NATIVE

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    needs_recorder,
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed"),
]


@pytest.mark.slow
def test_epochs_batches_and_updates(tmp_path: Path) -> None:
    """Each once and in its place; the weights are the same bits; TensorFlow is not loaded."""
    result = forked.python(Path(__file__).parents[1] / "support/tf_on_torch.py", tmp_path)
    assert result.returncode == 0, result.stderr
    texts, same, loaded = json.loads(result.stdout.splitlines()[-1])
    texts = [re.sub(" params=[0-9]+", "", text) for text in texts]
    assert (same, loaded) == (True, False)
    batches = [line for number in range(2) for line in (f"Batch {number} |step", "Optimizer Adam |opt")]
    validation = ["Epoch validate {} |epoch", "Batch validate 0 |step"]
    expected = [line.format(epoch) for epoch in range(2) for line in ("Epoch {} |epoch", *batches, *validation)]
    if not IS_NATIVE:  # the nvtx package gets no texts with numbers
        expected = ["".join(part for part in line if not part.isdigit()).replace("  ", " ") for line in expected]
    assert texts == expected


@pytest.mark.slow
def test_layers(tmp_path: Path) -> None:
    """The layers of Keras have ranges like modules of PyTorch: forward, backward and update, once a step."""
    result = forked.python(Path(__file__).parents[1] / "support/keras_on_torch.py", tmp_path)
    assert result.returncode == 0, result.stderr
    texts, same, loaded = json.loads(result.stdout.splitlines()[-1])
    assert (same, loaded) == (True, False)
    counts = Counter(texts)
    expected = {
        "stem Dense [2,8]f32 out=8": 2, "inner Sequential [2,8]f32": 2, "inner.fc Dense [2,8]f32 out=4": 2,
        "inner.relu ReLU [2,4]f32": 2, "head Dense [2,4]f32 out=2": 2,
    }  # fmt: skip
    # Keras calls the model once more, on the device "meta", to learn its shapes.
    assert {text: counts[f"{text} |fwd"] - 1 for text in expected} == expected
    assert {text: counts[f"{text} |bwd"] for text in expected} == expected
    assert counts["Optimizer SGD params=118 |opt"] == 2
