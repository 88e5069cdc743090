"""Whether the calls of the same layers have the same inputs and parameters in two runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.pairs import Difference, Pair, differ_by_step, is_rarer, layers_by_step
from annot.analyze.comparison.row_work import elements
from annot.labels.tag import AROUND
from annot.util.weak_keys import once_for_each

_TENSOR: Final = re.compile(r"\[([^\]]*)\](\S*)")
_PARAMETER: Final = re.compile(r"(?:^| )([^\W\d]\w*)=((?:\"(?:[^\"\\]|\\.)*\"|\S)+)")
_OTHERS: Final = ("autocast", AROUND)
"""Parameters that are compared elsewhere, or depend on how layers are compiled."""
_USUAL: Final = 0.5
"""What a layer is called with in this share of its steps is usual: other steps end an epoch or have a validation."""

Layer: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Calls:
    """Inputs of the calls of a layer: how many steps have each text and each value of a parameter.

    Args:
        steps: the steps with calls of the layer.
        texts: number of steps with calls with these inputs, in the format of `annot.labels.tag`.
        parameters: number of steps by name and value.
    """

    steps: int
    texts: dict[str, int] = field(default_factory=dict)
    parameters: defaultdict[str, defaultdict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )

    def values(self, name: str) -> Mapping[str, int]:
        """Return the number of steps by value of a parameter."""
        return self.parameters.get(name, {})


def known(run: Digest) -> bool:
    """Return whether a run contains inputs with shapes."""
    return any(calls.texts for calls in _calls(run).values())


def shapes(pair: Pair) -> Difference:
    """Return which layer has inputs of other shapes."""
    return _differing(pair, "input shapes", lambda calls: _reduced(calls.texts, _shapes)) or _other_sizes(pair)


def dtypes(pair: Pair) -> Difference:
    """Return which layer has inputs of other dtypes."""
    casts = [run.meta["autocast"] for run in pair.runs]
    if casts[0] != casts[1]:
        first, second = (", ".join(dtypes) or "none" for dtypes in casts)
        return Difference(f"the autocast dtypes differ: {first} and {second}")
    return _differing(pair, "input dtypes", lambda calls: _reduced(calls.texts, _dtypes))


def parameters(pair: Pair) -> Difference:
    """Return which layer has another value of a parameter that both runs contain."""
    names = sorted({name for run in pair.runs for calls in _calls(run).values() for name in calls.parameters})
    each = (_differing(pair, f"values of {name}", partial(_Calls.values, name=name)) for name in names)
    return next(filter(None, each), Difference())


def _differing(pair: Pair, what: str, values_of: Callable[[_Calls], Mapping[str, int]]) -> Difference:
    """Describe the longest layer with a usual value in one run that the other lacks or rarely has."""
    apart = []
    for layer, sides in _shared(pair):
        a, b = (values_of(calls) for calls in sides)
        steps = sides[0].steps, sides[1].steps
        if a and b:
            alone = _usual_alone(a, steps[0], b, steps[1]), _usual_alone(b, steps[1], a, steps[0])
            if any(alone):
                apart.append((layer, min(alone[0] or a), min(alone[1] or b)))
    return _described(pair, what, apart)


def _usual_alone(mine: Mapping[str, int], of: int, other: Mapping[str, int], of_other: int) -> list[str]:
    """Return the values of most steps of a run that the other run lacks, or has in few steps only."""
    usual = [value for value, steps in mine.items() if steps >= _USUAL * of]
    few = {value: min(other.get(value, 0), of_other) for value in usual}
    return [
        value
        for value in usual
        if not few[value]
        or (few[value] < _USUAL * of_other and is_rarer(few[value], of_other, min(mine[value], of), of))
    ]


def _other_sizes(pair: Pair) -> Difference:
    """Describe the longest layer whose inputs vary from step to step, with other sizes in the other run."""
    apart = []
    for layer, sides in _shared(pair):
        a, b = ({text: steps for text, steps in calls.texts.items() if _shapes(text)} for calls in sides)
        if a and b and a.keys() != b.keys():
            fixed = _fixed_sizes(a), _fixed_sizes(b)
            other = any(fixed[0][place] != fixed[1][place] for place in fixed[0].keys() & fixed[1].keys())
            if other or differ_by_step(_elements_by_step(a), _elements_by_step(b)):
                apart.append((layer, min(a), min(b)))
    return _described(pair, "input shapes", apart)


def _elements_by_step(texts: Mapping[str, int]) -> list[float]:
    return [number for text, steps in texts.items() for number in [float(elements(text))] * steps]


def _fixed_sizes(texts: Collection[str]) -> dict[tuple[int, int], str]:
    """Return the sizes that are the same in all inputs, by tensor and dimension."""
    every = [
        {
            (tensor, dimension): size
            for tensor, (sizes, _) in enumerate(_TENSOR.findall(text))
            for dimension, size in enumerate(sizes.split(","))
        }
        for text in texts
    ]
    return {place: size for place, size in every[0].items() if all(other.get(place) == size for other in every)}


def _described(pair: Pair, what: str, apart: list[tuple[Layer, str, str]]) -> Difference:
    times = {(name, phase): ns for name, phase, ns in _times(pair).iter_rows()}
    if not apart:
        return Difference()
    (name, phase), first, second = min(apart, key=lambda of: (-times.get(of[0], 0), of[0]))
    share = sum(times.get(layer, 0) for layer, _, _ in apart) / max(sum(times.values()), 1)
    return Difference(f"the {what} differ: {name or '(model)'} {phase} {first} and {second}", share)


def _times(pair: Pair) -> pl.DataFrame:
    return layers_by_step(pair.runs[0]).group_by("name", "phase").agg(pl.col(pair.time).sum())


def _shared(pair: Pair) -> Iterator[tuple[Layer, tuple[_Calls, _Calls]]]:
    """Yield the layers with calls in both runs."""
    a, b = map(_calls, pair.runs)
    for layer in a.keys() & b.keys():
        yield layer, (a[layer], b[layer])


@once_for_each
def _calls(run: Digest) -> dict[Layer, _Calls]:
    """Return the inputs of the calls of each layer."""
    counts = layers_by_step(run).group_by("layer", "name", "phase")
    rows = counts.agg(number=pl.col("step").n_unique())
    nodes = run.nodes.select("layer", "phase", node=pl.int_range(pl.len(), dtype=pl.Int32))
    inputs = run.inputs.join(nodes, on="node").join(rows, on=["layer", "phase"])
    keys = ("name", "phase")
    numbers = {
        (name, phase): number for name, phase, number in rows.group_by(keys).agg(pl.col("number").max()).iter_rows()
    }
    calls: dict[Layer, _Calls] = {}
    for name, phase, text, parameters, steps in inputs.select(*keys, "text", "parameters", "steps").iter_rows():
        of_layer = calls.setdefault((name, phase), _Calls(numbers[name, phase]))
        if text is not None:
            of_layer.texts[text] = of_layer.texts.get(text, 0) + steps
        for parameter, value in _PARAMETER.findall(parameters or ""):
            if parameter not in _OTHERS:
                of_layer.parameters[parameter][value] += steps
    return calls


def _reduced(texts: Mapping[str, int], extract: Callable[[str], str]) -> dict[str, int]:
    """Return the number of steps by a part of the inputs; empty if the part is unknown for some of them."""
    reduced: defaultdict[str, int] = defaultdict(int)
    for text, steps in texts.items():
        part = extract(text)
        if not part:
            return {}
        reduced[part] += steps
    return reduced


def _shapes(text: str) -> str:
    """Return the shapes without dtypes; empty: a size is unknown."""
    return "" if "?" in text else " ".join(f"[{sizes}]" for sizes, _ in _TENSOR.findall(text))


def _dtypes(text: str) -> str:
    """Return the dtypes; empty: one is unknown."""
    kinds = [dtype for _, dtype in _TENSOR.findall(text)]
    return " ".join(kinds) if all(kinds) else ""
