"""Graph sessions of TensorFlow 1 with the session hook."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from captured import capture  # noqa: E402
from commands import needs_recorder  # noqa: E402
from tf_nets import numbered  # noqa: E402

import annot  # noqa: E402
from annot.emit import loop  # noqa: E402
from annot.tf import SessionHook  # noqa: E402

pytestmark = needs_recorder


def batch(number: int, stage: str = "") -> str:
    return numbered(f"Batch {stage}{number} |step")


@contextlib.contextmanager
def graph() -> Iterator[tuple[Any, Any]]:
    """A step that checks what is fed, and counts: input and result."""
    with tf.Graph().as_default():
        by = tf.compat.v1.placeholder(tf.int32, ())
        steps = tf.compat.v1.train.get_or_create_global_step()
        with tf.control_dependencies([tf.compat.v1.assert_positive(by, message="must be positive")]):
            step = tf.compat.v1.assign_add(steps, 1)
        yield by, step


def train(fed: list[int], *hooks: Any) -> list[int]:
    with graph() as (by, step), tf.compat.v1.train.MonitoredSession(hooks=list(hooks)) as session:
        return [int(session.run(step, {by: one})) for one in fed]


def test_each_run_has_one_range(tmp_path: Path) -> None:
    """Around the run, not around what other hooks run; results as without."""
    seen: list[list[int]] = []

    class Looks(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            with annot.trace("look"):
                run_context.session.run(tf.compat.v1.train.get_global_step())

    captured = capture(tmp_path, lambda: seen.append(train([1, 2, 5], SessionHook(), Looks())))
    assert seen == [train([1, 2, 5])] == [[1, 2, 3]]
    assert captured.texts == [text for number in range(3) for text in (batch(number), "look")]
    assert all(a.end < b.start for a, b in itertools.pairwise(captured.ranges))


def test_a_failing_run_closes_its_range(tmp_path: Path) -> None:
    """Before the exception reaches the loop; the exception is the same as without."""
    with pytest.raises(tf.errors.InvalidArgumentError) as plain:
        train([1, 0])

    def body() -> None:
        with annot.trace("loop"):
            with pytest.raises(type(plain.value), match="must be positive"):
                train([1, 0], SessionHook(stage="test"))
            with annot.trace("after"):
                pass

    captured = capture(tmp_path, body)
    assert captured.texts == ["loop", batch(0, "test "), batch(1, "test "), "after"]
    assert captured.ranges[2].end < captured.ranges[3].start


def test_a_session_that_starts_anew_goes_on_counting(tmp_path: Path) -> None:
    """As after a worker was lost; the session that went has its function back."""
    hook, lost = SessionHook(), []

    class Loses(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if not lost:
                lost.append(run_context.session)
                raise tf.errors.AbortedError(None, None, "lost")

    captured = capture(tmp_path, lambda: train([1, 1, 1], Loses(), hook))
    assert captured.texts == [batch(number) for number in range(4)]
    assert "run" not in vars(lost[0])


def test_a_session_that_was_made_without_the_hook(tmp_path: Path) -> None:
    """Has the range from before the run to after it; an exception leaves it to the next run, or the end."""
    hook = SessionHook()

    def body() -> None:
        for fails in (False, True, False):
            hook.before_run(None)
            if not fails:
                hook.after_run(None, None)
        hook.before_run(None)
        hook.end(None)

    assert capture(tmp_path, body).texts == [batch(number) for number in range(4)]


def test_runs_lead_those_who_follow_batches(tmp_path: Path) -> None:
    """With a tool or without."""
    heard: list[None] = []
    follow = lambda: heard.append(None)  # noqa: E731
    loop.followers.of_batches.append(follow)
    try:
        train([1, 1], SessionHook())
        capture(tmp_path, lambda: train([1, 1], SessionHook()))
    finally:
        loop.followers.of_batches.remove(follow)
    assert len(heard) == 4
