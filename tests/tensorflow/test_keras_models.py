"""Ranges of every kind of Keras model: each layer's forward and backward once a step, and the same bits as without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import needs_recorder

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from captured import Captured, Range  # noqa: E402
from keras_models import MODELS, VECTORS, compiled, fit, operations, patched_layers, same, some, stack  # noqa: E402
from tf_recorded import both, needs_graphs, recorded  # noqa: E402

import annot  # noqa: E402

pytestmark = needs_recorder
layers = keras.layers


def calls(captured: Captured) -> Counter[str]:
    """How many ranges each layer and phase has."""
    return Counter(one.name for one in layers_of(captured))


def layers_of(captured: Captured) -> list[Range]:
    """The ranges of layers, not those of epochs, batches and the optimizer."""
    return [one for one in captured.ranges if one.name[-1] in "<>"]


def trained(folder: Path, model: keras.Model, kind: str, **options: Any) -> tuple[Captured, list[Any]]:
    """Train a model inside a block; return what was recorded, and what `fit` gives."""
    results: list[Any] = []

    def body() -> None:
        with annot.emit_ranges(model, **options):
            results.extend(fit(model, kind))

    return recorded(folder, body), results


FORWARD = {
    "dense": "m m/d0 m/d1 m/d2 m/d3 m/d4",
    "convolutions": "m m/conv m/norm m/relu m/depth m/drop m/pool m/head",
    "recurrent": "m m/words m/lstm m/both m/both/forward_gru m/both/backward_gru m/head",
    "cells": "m m/each m/simple m/cells m/head",
    "attention": "m m/attend m/attend/query m/attend/key m/attend/value m/attend/attention_output m/norm m/flat m/head",
    "branches": "m m/shared*2 m/inner m/inner/fc m/inner/relu m/join m/left m/right",
    "late": "late late/block late/block/first late/block/pair late/block/pair_1 late/block/scaled late/head",
    "frozen": "m m/d0 m/d1 m/d2",
    "mixed": "m m/conv m/norm m/flat m/head",
    "assigning": "m m/d0 m/assigning m/d1",
    "residual": "m m/conv0 m/norm0 m/add0 m/conv1 m/norm1 m/add1 m/pool m/head",
}
EAGERLY = ("recurrent", "branches", "late", "assigning", "residual")
NO_BACKWARD = {"frozen": {"m/d0"}}
"""What has no backward, for nothing in it needs a gradient."""
IN_GRAPHS = {
    "convolutions": {"m/drop>": 2},  # nothing is left of it in the prediction
    "branches": {"m/inner/fc>": 0, "m/inner/relu>": 0, "m/inner/fc+m/inner/relu>": 3},  # one kernel
    "residual": {"m/add0<": 0, "m/add1<": 0},  # which pass a gradient on
}
"""How many ranges there are where TensorFlow's graph optimizers have removed or joined operations."""


INTERLEAVED = {"branches", "recurrent"}
"""Models whose branches TensorFlow's eager tape differentiates in turns."""


def expected(kind: str, *, eager: bool = False) -> Counter[str]:
    """Two steps of training and one of prediction."""
    found: Counter[str] = Counter()
    for word in FORWARD[kind].split():
        path, _, times = word.partition("*")
        found[f"{path}>"] = 3 * int(times or 1)
        if path not in NO_BACKWARD.get(kind, ()):
            found[f"{path}<"] = 2 * int(times or 1)
    return +Counter({**found, **({} if eager else IN_GRAPHS.get(kind, {}))})


QUICK = {("dense", False), ("convolutions", False), ("late", True)}
"""Kinds of models in `make test`, and whether they run eagerly."""


@pytest.mark.parametrize(
    ("kind", "eager"),
    [
        pytest.param(
            kind, eager, marks=[needs_graphs] * (not eager) + [pytest.mark.slow] * ((kind, eager) not in QUICK)
        )
        for kind, eager in [*((kind, False) for kind in MODELS), *((kind, True) for kind in EAGERLY)]
    ],
)
def test_each_layer_once_a_step_and_the_same_bits(kind: str, eager: bool, tmp_path: Path) -> None:
    plain = fit(compiled(kind, eager=eager), kind)
    model = compiled(kind, eager=eager)
    captured, results = trained(tmp_path, model, kind)
    found = calls(captured)
    if kind == "attention":  # which of its small layers it calls differs between releases of Keras
        found = Counter({name: count for name, count in found.items() if name[:-1] in FORWARD[kind].split()})
    if eager and kind in INTERLEAVED:
        assert found.keys() == expected(kind, eager=True).keys()
    elif kind == "residual" and not eager:  # TensorFlow makes other sums of those of the layers
        assert [found[f"m/{name}>"] for name in ("conv0", "conv1", "pool", "head")] == [3] * 4
    else:
        assert found == expected(kind, eager=eager)
    assert same(plain, results)
    assert patched_layers(model) == []


