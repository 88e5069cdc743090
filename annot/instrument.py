"""`emit_ranges`: from a model to the wing of the framework that it comes from."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from annot.errors import AnnotError

__all__ = ["check_keras_backend", "emit_ranges"]


def emit_ranges(model: Any, **options: Any) -> AbstractContextManager[Any]:
    """Put a range around every forward, every backward and every optimizer step of `model`, layer by layer.

    Nothing in the model changes, and after the block everything is as before. If `annot.enabled` is false on
    entry, nothing is installed at all.

    Args:
        model: a `torch.nn.Module`, or a model or layer of Keras 3 on TensorFlow or PyTorch.
        options: those of `annot.torch.emit_ranges`, or for TensorFlow of `annot.tf.emit_ranges`.

    Raises:
        AnnotError: the model is of Keras on a backend that annot does not know, such as JAX.
        TypeError: the model is of another type, or an option does not exist.

    Example:
        >>> import torch, annot
        >>> model = torch.nn.Linear(3, 1)
        >>> with annot.emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if torch is not None and isinstance(model, torch.nn.Module):
        from annot.torch import emit_ranges as emit_torch_ranges

        return emit_torch_ranges(model, **options)
    # A package of that name that is only half imported, or Keras 2, has no such class.
    if keras is not None and isinstance(model, getattr(keras, "Layer", ())):
        return _emit_keras_ranges(model, keras.config.backend(), options)
    raise TypeError(
        "emit_ranges expects a torch.nn.Module or a layer or model of Keras 3, "
        f"got {type(model).__module__}.{type(model).__qualname__}"
    )


def _emit_keras_ranges(model: Any, backend: str, options: dict[str, Any]) -> AbstractContextManager[Any]:
    check_keras_backend(backend)
    from annot.tf import emit_ranges as emit_tensorflow_ranges

    return emit_tensorflow_ranges(model, **options)


def check_keras_backend(backend: str) -> None:
    """Raise an `AnnotError` that says what to do if a model of Keras that is no PyTorch module runs on `backend`."""
    if backend != "tensorflow":
        raise AnnotError(
            f"emit_ranges knows Keras on TensorFlow and on PyTorch, and this model runs on {backend}: set "
            "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before Keras is imported"
        )
