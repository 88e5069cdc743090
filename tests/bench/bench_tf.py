"""What ranges in TensorFlow cost, beside tf.profiler: a range, a training step of Keras, a layer's eager call.

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
STEP_RATIO: Final = {"native": 1.05, "python": None}
"""How much longer a training step of the small CNN may take with operations."""
NAMES_RATIO: Final = 1.05
LAYER_US: Final = {"native": 10.0, "python": 20.0}
"""Microseconds a layer may take longer in an eager forward call, where Python opens the ranges."""
DENSE: Final = 6
LAYERS: Final = 40
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


def _cnn() -> tuple[Any, Any]:
    """Return a small convolutional network, and a batch for it."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    body = [layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(32, 3), layers.BatchNormalization(), layers.ReLU()]
    head = [layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    return keras.Sequential([keras.Input((32, 32, 3)), *body, *head]), tf.ones((16, 32, 32, 3))


def _mlp() -> tuple[Any, Any]:
    import keras
    import tensorflow as tf

    dense = [keras.layers.Dense(256, activation="relu") for _ in range(DENSE)]
    return keras.Sequential([keras.Input((256,)), *dense]), tf.ones((64, 256))


def measure_steps(what: str, build: Callable[[], tuple[Any, Any]], budget: float | None) -> None:
    """Time the step that `fit` runs, of three models that were traced without ranges, with operations and with names.

    Args:
        what: is trained.
        build: returns a model and a batch; the number of samples is left open, as `fit` does.
        budget: time of a step with operations over that of a plain one.
    """
    import tensorflow as tf

    from annot import emit_ranges

    programs: dict[str, Callable[[Any], Any]] = {}
    models: dict[str, Any] = {}
    modes: dict[str, Any] = {"plain": None, "ops": "ops", "names": "names"}
    for name in modes:
        model, x = build()
        model.compile("sgd", "mse", jit_compile=False)
        batch = tf.data.Dataset.from_tensor_slices((x, model(x))).batch(len(x)).repeat()
        models[name] = model
        with nullcontext() if name == "plain" else emit_ranges(model, mode=modes[name]):
            model.make_train_function(force=True)
            programs[name] = functools.partial(_step, model.train_function, iter(batch))
            programs[name](None)
    program = Program(programs, None)
    variants = {name: program.variant(name) for name in ("plain", "ops")}
    variants["names"] = program.variant("names", lambda: emit_ranges(models["names"], mode="names"))
    variants["profiler"] = program.variant("plain", tf_profiler)
    before = null_tool_starts()
    programs["ops"](None)
    opened = null_tool_starts() - before
    timings = time_variants(variants, program, calls=10, rounds=ROUNDS // 2)
    note = f"{opened} ranges, plain {timings.median('plain') / 1e6:.2f} ms"
    report(f"{what}, step with operations", timings.ratio("ops"), "times", budget, note)
    report(f"{what}, step with names", timings.ratio("names"), "times", NAMES_RATIO)
    report(f"{what}, step under tf.profiler", timings.ratio("profiler"), "times")


def _step(function: Any, batches: Any, _: Any) -> Any:
    return function(batches)


def measure_tracing() -> None:
    """Time the trace and the first step of MobileNetV2, for which TensorFlow optimizes the graph."""
    import keras
    import tensorflow as tf

    from annot import emit_ranges

    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=4)
    x = tf.ones((2, 32, 32, 3))

    def first_step(_: Any = None) -> None:
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        tf.function(step)(x)

    program = Program({"plain": first_step}, None)
    variants = {"plain": program.variant("plain"), "ops": program.variant("plain", lambda: emit_ranges(model))}
    timings = time_variants(variants, program, calls=1, rounds=4)
    note = f"plain {timings.median('plain') / 1e9:.1f} s"
    report("MobileNetV2, trace and first step", timings.ratio("ops"), "times", note=note)


def measure_eager_steps() -> None:
    """Time an eager training step of the MLP, with forward and backward ranges."""
    import tensorflow as tf

    from annot import emit_ranges

    model, x = _mlp()

    def step(_: Any = None) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        tape.gradient(loss, model.trainable_variables)

    program = Program({"plain": step}, None)
    variants = {"plain": program.variant("plain"), "ops": program.variant("plain", lambda: emit_ranges(model))}
    timings = time_variants(variants, program, calls=5, rounds=ROUNDS // 2)
    report("MLP, eager step", timings.ratio("ops"), "times", note=f"plain {timings.median('plain') / 1e6:.1f} ms")


def measure_eager_layers() -> None:
    """Time an eager forward call of a model, without a tape, where Python opens and closes the ranges.

    The layers do nothing: what Keras does around the call of a layer takes long enough to hide some microseconds.
    """
    import keras
    import tensorflow as tf

    from annot import emit_ranges

    layers = [keras.layers.Identity() for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    program = Program({"plain": model}, tf.ones((4, 8)))
    variants = {
        "plain": program.variant("plain"),
        "python": program.variant("plain", lambda: emit_ranges(model)),
    }
    timings = time_variants(variants, program, calls=20, rounds=ROUNDS)
    added = timings.added("python") / 1000 / (LAYERS + 1)
    note = f"plain {timings.median('plain') / 1000 / LAYERS:.0f} µs a layer"
    report("eager forward, per layer", added, "µs", LAYER_US[mode()], note)


def measure() -> None:
    """Print every figure of this process's mode."""
    import tensorflow as tf

    from annot.tf import library

    print(f"  TensorFlow {tf.__version__}, {library.available() or 'with ranges in graphs'}")
    measure_chain("graph", tf.function, GRAPH_US[mode()])
    measure_gradients()
    measure_chain("eager", lambda function: function, EAGER_US[mode()])
    measure_steps("CNN", _cnn, STEP_RATIO[mode()])
    measure_steps("MLP", _mlp, None)
    measure_eager_layers()
    measure_eager_steps()
    measure_tracing()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow") is None:
        print("bench_tf: TensorFlow is not installed")
    elif sys.argv[1:] == ["measure"]:
        measure()
    else:
        run_in_modes(__file__)
