"""Epochs and batches of `fit`, `evaluate` and `predict`, with the callback and without."""

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matrices import every_third

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from captured import Captured, capture  # noqa: E402
from commands import needs_recorder  # noqa: E402
from recorded import rows  # noqa: E402
from tf_nets import BATCH, network, numbered, samples, weights  # noqa: E402

import annot  # noqa: E402
from annot.emit import loop  # noqa: E402
from annot.keras.fit_loops import FitLoops  # noqa: E402
from annot.tf import AnnotCallback, emit_ranges  # noqa: E402

pytestmark = needs_recorder


def fit(model: Any, *callbacks: Any, batches: int = 3, epochs: int = 2, **options: Any) -> Any:
    x, y = samples(batches)
    settings = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "callbacks": list(callbacks), "epochs": epochs}
    return model.fit(x, y, **{**settings, **options})


def loops(captured: Captured) -> list[str]:
    """The epochs and batches."""
    return [text for text in captured.texts if text.endswith(("|epoch", "|step"))]


def epoch(number: int, batches: int, stage: str = "", step: int = 1) -> list[str]:
    words = f"{stage} " if stage else ""
    inside = [f"Batch {words}{batch} |step" for batch in range(0, batches, step)]
    return [*map(numbered, (f"Epoch {words}{number} |epoch", *inside))]


def untouched(model: Any) -> bool:
    """Nothing that was replaced is left."""
    names = ("train_function", "test_function", "predict_function")
    replaced = any("FunctionWrapper" in type(vars(model).get(name)).__name__ for name in names)
    return not replaced and not {"fit", "evaluate", "predict"} & vars(model).keys()


def test_fit_with_validation_has_each_epoch_and_batch_once(tmp_path: Path) -> None:
    """The validation of an epoch is inside that epoch; every batch is inside its epoch; all the same bits."""
    model, plain = network(), network()
    captured = capture(tmp_path, lambda: fit(model, AnnotCallback(), validation_data=samples(2)))
    fit(plain, validation_data=samples(2))
    assert weights(model) == weights(plain)
    assert loops(captured) == [
        *epoch(0, 3), *epoch(0, 2, "validate"), *epoch(1, 3), *epoch(1, 2, "validate"),
    ]  # fmt: skip
    epochs = [one for one in captured.ranges if one.text.endswith("|epoch")]
    around = None
    for one in captured.ranges:
        if one.text.endswith("|epoch"):
            around = one
        assert around is not None
        assert around.start <= one.start <= one.end <= around.end
    for outer, inner in (epochs[:2], epochs[2:]):
        assert outer.start < inner.start < inner.end < outer.end
    assert untouched(model)


def test_batches_do_not_overlap_and_their_payload_is_their_number(tmp_path: Path) -> None:
    """A batch ends with its step, before the next begins."""
    captured = capture(tmp_path, lambda: fit(network(), AnnotCallback(), batches=5, epochs=1))
    batches = [one for one in captured.ranges if one.text.endswith("|step")]
    assert [one.text for one in batches] == epoch(0, 5)[1:]
    assert all(one.end < following.start for one, following in itertools.pairwise(batches))
    steps = [row for row in rows(next(tmp_path.glob("*.sqlite")), "start") if str(row.text).endswith("|step")]
    assert [list(row.payload.values()) for row in steps] == [[0], [1], [2], [3], [4]]


def test_evaluate_and_predict_have_their_own_stages(tmp_path: Path) -> None:
    """And give what they give without the callback."""
    model = network()
    x, y = samples(3)
    seen: list[Any] = []

    def body() -> None:
        callback = AnnotCallback()
        seen.append(model.evaluate(x, y, batch_size=BATCH, verbose=0, callbacks=[callback]))
        seen.append(model.predict(x, batch_size=BATCH, verbose=0, callbacks=[callback]))

    captured = capture(tmp_path, body)
    assert loops(captured) == [*epoch(0, 3, "test"), *epoch(0, 3, "predict")]
    assert seen[0] == model.evaluate(x, y, batch_size=BATCH, verbose=0)
    assert np.array_equal(seen[1], model.predict(x, batch_size=BATCH, verbose=0))
    assert untouched(model)


def test_several_steps_per_execution_are_one_batch(tmp_path: Path) -> None:
    """Its number is that of the first step."""
    model, plain = network(steps_per_execution=4), network(steps_per_execution=4)

    def body() -> None:
        callback = AnnotCallback()
        fit(model, callback, batches=10, validation_data=samples(5))
        model.predict(samples(6)[0], batch_size=BATCH, verbose=0, callbacks=[callback])

    captured = capture(tmp_path, body)
    fit(plain, batches=10, validation_data=samples(5))
    assert weights(model) == weights(plain)
    each = [epoch(number, 10, step=4) + epoch(number, 5, "validate", step=4) for number in range(2)]
    assert loops(captured) == [*each[0], *each[1], *epoch(0, 6, "predict", step=4)]


