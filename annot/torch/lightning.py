"""Lightning: a callback that puts ranges around all that a `Trainer` does with a model, and a profiler."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from annot import emit, tag
from annot.torch.trainers import TrainerRanges

__all__ = ["AnnotCallback", "AnnotProfiler"]

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _package() -> Any:
    """Return the Lightning that the program uses: it comes as two packages whose classes are not the same."""
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
    """Ranges for a `Trainer`: layers, epochs, batches, waits for data, for training and the other stages.

    A batch of training is ``Batch 12``, one of validation ``Batch validate 3``; alike for ``test`` and ``predict``.
    Nothing stays behind when the trainer is done, however it ends.

    Args:
        options: those of `annot.torch.emit_ranges`.

    Example:
        >>> import lightning, annot.torch  # doctest: +SKIP
        >>> lightning.Trainer(callbacks=[annot.torch.AnnotCallback()]).fit(model)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._ranges = TrainerRanges(options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Emit the ranges of the model until the trainer is done."""
        self._ranges.enter(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close all."""
        self._ranges.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close all."""
        self._ranges.close()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch."""
        self._ranges.begin("epoch", trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a batch."""
        self._ranges.begin("step", batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the batch."""
        self._ranges.end("step")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the epoch, and a batch that the trainer gave up."""
        self._end_epoch("")

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a round of validation."""
        self._ranges.begin("epoch", trainer.current_epoch, "validate")

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch of validation."""
        self._ranges.begin("step", batch_idx, "validate")

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """End the batch of validation."""
        self._ranges.end("step", "validate")

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the round of validation."""
        self._end_epoch("validate")

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a test."""
        self._ranges.begin("epoch", trainer.current_epoch, "test")

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch of the test."""
        self._ranges.begin("step", batch_idx, "test")

    def on_test_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """End the batch of the test."""
        self._ranges.end("step", "test")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the test."""
        self._end_epoch("test")

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to predict."""
        self._ranges.begin("epoch", trainer.current_epoch, "predict")

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch to predict."""
        self._ranges.begin("step", batch_idx, "predict")

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """End the batch to predict."""
        self._ranges.end("step", "predict")

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """End predicting."""
        self._end_epoch("predict")

    def _end_epoch(self, stage: str) -> None:
        self._ranges.end("step", stage)
        self._ranges.end("epoch", stage)


class AnnotProfiler(_Profiler):
    """A range for each action of a `Trainer`, such as ``run_training_batch``, by its name.

    It needs no callback, and goes together with one. Actions are not nested strictly, so their ranges are started
    and ended, not pushed and popped.

    Example:
        >>> import lightning, annot.torch  # doctest: +SKIP
        >>> lightning.Trainer(profiler=annot.torch.AnnotProfiler()).fit(model)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, list[Any]] = {}

    def start(self, action_name: str) -> None:
        """Start the range of an action."""
        if emit.enabled():
            event = emit.event(tag.format(tag.Tag(layer=action_name)), category="lightning")
            self._started.setdefault(action_name, []).append(emit.start(event))

    def stop(self, action_name: str) -> None:
        """End the range of the action; one that never started is left alone, as Lightning's own profilers do."""
        started = self._started.get(action_name)
        if started:
            emit.end(started.pop())

    def teardown(self, stage: str | None) -> None:
        """End what an exception has left open."""
        for started in self._started.values():
            while started:
                emit.end(started.pop())
        super().teardown(stage=stage)
