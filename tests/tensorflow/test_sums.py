"""Sums whose parts TensorFlow adds in the order in which they are ready: ranges do not decide this order."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from commands import needs_recorder  # noqa: E402
from random_inputs import TIMES  # noqa: E402
from tf_ranged import plain, ranged  # noqa: E402
from tf_recorded import needs_graphs, optimized, recorded  # noqa: E402
from tf_sum_fits import forked  # noqa: E402

import annot  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.tf import graph_plan  # noqa: E402
from annot.tf.graph_lookup import Node  # noqa: E402
from annot.tf.graph_order import Dependencies  # noqa: E402

pytestmark = [needs_recorder, needs_graphs]
v1 = tf.compat.v1
SIZE = 32
INPUT = np.random.RandomState(1).randn(4, SIZE).astype("f")
NETWORKS = (16, 22, 13, 19, 20, 27)
"""Seeds of networks that have other values if a range delays a branch."""
SLACK = 0.35
"""Share of new values that is no surprise in a sample; that of an order decided by ranges is near 1."""


@pytest.fixture(autouse=True)
def ranges_wanted() -> Iterator[None]:
    annot.enable()
    ranged("first", [tf.ones([1])], tf.sin)  # annot records the operations of graphs from here on
    client.warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* left out")
        yield
    annot.enable(False)


# ---------------------------------------------------------------- the nodes that no point delays


def accumulated(late: Sequence[set[int]], parts: Sequence[int]) -> list[Node]:
    """A graph of nodes, each with the earlier nodes that it waits for, and the sum of some of them."""
    nodes = [Node("x", "Placeholder", [], [])]
    nodes += [Node(f"n{i}", "Sin", sorted({f"n{j}" for j in one if j < i} or {"x"}), []) for i, one in enumerate(late)]
    nodes += [Node("w", "Const", [], [], is_value=True), Node("v", "Neg", ["w"], [])]
    nodes += [Node("sum", "TemporaryVariable", [], []), Node("zeros", "Assign", ["sum", "w"], [])]
    adds = [Node(f"add{i}", "AssignAdd", ["zeros", f"n{part}"], []) for i, part in enumerate(parts)]
    return [*nodes, *adds, Node("end", "DestroyTemporaryVariable", ["zeros"], [one.name for one in adds])]


def racing(nodes: Sequence[Node]) -> set[str]:
    return {nodes[i].name for i in Dependencies(nodes).racing}


@given(st.data())
def test_the_nodes_between_the_branches_and_their_sum(data: Any) -> None:
    """By brute force: nodes before the last node that each other node precedes or follows delay all parts alike."""
    late = data.draw(st.lists(st.sets(st.integers(0, 12), max_size=3), min_size=1, max_size=12))
    parts = data.draw(st.lists(st.integers(0, len(late) - 1), min_size=3, max_size=5))
    nodes = accumulated(late, parts)
    before: dict[str, set[str]] = {}
    for node in nodes:
        sources = [text.partition(":")[0] for text in [*node.inputs, *node.controls]]
        before[node.name] = set(sources).union(*(before[one] for one in sources))
    early = {"w", "v", "sum", "zeros"}
    ahead = {"end", *before["end"]} - early
    common = [
        one for one in ahead - {"end"}
        if all(one == other or one in before[other] or other in before[one] for other in ahead)
    ]  # fmt: skip
    last = max(common, key=lambda one: len(before[one]), default=None)
    kept = set() if last is None else {last, *before[last]}
    assert racing(nodes) - early == ahead - kept


def test_two_parts_have_no_order() -> None:
    nodes = accumulated([set(), set(), {0}], [0, 1])
    assert racing(nodes) == set()
    assert racing(accumulated([set(), set(), {0}], [0, 1, 2])) >= {"n0", "n1", "n2", "add0", "end"}


def test_points_that_would_close_a_cycle() -> None:
    """A range may open before a node and wait for its inputs, but not for its consumers."""
    graph = Dependencies([Node("x", "Placeholder", [], []), Node("a", "Sin", ["x"], []), Node("b", "Cos", ["a"], [])])
    assert graph_plan._is_acyclic(graph, [graph_plan.Point(after=frozenset({0}), before=[1])])
    assert not graph_plan._is_acyclic(graph, [graph_plan.Point(after=frozenset({2}), before=[1])])
    first, second = graph_plan.Point(before=[1]), graph_plan.Point(after=frozenset({2}))
    first.points.append(second)
    assert not graph_plan._is_acyclic(graph, [first, second])


def test_all_of_a_loop_before_a_sum() -> None:
    """A node of a loop delays its next iteration too, which TensorFlow's graph has behind it."""

    @tf.function
    def run(x: Any) -> Any:
        looped = tf.while_loop(lambda i, _y: i < 3, lambda i, y: (i + 1, tf.sin(y) @ y), (0, x))[1]
        return tf.raw_ops.AccumulateNV2(inputs=[tf.cos(x), looped, tf.tanh(x)], shape=x.shape)

    from annot.tf.graph_rewrite import _node

    (graph,) = [one for one in optimized(lambda: run(tf.ones([4, 4]))) if any(n.op == "AssignAdd" for n in one.node)]
    nodes = [_node(one) for one in graph.node]
    expected = {one.name for one in nodes if one.kind in ("Sin", "MatMul", "NextIteration", "Cos", "Tanh")}
    assert len(expected) >= 5
    assert expected <= racing(nodes)


