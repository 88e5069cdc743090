"""Function `emit_ranges`, which dispatches on the framework of the model."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from annot.keras import check_keras_backend

__all__ = ["emit_ranges"]


def emit_ranges(model: Any, **options: Any) -> AbstractContextManager[Any]:
    """Emit an NVTX range for every layer's forward and backward and for every optimizer step of `model`.

    The results of the model do not change. All hooks and patches are removed at the end of the block. If
    `annot.enabled()` is false on entry, hooks and patches are not installed.

    Args:
        model: a `torch.nn.Module`, or a Keras 3 model or layer on TensorFlow or PyTorch.
        options: options of `annot.torch.emit_ranges`, or for TensorFlow of `annot.tf.emit_ranges`.

    Returns:
        A context manager.

    Raises:
        AnnotError: the backend of the Keras model is not supported, such as JAX.
        TypeError: the model has another type, or an option does not exist.

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
    # A partially imported package or Keras 2 lacks this class.
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
