"""Causes of longer times: which of five kinds a regression has, and what shows it in the runs.

work         a layer does other work: more calls, kernels or operations, other inputs, another class
kernels      other kernels run for the same work: another library, autotuning, precision
slower work  the same work takes longer: clock, device or load if all layers do, else the layer's own code
waits        the step waits: for data, launches, the CPU or other ranks
noise        the runs do not separate the difference from noise

The growth of a row is split by kernel, or by operation where CPU times are compared. Calls that both sides have count
to slower work, calls whose kernel changed to kernels, and further calls to work. The kind with most of the growth is
the cause.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import quantiles
from typing import Final, Literal, TypeAlias

import msgspec
import polars as pl

from annot.analyze.comparison.compare import Comparison
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.gate import Decision
from annot.analyze.comparison.row_work import StepTimes, Timed, Work, self_times, step_parts, work_of_rows
from annot.analyze.comparison.rows import classes_of
from annot.analyze.cpu_parts import COMPUTED, STEP_PARTS
from annot.analyze.kernel_names import MATRIX, classify, patterns, short_name, short_names
from annot.analyze.peaks import short_time
from annot.analyze.step_parts import COLLECTIVE_NAME
from annot.analyze.tensor_cores import matrix_units
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.nesting import KEY, Key
from annot.labels.layer_path import named
from annot.labels.tag import MODEL
from annot.util.packaged_tables import packaged_table

Kind: TypeAlias = Literal["work", "kernels", "slower work", "waits", "noise"]

_HALF: Final = 0.5
"""Share of a change from which a fact explains it."""
_LEAST: Final = 0.1
"""Share of a change from which a part of it is worth a clause."""
_LEAST_SHARE: Final = 0.01
"""Share of the time of a run from which a layer shows how fast the machine is."""
_MOST: Final = 4
"""Clauses of evidence."""
_NAMES: Final = 2
"""Names of kernels in a clause."""
_LONGEST: Final = 48
"""Characters of the name of a kernel."""
_WAITING: Final = ("data", "collective")
"""Phases in which a thread waits."""
_FOR_CPU: Final = ("launch", "host")
"""Parts of a step in which the GPU waits for the CPU."""
_WORKING: Final = ("tensor_cores", "kernels", "copies", *COMPUTED)
"""Parts of a step in which it works. In the others it waits, or runs code outside ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a row, or the step, takes longer.

    Args:
        kind: kind of the cause; see the module.
        row: layer, module and phase; None: the step.
        sentence: the row and its cause, without a full stop.
        evidence: what shows the cause: clauses, the most important one first.
    """

    kind: Kind
    row: Key | None
    sentence: str
    evidence: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentence and its evidence."""
        return f"{self.sentence}: {'; '.join(self.evidence)}." if self.evidence else f"{self.sentence}."


@dataclass(frozen=True, slots=True)
class _Clause:
    """A part of a growth: the kind of its cause, its time (ns), and what shows it."""

    kind: Kind
    ns: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """The work of a row on both sides; of the step if `row` is None."""

    row: Key | None
    before: Work
    after: Work

    @property
    def ns(self) -> float:
        """The growth of the time (ns)."""
        return self.after.ns - self.before.ns

    def is_explained_by(self, factor: float) -> bool:
        """Return whether a factor is at least half of the growth, of the logarithms of both."""
        return math.log(factor) >= _HALF * math.log(max(self.after.ns, 1) / max(self.before.ns, 1))


@dataclass(frozen=True)
class _Runs:
    """The runs of both sides, the compared time, and the change of a whole run."""

    a: Sequence[Digest]
    b: Sequence[Digest]
    time: str
    whole: _Change

    @property
    def on_gpu(self) -> bool:
        return self.time == "gpu_ns"

    @cached_property
    def ratios(self) -> dict[Key, float]:
        """b / a of the self time of each layer."""
        return self.ratios_of(self.time)

    def ratios_of(self, time: str) -> dict[Key, float]:
        """Return b / a of a self time of each layer, or of each long layer if there are some."""
        a, b = (self_times(side, time) for side in (self.a, self.b))
        both = {
            key: ns
            for key, ns in a.items()
            if min(ns, b.get(key, 0)) > 0 and key[0] != UNATTRIBUTED and key[2] not in _WAITING
        }
        least = _LEAST_SHARE * sum(both.values())
        long = [key for key, ns in both.items() if ns >= least] or both
        return {key: b[key] / a[key] for key in long}


