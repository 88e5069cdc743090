"""Function `emit_ranges`, which dispatches on the framework of the model."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

from annot.emit.layer_filter import Selection
from annot.emit.pausable import SwitchedBlock
from annot.emit.schedule import Schedule
from annot.keras import check_keras_backend

_PYTORCH_ONLY: Final = {"memory": False, "ops": False, "collectives": True, "compiled": True, "name": None}
_TENSORFLOW_ONLY: Final = {"mode": None}
"""Options for one framework, with the defaults."""


def emit_ranges(
    model: Any,
    *,
    forward: bool = True,
    backward: bool = True,
    optimizer: bool = True,
    data: bool = True,
    shapes: bool = True,
    include: Selection = None,
    exclude: Selection = None,
    depth: int | None = None,
    schedule: Schedule | None = None,
    memory: bool = False,
    ops: bool = False,
    collectives: bool = True,
    compiled: bool = True,
    name: str | None = None,
    mode: Literal["names", "ops"] | None = None,
) -> SwitchedBlock:
    """Emit an NVTX range for every layer's forward and backward and for every optimizer step of `model`.

    The results of the model do not change. All hooks and patches are removed at the end of the block. If
    `annot.enabled()` is false on entry, hooks and patches are not installed. `annot.torch.emit_ranges` and
    `annot.tf.emit_ranges` explain the options in detail.

    Args:
        model: a `torch.nn.Module`, or a Keras 3 model or layer on TensorFlow or PyTorch.
        forward: emit ranges around forward calls.
        backward: emit ranges around the backward of each layer.
        optimizer: emit ranges around optimizer steps.
        data: emit ranges around the wait for each batch.
        shapes: write shapes and dtypes into the labels.
        include: layers with ranges: patterns on the path such as ``"features.*"``, layer classes, or a collection of
            both; None: all.
        exclude: layers without ranges. Their time belongs to the enclosing range.
        depth: number of levels below the model with ranges; 0: the model only; None: all.
        schedule: the steps with ranges, from `annot.schedule`; None: all.
        memory: (PyTorch) mark the change and the peak of the memory in use during each range.
        ops: (PyTorch) emit ranges around the PyTorch functions that the layers call.
        collectives: (PyTorch) emit ranges around collectives and messages between processes.
        compiled: (PyTorch) emit ranges around graphs and kernels of `torch.compile`.
        name: (PyTorch) prefix of the paths of this model, for programs with several models.
        mode: (TensorFlow) the way to emit ranges in graphs; None: the best available.

    Returns:
        A context manager with `pause`, `resume` and `step`.

    Raises:
        AnnotError: the backend of the Keras model is not supported, such as JAX.
        TypeError: the model or an option has another type, or the option is for the other framework.
        ValueError: an option is out of range.

    Example:
        >>> import torch, annot
        >>> model = torch.nn.Linear(3, 1)
        >>> with annot.emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    options = {option: value for option, value in locals().items() if option != "model"}
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if torch is not None and isinstance(model, torch.nn.Module):
        from annot.torch import emit_ranges as emit_torch_ranges

        return emit_torch_ranges(model, **_drop_options(options, _TENSORFLOW_ONLY, "TensorFlow"))
    # A partially imported package or Keras 2 lacks this class.
    if keras is not None and isinstance(model, getattr(keras, "Layer", ())):
        check_keras_backend(keras.config.backend())
        from annot.tf import emit_ranges as emit_tensorflow_ranges

        return emit_tensorflow_ranges(model, **_drop_options(options, _PYTORCH_ONLY, "PyTorch"))
    raise TypeError(
        "emit_ranges expects a torch.nn.Module or a layer or model of Keras 3, "
        f"got {type(model).__module__}.{type(model).__qualname__}"
    )


def _drop_options(options: dict[str, Any], others: dict[str, Any], framework: str) -> dict[str, Any]:
    """Return the options without those of another framework, or raise TypeError if one is set."""
    for option, default in others.items():
        if options.pop(option) is not default:
            raise TypeError(f"the option {option} of emit_ranges is for models of {framework} only")
    return options
