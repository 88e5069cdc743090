"""Keras on backends for which annot has no ranges of layers: a clear sentence, and epochs and batches all the same."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import needs_recorder

from annot.emit.client import IS_NATIVE

pytestmark = [
    needs_recorder,
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed"),
]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_another_backend(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("jax") is None:  # the backend numpy imports it, too
        pytest.skip("jax is not installed")
    program = [sys.executable, str(Path(__file__).parents[1] / "support/keras_elsewhere.py"), backend, str(tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    said, texts, same = json.loads(result.stdout.splitlines()[-1])
    assert (
        f"the Keras backend is {backend}, but emit_ranges supports only TensorFlow and PyTorch: set KERAS_BACKEND="
        in said
    )
    assert same
    epochs = ["Epoch 0", "Epoch 1"] * (backend != "numpy") + ["Epoch predict 0"]
    expected = [line for epoch in epochs for line in (epoch, *_batches("predict " if "predict" in epoch else ""))]
    if IS_NATIVE:  # the nvtx package gets no texts with numbers
        assert [text.partition(" |")[0] for text in texts] == expected
    else:
        assert len(texts) == len(expected)


def _batches(stage: str) -> list[str]:
    return [f"Batch {stage}{number}" for number in range(2)]