def causes_of(
    comparison: Comparison, decision: Decision, a: Sequence[Digest], b: Sequence[Digest]
) -> tuple[Cause, ...]:
    """Return the causes of what a decision found slower, or may have; none for other decisions.

    If b had to be faster, only rows and steps that became slower have causes.

    Args:
        comparison: the comparison.
        decision: the decision about it.
        a, b: the compared runs.
    """
    if decision.status not in ("slower", "undecided"):
        return ()
    longer = decision.rows.filter(pl.col("factor_low").fill_null(math.inf) > 1)
    rows = longer.select(KEY).rows() if comparison.by == "layer" else []
    step, decided = decision.step_slower or not rows, decision.status == "slower"
    if decision.above < 1:
        whole = comparison.step_time or comparison.whole or {}
        step = step and (whole.get("speedup_high") or math.inf) < 1
    return causes(a, b, rows, time=comparison.time, step=step, decided=decided)


def causes(
    a: Sequence[Digest], b: Sequence[Digest], rows: Sequence[Key], *, time: str, step: bool, decided: bool = True
) -> tuple[Cause, ...]:
    """Return the causes of longer times, that of the step first.

    Args:
        a: runs of the baseline.
        b: the other runs.
        rows: layer, module and phase of the rows that take longer; a class that changed is ``A → B``.
        time: the compared time, gpu_ns or host_ns.
        step: whether the step takes longer.
        decided: whether the runs separate the difference from noise. If not, only causes that do not depend on times
            remain: work and kernels.

    Example:
        >>> from annot.analyze.comparison.digest import digest
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> runs = []
        >>> for length in (900, 1500):
        ...     fc = {"id": 1, "process": 1, "thread": 1, "domain": "annot", "text": "fc Linear |fwd", "kind": "push"}
        ...     runs.append(digest(attribute(Profile.build({}, ranges=[fc | {"start": 0, "end": length}]))))
        >>> [cause] = causes(runs[:1], runs[1:], [("fc", "Linear", "forward")], time="host_ns", step=False)
        >>> cause.sentence
        'fc Linear forward: the same work takes longer'
    """
    keys = [[(layer, classes_of(module)[side], phase) for layer, module, phase in rows] for side in (0, 1)]
    before, after = work_of_rows(a, keys[0], time), work_of_rows(b, keys[1], time)
    *changes, whole = map(_Change, [*rows, None], before, after)
    runs = _Runs(a, b, time, whole)
    of_rows = [_cause_of_row(change, runs) for change in changes]
    every = [_cause_of_step(runs, changes, of_rows), *of_rows] if step else of_rows
    return tuple(every if decided else map(_undecided, every))


def _undecided(cause: Cause) -> Cause:
    if cause.kind in ("work", "kernels"):
        return cause
    return _cause("noise", cause.row, cause.evidence)


def _cause(kind: Kind, row: Key | None, evidence: Iterable[str], sentence: str = "") -> Cause:
    """Return a cause. `sentence` is the key of its sentence; empty: that of its kind."""
    text = f"{_name(row)}: {_texts().causes[sentence or kind]}"
    return Cause(kind=kind, row=row, sentence=text, evidence=tuple(evidence))


def _name(row: Key | None) -> str:
    if row is None:
        return "Step"
    layer, module, phase = row
    name = named(layer or (MODEL if phase != "optimizer" else ""), module)
    return name if phase == "other" else f"{name} {phase}"


# ------------------------------------------------------------------ rows


