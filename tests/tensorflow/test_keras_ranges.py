"""What `emit_ranges` leaves behind on a Keras model, when it works, and its options."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from captured import Captured  # noqa: E402
from keras_models import VECTORS, Scale, compiled, fit, five_dense, operations, patched_layers, same, some, stack  # noqa: E402
from tf_recorded import needs_graphs, recorded  # noqa: E402

import annot.tf  # noqa: E402

pytestmark = needs_recorder
layers = keras.layers
X = VECTORS[0]


def patches() -> list[Any]:
    """What a block replaces outside of the model."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.eager import imperative_grad, record
    from tensorflow.python.ops import gradients_util

    owners = [
        (tf.Graph, "_create_op_internal"), (record, "record_operation"), (imperative_grad, "imperative_grad"),
        *((pywrap_tfe, name) for name in ("TFE_Py_FastPathExecute", "TFE_Py_RecordGradient")),
        *((gradients_util, name) for name in ("_GradientsHelper", "_MaybeCompile")),
        *((OwnedIterator, name) for name in ("__next__", "get_next", "get_next_as_optional")),
        (keras.optimizers.Optimizer, "apply"),
    ]  # fmt: skip
    return [getattr(owner, name) for owner, name in owners]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test TensorFlow and Keras are as they were."""
    before = patches()
    yield
    assert patches() == before


def ranged(folder: Path, model: keras.Layer, body: Callable[[], object], **options: Any) -> Captured:
    def inside() -> None:
        with annot.emit_ranges(model, **options):
            body()

    return recorded(folder, inside)


def names(captured: Captured) -> list[str]:
    return [one.name for one in captured.ranges]


def test_off_means_nothing_is_installed() -> None:
    model = five_dense()
    before = patches()
    with annot.emit_ranges(model):
        assert patched_layers(model) == []
        assert patches() == before


def test_before_and_after_fit(tmp_path: Path) -> None:
    """A step that Keras has traced before is traced again, once, and used again afterwards."""
    model = compiled("dense")
    fit(model, "dense")
    plain = model.train_function
    traces = []
    traced = model.train_step

    def train_step(data: Any) -> Any:
        traces.append(len(patched_layers(model)))
        return traced(data)

    model.train_step = train_step
    captured = ranged(tmp_path, model, lambda: (fit(model, "dense"), fit(model, "dense")))
    assert Counter(names(captured))["m/d0<"] == 4
    assert len(traces) == 1
    assert traces[0] > 0
    assert model.train_function is plain
    fit(model, "dense")
    assert len(traces) == 1


def test_compiled_inside_a_block(tmp_path: Path) -> None:
    model = five_dense()

    def body() -> None:
        model.compile("sgd", "mse")
        fit(model, "dense")
        model.compile("adam", "mse")
        fit(model, "dense")

    assert Counter(names(ranged(tmp_path, model, body)))["m/d0<"] == 4
    before = len(model.optimizer.variables)
    fit(model, "dense")
    assert len(model.optimizer.variables) == before


def test_what_is_saved_and_copied_has_no_ranges(tmp_path: Path) -> None:
    model = stack((5,), layers.Dense(4, name="d0"), Scale(name="scale"), layers.Dense(3, name="d1"))
    plain = model.predict(X, verbose=0)
    copies: list[Any] = []
    lines: list[list[str]] = [[], []]
    model.summary(print_fn=lines[0].append)

    def body() -> None:
        model.predict(X, verbose=0)
        model.save(tmp_path / "model.keras")
        model.summary(print_fn=lines[1].append)
        copies.extend([copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.clone_model(model)])
        copies.append(keras.models.load_model(tmp_path / "model.keras"))
        assert patched_layers(model) == ["m", "d0", "scale", "d1"]

    captured = ranged(tmp_path, model, body)
    assert Counter(names(captured))["m/scale>"] == 1
    assert [patched_layers(one) for one in copies] == [[]] * 4
    assert all(same([plain], [one.predict(X, verbose=0)]) for one in (*copies[:2], copies[3], model))
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_what_is_exported_holds_no_operation_of_annot(tmp_path: Path) -> None:
    model = five_dense()
    plain = model.predict(X, verbose=0)

    def body() -> None:
        model.predict(X, verbose=0)
        model.export(tmp_path / "exported", verbose=False)
        tf.saved_model.save(model, tmp_path / "saved")
        (tmp_path / "lite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = ranged(tmp_path, model, body)
    assert sum(one.name[-1] in "<>" for one in captured.ranges) == 6
    for file in ("exported/saved_model.pb", "saved/saved_model.pb", "lite"):
        assert b"Annot" not in (tmp_path / file).read_bytes(), file
    loaded = tf.saved_model.load(tmp_path / "exported")
    assert same([loaded.serve(tf.constant(X)).numpy().round(5)], [plain.round(5)])


@pytest.mark.slow
def test_xla_has_no_operations_and_says_so(tmp_path: Path) -> None:
    model = compiled("dense", optimizer="sgd", jit_compile=True)
    plain = fit(compiled("dense", optimizer="sgd", jit_compile=True), "dense")
    results: list[Any] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured = ranged(tmp_path, model, lambda: results.extend(fit(model, "dense")))
    assert same(plain, results)
    assert not [one for one in captured.ranges if one.name.endswith("<")]
    assert sum("jit_compile=True" in str(one.message) for one in said) <= 1
    assert any("m/d0 Dense [2,5]f32" in text for _, text, _ in captured.marks)


@keras.saving.register_keras_serializable("annot")
class Failing(layers.Layer):
    """A layer that raises while Python runs it, or while the graph does."""

    where = ""

    def call(self, inputs: Any) -> Any:
        if self.where == "python":
            raise ValueError("no more")
        if self.where == "graph":
            with tf.control_dependencies([tf.debugging.Assert(tf.reduce_sum(inputs) < -1e9, ["no more"])]):
                return tf.identity(inputs)
        return inputs


@pytest.mark.parametrize(("where", "eager"), [("python", True), ("python", False), ("graph", False)])
def test_a_step_that_fails_leaves_nothing_open(where: str, eager: bool, tmp_path: Path) -> None:
    failing = Failing(name="failing")
    model = stack((5,), layers.Dense(4, name="d0"), failing, layers.Dense(3, name="d1"))
    model.compile("sgd", "mse", run_eagerly=eager)
    failing.where = where

    def body() -> None:
        error = ValueError if where == "python" else tf.errors.InvalidArgumentError
        with pytest.raises(error, match="no more"):
            fit(model, "dense")

    captured = ranged(tmp_path, model, body)  # which checks that every range is closed
    assert ("m/d0>" in names(captured)) is (where == "graph" or eager)
    failing.where = ""
    assert len(fit(model, "dense")) > 0


def test_threads_that_train_one_model(tmp_path: Path) -> None:
    """Each thread has the gradients that it would have alone."""
    model = five_dense()
    plain = gradients(model, X)
    found: list[Any] = []

    def work() -> None:
        found.extend([gradients(model, X) for _ in range(10)])

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    captured = ranged(tmp_path, model, body)
    assert len(found) == 30
    assert all(same(plain, one) for one in found)
    assert Counter(names(captured))["m/d0<"] == 30


def gradients(model: keras.Model, inputs: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant(inputs)) ** 2)
    return list(tape.gradient(loss, model.trainable_variables))


class Compiled(layers.Layer):
    """A layer whose `call` is a function of TensorFlow's."""

    def __init__(self) -> None:
        super().__init__(name="compiled")
        self.dense = layers.Dense(4, activation="tanh", name="dense")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    @tf.function
    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


