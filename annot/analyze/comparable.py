"""Whether two runs can be compared at all: what differs between them besides the time that they took."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from annot.analyze.pieces import KEY
from annot.correlate import UNATTRIBUTED, Attribution, by_layer

__all__ = ["Comparability", "Reason", "comparability", "device_names"]

Kind: TypeAlias = Literal[
    "time", "device", "profiler", "ranks", "steps", "layers", "kernels", "calls", "shapes", "dtypes"
]  # fmt: skip

_OTHER_PROGRAM: Final = ("time", "steps", "layers", "kernels", "calls")
"""Kinds of reasons that make the ratio of all times mean nothing."""
_LEAST: Final = 0.1
"""Layers that take this share of a run decide."""
_DTYPE: Final = re.compile(r"(?<=\])[a-z]\w*")
_VERSION: Final = re.compile(r"[\d(].*")


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that differs between two runs.

    Args:
        kind: what it is about.
        text: a sentence without its full stop, with what each of the two has.
    """

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Comparability:
    """Whether two runs, A and B, can be compared.

    Args:
        reasons: why not; empty: they can.
        notes: what differs, but does not stand against it.
    """

    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether what differs is the time that they took."""
        return not self.reasons

    @property
    def same_program(self) -> bool:
        """Whether the ratio of all times means something, though device, shapes or profiler differ."""
        return not any(reason.kind in _OTHER_PROGRAM for reason in self.reasons)


def comparability(a: Attribution, b: Attribution) -> Comparability:
    """Return whether two runs can be compared, and if not, why.

    Args:
        a: the profile to compare with.
        b: the one that is compared.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> kernel = {"process": [1], "device": [0], "start": [10], "end": [25], "name": ["gemm"]}
        >>> run = attribute(Profile.build({}, kernels=pl.DataFrame(kernel)))
        >>> comparability(run, run).comparable
        True
        >>> comparability(run, attribute(Profile.build({}))).reasons[0].text
        'A has device work, B has none'
    """
    checks: tuple[Callable[[Attribution, Attribution], str], ...]
    checks = (_time, _device, _profiler, _ranks, _steps, _layers, _kernels, _calls, _shapes, _dtypes)
    kinds: tuple[Kind, ...] = (
        "time", "device", "profiler", "ranks", "steps", "layers", "kernels", "calls", "shapes", "dtypes",
    )  # fmt: skip
    said = ((kind, check(a, b)) for kind, check in zip(kinds, checks, strict=True))
    return Comparability(tuple(Reason(kind, text) for kind, text in said if text), tuple(_notes(a, b)))


def device_names(attribution: Attribution) -> list[str]:
    """Return the names of the devices, each once, in order: those that worked, if the profile tells which."""
    devices: list[dict[str, Any]] = list(attribution.meta.get("devices", ()))
    numbered = {one.get("cuDevice", one.get("id")): one for one in devices}
    used = [numbered[number] for number in attribution.device_busy["device"].unique().sort() if number in numbered]
    return list(dict.fromkeys(str(one["name"]) for one in used or devices if one.get("name")))


def _time(a: Attribution, b: Attribution) -> str:
    worked = [bool(side.nodes["gpu_self_ns"].sum() > 0) for side in (a, b)]
    if worked[0] == worked[1]:
        return ""
    return "A has device work, B has none" if worked[0] else "A has no device work, B has some"


def _device(a: Attribution, b: Attribution) -> str:
    names = [device_names(side) for side in (a, b)]
    if all(names) and names[0] != names[1]:
        return f"the devices differ: {', '.join(names[0])} and {', '.join(names[1])}"
    counts = [side.device_busy.filter(pl.col("busy_ns") > 0).height for side in (a, b)]
    if all(counts) and counts[0] != counts[1]:
        return f"the numbers of devices differ: {counts[0]} and {counts[1]}"
    return ""


def _profiler(a: Attribution, b: Attribution) -> str:
    names = [_product(side) for side in (a, b)]
    return f"the profilers differ: {names[0]} and {names[1]}" if all(names) and names[0] != names[1] else ""


def _product(attribution: Attribution) -> str:
    """What wrote a profile, without its version; what does not say has a format."""
    said = _VERSION.sub("", str(attribution.meta.get("producer", ""))).removeprefix("NVIDIA ").strip()
    return said or str(attribution.meta.get("format", ""))


def _ranks(a: Attribution, b: Attribution) -> str:
    sizes = [side.meta.get("world_size") for side in (a, b)]
    return (
        f"the numbers of ranks differ: {sizes[0]} and {sizes[1]}" if None not in sizes and sizes[0] != sizes[1] else ""
    )


def _steps(a: Attribution, b: Attribution) -> str:
    counts = [side.steps.table.height for side in (a, b)]
    if bool(counts[0]) == bool(counts[1]):
        return ""
    return f"A has {_so_many(counts[0])}, B has {_so_many(counts[1])}, so whole runs are compared"


def _so_many(steps: int) -> str:
    return "no steps" if not steps else f"{steps:,} step{'s' if steps > 1 else ''}"


def _layers(a: Attribution, b: Attribution) -> str:
    sides = []
    for side in (a, b):
        own = _own(side, a, b).filter(pl.col("layer") != UNATTRIBUTED)
        # What somebody else named after the number of a step or a file is the same in each.
        name = pl.when(pl.col("module") == "").then(pl.col("layer").str.replace_all(r"\d+", "#")).otherwise("layer")
        own = own.group_by(name.alias("layer"), "phase").agg(pl.col("ns").sum())
        sides.append(own.select("ns", name=pl.struct("layer", "phase")))
    return _only(sides[0], sides[1], _layer_name, "layers")


def _layer_name(row: dict[str, str]) -> str:
    return f"{row['layer'] or '(model)'} {row['phase']}"


def _kernels(a: Attribution, b: Attribution) -> str:
    """What only one launches, where layers say little: most of the time lies in no range."""
    sides = [side.nodes["gpu_self_ns"].sum() for side in (a, b)]
    lost = [_own(side, a, b).filter(pl.col("layer") == UNATTRIBUTED)["ns"].sum() for side in (a, b)]
    if not all(sides) or all(2 * part < whole for part, whole in zip(lost, sides, strict=True)):
        return ""
    names = [side.names.group_by(pl.col("name").cast(pl.String)).agg(ns=pl.col("gpu_ns").sum()) for side in (a, b)]
    return _only(names[0], names[1], lambda name: name[:60], "kernels")


def _only(a: pl.DataFrame, b: pl.DataFrame, text: Callable[[Any], str], what: str) -> str:
    """Say which names only one of two sides has, if they take much of its time."""
    found = []
    for letter, one, other in (("A", a, b), ("B", b, a)):
        alone = one.join(other, on="name", how="anti").sort("ns", descending=True)
        whole, mine = int(one["ns"].sum()), int(alone["ns"].sum())
        share = mine / whole if whole else 0.0
        if share > _LEAST:
            found.append(f"{what} that only {letter} has take {share:.0%} of its time, as {text(alone['name'][0])}")
    return "; ".join(found)


def _own(side: Attribution, a: Attribution, b: Attribution) -> pl.DataFrame:
    """The time of each layer itself: layer, module, phase, ns; of devices if both have device work."""
    device = all(one.nodes["gpu_self_ns"].sum() > 0 for one in (a, b))
    names, keys = side.forest.keys.names, side.forest.nodes.keys
    rows = pl.DataFrame(
        {
            **{part: [names[key][place] for key in keys] for place, part in enumerate(KEY)},
            "ns": side.nodes["gpu_self_ns" if device else "host_self_ns"],
        },
        schema=dict.fromkeys(KEY, pl.String) | {"ns": pl.Int64},
    )  # fmt: skip
    return rows.group_by(KEY).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)


def _calls(a: Attribution, b: Attribution) -> str:
    """Without steps times are of whole runs, which must have done the same number of things."""
    if a.steps.table.height or b.steps.table.height:
        return ""
    rows, whole = _in_both(a, b)
    other = rows.filter(pl.col("calls") != pl.col("calls_b"))
    if other["ns"].sum() <= _LEAST * whole:
        return ""
    row = other.row(0, named=True)
    said = f"{_layer_name(row)} {row['calls']:,} and {row['calls_b']:,}"
    return f"neither has steps, and layers are called a different number of times: {said}"


def _in_both(a: Attribution, b: Attribution) -> tuple[pl.DataFrame, int]:
    """Layers of both, those with the most time of A first, with calls and shapes of each; and the time of all of A."""
    sides = []
    for side in (a, b):
        shapes = pl.col("shapes").list.explode().drop_nulls().unique().sort()
        rows = by_layer(side).filter(pl.col("layer") != UNATTRIBUTED)
        sides.append(rows.group_by("layer", "phase").agg(pl.col("calls").sum(), shapes))
    own = _own(a, a, b).group_by("layer", "phase").agg(pl.col("ns").sum())
    rows = sides[0].join(sides[1], on=["layer", "phase"], suffix="_b").join(own, on=["layer", "phase"])
    return rows.sort("ns", "layer", "phase", descending=[True, False, False]), int(own["ns"].sum())


def _shapes(a: Attribution, b: Attribution) -> str:
    return _of_inputs(a, b, "shapes", lambda texts: {_DTYPE.sub("", text) for text in texts})


def _dtypes(a: Attribution, b: Attribution) -> str:
    casts = [set(side.forest.says["text"].str.extract(r" autocast=(\w+)").drop_nulls()) for side in (a, b)]
    if casts[0] != casts[1]:
        said = (", ".join(sorted(one)) or "none" for one in casts)
        return f"the dtypes of autocast differ: {next(said)} and {next(said)}"
    return _of_inputs(a, b, "dtypes", lambda texts: {kind for text in texts for kind in _DTYPE.findall(text)})


def _of_inputs(a: Attribution, b: Attribution, what: str, part: Callable[[Iterable[str]], set[str]]) -> str:
    """Say of which layers the inputs have nothing in common, if they take much of the time."""
    rows, _ = _in_both(a, b)
    pairs = [(row, part(row["shapes"]), part(row["shapes_b"])) for row in rows.iter_rows(named=True)]
    known = [pair for pair in pairs if pair[1] and pair[2]]
    other = [pair for pair in known if not pair[1] & pair[2]]
    if sum(row["ns"] for row, _, _ in other) <= _LEAST * sum(row["ns"] for row, _, _ in known):
        return ""
    row, mine, theirs = other[0]
    return f"the {what} of inputs differ: {_layer_name(row)} {min(mine)} and {min(theirs)}"


def _notes(a: Attribution, b: Attribution) -> Iterable[str]:
    producers = [str(side.meta.get("producer", "")) for side in (a, b)]
    if producers[0] != producers[1] and _product(a) == _product(b):
        yield f"the versions of the profiler differ: {producers[0] or 'unknown'} and {producers[1] or 'unknown'}"
    counts = [side.steps.steady().height for side in (a, b)]
    if all(counts) and counts[0] != counts[1]:
        yield f"the numbers of steps differ, of which times are means: {counts[0]:,} and {counts[1]:,}"
    ways = [side.steps.found_by for side in (a, b)]
    if all(counts) and ways[0] != ways[1]:
        yield f"the steps were found in different ways: {ways[0]}, and {ways[1]}"
    if bool(device_names(a)) != bool(device_names(b)):
        yield "one profile does not tell its device"