def _cause_of_row(change: _Change, runs: _Runs) -> Cause:
    row, before, after = change.row, change.before, change.after
    if row is not None and row[2] in _WAITING:
        return _cause("waits", row, [_part(named(row[0], row[1]), before.ns, after.ns)] if after.ns else [])
    kind, evidence = _explained(change, runs)
    own = {*before.calls, *after.calls}
    others = _quartiles([ratio for key, ratio in runs.ratios.items() if key not in own])
    if kind != "slower work" or not others:
        return _cause(kind, row, evidence)
    shown = [*evidence, _say("others", factor=_factor(others[1]))]
    if change.is_explained_by(others[1]):
        return _cause(kind, row, [*shown, *_machine(runs)], "alike")
    hint = [_say("unrecorded")] if not (runs.on_gpu or after.activities) else []
    return _cause(kind, row, [*shown, *hint], "alone")


def _explained(change: _Change, runs: _Runs) -> tuple[Kind, list[str]]:
    """The kind of cause of the growth of some layers, and its evidence."""
    if changed := _other_layer(change) or _other_inputs(change):
        return "work", changed
    before, after = change.before, change.after
    clauses = [*_by_activity(before.activities, after.activities, runs)]
    if not runs.on_gpu:
        clauses += _outside_activities(change)
    sums: dict[Kind, float] = defaultdict(float)
    for clause in clauses:
        sums[clause.kind] += clause.ns
    kind: Kind = max(sums, key=lambda name: sums[name], default="slower work")
    least = _LEAST * sum(ns for ns in sums.values() if ns > 0)
    ordered = sorted(clauses, key=lambda clause: (clause.kind != kind, -clause.ns))
    # Other work is worth a clause also beside a much larger growth for another cause.
    of_row = {"work": min(least, _LEAST * before.ns)}
    shown = (clause for clause in ordered if clause.text and clause.ns > of_row.get(clause.kind, least))
    return kind, [clause.text for clause in shown][:_MOST]


def _other_layer(change: _Change) -> list[str]:
    """What shows that a row is new, or has another class; empty: neither, or it is the step."""
    if change.row is None:
        return []
    if not change.before.ns:
        return [_say("new")]
    old, new = classes_of(change.row[1])
    return [_say("class", a=old, b=new)] if old != new else []


def _other_inputs(change: _Change) -> list[str]:
    """What shows that other inputs make the calls longer; empty: they do not, or are unknown."""
    factors = {
        name: _ratio(getattr(change.before, name), getattr(change.after, name)) for name in ("flops", "elements")
    }
    larger = {name: factor for name, factor in factors.items() if factor > 1 and change.is_explained_by(factor)}
    changed = _changed_inputs(change)
    # Inputs of about the same size do not explain a longer time, but another dtype or layout may.
    if not larger and (factors["elements"] != 1 or not changed):
        return []
    amounts = [_say(name, factor=_factor(factor)) for name, factor in larger.items()][:1]
    return [*_other_calls(change), *changed, *amounts][:_MOST]


def _ratio(a: float, b: float) -> float:
    return b / a if a > 0 and b > 0 else 1.0


def _changed_inputs(change: _Change) -> list[str]:
    """The layers whose most frequent inputs differ, if these are at least half of the calls with known inputs."""
    sides = [_most_frequent(work) for work in (change.before, change.after)]
    both = [layer for layer in sides[0] if layer in sides[1]]
    other = [layer for layer in both if sides[0][layer][0] != sides[1][layer][0]]
    calls = [sum(sides[0][layer][1] for layer in layers) for layers in (other, both)]
    if not other or calls[0] < _HALF * calls[1]:
        return []
    layer = max(other, key=lambda layer: sides[0][layer][1])
    text = _say("inputs", a=sides[0][layer][0], b=sides[1][layer][0])
    return [text if change.row is not None and change.row[0] == layer[0] else f"{layer[0] or MODEL}: {text}"]


def _most_frequent(work: Work) -> dict[tuple[str, str], tuple[str, float]]:
    """The inputs of most calls of each layer and phase, and the number of these calls; absent: its inputs vary."""
    by_layer: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for ((layer, _, phase), text, parameters), calls in work.inputs.items():
        by_layer[layer, phase][f"{text} {parameters}".strip()] += calls
    most = {layer: max(texts.items(), key=lambda item: item[1]) for layer, texts in by_layer.items()}
    return {layer: item for layer, item in most.items() if item[1] > _HALF * sum(by_layer[layer].values())}