@needs_graphs
def test_a_layer_whose_call_is_a_function_has_one_range_a_call(tmp_path: Path) -> None:
    """Called eagerly. Keras traced its function when the model was built, so that there are no ranges inside."""
    model = stack((5,), Compiled(), layers.Dense(3, name="head"))
    plain = gradients(model, X)
    found: list[Any] = []
    captured = ranged(tmp_path, model, lambda: found.extend([gradients(model, X), gradients(model, X)]))
    assert all(same(plain, one) for one in found)
    paths = ("m", "m/compiled", "m/head")
    assert Counter(names(captured)) == {f"{path}{sign}": 2 for path in paths for sign in "<>"}


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((5,)), layers.Dense(4, name="fc"), layers.ReLU(name="relu")], name="inner")
    return stack((5,), layers.Dense(5, name="stem"), inner, layers.Dense(3, name="head"))


@pytest.mark.parametrize(
    ("options", "forward"),
    [
        ({"depth": 0}, "m"),
        ({"depth": 1}, "m m/stem m/inner m/head"),
        ({"include": "inner/**"}, "m/inner m/inner/fc m/inner/relu"),
        ({"include": layers.Dense}, "m/stem m/inner/fc m/head"),
        ({"exclude": ["*", "inner/relu"]}, "m m/inner/fc"),
        ({"include": ["stem", "h*"], "exclude": "head"}, "m/stem"),
    ],
)
def test_the_chosen_layers(options: dict[str, Any], forward: str, tmp_path: Path) -> None:
    model = nested()
    plain = gradients(model, X)
    found: list[Any] = []
    captured = ranged(tmp_path, model, lambda: found.extend(gradients(model, X)), **options)
    assert [name for name in names(captured) if name.endswith(">")] == [f"{path}>" for path in forward.split()]
    assert Counter(name[:-1] for name in names(captured) if name.endswith("<")) == Counter(forward.split())
    assert same(plain, found)


