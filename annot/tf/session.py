"""Graph sessions of TensorFlow 1: a hook that puts a range around each run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import wrapt

from annot import emit, loop
from annot.keras.callback import close_operations
from annot.open_ranges import OpenRanges
from annot.patches import Patches

__all__ = ["SessionHook"]


class SessionHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A range ``Batch 12`` around each run of a monitored session, counted from 0.

    A run that fails closes its range and those of its operations; whatever the session does then, as starting anew
    after a worker was lost, the count goes on. If `annot.enabled` is false, nothing is done.

    Args:
        stage: what the runs are for, such as ``test``, unless for training: ``Batch test 12``.
        skip: how many runs have no range.

    Example:
        >>> import annot.tf, tensorflow as tf
        >>> with tf.Graph().as_default():
        ...     one = tf.constant(1)
        ...     with tf.compat.v1.train.MonitoredSession(hooks=[annot.tf.SessionHook()]) as session:
        ...         print(session.run(one))
        1
    """

    def __init__(self, *, stage: str = "", skip: int = 0) -> None:
        self._stage = stage
        self._skip = skip
        self._ranges = OpenRanges()
        self._count = 0
        self._announced = False
        self._patches = Patches()
        self._is_told = False  # of every run of the session

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Have every run of the session that hooks are told of begin and end in its range."""
        self._patches.undo()
        self._patches.replace(session, "run", wrapt.FunctionWrapper(session.run, self._run))
        self._is_told = True

    def before_run(self, run_context: Any) -> None:
        """Prepare for a run; of a session that was created without this hook, begin its range."""
        self._ranges.end("step", self._stage)
        self._announced = emit.enabled() or bool(loop.followers.of_batches)
        if self._announced and not self._is_told:
            self._begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """End the range of the run, unless the run did."""
        self._announced = False
        self._ranges.end("step", self._stage)

    def end(self, session: Any) -> None:
        """End what is open, and give the session its function back."""
        self._ranges.close()
        self._patches.undo()
        self._is_told = False

    def _begin(self) -> None:
        if self._count >= self._skip:
            self._ranges.begin("step", self._count, self._stage)
        self._announced = False
        self._count += 1

    def _run(self, function: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if not self._announced:
            return function(*args, **kwargs)
        self._begin()
        try:
            return function(*args, **kwargs)
        except BaseException:
            close_operations()
            raise
        finally:
            self._ranges.end("step", self._stage)