@pytest.mark.parametrize("eagerly", [False, True])
def test_stopping_early_closes_all(tmp_path: Path, eagerly: bool) -> None:
    """`stop_training` amid an epoch, and `EarlyStopping` after one."""

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = self.model.stop_training or batch == 1

    model = network(run_eagerly=eagerly)
    captured = capture(tmp_path, lambda: fit(model, AnnotCallback(), Stop()))
    assert loops(captured) == epoch(0, 2)
    early = keras.callbacks.EarlyStopping("loss", min_delta=9e9, patience=0)
    captured = capture(tmp_path, lambda: fit(model, early, AnnotCallback(), epochs=5))
    assert loops(captured) == [*epoch(0, 3), *epoch(1, 3)]
    assert untouched(model)


class Fails(keras.layers.Layer):  # type: ignore[misc]
    """Fails in the step whose inputs say so, in eager mode and in a graph."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        with tf.control_dependencies([tf.debugging.assert_less(inputs, 9.0)]):
            return tf.identity(inputs)


class Raises(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises an error when the second batch begins."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Raise it."""
        if batch == 1:
            raise self.error("by a callback")


def failing_data() -> Iterator[Any]:
    x, y = samples(1)
    yield x, y
    raise RuntimeError("by the data")


def bad_layer(*callbacks: Any, eagerly: bool) -> None:
    x, y = samples(3)
    x[BATCH] = 10.0
    layers = keras.layers.Dense(3, kernel_initializer="identity"), Fails(), keras.layers.Dense(1)
    model = network(*layers, run_eagerly=eagerly)
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=list(callbacks))


def bad_data(*callbacks: Any) -> None:
    shapes = (tf.TensorSpec((BATCH, 3)), tf.TensorSpec((BATCH, 1)))
    data = tf.data.Dataset.from_generator(failing_data, output_signature=shapes)
    network().fit(data, verbose=0, callbacks=list(callbacks))


FAILURES: dict[str, Callable[..., None]] = {
    "layer, graph": lambda *callbacks: bad_layer(*callbacks, eagerly=False),
    "layer, eager": lambda *callbacks: bad_layer(*callbacks, eagerly=True),
    "data": bad_data,
    "callback": lambda *callbacks: fit(network(), *callbacks, Raises(ValueError)),
    "interrupt": lambda *callbacks: fit(network(), *callbacks, Raises(KeyboardInterrupt)),
}


@pytest.mark.parametrize("failure", every_third(FAILURES))
def test_what_an_exception_leaves_open_is_closed(tmp_path: Path, failure: str) -> None:
    """By a failing step itself, else by `close` and by the next use; the exception is the same as without."""
    with pytest.raises(BaseException) as plain:  # noqa: PT011
        FAILURES[failure]()
    callback = AnnotCallback()

    def body() -> None:
        with pytest.raises(type(plain.value)):
            FAILURES[failure](callback)
        if failure in ("callback", "interrupt"):
            callback.close()

    captured = capture(tmp_path, body)
    assert loops(captured) == epoch(0, 1 if failure in ("callback", "interrupt") else 2)


@pytest.mark.slow
def test_a_stale_epoch_ends_with_the_next_use_or_the_callback(tmp_path: Path) -> None:
    """And is not taken for the one around a later evaluation."""

    def body() -> None:
        callback, model = AnnotCallback(), network()
        with pytest.raises(ValueError, match="callback"):
            fit(model, callback, Raises(ValueError))
        model.evaluate(*samples(1), batch_size=BATCH, verbose=0, callbacks=[callback])
        assert untouched(model)
        with pytest.raises(ValueError, match="callback"):
            fit(model, callback, Raises(ValueError))
        del model, callback
        keras.backend.clear_session()
        gc.collect()

    captured = capture(tmp_path, body)
    assert loops(captured) == [*epoch(0, 1), *epoch(0, 1, "test"), *epoch(0, 1)]
    stale, test, _ = (one for one in captured.ranges if one.text.endswith("|epoch"))
    assert stale.end < test.start


def test_a_data_set_of_unknown_length_ends_in_a_batch_that_finds_nothing(tmp_path: Path) -> None:
    """In every epoch, since Keras calls its step until the data are out."""
    x, y = samples(3)
    shapes = (tf.TensorSpec((3,)), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=shapes).batch(BATCH)
    with pytest.warns(UserWarning, match="ran out of data"):
        captured = capture(tmp_path, lambda: network().fit(data, epochs=2, verbose=0, callbacks=[AnnotCallback()]))
    assert loops(captured) == [*epoch(0, 4), *epoch(1, 4)]


def test_without_a_tool_nothing_is_replaced() -> None:
    """The model runs its very own functions."""
    model, seen = network(), []
    look = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: seen.append(untouched(model)))
    fit(model, AnnotCallback(), look)
    assert seen == [True] * 6


def test_batches_lead_those_who_follow_them(tmp_path: Path) -> None:
    """A schedule hears of every batch with a tool or without, and finds the model's own functions, to exchange them."""
    model, heard = network(), []
    follow = lambda: heard.append(untouched(model))  # noqa: E731
    loop.followers.of_batches.append(follow)
    try:
        capture(tmp_path, lambda: fit(model, AnnotCallback()))
        assert heard == [True] * 6
        fit(model, AnnotCallback())
        assert heard == [True] * 12
    finally:
        loop.followers.of_batches.remove(follow)