def test_forward_backward_and_shapes(tmp_path: Path) -> None:
    model = nested()
    only_forward = ranged(tmp_path, model, lambda: gradients(model, X), backward=False)
    assert {name[-1] for name in names(only_forward)} == {">"}
    only_backward = ranged(tmp_path, model, lambda: gradients(model, X), forward=False, shapes=False)
    assert sorted(only_backward.texts) == sorted(
        ["m Sequential |bwd", "m/stem Dense |bwd", "m/inner Sequential |bwd", "m/inner/fc Dense |bwd",
         "m/inner/relu ReLU |bwd", "m/head Dense |bwd"]
    )  # fmt: skip


@pytest.mark.parametrize("by_hand", [pytest.param(False, marks=pytest.mark.slow), True])
def test_pause_resume_and_schedule_in_the_middle_of_a_fit(tmp_path: Path, by_hand: bool) -> None:
    """Of each three batches the last two have ranges; each set of functions is traced once."""
    model = compiled("dense")
    steps = annot.schedule(wait=1, active=2, repeat=2)

    block = annot.emit_ranges(model, schedule=steps)
    step = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: batch and block.step())

    def body() -> None:
        with block:
            model.fit(some(8, 5), some(8, 3), batch_size=1, verbose=0, callbacks=[step] if by_hand else [])

    captured = recorded(tmp_path, body)
    found = Counter(name for name in names(captured) if name[-1] in "<>")
    assert found == {f"{p}{s}": 4 for p in ["m", *(f"m/d{i}" for i in range(5))] for s in "<>"}


def test_eager_calls_have_their_ranges_without_operations_in_graphs(tmp_path: Path) -> None:
    model = nested()
    captured = ranged(tmp_path, model, lambda: model(tf.constant(X)), mode="names")
    assert captured.trees == [("m>", "m/stem>", ("m/inner>", "m/inner/fc>", "m/inner/relu>"), "m/head>")]
    with_tape = ranged(tmp_path, model, lambda: gradients(model, X), mode="names")
    assert Counter(names(with_tape))["m<"] == 1


def test_names_add_nothing_to_graphs_and_say_the_scopes(tmp_path: Path) -> None:
    model = compiled("dense")
    plain = fit(compiled("dense"), "dense")
    found: list[Counter[str]] = []
    results: list[Any] = []

    def body() -> None:
        results.extend(fit(model, "dense"))
        found.append(operations(lambda: tf.function(model)(tf.constant(X))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = ranged(tmp_path, model, body, mode="names")
    assert same(plain, results)
    assert not [name for name in found[0] if name.startswith("Annot")]
    assert not [one for one in captured.ranges if one.name[-1] in "<>"]
    assert any("m/d0 Dense [2,5]f32 out=5" in text for _, text, _ in captured.marks)


def test_blocks_nest_and_overlap(tmp_path: Path) -> None:
    model, other = nested(), nested()

    def body() -> None:
        with annot.emit_ranges(model), annot.emit_ranges(other):
            with annot.emit_ranges(model, depth=0):
                model(tf.constant(X))
            other(tf.constant(X))
            assert patched_layers(other)

    captured = recorded(tmp_path, body)
    assert Counter(names(captured))["m>"] == 2
    assert len(captured.ranges) == 12
    assert patched_layers(model) == patched_layers(other) == []


def test_wrong_arguments() -> None:
    model = nested()
    with pytest.raises(TypeError, match=r"a layer or model of Keras 3, got builtins\.object"):
        annot.emit_ranges(object())
    with pytest.raises(TypeError, match=r"keras\.Layer"):
        annot.tf.emit_ranges(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"subclasses of keras\.Layer"):
        annot.emit_ranges(model, include=[3])
    with pytest.raises(ValueError, match="mode must be"):
        annot.emit_ranges(model, mode="python")
