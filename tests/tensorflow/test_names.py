"""The mode "names": scopes recorded while TensorFlow traces attribute the operations of a profile to layers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow")

import keras
import polars as pl
import tensorflow as tf
from captured import capture
from commands import annot as run
from commands import needs_recorder

import annot
from annot import AnnotError, correlate
from annot.labels.marks import parse_scope
from annot.labels.tag import Tag, TensorSpec
from annot.read.formats import load
from annot.tf import cuda, name_scopes
from annot.tf.graph_rewrite import OPERATION


@contextmanager
def noting(model: keras.Model) -> Iterator[None]:
    """Note the layers of a model when they are called, as `emit_ranges` does."""

    def wrapper(layer: keras.Layer, path: str) -> Any:
        original = layer.call

        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = (TensorSpec(tuple(x.shape), "f32"),)
            name_scopes.note(tf.get_current_name_scope(), Tag(path, type(layer).__name__, tensors=tensors))
            return original(x, *args, **kwargs)

        return call

    layers = {layer: f"{model.name}/{layer.name}" for layer in model.layers} | {model: model.name}
    for layer, path in layers.items():
        vars(layer)["call"] = wrapper(layer, path)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["call"]


@pytest.fixture
def model() -> keras.Model:
    """A small net in which one layer is called twice."""
    keras.utils.set_random_seed(0)
    shared = keras.layers.Dense(8, activation="relu", name="shared")
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(2, name="head")(shared(shared(inputs)))
    net = keras.Model(inputs, outputs, name="net")
    net.compile("sgd", "mse", jit_compile=False)
    return net


def train(model: keras.Model) -> None:
    x = tf.ones((16, 8))
    model.fit(x, tf.ones((16, 2)), batch_size=4, epochs=1, verbose=0)


def test_marks_are_set_once_and_again_when_asked(model: keras.Model, tmp_path: Path) -> None:
    """Each scope has one mark however many steps are run, with path, class and shapes; a later tool gets them again."""
    with noting(model):
        first = capture(tmp_path, lambda: train(model))
        again = capture(tmp_path, lambda: train(model))
        repeated = capture(tmp_path, name_scopes.repeat_marks)
    said = [found for _, text, _ in first.marks if (found := parse_scope(text))]
    layers = sorted((layer.layer, layer.module, layer.tensors[0].shape) for _, layer in said)
    dense = [("net/head", "Dense", (4, 8)), ("net/shared", "Dense", (4, 8)), ("net/shared", "Dense", (4, 8))]
    assert layers == [("net", "Functional", (4, 8)), *dense], "one scope for each call of the shared layer"
    assert len({scope for scope, _ in said}) == 4
    assert again.marks == []
    assert {text for _, text, _ in first.marks} <= {text for _, text, _ in repeated.marks}


def test_layers_of_an_xplane_file(model: keras.Model, tmp_path: Path) -> None:
    """A capture of TensorFlow's own profiler shows layers, forward and backward, once the scopes lie beside it."""
    with noting(model):
        train(model)  # traced before the capture
    tf.profiler.experimental.start(str(tmp_path))
    train(model)
    tf.profiler.experimental.stop()
    (path,) = tmp_path.rglob("*.xplane.pb")
    plain = correlate(load(path))
    assert "net/shared" not in plain["layer"]
    name_scopes.save_scopes(tmp_path)
    rows = correlate(load(path))
    for layer in ("net/shared", "net/head"):
        for phase in ("forward", "backward"):
            (row,) = rows.filter(layer=layer, phase=phase).rows(named=True)
            assert row["module"] == "Dense", layer
            assert row["host_ns"] > 0, (layer, phase)
    assert rows.filter(layer="net", phase="forward")["module"].to_list() == ["Functional"]
    assert rows.filter(layer="net/head", phase="forward")["shapes"].to_list() == [["[4,8]f32"]]


@pytest.mark.parametrize(("compiled", "mode"), [(False, "names"), (True, "names"), (False, None)])
def test_layers_without_any_tool(model: keras.Model, tmp_path: Path, compiled: bool, mode: Any) -> None:
    """`tf.profiler` is enough, also if annot adds operations to the graph.

    A mode that was asked for notes layers without a tool of NVTX too.
    """
    if compiled and tf.__version__.startswith("2.16."):
        pytest.skip("the profiler of TensorFlow 2.16 sees no operations that XLA compiled for a CPU")
    model.compile(keras.optimizers.Adam(name="adam"), "mse", jit_compile=compiled)
    assert not annot.enabled()
    annot.enable(mode is None)
    with annot.emit_ranges(model, mode=mode):
        train(model)
        tf.profiler.experimental.start(str(tmp_path))
        train(model)
        tf.profiler.experimental.stop()
    annot.enable(False)
    annot.tf.save_scopes(tmp_path)
    assert "call" not in vars(model)
    rows = correlate(load(tmp_path))
    layers = rows.filter(pl.col("layer") == "net/head")
    assert set(layers["phase"]) == {"forward", "backward"}
    assert layers["module"].unique().to_list() == ["Dense"]
    if not compiled:  # XLA may name what it makes of the update and the gradient after the latter
        assert rows.filter(layer="adam", phase="optimizer").height == 1
    assert not [layer for layer in rows["layer"] if layer.startswith("adam/")], "one row, not one per operation"