def test_the_step_is_not_traced_again(tmp_path: Path) -> None:
    """The layers are called for tracing as often as without, over two calls of `fit`."""

    def calls(*callbacks: Any) -> int:
        seen: list[None] = []

        class Counting(keras.layers.Layer):  # type: ignore[misc]
            def call(self, inputs: Any) -> Any:
                seen.append(None)
                return inputs

        model = network(Counting(), keras.layers.Dense(1))
        for _ in range(2):
            fit(model, *callbacks, validation_data=samples(1))
        return len(seen)

    found: list[int] = []
    capture(tmp_path, lambda: found.append(calls(AnnotCallback())))
    assert found == [calls()]


def test_a_step_that_is_replaced_amid_training_keeps_its_batches(tmp_path: Path) -> None:
    """As a schedule does between batches; afterwards the model has the latest."""
    model, later = network(), []

    class Swap(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and not later:
                plain = self.model._make_function(self.model.train_step)
                later.append(plain)
                self.model.train_function = plain

    captured = capture(tmp_path, lambda: fit(model, Swap(), AnnotCallback()))
    assert loops(captured) == [*epoch(0, 3), *epoch(1, 3)]
    assert model.train_function is later[0]


def test_a_copy_of_a_callback_has_nothing_open(tmp_path: Path) -> None:
    """It can be copied and pickled, as wrappers of scikit-learn do."""

    def body() -> None:
        callback = AnnotCallback()
        callback.set_model(network())
        callback.on_epoch_begin(0)
        pickle.loads(pickle.dumps(callback)).close()
        callback.close()

    assert loops(capture(tmp_path, body)) == epoch(0, 0)


def test_fit_loops_need_no_callback(tmp_path: Path) -> None:
    """`fit` with validation, `evaluate`, `predict`; the user's list of callbacks stays as it is."""
    model, plain = network(), network()
    x, y = samples(2)
    mine: list[Any] = [keras.callbacks.TerminateOnNaN()]

    def body() -> None:
        loops_of = FitLoops(model)
        loops_of.install()
        try:
            model.fit(x, y, BATCH, 1, 0, mine, validation_data=(x, y), shuffle=False)
            model.evaluate(x, y, batch_size=BATCH, verbose=0)
            model.predict(x, batch_size=BATCH, verbose=0, callbacks=AnnotCallback())
        finally:
            loops_of.undo()

    captured = capture(tmp_path, body)
    plain.fit(x, y, BATCH, 1, 0, mine, validation_data=(x, y), shuffle=False)
    assert len(mine) == 1
    assert weights(model) == weights(plain)
    whole = [*epoch(0, 2), *epoch(0, 2, "validate"), *epoch(0, 2, "test"), *epoch(0, 2, "predict")]
    assert loops(captured) == whole
    assert untouched(model)


def test_fit_loops_close_what_an_exception_leaves_open(tmp_path: Path) -> None:
    """At once, the exceptions as without; wrong arguments are the method's to refuse."""
    model = network()
    loops_of = FitLoops(model)

    def body() -> None:
        loops_of.install()
        try:
            fit(model, Raises(KeyboardInterrupt))
        except KeyboardInterrupt:  # as long as it is there, nothing is thrown away
            with annot.trace("after"):
                pass
        with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
            model.fit(wrong=1)
        held, inner = model.fit, FitLoops(model)
        inner.install()
        inner.undo()
        assert model.fit is held
        loops_of.undo()
        held(*samples(1), verbose=0)

    captured = capture(tmp_path, body)
    assert loops(captured) == epoch(0, 1)
    after = next(one for one in captured.ranges if one.text == "after")
    assert all(one.end < after.start for one in captured.ranges if one is not after)


def test_emit_ranges_brings_the_loop(tmp_path: Path) -> None:
    """Epochs, batches, waits, layers and updates of a plain `fit`; the second step alone, if a schedule says so."""
    model, plain = network(), network()

    def body() -> None:
        with emit_ranges(model, shapes=False):
            fit(model, epochs=1, batches=2)
        with emit_ranges(model, shapes=False, schedule=annot.schedule(wait=1, active=1, repeat=1)):
            fit(model, epochs=1)

    captured = capture(tmp_path, body)
    fit(plain, epochs=1, batches=2)
    fit(plain, epochs=1)
    assert weights(model) == weights(plain)
    assert untouched(model)
    updates, waits = (
        sum(text.startswith(start) for text in captured.texts) for start in ("Optimizer SGD params=26", "Data |data")
    )
    assert (updates, waits) == (3, 3)
    assert loops(captured) == [*epoch(0, 2), *epoch(0, 3)]
    batches = [one for one in captured.ranges if one.text.endswith("|step")]
    inside = [
        {one.tag.phase for one in captured.ranges if one.tag and batch.start < one.start < batch.end}
        for batch in batches
    ]
    full = {"data", "forward", "backward", "optimizer"}
    assert inside == [full, full, set(), full, set()]