def _other_calls(change: _Change) -> list[str]:
    """The layers whose number of calls differs, the largest difference first."""
    before, after = change.before.calls, change.after.calls
    counts = {key: (before.get(key, 0), after.get(key, 0)) for key in {**before, **after}}
    changed = sorted(
        (key for key, (a, b) in counts.items() if a != b), key=lambda key: (-abs(counts[key][1] - counts[key][0]), key)
    )
    texts = {key: _say("calls", a=_count(counts[key][0]), b=_count(counts[key][1])) for key in changed[:_NAMES]}
    return [text if key == change.row else f"{_name(key)}: {text}" for key, text in texts.items()]


def _outside_activities(change: _Change) -> Iterator[_Clause]:
    """The growth of CPU time outside recorded operations: further calls, and longer ones."""
    before, after = change.before, change.after
    own_a, own_b = (max(work.ns - sum(ns for _, ns in work.activities.values()), 0.0) for work in (before, after))
    calls = _ratio(sum(before.calls.values()), sum(after.calls.values()))
    if calls != 1:
        yield _Clause("work", own_a * (calls - 1), "; ".join(_other_calls(change)))
    where = "own" if after.activities else "calls_same"
    yield _Clause("slower work", own_b - own_a * calls, _times(where, own_a * calls, own_b))


# ------------------------------------------------------------------ kernels and operations


def _by_activity(before: Timed, after: Timed, runs: _Runs) -> Iterator[_Clause]:
    """The growth of kernels, copies or operations by kind and cause."""
    for kind, names in _groups(before, after, runs):
        split = _Split.of(before, after, names)
        words = _words(kind)
        if split.same != (0.0, 0.0):
            grows: Kind = "waits" if kind == "collective" else "slower work"
            yield _Clause(grows, split.same[1] - split.same[0], _times("same", *split.same, kind=words))
        yield from _further(kind, words, split, runs)


def _further(kind: str, words: str, split: _Split, runs: _Runs) -> Iterator[_Clause]:
    """The growth by calls of only one side: other kernels for the same work, or a different number of calls."""
    (gone, gone_ns), (new, new_ns) = split.totals(split.gone), split.totals(split.new)
    swapped, changed = min(gone, new), 0.0
    if swapped:
        changed = new_ns - gone_ns if kind in MATRIX else swapped * (new_ns / new - gone_ns / gone)
        # Another function is other work: aten::relu and aten::gelu, or the elementwise kernels of both.
        cause: Kind = "work" if _other_functions(kind, split, runs) else "kernels"
        yield _Clause(cause, changed, _replaced(split, changed, runs))
    rest = new_ns - gone_ns - changed
    if rest:
        values = {"a": _count(split.calls[0]), "b": _count(split.calls[1]), "longer": short_time(max(rest, 0))}
        names = ", ".join(_longest(split.new or split.gone, short_names([*split.new, *split.gone])))
        yield _Clause("work", rest, _say("more", kind=words, names=names, **values))


def _other_functions(kind: str, split: _Split, runs: _Runs) -> bool:
    if not runs.on_gpu:
        return True
    if kind != "elementwise" or any(classify(name).library != "PyTorch" for name in (*split.gone, *split.new)):
        return False
    return {*map(short_name, split.gone)}.isdisjoint(map(short_name, split.new))


def _replaced(split: _Split, longer: float, runs: _Runs) -> str:
    shorts = short_names([*split.gone, *split.new])
    a, b = (", ".join(_longest(side, shorts)) for side in (split.gone, split.new))
    units = [{classify(name).tensor_cores for name in side} for side in (split.gone, split.new)]
    text = "without_units" if units == [{True}, {False}] else "other"
    names = [{"name": name} for run in runs.b for name in run.meta["devices"]]
    return _say(text, a=a, b=b, longer=short_time(max(longer, 0)), units=matrix_units({"devices": names}))