@pytest.mark.parametrize(
    "graph",
    [pytest.param(True, marks=needs_graphs, id="graph"), pytest.param(False, marks=pytest.mark.slow, id="eager")],
)
def test_five_dense_layers_for_500_steps(graph: bool, tmp_path: Path) -> None:
    model = compiled("dense")
    inputs, targets = some(500, 5), some(500, 3)

    def body() -> None:
        with annot.emit_ranges(model):
            if graph:
                model.fit(inputs, targets, batch_size=1, verbose=0)
                return
            for number in range(500):
                with tf.GradientTape() as tape:
                    loss = model(tf.constant(inputs[number : number + 1]))
                tape.gradient(loss, model.trainable_variables)

    captured = recorded(tmp_path, body)
    assert calls(captured) == {f"{path}{sign}": 500 for path in FORWARD["dense"].split() for sign in "<>"}


@needs_graphs
def test_order_in_a_graph(tmp_path: Path) -> None:
    """Each backward after its forward and the other way round, inside that of the model, which ends last."""
    captured, _ = trained(tmp_path, compiled("dense"), "dense")
    names = [one.name for one in layers_of(captured)]
    step = [f"{path}>" for path in FORWARD["dense"].split()]
    back = ["m<", "m/d4<", "m/d3<", "m/d2<", "m/d1<", "m/d0<"]
    assert names == [*step, *back] * 2 + step
    for one in layers_of(captured):
        around = [whole for whole in layers_of(captured) if whole.name == f"m{one.name[-1]}"]
        assert any(whole.start <= one.start and one.end <= whole.end for whole in around), one


@needs_graphs
def test_texts_say_shapes_and_hyperparameters(tmp_path: Path) -> None:
    captured, _ = trained(tmp_path, compiled("convolutions"), "convolutions")
    assert {
        "m Sequential [2,8,8,3]f32 |fwd",
        "m/conv Conv2D [2,8,8,3]f32 out=4 kernel=3,3 stride=2,2 padding=same |fwd",
        "m/conv Conv2D [2,8,8,3]f32 out=4 kernel=3,3 stride=2,2 padding=same grad=weight |bwd",
        "m/depth DepthwiseConv2D [2,4,4,4]f32 kernel=3,3 |bwd",
    } <= set(captured.texts)
    assert not any(one.nested for one in layers_of(captured))


@needs_graphs
@pytest.mark.parametrize(
    "kind",
    [
        "convolutions",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("recurrent", "attention", "mixed", "residual")),
    ],
)
def test_nothing_is_computed_that_the_plain_program_does_not_compute(kind: str, tmp_path: Path) -> None:
    """The optimized graphs of a step hold the very operations, and annot's."""
    model = compiled(kind)

    def traced() -> Counter[str]:
        model.train_function = None
        return Counter(operations(lambda: model.train_on_batch(*MODELS[kind][1:])))

    traced()  # which makes the variables of the optimizer
    plain, found = traced(), Counter[str]()

    def body() -> None:
        with annot.emit_ranges(model):
            found.update(traced())

    recorded(tmp_path, body)
    assert found.pop("AnnotRange") > 0
    assert found == plain


@needs_graphs
def test_a_range_of_layers_that_are_one_kernel(tmp_path: Path) -> None:
    """It has both paths and classes, and the shapes of the first; each has a backward range of its own."""
    model = stack((8, 8, 3), layers.Conv2D(4, 3, name="conv"), layers.ReLU(name="relu"), layers.Flatten(name="flat"))
    model.compile("sgd", "mse")

    def body() -> None:
        with annot.emit_ranges(model):
            model.fit(some(2, 8, 8, 3), some(2, 144), batch_size=2, verbose=0)

    captured = recorded(tmp_path, body)
    assert [one.text for one in layers_of(captured) if "conv" in one.text or "relu" in one.text] == [
        "m/conv+m/relu Conv2D+ReLU [2,8,8,3]f32 base=Conv2D out=4 kernel=3,3 |fwd", "m/relu ReLU [2,6,6,4]f32 |bwd",
        "m/conv Conv2D [2,8,8,3]f32 out=4 kernel=3,3 grad=weight |bwd",
    ]  # fmt: skip