@pytest.mark.slow
def test_layers_without_the_c_parts(tmp_path: Path) -> None:
    """Graphs have names where operations for ranges cannot be added; one warning says why."""
    environ = {**os.environ, "ANNOT_DISABLE_NATIVE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", _PROFILE, str(tmp_path)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=240, check=True)
    (warned,) = json.loads(done.stdout.splitlines()[-1])
    assert re.fullmatch("TensorFlow graphs cannot have ranges: .* show the layers of graphs", warned)
    rows = correlate(load(tmp_path))
    assert {("net/one", "forward"), ("net/two", "backward")} <= set(rows.select("layer", "phase").rows())


_PROFILE = """
import json, sys, warnings
import annot
import tensorflow as tf
from tf_nets import network, samples
model = network()
annot.enable()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with annot.emit_ranges(model):
        model.fit(*samples(3), verbose=0)
        tf.profiler.experimental.start(sys.argv[1])
        model.fit(*samples(3), verbose=0)
        tf.profiler.experimental.stop()
annot.tf.save_scopes(sys.argv[1])
print(json.dumps([str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]))
"""


def test_a_folder_with_two_captures(tmp_path: Path) -> None:
    """Which one is meant has to be said."""
    for name in "ab":
        (tmp_path / "plugins/profile" / name).mkdir(parents=True)
        (tmp_path / "plugins/profile" / name / "vm.xplane.pb").write_bytes(b"")
    with pytest.raises(AnnotError, match=r"contains 2 XPlane files\. Pass one of them, such as .*b.vm\.xplane\.pb"):
        load(tmp_path)


def test_a_scope_that_says_nothing(tmp_path: Path) -> None:
    """Outside of graphs there are no scopes, and nothing is noted."""
    captured = capture(tmp_path, lambda: name_scopes.note(tf.get_current_name_scope(), Tag("fc", "Dense")))
    assert captured.marks == []


def test_operations_have_ranges_or_the_reason_is_said(model: keras.Model, tmp_path: Path) -> None:
    """A build with CUDA marks its operations until they are switched off; another one says that it cannot."""

    def off() -> None:
        cuda.switch_ranges(on=True)
        cuda.switch_ranges(on=False)
        train(model)

    assert capture(tmp_path, off).ranges == []
    if (words := cuda.without_ranges()) is not None:
        assert "TensorFlow" in words
        assert words.count(".") <= 3, "one sentence, in which a version may stand"
        return

    def inside() -> None:
        cuda.switch_ranges(on=True)
        try:
            train(model)
        finally:
            cuda.switch_ranges(on=False)

    texts = {one.text for one in capture(tmp_path, inside).ranges}
    assert any("gradient_tape/net_1/" in text for text in texts)


@pytest.mark.slow
@needs_recorder
def test_a_graph_with_tensorflows_own_ranges(tmp_path: Path) -> None:
    """A CUDA build, with or without a GPU, shows the layers of a graph in which nothing was added."""
    if (problem := cuda.without_ranges()) is not None:
        pytest.skip(problem)
    # A process of its own: NVTX looks for a tool once, when TensorFlow runs its first operation.
    words = ("run", "--collector", "recorder", "--no-report", "-o", "p.sqlite", "--", sys.executable, "-c", _TRAIN)
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split()[0] == b"[]"
    rows = correlate(load(tmp_path / "p.sqlite")).filter(pl.col("host_self_ns") > 0)
    layers = {(layer, phase) for layer, phase in rows.select("layer", "phase").rows() if layer.startswith("net/")}
    assert layers == {(f"net/{name}", phase) for name in ("one", "two") for phase in ("forward", "backward")}


_TRAIN = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[1] / "support")]}
import annot
from tf_nets import network, samples
from tf_recorded import optimized
model = network()
with annot.emit_ranges(model, mode="names"):
    graphs = optimized(lambda: model.fit(*samples(3), verbose=0))
print([node.name for graph in graphs for node in graph.node if node.op == {OPERATION!r}])
"""
