"""Callback and profiler for Lightning: ranges around the stages, epochs, batches and actions of a `Trainer`."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from annot.emit import client
from annot.labels import tag
from annot.torch.ranges import TrainerRanges

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _package() -> Any:
    """Return the Lightning package that the program uses. Its two packages define different classes."""
    used = next((name for name in _PACKAGES if name in sys.modules), None)
    if used is not None:
        return sys.modules[used]
    try:
        return importlib.import_module(_PACKAGES[0])
    except ModuleNotFoundError:
        return importlib.import_module(_PACKAGES[1])


_lightning: Any = _package()
_Callback: Any = _lightning.Callback
_Profiler: Any = importlib.import_module(f"{_lightning.__name__}.profilers").Profiler


class AnnotCallback(_Callback):
    """Ranges for a `Trainer`: layers, epochs, batches and waits for data, in training and the other stages.

    A training batch is ``Batch 12``, a validation batch ``Batch validate 3``. The stages ``test`` and ``predict`` are
    named alike. All ranges and patches are removed when the trainer finishes or fails.

    Args:
        options: keyword arguments of `annot.torch.emit_ranges`.

    Example:
        >>> import lightning, annot.torch  # doctest: +SKIP
        >>> lightning.Trainer(callbacks=[annot.torch.AnnotCallback()]).fit(model)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._ranges = TrainerRanges(options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Emit ranges of the model until the trainer is done."""
        self._ranges.enter(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close all ranges."""
        self._ranges.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close all ranges."""
        self._ranges.close()


def _add_stage(trainer_name: str, stage: str) -> None:
    """Add the callbacks of a stage of the trainer. A batch that the trainer abandoned ends with its epoch."""

    def on_epoch_start(self: AnnotCallback, trainer: Any, pl_module: Any) -> None:
        self._ranges.begin("epoch", trainer.current_epoch, stage)

    def on_batch_start(
        self: AnnotCallback, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._ranges.begin("step", batch_idx, stage)

    def on_batch_end(self: AnnotCallback, *_: Any, **__: Any) -> None:
        self._ranges.end("step", stage)

    def on_epoch_end(self: AnnotCallback, *_: Any) -> None:
        self._ranges.end("step", stage)
        self._ranges.end("epoch", stage)

    for function in (on_epoch_start, on_batch_start, on_batch_end, on_epoch_end):
        setattr(AnnotCallback, function.__name__.replace("on", f"on_{trainer_name}", 1), function)


for _trainer_name, _stage in (("train", ""), ("validation", "validate"), ("test", "test"), ("predict", "predict")):
    _add_stage(_trainer_name, _stage)


class AnnotProfiler(_Profiler):
    """Profiler with a range for each action of a `Trainer`, such as ``run_training_batch``.

    It works with and without `AnnotCallback`. Actions may overlap, so the ranges are start/end ranges.

    Example:
        >>> import lightning, annot.torch  # doctest: +SKIP
        >>> lightning.Trainer(profiler=annot.torch.AnnotProfiler()).fit(model)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, list[Any]] = {}

    def start(self, action_name: str) -> None:
        """Open the range of an action."""
        if client.enabled():
            event = client.event(tag.format(tag.Tag(layer=action_name)), category="lightning")
            self._started.setdefault(action_name, []).append(client.start(event))

    def stop(self, action_name: str) -> None:
        """Close the range of an action. An action that was not started is ignored, as in Lightning's profilers."""
        started = self._started.get(action_name)
        if started:
            client.end(started.pop())

    def teardown(self, stage: str | None) -> None:
        """Close the ranges that an exception has left open."""
        for started in self._started.values():
            while started:
                client.end(started.pop())
        super().teardown(stage=stage)