def _longest(kernels: Timed, shorts: Mapping[str, str]) -> Iterator[str]:
    """The short names of the longest kernels."""
    for name in sorted(kernels, key=lambda name: -kernels[name][1])[:_NAMES]:
        short = shorts[name]
        yield short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…"


def _groups(before: Timed, after: Timed, runs: _Runs) -> Iterator[tuple[str, set[str]]]:
    """The names by kind. Kinds that replace matrix kernels of another kind, as gemm and softmax attention, are one."""
    by_kind: dict[str, set[str]] = defaultdict(set)
    for name in {**before, **after}:
        by_kind[_kind(name, runs)].add(name)
    splits = {kind: _Split.of(before, after, names) for kind, names in by_kind.items()}
    gone = {kind for kind, split in splits.items() if split.gone and not split.new}
    new = {kind for kind, split in splits.items() if split.new and not split.gone}
    if not (gone.isdisjoint(MATRIX) or new.isdisjoint(MATRIX)):
        merged = gone | new
        yield MATRIX[0], {name for kind in merged for name in by_kind.pop(kind)}
    yield from sorted(by_kind.items())


def _kind(name: str, runs: _Runs) -> str:
    if runs.on_gpu:
        return classify(name).kind
    return "collective" if re.search(COLLECTIVE_NAME, name) else "operation"


_WORDS: Final = {"operation": "operations", "collective": "collectives"}


def _words(kind: str) -> str:
    return _WORDS.get(kind) or patterns().words.get(kind, f"{kind} kernels")


@dataclass(frozen=True, slots=True)
class _Split:
    """Calls of some kernels: those that both sides have, and those of only one side.

    Args:
        calls: number of calls on both sides.
        same: time (ns) of the calls that both sides have, on each side.
        gone, new: number and time (ns) of the calls that only the baseline, or only the other side, has, by name.
    """

    calls: tuple[float, float]
    same: tuple[float, float]
    gone: Timed
    new: Timed

    @classmethod
    def of(cls, before: Timed, after: Timed, names: Iterable[str]) -> _Split:
        """Split the calls of the kernels with some names."""
        counts, same = [0.0, 0.0], [0.0, 0.0]
        only: tuple[dict[str, tuple[float, float]], ...] = ({}, {})
        for name in sorted(names):
            sides = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
            both = min(calls for calls, _ in sides)
            for side, (calls, ns) in enumerate(sides):
                counts[side] += calls
                if both:
                    same[side] += ns * both / calls
                if calls > both:
                    only[side][name] = calls - both, ns * (calls - both) / calls
        return cls((counts[0], counts[1]), (same[0], same[1]), *only)

    @staticmethod
    def totals(kernels: Timed) -> tuple[float, float]:
        """Return the number of calls, and their time (ns)."""
        return sum(calls for calls, _ in kernels.values()), sum(ns for _, ns in kernels.values())


# ------------------------------------------------------------------ the step and the machine


def _cause_of_step(runs: _Runs, changes: Sequence[_Change], of_rows: Sequence[Cause]) -> Cause:
    """The cause of a longer step: waits, else a row that has most of the growth, else the work of all layers."""
    if waits := _waits(step_parts(runs.a), step_parts(runs.b)):
        evidence = [_part(STEP_PARTS[part].name, *times) for part, times in waits.items()]
        for_cpu = runs.on_gpu and not {*_FOR_CPU}.isdisjoint(waits)
        cpu = _quartiles([*runs.ratios_of("host_ns").values()]) if for_cpu else []
        shown = [_say("on_cpu", factor=_factor(cpu[1]))] if cpu else []
        return _cause("waits", None, [*evidence, *shown])
    whole = runs.whole
    grown = sorted(zip(changes, of_rows, strict=True), key=lambda pair: -pair[0].ns)
    alike = all(cause.sentence.endswith(_texts().causes["alike"]) for cause in of_rows)
    if grown and not alike and sum(change.ns for change, _ in grown) >= _HALF * whole.ns > 0:
        change, cause = grown[0]
        text = _say("row", name=_name(cause.row), part=short_time(change.ns), whole=short_time(whole.ns))
        return _cause(cause.kind, None, [text])
    kind, evidence = _explained(whole, runs)
    if kind != "slower work":
        return _cause(kind, None, evidence)
    ratios = _quartiles([*runs.ratios.values()])
    spread = [_say("spread_out", low=_factor(ratios[0]), high=_factor(ratios[2]))] if ratios else []
    alike = bool(ratios) and whole.is_explained_by(ratios[0])
    machine = _machine(runs) if alike else ()
    return _cause(kind, None, [*evidence[:1], *spread, *machine], "all" if alike else kind)