@needs_graphs
def test_functions_that_are_one_kernel(tmp_path: Path) -> None:
    """As TensorFlow makes of functions of one number that follow each other."""
    model = stack(
        (5,), layers.Dense(5, name="first"), layers.Activation("exponential", name="exp"),
        layers.Activation("tanh", name="tanh"), layers.Dense(3, name="last"),
    )  # fmt: skip

    def body() -> None:
        with annot.emit_ranges(model):
            model.predict(VECTORS[0], verbose=0)

    names = [one.name for one in layers_of(recorded(tmp_path, body))]
    assert names == ["m>", "m/first>", "m/exp+m/tanh>", "m/last>"]


@both
def test_a_loop_of_ones_own(graph: bool, tmp_path: Path) -> None:
    """Gradients of some weights first, then of all, from one tape; a tape asks for the gradients of all layers."""
    model = compiled("dense")
    inputs = tf.constant(VECTORS[0])

    def step() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(model(inputs) ** 2)
        return tape.gradient(loss, model.layers[-1].trainable_variables), tape.gradient(loss, model.trainable_variables)

    results: list[Any] = []

    def body() -> None:
        with annot.emit_ranges(model):
            function = tf.function(step) if graph else step
            results.append(function())

    plain = tf.function(step)() if graph else step()
    captured = recorded(tmp_path, body)
    assert same(keras.tree.flatten(plain), keras.tree.flatten(results[0]))
    found = calls(captured)
    assert {found[f"{path}>"] for path in FORWARD["dense"].split()} == {1}
    assert found["m/d0<"] == (1 if graph else 2)  # a graph runs once what is computed twice
    assert found["m/d4<"] in ((1, 2) if graph else (2,))


@needs_graphs
@pytest.mark.slow
def test_two_replicas(tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = stack(
                (5,), layers.Dense(4, name="d0"), layers.BatchNormalization(name="norm"), layers.Dense(3, name="d1")
            )
            model.compile("sgd", "mse")
        return model

    plain = fit(build(), "dense")
    captured, results = trained(tmp_path, build(), "dense")
    assert same(plain, results)
    training = Counter(one.name for one in layers_of(captured) if one.tag and one.tag.tensors[0].shape[0] == 1)
    assert training == {f"{path}{sign}": 4 for path in ("m", "m/d0", "m/norm", "m/d1") for sign in "<>"}


@pytest.mark.slow
@needs_graphs
def test_resnet50_keeps_its_fused_operations(tmp_path: Path) -> None:
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=4)
    inputs = tf.constant(some(1, 32, 32, 3))
    fused = ("_FusedConv2D", "_MklNativeFusedConv2D")
    plain = operations(lambda: tf.function(model)(inputs))
    inside: Counter[str] = Counter()

    def body() -> None:
        with annot.emit_ranges(model):
            inside.update(operations(lambda: tf.function(model)(inputs)))

    captured = recorded(tmp_path, body)
    assert sum(plain[name] for name in fused) == sum(inside[name] for name in fused) == 53
    assert inside.pop("AnnotRange") > 0
    assert inside == plain
    assert len(layers_of(captured)) == 177


@pytest.mark.slow
@needs_graphs
def test_mobilenet_v2_has_a_row_for_each_layer(tmp_path: Path) -> None:
    """But none for the gradient of a sum, which is passed on."""
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=3, alpha=0.35)
    model.compile("sgd", "mse")
    images = some(2, 32, 32, 3), some(2, 3)

    def body() -> None:
        with annot.emit_ranges(model):
            model.fit(*images, batch_size=2, verbose=0)

    found = calls(recorded(tmp_path, body))
    paths = [model.name, *(f"{model.name}/{layer.name}" for layer in model.layers[1:])]
    wanted = {f"{path}{sign}" for path in paths for sign in "<>" if f"{path[-3:]}{sign}" != "add<"}
    assert {name: count for name, count in found.items() if "+" not in name} == dict.fromkeys(wanted, 1)