# ---------------------------------------------------------------- ranges around them

WORK = (
    tf.sin, tf.tanh, tf.nn.softmax,
    lambda x: tf.reshape(tf.reshape(x, (2, 2, SIZE)), (4, SIZE)),
    lambda x: tf.concat([x[:, 1:], x[:, :1]], 1),
    lambda x: x - tf.reduce_mean(x, 1, keepdims=True),
    lambda x: tf.transpose(tf.transpose(x) * 0.9),
)  # fmt: skip


def network(seed: int, x: Any, put: Callable[..., Any]) -> Any:
    """One to three sums of random branches of layers, whose parts are large and small."""
    choice, weights, numbers = random.Random(seed), np.random.RandomState(seed), itertools.count()

    def dense(x: Any) -> Any:
        return tf.nn.relu(x @ tf.constant(weights.randn(SIZE, SIZE).astype("f") * 0.3) + 1.0)

    for _ in range(choice.randint(1, 3)):
        parts = []
        for _ in range(choice.randint(3, 6)):
            y = x
            for _ in range(choice.randint(0, 4)):
                y = put(f"layer{next(numbers)}", [y], dense if choice.random() < 0.4 else choice.choice(WORK))
            parts.append(y * 10.0 ** choice.randint(-2, 3))
        x = put(f"sum{next(numbers)}", parts, lambda *ys: tf.raw_ops.AccumulateNV2(inputs=ys, shape=(4, SIZE)))
    return put("last", [x], tf.abs)


