"""What ranges in TensorFlow cost: annot's operations in a graph, and its ranges of eager mode, beside tf.profiler.

Run by hand, with `tests` and `samples` on the path: ``make bench``. Without TensorFlow it says so and does nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from harness import Timings, Variant, mode, null_tool_starts, report, run_in_modes, time_variants

GRAPH_US: Final = {"native": 2.0, "python": None}
"""Microseconds a range in a graph may add; where the operations call Python there is no budget."""
EAGER_US: Final = {"native": 10.0, "python": 20.0}
RANGES: Final = 100
ROUNDS: Final = 40


class Program:
    """What is timed: the same work with and without ranges, one of them chosen at a time.

    Args:
        programs: by variant; each takes and returns a tensor.
        x: what they are given.
    """

    def __init__(self, programs: Mapping[str, Callable[[Any], Any]], x: Any) -> None:
        self._programs, self._x = programs, x
        self._chosen = programs["plain"]

    def __call__(self) -> None:
        self._chosen(self._x)

    def variant(self, name: str, around: Variant = nullcontext) -> Variant:
        """Return the variant that runs the program `name` in the context of `around`."""

        @contextmanager
        def chosen() -> Iterator[None]:
            self._chosen = self._programs[name]
            with around():
                yield

        return chosen


def tf_profiler() -> AbstractContextManager[object]:
    """Return TensorFlow's own profiler at work."""
    import tensorflow as tf

    return tf.profiler.experimental.Profile(tempfile.mkdtemp(prefix="bench-tf-"))  # type: ignore[no-any-return]


def chain(x: Any, put: Callable[[Any], Any]) -> Any:
    """Do next to nothing, many times."""
    for _ in range(RANGES):
        x = put(x)
    return x


def measure_chain(what: str, compile_: Callable[[Any], Any], budget: float | None, per_link: int = 1) -> None:
    """Time a chain of ranges around one operation each.

    Args:
        what: is timed.
        compile_: makes of the chain what runs.
        budget: microseconds a range.
        per_link: how many ranges a link of the chain has.
    """
    import tensorflow as tf

    from annot.tf import trace

    x = tf.ones([8])
    work = tf.tanh
    programs = {
        "plain": compile_(functools.partial(chain, put=work)),
        "annot": compile_(functools.partial(chain, put=trace("work")(lambda x: work(x)))),
    }
    program = Program(programs, x)
    variants = {
        "plain": program.variant("plain"),
        "annot": program.variant("annot"),
        "profiler": program.variant("plain", tf_profiler),
    }
    programs["annot"](x)
    before = null_tool_starts()
    programs["annot"](x)
    opened = null_tool_starts() - before
    timings = time_variants(variants, program, calls=20, rounds=ROUNDS)
    note = f"{opened} ranges, plain {timings.median('plain') / RANGES / 1000:.2f} µs"
    report(f"{what}, per range", _added(timings, "annot") / per_link, "µs", budget, note)
    report(f"{what}, per operation: tf.profiler", _added(timings, "profiler"), "µs")


def _added(timings: Timings, name: str) -> float:
    return timings.added(name) / RANGES / 1000


def measure_gradients() -> None:
    """Time a chain of ranges with their gradients, which have ranges too."""
    import tensorflow as tf

    def gradient(program: Callable[[Any], Any]) -> Any:
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = program(x)
            return y, tape.gradient(y, x)

        return tf.function(run)

    measure_chain("graph with gradients", gradient, GRAPH_US[mode()], per_link=2)


def measure() -> None:
    """Print every figure of this process's mode."""
    import tensorflow as tf

    from annot.tf import library

    loaded = library.load()
    print(f"  TensorFlow {tf.__version__}, operations: {getattr(loaded, 'road', loaded)}")
    measure_chain("graph", tf.function, GRAPH_US[mode()])
    measure_gradients()
    measure_chain("eager", lambda function: function, EAGER_US[mode()])


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow") is None:
        print("bench_tf: TensorFlow is not installed")
    elif sys.argv[1:] == ["measure"]:
        measure()
    else:
        run_in_modes(__file__)
