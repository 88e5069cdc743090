"""A hook that puts a range around each run of a TensorFlow 1 session."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from annot.emit import client, loop
from annot.emit.loop import OpenRanges
from annot.emit.patches import Patches
from annot.keras.callback import close_operations


class SessionHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A range ``Batch 12`` around each run of a monitored session, counted from 0.

    A failing run closes its range and those of its operations. The count continues if the session restarts, for example
    after the loss of a worker. If `annot.enabled` is false, the hook does nothing.

    Args:
        stage: the purpose of the runs, such as ``test``, which gives ``Batch test 12``; empty for training.
        skip: number of runs at the start without a range.

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
        self._is_wrapped = False  # whether `run` of the session is wrapped

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Wrap `run` of the session that hooks get, so that the range covers exactly the run."""
        self._patches.undo()
        self._patches.wrap(session, "run", self._run)
        self._is_wrapped = True

    def before_run(self, run_context: Any) -> None:
        """Prepare the range of a run; begin it now if the session was created without this hook."""
        self._ranges.end("step", self._stage)
        self._announced = client.enabled() or bool(loop.followers.of_batches)
        if self._announced and not self._is_wrapped:
            self._begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """End the range of the run if it is still open."""
        self._announced = False
        self._ranges.end("step", self._stage)

    def end(self, session: Any) -> None:
        """End all open ranges and restore `run` of the session."""
        self._ranges.close()
        self._patches.undo()
        self._is_wrapped = False

    def _begin(self) -> None:
        if self._count >= self._skip:
            self._ranges.begin("step", self._count, self._stage)
        self._announced = False
        self._count += 1

    def _run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
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
