"""Search for models in the profiled process, for `annot run --layers`."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any, Final

import wrapt

from annot.emit import client, guard, search
from annot.emit.patches import Patches

_NOTE: Final = "models run without ranges"


def search_when_imported() -> None:
    """Emit ranges of the models of the program, from the import of PyTorch or Keras to the end of the process."""
    _when_imported("torch", _search_torch)
    _when_imported("keras", _search_keras)
    atexit.register(search.end)


def _when_imported(name: str, start: Callable[[Any], None]) -> None:
    wrapt.register_post_import_hook(lambda module: guard.attempt(start, module, otherwise=None, note=_NOTE), name)


def _search_torch(torch: Any) -> None:
    """Start when the first module is made. At the import itself, other threads wait for the lock of the import."""
    patches = Patches()

    def start(original: Any, *args: Any, **kwargs: Any) -> Any:
        patches.undo()
        guard.attempt(_find_torch_models, otherwise=None, note=_NOTE)
        return original(*args, **kwargs)

    for name in ("__init__", "__setstate__"):
        patches.wrap(torch.nn.Module, name, start)


def _find_torch_models() -> None:
    from annot.torch.ranges import find_models

    find_models()


def _search_keras(keras: Any) -> None:
    if not hasattr(keras, "KerasTensor") or not client.enabled():  # Keras 2 lacks this class
        return
    backend = keras.config.backend()
    if backend not in ("tensorflow", "torch"):
        return
    from annot.keras.found_models import FoundModels

    models = FoundModels(_tensorflow_block if backend == "tensorflow" else None)
    search.on_end(models.undo)
    models.install()


def _tensorflow_block(model: Any) -> Any:
    from annot.tf.ranges import found_block

    return found_block(model)
