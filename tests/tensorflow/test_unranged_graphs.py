"""Graphs that get no ranges: those that XLA clusters, and those that annot's graph optimizer never gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from captured import Captured
from commands import needs_recorder
from tf_nets import network, samples
from tf_ranged import chain, plain, ranged, variables
from tf_recorded import needs_graphs, recorded, same

import annot
from annot.emit import client
from annot.tf import graph_config, library

pytestmark = [needs_recorder, needs_graphs]
ON_CPU = "--tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2"


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    loaded = library.load()
    assert not isinstance(loaded, str)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded.warn_of_missed()  # of functions of earlier tests
    loaded._missed.clear()
    client.warn_once.cache_clear()
    annot.enable()
    yield
    annot.enable(False)


def said(folder: Path, body: Callable[[], object]) -> tuple[Captured, list[str]]:
    """Return the recording of `body` and annot's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = recorded(folder, body)
    return captured, [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]


# ---------------------------------------------------------------- clusters of XLA


def test_operations_in_jit_scope(tmp_path: Path) -> None:
    """The graph has no ranges and the same bits, with one warning for two graphs; other graphs have ranges."""
    weights, x = variables(2), tf.ones([3, 6])

    def function(put: Any, scale: float) -> Any:
        @tf.function
        def scoped(x: Any) -> Any:
            with tf.xla.experimental.jit_scope():
                return chain(x * scale, weights, put)

        return scoped(x)

    def body() -> None:
        for scale in (1.0, 2.0):
            assert same(function(ranged, scale), function(plain, scale))
        tf.function(lambda x: chain(x, weights, ranged))(x)

    captured, warned = said(tmp_path, body)
    assert captured.texts == ["layer0", "layer1"]
    assert warned == [graph_config.CLUSTERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "flags", "clusters"),
    [
        ("session", ON_CPU, True),
        ("jit", "a file", True),
        ("plain", f"--tf_xla_auto_jit=2 {ON_CPU}", True),
        ("jit", "", False),  # TensorFlow then clusters on a GPU only
        ("plain", ON_CPU, False),
    ],
)
def test_auto_clustering(tmp_path: Path, argument: str, flags: str, clusters: bool) -> None:
    """The weights keep their bits. A graph has ranges exactly if XLA does not cluster it; else there is one warning."""
    if flags == "a file":  # TensorFlow reads the flags from it
        (tmp_path / "flags").write_text(ON_CPU)
        flags = str(tmp_path / "flags")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support/tf_clusters.py"), argument],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_XLA_FLAGS": flags},
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    is_same, ranges, warned = json.loads(done.stdout.splitlines()[-1])
    assert is_same
    assert (ranges == 0) == clusters
    assert warned == [graph_config.CLUSTERS] * clusters


# ---------------------------------------------------------------- graphs that the optimizer never gets


def dataset() -> Any:
    x, y = samples(3)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def epochs(model: Any, data: Any, *, iterates: bool) -> Any:
    """Return a function with the loop of an epoch over `data`."""

    @tf.function
    def epoch() -> Any:
        total = 0.0
        for x, y in iter(data) if iterates else data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            model.optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            total += loss
        return total

    return epoch


def test_a_loop_over_a_dataset_in_a_function(tmp_path: Path) -> None:
    """The warning counts such functions, however often they run; a loop over an iterator has ranges."""
    models, data = [network(), network(tf.keras.layers.Dense(1, name="single"))], dataset()
    for model in models:
        model.optimizer.build(model.trainable_variables)
    loops = [epochs(model, data, iterates=False) for model in models]

    def body(*functions: Any) -> None:
        with annot.emit_ranges(models[0]), annot.emit_ranges(models[1]):
            for function in functions:
                function()
                function()

    captured, warned = said(tmp_path, lambda: body(*loops))
    assert captured.texts == []
    assert [text for text in warned if "for batch in iter(dataset)" in text] == warned
    assert [text.partition(". ")[0] for text in warned] == ["functions with layers that ran without ranges: at least 2"]
    captured, warned = said(tmp_path, lambda: body(epochs(models[0], data, iterates=True)))
    assert sum("net/one Dense" in text for text in captured.texts) == 2 * 2 * 3, "forward and backward"
    assert warned == []


def test_functions_of_a_dataset_without_layers(tmp_path: Path) -> None:
    """No warning for the preparation of data, on whatever thread it is optimized."""
    model, data = network(), dataset()
    prepared = data.map(lambda x, y: (x * 2.0, y), num_parallel_calls=2).prefetch(2)

    def body() -> None:
        with annot.emit_ranges(model):
            model.fit(prepared, verbose=0)

        @tf.function
        def total() -> Any:
            result = 0.0
            for x, _ in prepared:
                result += tf.reduce_sum(x)
            return result

        with annot.emit_ranges(model):
            total()

    captured, warned = said(tmp_path, body)
    assert any("net/one" in text for text in captured.texts)
    assert warned == []


@pytest.fixture
def least_nodes() -> Iterator[Callable[[int], None]]:
    yield lambda count: tf.config.optimizer.set_experimental_options({"min_graph_nodes": count})
    tf.config.optimizer.set_experimental_options({"min_graph_nodes": 0})


def test_graphs_below_the_least_number_of_nodes(tmp_path: Path, least_nodes: Callable[[int], None]) -> None:
    """`min_graph_nodes` is said once. A graph with that many nodes has ranges, one with fewer has none."""
    model = network()
    function = tf.function(lambda x: model(x))
    x = tf.ones([4, 3])
    count = len(function.get_concrete_function(x).graph.as_graph_def().node) + 1  # the node of the result

    def body() -> None:
        with annot.emit_ranges(model):
            tf.function(lambda x: model(x))(x)

    least_nodes(count + 1)
    captured, warned = said(tmp_path, body)
    assert captured.texts == []
    assert warned == [
        f"TensorFlow graphs with fewer than {count + 1} nodes have no ranges (min_graph_nodes={count + 1})"
    ]
    client.warn_once.cache_clear()
    least_nodes(count)  # TensorFlow fuses nodes in the first round, and would not run a second
    captured, warned = said(tmp_path, body)
    assert len(captured.texts) == 3
    assert len(warned) == 1
    least_nodes(-1)
    captured, warned = said(tmp_path, body)
    assert (len(captured.texts), warned) == (3, [])


def test_a_session_whose_options_leave_graphs_alone(tmp_path: Path) -> None:
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options

    def body() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            x = tf.compat.v1.placeholder(tf.float32, [3, 6])
            result = ranged("layer", [x], lambda x: tf.tanh(x) @ tf.ones([6, 6]))
            session.run(result, {x: [[1.0] * 6] * 3})

    options.min_graph_nodes = 1000
    captured, warned = said(tmp_path, body)
    assert captured.texts == []
    assert ["min_graph_nodes=1000" in text for text in warned] == [True]
    options.disable_meta_optimizer = True
    captured, warned = said(tmp_path, body)
    assert captured.texts == []
    assert ["disable_meta_optimizer" in text for text in warned] == [True]
