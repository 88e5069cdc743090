"""Keras support for every backend: layer paths, hyperparameters, epochs and batches, optimizer steps.

Its modules need Keras with an installed backend, but not TensorFlow.
"""

from __future__ import annotations

from annot.errors import AnnotError

__all__ = ["check_keras_backend"]


def check_keras_backend(backend: str) -> None:
    """Raise an `AnnotError` if `emit_ranges` does not support a Keras model on `backend`.

    On PyTorch, `annot.emit_ranges` takes a Keras model as a PyTorch module and does not call this.
    """
    if backend != "tensorflow":
        raise AnnotError(
            f"the Keras backend is {backend}, but emit_ranges supports only TensorFlow and PyTorch: "
            "set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before importing Keras"
        )