def sampled(seed: int, threads: int, sessions: int, runs: int) -> list[Counter[bytes]]:
    """Count the values of a network without ranges, again without, and with ranges, in turns."""
    graphs = []
    for put in (plain, plain, ranged):
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, INPUT.shape)
            graphs.append((graph, x, network(seed, x, put)))
    values: list[Counter[bytes]] = [Counter() for _ in graphs]
    options = v1.ConfigProto(
        inter_op_parallelism_threads=threads, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    for _ in range(sessions):
        for (graph, x, y), counter in zip(graphs, values, strict=True):
            with v1.Session(graph=graph, config=options) as session:
                counter.update(session.run(y, {x: INPUT}).tobytes() for _ in range(runs))
    return values


def new(values: Counter[Any], *others: Counter[Any]) -> float:
    """Return the share of values that no other sample has."""
    return sum(count for value, count in values.items() if not any(value in one for one in others)) / values.total()


def assert_same_values(samples: Sequence[Sequence[Counter[Any]]]) -> None:
    """Runs with ranges have few values that runs without lack, compared with two samples of the latter.

    How often each value comes varies between the traces of a graph, also without ranges.
    """
    control = sum((new(first, again) + new(again, first)) / 2 for first, again, _ in samples) / len(samples)
    share = sum(new(ours, first, again) for first, again, ours in samples) / len(samples)
    assert share <= control + SLACK, samples


def test_the_comparison_of_samples() -> None:
    plain, other, mixed = Counter({"a": 3, "b": 1}), Counter({"a": 2, "c": 2}), Counter({"c": 1, "d": 3})
    assert (new(plain, other), new(other, plain), new(mixed, plain, other)) == (0.25, 0.5, 0.75)
    assert_same_values([[plain, other, Counter({"a": 28, "d": 72})]])  # 0.72 is at most 0.375 + SLACK
    with pytest.raises(AssertionError):
        assert_same_values([[plain, other, mixed]])


def assert_values_are_those_without_ranges(
    folder: Path, seeds: Sequence[int], threads: int, sessions: int, runs: int
) -> None:
    samples: list[list[Counter[bytes]]] = []
    captured = recorded(folder, lambda: samples.extend(sampled(seed, threads, sessions, runs) for seed in seeds))
    assert captured.texts.count("last") == len(seeds) * sessions * runs, "one of three graphs has ranges"
    assert_same_values(samples)


def test_values_are_those_without_ranges(tmp_path: Path) -> None:
    assert_values_are_those_without_ranges(tmp_path, NETWORKS[:2], threads=1, sessions=6, runs=2)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4, 8] if TIMES >= 10 else [1, 4])
def test_values_of_many_networks_are_those_without_ranges(threads: int, tmp_path: Path) -> None:
    assert_values_are_those_without_ranges(tmp_path, NETWORKS, threads, sessions=10, runs=4)


def test_layers_between_a_fork_and_its_sum_have_no_backward_range(tmp_path: Path) -> None:
    """A warning says so once; the layers around them, and all in the forward, have ranges."""
    model = forked()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)

    def body() -> None:
        with annot.emit_ranges(model):
            for _ in range(2):
                model.train_on_batch(np.ones((8, 64), "f"), np.zeros(8))

    with pytest.warns(RuntimeWarning, match="ranges are left out of a TensorFlow graph") as warned:
        captured = recorded(tmp_path, body)
    assert len(warned) == 1
    calls = Counter(one.name for one in captured.ranges)
    assert set(calls.values()) == {2}
    after = [layer.name for layer in (model.layers[-1], model.layers[-2], model.layers[1])]
    backward = [name.removesuffix("<") for name in calls if name.endswith("<")]
    assert backward == ["forked", *(f"forked/{name}" for name in after)]
    layers = {f"forked/{layer.name}" for layer in model.layers[1:] if "fork" not in layer.name}
    assert {path for name in calls if name.endswith(">") for path in name[:-1].split("+")} == {"forked", *layers}


FITS = [
    ("forked", "adam", "4", "50"), ("forked", "sgd", "6", "50"),
    ("ResNet50V2", "adam", "1", "6"), ("InceptionV3", "adam", "1", "6"),
]  # fmt: skip
"""Networks, optimizers, and numbers of traces and of steps of each. Many small steps take less time than a trace."""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", "4", "8"] if TIMES >= 10 else ["4"])
@pytest.mark.parametrize(("network", "optimizer", "traces", "steps"), FITS if TIMES >= 10 else FITS[:1])
def test_trained_weights_are_those_without_ranges(
    network: str, optimizer: str, traces: str, steps: str, threads: str
) -> None:
    """Also of networks of Keras with ``ANNOT_FUZZ=10``, which takes an hour."""
    program = Path(__file__).parents[1] / "support/tf_sum_fits.py"
    done = subprocess.run(
        [sys.executable, str(program), network, optimizer, threads, traces, steps],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same_values([[Counter(one) for one in json.loads(done.stdout.splitlines()[-1])]])
