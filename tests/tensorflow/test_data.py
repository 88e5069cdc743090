"""The wait for data of a `tf.data.Dataset`, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matrices import matrix

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import numpy as np  # noqa: E402
from captured import Captured  # noqa: E402
from commands import needs_recorder  # noqa: E402
from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # noqa: E402
from tf_nets import BATCH, network, numbered, samples, weights  # noqa: E402
from tf_recorded import installed, recorded  # noqa: E402

import annot  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.tf import AnnotCallback, emit_ranges, training_loop  # noqa: E402
from annot.tf.training_loop import DataWaits  # noqa: E402

pytestmark = needs_recorder

DATA = "Data |data"


def ranged(folder: Path, body: Callable[[], object]) -> Captured:
    def inside() -> None:
        with installed(DataWaits()):
            body()

    return recorded(folder, inside)


def numbers(count: int) -> Any:
    return tf.data.Dataset.range(count)


def test_eager_loops_have_a_range_for_each_wait(tmp_path: Path) -> None:
    """Also the one that finds the end, for all ways to read; the elements are the same."""
    seen: list[Any] = []

    def body() -> None:
        seen.append([int(one) for one in numbers(2)])
        iterator = iter(numbers(2))
        seen.append([int(next(iterator)), int(iterator.get_next()), bool(iterator.get_next_as_optional().has_value())])
        seen.append([int(one) for one in numbers(1).as_numpy_iterator()])

    captured = ranged(tmp_path, body)
    assert seen == [[0, 1], [0, 1, False], [0]]
    assert captured.texts == [DATA] * 8


def test_inside_annots_batches_there_is_one_range_for_a_wait(tmp_path: Path) -> None:
    """Which is that of `annot.batches`, before the batch."""
    captured = ranged(tmp_path, lambda: list(annot.batches(numbers(1))))
    assert captured.texts == [DATA, numbered("Batch 0 |step"), DATA]


def test_the_wait_is_inside_the_range_and_the_rest_is_not(tmp_path: Path) -> None:
    """Seen from a range that the data set itself makes on each element."""

    def make(number: Any) -> Any:
        with annot.trace("make"):
            return number

    data = numbers(3).map(lambda number: tf.py_function(make, [number], tf.int64))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # which makes elements ahead of their time
    data = data.with_options(options)

    @tf.function  # type: ignore[untyped-decorator]
    def both(iterator: Any) -> Any:
        return iterator.get_next() + 10 * iterator.get_next()

    seen: list[int] = []

    def body() -> None:
        iterator = iter(data)
        seen.append(int(both(iterator)))
        with annot.trace("use"):
            pass
        seen.append(int(next(iterator)))

    captured = ranged(tmp_path, body)
    assert seen == [10, 2]
    assert captured.texts == [DATA, "make", DATA, "make", "use", DATA, "make"]
    pairs = [(0, 1), (2, 3), (5, 6)]
    starts, ends = [one.start for one in captured.ranges], [one.end for one in captured.ranges]
    assert all(starts[a] < starts[b] < ends[b] < ends[a] for a, b in pairs)
    assert ends[0] < starts[2]


@pytest.mark.parametrize(("eagerly", "steps"), matrix([False, True], [1, 4]))
def test_fit_evaluate_and_predict(tmp_path: Path, eagerly: bool, steps: int) -> None:
    """One range for each read; the same bits."""
    x, y = samples(6)

    def run(model: Any, *callbacks: Any) -> list[Any]:
        settings: Any = {"batch_size": BATCH, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x, y, shuffle=False, **settings)
        return [model.evaluate(x, y, **settings), model.predict(x, **settings).tobytes()]

    options: Any = {"run_eagerly": eagerly, "steps_per_execution": steps}
    model, plain, seen = network(**options), network(**options), []
    captured = ranged(tmp_path, lambda: seen.extend(run(model, AnnotCallback())))
    assert seen == run(plain)
    assert weights(model) == weights(plain)
    waits = [one for one in captured.ranges if one.text == DATA]
    epochs = [one for one in captured.ranges if one.text.endswith("|epoch")]
    found = [sum(epoch.start < one.start < one.end < epoch.end for one in waits) for epoch in epochs]
    reads = 6 + (steps > 1)  # of several steps, one finds that there are no more
    assert found == [reads] * 3
    assert len(waits) == sum(found)


def test_data_that_end_inside_a_graph_leave_no_range_open(tmp_path: Path) -> None:
    """Keras reads until there are no more; so may a loop of one's own, over an iterator."""
    x, y = samples(2)
    shapes = (tf.TensorSpec((3,)), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=shapes).batch(BATCH)

    @tf.function  # type: ignore[untyped-decorator]
    def total(iterator: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for number in iterator:
            result += number
        return result

    def body() -> None:
        network().fit(data, epochs=2, verbose=0, callbacks=[AnnotCallback()])
        assert int(total(iter(numbers(3)))) == 3

    with pytest.warns(UserWarning, match="ran out of data"):
        captured = ranged(tmp_path, body)
    assert captured.texts.count(DATA) == 2 * 3 + 4


def test_elements_of_any_structure_come_through(tmp_path: Path) -> None:
    """Nested, ragged, sparse, strings."""
    ragged = tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0]])
    data = tf.data.Dataset.from_tensor_slices({"a": (ragged, sparse), "b": tf.constant(["x", "y"])})

    @tf.function  # type: ignore[untyped-decorator]
    def read(iterator: Any) -> Any:
        iterator.get_next()
        element = iterator.get_next()
        return element["a"][0], tf.sparse.to_dense(element["a"][1]), element["b"]

    seen: list[Any] = []
    captured = ranged(tmp_path, lambda: seen.extend(one.numpy() for one in read(iter(data))))
    assert np.array_equal(seen[0], [2, 3])
    assert np.array_equal(seen[1], [2, 0])
    assert seen[2] == b"y"
    assert captured.texts == [DATA] * 2


def test_the_step_is_not_traced_again(tmp_path: Path) -> None:
    """A function is traced once, and reads the same."""
    traced: list[None] = []

    @tf.function  # type: ignore[untyped-decorator]
    def read(iterator: Any) -> Any:
        traced.append(None)
        return iterator.get_next()

    seen: list[int] = []

    def body() -> None:
        iterator = iter(numbers(5))
        seen.extend(int(read(iterator)) for _ in range(5))

    assert ranged(tmp_path, body).texts == [DATA] * 5
    assert (len(traced), seen) == (1, [0, 1, 2, 3, 4])


def test_without_graphs_only_eager_waits_have_ranges(tmp_path: Path) -> None:
    """As the mode "names" is."""
    iterator_of = tf.function(lambda iterator: iterator.get_next())

    def body() -> None:
        with emit_ranges(network(), mode="names"):
            iterator = iter(numbers(2))
            iterator_of(iterator)
            next(iterator)

    assert recorded(tmp_path, body).texts == [DATA]


def test_everything_is_as_before() -> None:
    """After the block."""
    names = ("__next__", "get_next", "get_next_as_optional")
    before = [vars(OwnedIterator)[name] for name in names]
    waits = DataWaits()
    waits.install()
    assert all(vars(OwnedIterator)[name] is not one for name, one in zip(names, before, strict=True))
    waits.undo()
    assert [vars(OwnedIterator)[name] for name in names] == before


def test_release_without_the_private_class_of_iterators(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning names the class; data are read as ever, without ranges."""
    monkeypatch.setattr(training_loop, "iterator_ops", SimpleNamespace())
    client.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="OwnedIterator"), installed(DataWaits()):
        assert [int(one) for one in numbers(2)] == [0, 1]
