"""Whether runs can be compared: they ran the same program on the same inputs, and their recordings are complete.

Runs may differ in what a comparison is about: times, kernels of the same layers, versions, and how layers run (eager,
as compiled or captured graphs). Layers, inputs, devices and profilers are the same. Steps of a program differ a little:
an epoch ends with a smaller batch, and some steps have a validation. What most steps have in common counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from annot.analyze.comparison import inputs, programs, recordings
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.pairs import Difference, Pair
from annot.analyze.comparison.same_run import differ, profiler_of

Kind: TypeAlias = Literal[
    "time", "device", "profiler", "ranks", "steps", "truncated", "layers", "kernels", "calls", "shapes", "dtypes",
    "parameters",
]  # fmt: skip

_OTHER_PROGRAM: Final = ("time", "steps", "layers", "kernels", "calls")
"""Kinds of reasons that make the ratio of total times meaningless."""
_MUCH: Final = 0.1
"""Share of the time in other layers from which the ratio of total times is meaningless."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A difference between two runs: its subject, and the values of both runs as a sentence without its full stop.

    `share` is the share of the time that the difference affects (0 to 1).
    """

    kind: Kind
    text: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Comparability:
    """Result of the check whether runs are comparable: those of side A with those of side B, and within each side.

    Args:
        reasons: differences that make the runs incomparable; empty: they are comparable.
        notes: differences that do not affect the comparison.
        reservations: what the profiles do not tell, so that such differences remain unnoticed.
    """

    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether the runs differ only in their times."""
        return not self.reasons

    @property
    def same_program(self) -> bool:
        """Whether both ran the same program: the ratio of total times is meaningful despite other differences."""
        return not any(reason.kind in _OTHER_PROGRAM and reason.share > _MUCH for reason in self.reasons)


def comparability(a: Sequence[Digest], b: Sequence[Digest]) -> Comparability:
    """Return whether runs, baselines and others, are comparable, and the reasons if they are not.

    Args:
        a: runs of the baseline, at least one.
        b: runs to compare with the baseline, at least one.

    Raises:
        ValueError: a side has no run.
    """
    if not a or not b:
        raise ValueError(f"a comparison needs runs on both sides, got {len(a)} and {len(b)}")
    sides = Pair((a[0], b[0]), ("A", "B"))
    pairs = [sides]
    for letter, runs in (("A", a), ("B", b)):
        others = enumerate(runs[1:], 2)
        pairs += [Pair((runs[0], run), (f"{letter}1", f"{letter}{number}")) for number, run in others]
    reasons: dict[Kind, Reason] = {}
    for pair in pairs:
        for kind, check in _CHECKS.items():
            difference = check(pair)
            if difference.text and kind not in reasons:
                reasons[kind] = Reason(kind, difference.text, difference.share)
    ordered = tuple(reasons[kind] for kind in _CHECKS if kind in reasons)
    return Comparability(ordered, tuple(_notes(sides)), tuple(_reservations(sides)))


def _time(pair: Pair) -> Difference:
    return Difference(_only_in_one(pair, "on_gpu", "contains GPU activities"))


def _device(pair: Pair) -> Difference:
    names = [", ".join(run.meta["devices"]) for run in pair.runs]
    counts = [run.meta["device_count"] for run in pair.runs]
    cpus = ["" if run.meta["on_gpu"] else run.meta["cpu"] for run in pair.runs]
    return Difference(
        differ("the devices differ", *names)
        or differ("the number of devices differs", *counts)
        or differ("the CPUs differ", *cpus)
    )


def _profiler(pair: Pair) -> Difference:
    return Difference(differ("the profilers differ", *(profiler_of(run.meta) for run in pair.runs)))


def _ranks(pair: Pair) -> Difference:
    return Difference(differ("the number of ranks differs", *(run.meta["world_size"] for run in pair.runs)))


def _steps(pair: Pair) -> Difference:
    counts = [run.meta["step_count"] for run in pair.runs]
    if bool(counts[0]) == bool(counts[1]):
        return Difference(differ("the kinds of the steps differ", *(run.meta["step_kind"] for run in pair.runs)))
    first, second = ("no steps" if not steps else f"{steps:,} step{'s' if steps > 1 else ''}" for steps in counts)
    return Difference(f"{pair.names[0]} has {first}, {pair.names[1]} has {second}, so whole runs are compared")


def _notes(pair: Pair) -> Iterator[str]:
    a, b = pair.runs
    producers = [run.meta["producer"] for run in pair.runs]
    if producers[0] != producers[1] and profiler_of(a.meta) == profiler_of(b.meta):
        yield f"the profiler versions differ: {producers[0] or 'unknown'} and {producers[1] or 'unknown'}"
    counts = [run.steps.height for run in pair.runs]
    if pair.per_step and counts[0] != counts[1]:
        yield f"times are means over different numbers of steps: {counts[0]:,} and {counts[1]:,}"
    methods = [run.meta["steps_found_by"] for run in pair.runs]
    if pair.per_step and methods[0] != methods[1]:
        yield f"the steps were found by different methods: {methods[0]}; {methods[1]}"
    versions = [run.meta["versions"] for run in pair.runs]
    for name in sorted(versions[0].keys() & versions[1].keys()):
        if versions[0][name] != versions[1][name]:
            yield f"the versions of {name} differ: {versions[0][name]} and {versions[1][name]}"
    if a.meta["on_gpu"] and (cpus := differ("the CPUs differ", a.meta["cpu"], b.meta["cpu"])):
        yield cpus
    if threads := differ("the threads of CPU operations differ", *(_listed(run.meta["threads"]) for run in pair.runs)):
        yield threads
    if compiled := _only_in_one(pair, "compiled", "runs compiled graphs"):
        yield compiled
    yield from programs.rare(pair)


def _only_in_one(pair: Pair, fact: str, what: str) -> str:
    """Describe a fact that is true of only one of the runs; empty: of both or none."""
    names = [name for name, run in zip(pair.names, pair.runs, strict=True) if run.meta[fact]]
    return f"only {names[0]} {what}" if len(names) == 1 else ""


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _reservations(pair: Pair) -> Iterator[str]:
    named = list(zip(pair.names, pair.runs, strict=True))
    if names := [name for name, run in named if run.meta["on_gpu"] and not run.meta["devices"]]:
        yield f"{_subject(names)} not name {'its' if len(names) == 1 else 'their'} device"
    if names := [name for name, run in named if not programs.names_layers(run, pair)]:
        yield f"{_subject(names)} not name layers, so only kernels tell whether the models are the same"
    if names := [name for name, run in named if not inputs.known(run)]:
        yield f"{_subject(names)} not contain shapes, so other sizes and dtypes of inputs are not noticed"
    if not any(run.meta["step_count"] for run in pair.runs):
        yield "neither run has steps, so whole runs are compared"


def _subject(names: Sequence[str]) -> str:
    return f"{names[0]} does" if len(names) == 1 else f"{names[0]} and {names[1]} do"


_CHECKS: Final[dict[Kind, Callable[[Pair], Difference]]] = {
    "time": _time,
    "device": _device,
    "profiler": _profiler,
    "ranks": _ranks,
    "steps": _steps,
    "truncated": recordings.truncated,
    "layers": programs.layers,
    "kernels": programs.kernels,
    "calls": programs.calls,
    "shapes": inputs.shapes,
    "dtypes": inputs.dtypes,
    "parameters": inputs.parameters,
}
"""The check of each kind of reason."""
