"""Callback for the Hugging Face Trainer: ranges around training and evaluation of a model."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from annot.torch.ranges import TrainerRanges


class AnnotTrainerCallback(TrainerCallback):
    """Ranges for a `transformers.Trainer`: layers, epochs, batches, waits for data and evaluation.

    ``Batch 12`` covers one optimizer step, including all accumulated batches. An evaluation during training is
    ``Epoch evaluate 0``. The trainer does not report a failed training to its callbacks: ranges that are open then
    close when the next training begins, the callback is deleted, or the process exits. For `evaluate` and `predict`
    without training, use `annot.emit_ranges` around them.

    Args:
        options: keyword arguments of `annot.torch.emit_ranges`.

    Example:
        >>> import annot.torch  # doctest: +SKIP
        >>> Trainer(model, args, callbacks=[annot.torch.AnnotTrainerCallback()]).train()  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._ranges = TrainerRanges(options)
        self._evaluations = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Emit ranges of the model until training ends."""
        self._evaluations = 0
        self._ranges.enter(kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close all ranges."""
        self._ranges.close()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin an epoch."""
        self._ranges.end("epoch", "evaluate")
        # The epoch is a sum of fractions: correct its rounding error.
        self._ranges.begin("epoch", int((state.epoch or 0) + 1e-6))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the epoch. An evaluation may follow."""
        self._ranges.end("step")
        self._ranges.end("epoch")
        self._may_evaluate(control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a batch."""
        self._ranges.end("epoch", "evaluate")
        self._ranges.begin("step", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the batch. An evaluation may follow."""
        self._ranges.end("step")
        self._may_evaluate(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the evaluation."""
        self._ranges.end("epoch", "evaluate")

    def _may_evaluate(self, control: Any) -> None:
        if control.should_evaluate:
            self._ranges.begin("epoch", self._evaluations, "evaluate")
            self._evaluations += 1