def _waits(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The parts in which the step waits longer, and their times (ns); empty: they do not explain its growth.

    Waits that grow like the work do not explain it: everything takes longer then.
    """
    if not a or not b:
        return {}
    works, waits = zip(*(_sums(parts) for parts in (a, b)), strict=True)
    whole = works[1] + waits[1] - works[0] - waits[0]
    if waits[1] - waits[0] * max(_ratio(*works), 1.0) < max(_HALF * whole, 1e-9):
        return {}
    times = {name: (a.get(name, 0.0), ns) for name, ns in b.items() if name not in _WORKING}
    longer = sorted(times, key=lambda name: times[name][0] - times[name][1])
    return {name: times[name] for name in longer[:_MOST] if times[name][1] - times[name][0] >= _LEAST * whole}


def _sums(parts: Mapping[str, float]) -> tuple[float, float]:
    """Time (ns) in which a step works, and in which it waits."""
    works = sum(ns for name, ns in parts.items() if name in _WORKING)
    return works, sum(parts.values()) - works


def _quartiles(ratios: Sequence[float]) -> list[float]:
    return quantiles(ratios, method="inclusive") if len(ratios) > 1 else [*ratios] * 3


def _machine(runs: _Runs) -> Iterator[str]:
    """What shows why all layers take longer."""
    threads = [sorted({count for run in side for count in run.meta.get("threads") or ()}) for side in (runs.a, runs.b)]
    if all(threads) and threads[0] != threads[1]:
        before, after = (", ".join(map(str, counts)) for counts in threads)
        yield _say("threads", a=before, b=after)
    if runs.on_gpu:
        yield from _kernels_alike(runs)
    a, b = StepTimes.of(runs.a), StepTimes.of(runs.b)
    if a is None or b is None:
        return
    if math.log(b.drift / a.drift) >= _HALF * math.log(max(b.ns / a.ns, 1)) > 0:
        yield _say("drift", a=_factor(a.drift), b=_factor(b.drift))
    if b.spread - a.spread >= _LEAST:
        yield _say("spread", a=f"{a.spread:.0%}", b=f"{b.spread:.0%}")


def _kernels_alike(runs: _Runs) -> Iterator[str]:
    """Whether matrix multiplications, which the clock bounds most, became as slow as other kernels."""
    before, after = runs.whole.before.activities, runs.whole.after.activities
    is_matrix = {name: classify(name).kind in MATRIX for name in before}
    splits = [
        _Split.of(before, after, (name for name in before if is_matrix[name] == which)) for which in (True, False)
    ]
    if not all(min(split.same) > 0 for split in splits):
        return
    matrix, rest = (_ratio(*split.same) for split in splits)
    small, large = sorted((abs(math.log(matrix)), abs(math.log(rest))))
    differ = small <= _HALF * large
    text = "kernels" if not differ else "clock" if matrix > rest else "memory"
    yield _say(text, matrix=_factor(matrix), rest=_factor(rest))


# ------------------------------------------------------------------ texts


class _Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``causes.toml``, which explains them."""

    causes: dict[str, str]
    evidence: dict[str, str]


@cache
def _texts() -> _Texts:
    return packaged_table("annot.analyze.comparison", "causes.toml", _Texts)


def _say(text: str, **values: str) -> str:
    return _texts().evidence[text].format(**values)


def _times(text: str, a: float, b: float, **values: str) -> str:
    return _say(text, a=short_time(a), b=short_time(b), **values)


def _part(name: str, a: float, b: float) -> str:
    return _times("part", a, b, name=name)


def _factor(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.2f}"
