"""Layers of a program that are timed alone, in one run of it, without and with changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from annot.collect.measured_run import MeasuredRun
from annot.errors import AnnotError, writing
from annot.live.request import AlternativeTimes, Difference, LayerRequest, LayerTimes, Request, Result
from annot.trial.runs import NO_STEP, Program
from annot.trial.speed import LEVEL, ratio, step_ns
from annot.util.distribution import version

ROUNDS: Final = 10
"""Default number of blocks of calls that are timed under each change."""
_WARMUP: Final = 3
"""Least steps before layers are timed: in the first all is set up, in the last the calls are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuestion:
    """What to measure."""

    program: Program
    """The program. There are at least three steps before the measured ones."""
    patterns: tuple[str, ...]
    """Patterns of dotted layer paths, as in `annot.emit_ranges`."""
    changes: tuple[str, ...]
    """Names of changes, of `annot.live.request.LAYER_CHANGES`."""
    steps: int = 30
    """Measured steps, for the share of the layer."""
    rounds: int = ROUNDS
    """Blocks of calls that are timed under each change."""
    extract: Path | None = None
    """Python file to write with the first layer and random data; None: none."""

    @property
    def warmup(self) -> int:
        """Steps before the measured ones."""
        return max(self.program.warmup, _WARMUP)


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a change gains on one layer alone."""

    name: str
    """Name of the change."""
    before_ns: float | None = None
    after_ns: float | None = None
    """Middle time (ns) of forward and backward without the change, and that over `speedup`; None: not measured."""
    speedup: float | None = None
    """Before / after, from blocks of calls in turns."""
    low: float | None = None
    high: float | None = None
    """Interval of the speedup; None: too few rounds."""
    step_speedup: float | None = None
    """Speedup of the whole step if all these layers gain alike and all else keeps its time; None: unknown share."""
    first_ns: int | None = None
    """Time of the first call (ns), in which a layer is compiled; None: it was not called."""
    numbers: str = ""
    """See `annot.live.request.AlternativeTimes`."""
    outputs: Difference | None = None
    gradients: Difference | None = None
    """Differences from the numbers without the change; None: not compared."""
    reason: str = ""
    """Why it was not measured, a clause; empty: it was."""

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval is above 1, and the layer computes the same but for rounding."""
        return self.low is not None and self.low > 1 and self.numbers != "differ"


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A layer alone."""

    path: str
    kind: str
    layers: int
    calls: float
    inputs: str
    backward: bool
    repeats: bool
    """As in `annot.live.request.LayerTimes`."""
    time_ns: float | None
    """Middle time (ns) of forward and backward without a change; None: not measured."""
    share: float | None
    """Share of the step that all calls of these layers take, at the time of the layer alone; None: unknown."""
    gains: list[Gain]
    """The changes, as requested."""
    notes: list[str]
    """Sentences about the calls."""
    reason: str
    """Why it was not measured, a clause; empty: it was."""


class LayerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Layers alone."""

    command: list[str]
    version: str
    """Version of annot."""
    device: str
    """``cpu`` or ``cuda``."""
    level: float
    """Error level of the intervals, at most."""
    rounds: int
    steps: int
    """Number of measured steps."""
    step_ns: float | None
    """Time of a step of the program (ns); None: it ended before the measured steps."""
    layers: list[LayerRow]
    """The layers, the one with the most time in a step first."""
    extracted: str
    """The Python file that was written; empty: none."""
    extract_problem: str
    """Why it was not written, a clause; empty: it was, or none was requested."""


