"""Sizes that a graph leaves open, as the number of samples in `fit`: the ranges show what they are when it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from tf_nets import network, weights  # noqa: E402
from tf_recorded import counts, needs_graphs, recorded, same  # noqa: E402

from annot import load  # noqa: E402
from annot.analyze.work.layer_work import layer_work  # noqa: E402
from annot.attribution.attribute import attribute  # noqa: E402
from annot.tf import dynamic_sizes, emit_ranges  # noqa: E402

pytestmark = [needs_recorder, needs_graphs]
layers = keras.layers


def in_layers(folder: Path, model: Any, body: Callable[[], object]) -> Counter[str]:
    """How often each text of a layer came."""

    def inside() -> None:
        with emit_ranges(model, mode="ops", data=False, optimizer=False):
            body()

    found = counts(recorded(folder, inside))
    return Counter({text: count for text, count in found.items() if text.endswith(("|fwd", "|bwd"))})


def test_batches_of_fit_have_their_true_sizes(tmp_path: Path) -> None:
    """Arrays, so that Keras leaves the number of samples open, and a last batch of fewer; weights as without."""
    x, y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")

    def fit(model: Any) -> None:
        model.fit(x, y, batch_size=4, epochs=2, verbose=0)

    model, plain = network(), network()
    fit(plain)
    found = in_layers(tmp_path, model, lambda: fit(model))
    assert weights(model) == weights(plain)
    expected: Counter[str] = Counter()
    for samples, batches in ((4, 4), (2, 2)):
        for text in (
            f"net Sequential [{samples},3]f32 |fwd",
            f"net/one Dense [{samples},3]f32 out=5 |fwd",
            f"net/two Dense [{samples},5]f32 out=1 |fwd",
            f"net Sequential [{samples},3]f32 |bwd",
            f"net/two Dense [{samples},5]f32 out=1 |bwd",
            f"net/one Dense [{samples},3]f32 out=5 grad=weight |bwd",
        ):
            expected[text] = batches
    assert found == expected


def test_the_work_of_these_layers_is_counted(tmp_path: Path) -> None:
    """Two products of matrices a sample, and as many again for each gradient."""
    model = network()
    x, y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")
    in_layers(tmp_path, model, lambda: model.fit(x, y, batch_size=4, verbose=0))
    (path,) = tmp_path.glob("*.sqlite")
    work = layer_work(attribute(load(path)))
    flops = {(row["layer"], row["phase"]): row["flops"] for row in work.iter_rows(named=True)}
    assert flops["net/one", "forward"] == flops["net/one", "backward"] == 2 * 10 * 3 * 5
    assert flops["net/two", "forward"] == 2 * 10 * 5
    assert flops["net/two", "backward"] == 2 * flops["net/two", "forward"]


def test_sequences_of_two_lengths(tmp_path: Path) -> None:
    """Integers that have no gradient, a size open in the middle of a shape, and a loop over time."""
    recurrent = layers.LSTM(2, name="lstm")
    model = network(layers.Embedding(9, 4, name="words"), recurrent, layers.Dense(1, name="out"))
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *model.layers], name="text")
    model.compile("sgd", "mse", jit_compile=False)
    batches = [(np.ones((2, length), "int32"), np.ones((2, 1), "float32")) for length in (5, 7, 5)]
    kinds = (tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=kinds)
    found = in_layers(tmp_path, model, lambda: model.fit(data, verbose=0))
    for length, times in ((5, 2), (7, 1)):
        assert found[f"text/words Embedding [2,{length}]i32 num=9 dim=4 |fwd"] == times
        lstm = [text for text in found if text.startswith(f"text/lstm LSTM [2,{length},4]f32 ")]
        assert sorted(text[-3:] for text in lstm) == ["bwd", "fwd"]
        assert [found[text] for text in lstm] == [times, times]
    assert not [text for text in found if "?" in text]


def test_only_what_is_open_is_filled_in(tmp_path: Path) -> None:
    """Of several tensors some are known, one has no known rank, and one is not dense."""

    class Mixed(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return tf.add_n([tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in inputs])

    model = Mixed(name="mixed")
    kinds = [tf.TensorSpec((3,)), tf.TensorSpec(None), tf.TensorSpec((None, 2), tf.int32)]
    run = tf.function(lambda *tensors: model(list(tensors)), input_signature=kinds)
    given = tf.zeros(3), tf.zeros((2, 1, 5)), tf.zeros((4, 2), tf.int32)
    model(list(given))
    assert in_layers(tmp_path, model, lambda: run(*given)) == {"mixed Mixed [3]f32 [2,1,5]f32 [4,2]i32 |fwd": 1}
    ragged = tf.RaggedTensor.from_row_lengths(tf.zeros(5), tf.constant([2, 3]))
    assert dynamic_sizes.sources_of([ragged, tf.zeros(2)]) == ()


def gradient_in_a_tape(model: Any) -> Callable[[Any], Any]:
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)

    return step


def test_gradients_have_the_sizes_of_their_forward(tmp_path: Path) -> None:
    """Where the same graph computes both; the gradients are the plain ones."""
    model = network()
    plain, seen = gradient_in_a_tape(model), []
    given = [tf.random.normal((samples, 3)) for samples in (2, 5)]
    wanted = [plain(x) for x in given]

    def body() -> None:
        step = gradient_in_a_tape(model)
        seen.extend(map(step, given))

    found = in_layers(tmp_path, model, body)
    assert all(map(same, seen, wanted))
    for samples in (2, 5):
        assert found[f"net/one Dense [{samples},3]f32 out=5 |fwd"] == 1
        assert found[f"net/one Dense [{samples},3]f32 out=5 grad=weight |bwd"] == 1
        assert found[f"net/two Dense [{samples},5]f32 out=1 |bwd"] == 1
    assert not [text for text in found if "?" in text]


def test_a_placeholder_of_a_session(tmp_path: Path) -> None:
    """Graphs of TensorFlow 1."""
    model = network()

    def body() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.compat.v1.placeholder(tf.float32, (None, 3))
            layer = layers.Dense(5, name="one")
            layer.build((None, 3))
            with emit_ranges(layer, mode="ops"):
                outputs = layer(fed)
            session.run(tf.compat.v1.global_variables_initializer())
            for samples in (2, 5):
                session.run(outputs, {fed: np.ones((samples, 3))})

    found = in_layers(tmp_path, model, body)
    assert found == {f"one Dense [{samples},3]f32 out=5 |fwd": 1 for samples in (2, 5)}


@pytest.mark.filterwarnings("ignore:a layer in a graph has more than 64 different input shapes")
def test_after_many_sizes_the_text_leaves_them_open(tmp_path: Path) -> None:
    """So many texts and no more; the first ones stay."""
    layer = layers.Dense(1, name="much")
    layer.build((None, 3))
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, 3))])
    different = [*range(1, dynamic_sizes.MAX_SIZED + 3), 1]

    def body() -> None:
        for samples in different:
            run(tf.zeros((samples, 3)))

    found = in_layers(tmp_path, layer, body)
    assert found["much Dense [?,3]f32 out=1 |fwd"] == 2
    assert found["much Dense [1,3]f32 out=1 |fwd"] == 2
    assert len(found) == dynamic_sizes.MAX_SIZED + 1