def run_layer(question: LayerQuestion, folder: Path) -> LayerAnswer:
    """Run a program in one process, time its layers between two steps, and return what was measured.

    Args:
        question: what to measure.
        folder: folder for the output of the program, ``layers.txt``; created if missing.

    Raises:
        CommandError: the command does not exist or cannot be executed.
        AnnotError: no layer was timed, with the reason, or the folder cannot be written.
    """
    command, log = question.program.command, folder / "layers.txt"
    run = MeasuredRun(command=command, request=_request(question, folder), log=log)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        status = run.run()
    result = run.result(status)
    Path(run.request.result).unlink(missing_ok=True)
    if isinstance(result, str):
        raise AnnotError(f"{result}; output: {run.log}")
    if not result.layers:
        reason = result.layers_problem or result.error or _without_steps(result, question)
        raise AnnotError(f"no layer was timed: {reason}; output: {run.log}")
    return _answer(question, result)


def _request(question: LayerQuestion, folder: Path) -> Request:
    layer = LayerRequest(
        patterns=list(question.patterns),
        alternatives=list(question.changes),
        rounds=question.rounds,
        extract="" if question.extract is None else str(question.extract.absolute()),
    )
    return Request(
        result=str((folder / "layers.result").absolute()),
        framework="torch",
        warmup=question.warmup,
        steps=question.steps,
        keep_going=question.program.keep_going,
        seed=question.program.seed,
        layer=layer,
    )


def _without_steps(result: Result, question: LayerQuestion) -> str:
    if result.framework not in ("", "torch"):
        return f"the program uses {result.framework}, and layers are timed alone only in PyTorch"
    steps = len(result.step_ns)
    return f"the program ended after {steps} of the {question.warmup} steps before it" if steps else NO_STEP


def _answer(question: LayerQuestion, result: Result) -> LayerAnswer:
    whole = step_ns(result, 1.0) if result.window_ns is not None else None
    extract = str(question.extract or "")
    return LayerAnswer(
        command=list(question.program.command),
        version=version(),
        device=result.device,
        level=LEVEL,
        rounds=question.rounds,
        steps=question.steps,
        step_ns=whole,
        layers=[layer_row(times, whole) for times in result.layers],
        extracted="" if result.extract_problem else extract,
        extract_problem=result.extract_problem,
    )


def layer_row(times: LayerTimes, step: float | None) -> LayerRow:
    """Return the row of a layer.

    Args:
        times: its measurements.
        step: time of a step of the program (ns); None: unknown.

    Example:
        >>> halved = AlternativeTimes(name="compile", times_ns=[10.0, 10.0])
        >>> times = LayerTimes(path="fc", kind="Linear", calls=2, times_ns=[20.0, 20.0], alternatives=[halved])
        >>> row = layer_row(times, 80.0)
        >>> row.share, round(row.gains[0].speedup, 3), round(row.gains[0].step_speedup, 3)
        (0.5, 2.0, 1.333)
    """
    alone = median(times.times_ns) if times.times_ns else None
    share = times.calls * alone / step if alone is not None and step else None
    return LayerRow(
        path=times.path,
        kind=times.kind,
        layers=times.layers,
        calls=times.calls,
        inputs=times.inputs,
        backward=times.backward,
        repeats=times.repeats,
        time_ns=alone,
        share=share,
        gains=[_gain(times, alternative, share) for alternative in times.alternatives],
        notes=times.notes,
        reason=times.skipped,
    )


def _gain(times: LayerTimes, alternative: AlternativeTimes, share: float | None) -> Gain:
    speedup = ratio(times.times_ns, alternative.times_ns)
    return Gain(
        name=alternative.name,
        **(speedup.numbers() if speedup else {}),
        step_speedup=None if speedup is None or share is None else step_speedup(share, speedup.factor),
        first_ns=alternative.first_ns or None,
        numbers=alternative.numbers,
        outputs=alternative.outputs,
        gradients=alternative.gradients,
        reason=alternative.skipped,
    )


def step_speedup(share: float, speedup: float) -> float:
    """Return the speedup of a step of which a share is faster (Amdahl's law). Shares above 1 count as 1.

    Work of the CPU and the GPU overlap in a step, so that the times of layers alone may add up to more than the step.

    Example:
        >>> step_speedup(0.5, 2.0)
        1.3333333333333333
    """
    left = 1 - min(share, 1.0)
    return 1 / (left + min(share, 1.0) / speedup)
