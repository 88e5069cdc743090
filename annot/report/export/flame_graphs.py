"""Flame graphs of layers: folded stacks and the file format of speedscope.

A stack is a phase, and the lines of the layer table from the outermost to the innermost one. Its weight is the self
time of the innermost line in this phase (ns), so that the weights add up to the time of the run. Unattributed time has
its reason as the innermost frame. With kernels, GPU activities are the innermost frames.

Formats: https://github.com/brendangregg/FlameGraph#2-fold-stacks and
https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Final, NamedTuple, TypeAlias

import polars as pl

from annot.analyze.kernel_names import with_short_names
from annot.analyze.trace_events import Tracks
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_line, rows_of_nodes
from annot.errors import AnnotError
from annot.report.tree import Line, layer_lines, other_lines
from annot.report.units import printable
from annot.util.distribution import version

_GPU_TIMES: Final = pl.Schema(
    {"process": pl.Int64, "device": pl.Int64, "node": pl.Int32, "name": pl.String, "gpu_ns": pl.Int64}
)
_SOURCE: Final = re.compile(r"(.+?):(\d{1,9})\b")


class Frame(NamedTuple):
    """A frame of a stack, with the file and line of the class of a layer; without a file they are unknown."""

    name: str
    file: str = ""
    line: int = 0


Sample: TypeAlias = tuple[list[Frame], int]
"""A stack, the outermost frame first, and its time (ns)."""


def folded(attribution: Attribution, source: str, *, kernels: bool = False) -> Iterator[bytes]:
    """Yield a line per stack with its GPU time, or without GPU activity with its host time.

    Args:
        attribution: the profile.
        source: name of the profile.
        kernels: whether GPU activities are frames.

    Raises:
        AnnotError: the profile has neither of these times.
    """
    stacks, times = _Stacks(attribution), _gpu_times(attribution, kernels=kernels)
    if times.is_empty():
        times = _host_times(attribution)
    _require(times, source)
    for stack, ns in stacks.samples(times):
        yield f"{';'.join(frame.name.replace(';', ':') for frame in stack)} {ns}\n".encode()


def speedscope(attribution: Attribution, source: str, *, kernels: bool = False) -> Iterator[bytes]:
    """Yield a document with the GPU time of each device, and the host time. Arguments are those of `folded`."""
    stacks, frames = _Stacks(attribution), dict[Frame, int]()
    clocks = [*_of_devices(attribution, _gpu_times(attribution, kernels=kernels))]
    clocks.append(("Host time", _host_times(attribution)))
    profiles = [_sampled(name, stacks.samples(times), frames) for name, times in clocks if times.height]
    _require(profiles, source)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"annot {version()}",
        "name": source,
        "shared": {"frames": [_as_json(frame) for frame in frames]},
        "profiles": profiles,
    }
    yield json.dumps(document).encode()


def _gpu_times(attribution: Attribution, *, kernels: bool) -> pl.DataFrame:
    """Return the self times of lines on each device: process, device, line, phase, ns and, with kernels, short."""
    keys, ns = _GPU_TIMES.names()[:-1], pl.col("gpu_ns").sum()
    sums = (
        block.group_by(keys, maintain_order=True).agg(ns).cast(_GPU_TIMES) for block in attribution.activity_blocks()
    )
    times = pl.concat([pl.DataFrame(schema=_GPU_TIMES), *sums]).rename({"gpu_ns": "ns"})
    times = times.hstack(rows_of_nodes(attribution)[times["node"]]).filter(pl.col("ns") > 0)
    return with_short_names(times, attribution) if kernels else times


def _host_times(attribution: Attribution) -> pl.DataFrame:
    """Return the self times of lines on the host: line, phase and ns; empty if host times are unknown."""
    return by_line(attribution).select("line", "phase", ns="host_self_ns").filter(pl.col("ns") > 0)


def _of_devices(attribution: Attribution, times: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the name of each device, as in the timeline, and its rows of `_gpu_times`."""
    tracks = Tracks(attribution.meta)
    number = tracks.of("stream", times.select("process", "device", stream=pl.lit(None, pl.Int64)))
    for track in sorted(tracks.all(), key=lambda track: track.order):
        yield f"GPU time: {track.group.name}", times.filter(number == track.number)


class _Stacks:
    """The stacks of a profile, in the order of the layer table."""

    def __init__(self, attribution: Attribution) -> None:
        rows = by_line(attribution)
        self._phases = rows["phase"].unique(maintain_order=True).to_list()
        self._lines, self._others = layer_lines(rows), other_lines(rows)

    def samples(self, times: pl.DataFrame) -> Iterator[Sample]:
        """Yield each stack with a time, phase by phase and depth first, so that equal frames are neighbors.

        `times` has line, phase, ns and, if GPU activities are frames, short.
        """
        keys = ["line", "phase", *(["short"] if "short" in times.columns else [])]
        inner = defaultdict[tuple[int, str], list[Sample]](list)
        for line, phase, *names, ns in times.group_by(keys, maintain_order=True).agg(pl.col("ns").sum()).iter_rows():
            inner[line, phase].append(([Frame(printable(name or "(unnamed)")) for name in names], ns))
        for phase in self._phases:
            around = [Frame(phase)]
            for line in self._lines:
                del around[line.depth + 1 :]
                around.append(_frame(line))
                yield from (([*around, *names], ns) for names, ns in inner[line.number, phase])
        for line in self._others:
            reason = [Frame(line.label), Frame(line.module)]
            for phase in self._phases:
                yield from (([*reason, *names], ns) for names, ns in inner[line.number, phase])


def _frame(line: Line) -> Frame:
    """Return the frame of a line. The label of a layer is relative to the frame around it."""
    source = next((row["source"] for row in line.phases.values() if row.get("source")), "")
    place = _SOURCE.match(source)
    name = printable(f"{line.label} {line.module}".strip())
    return Frame(name, place[1], int(place[2])) if place else Frame(name)


def _sampled(name: str, samples: Iterable[Sample], frames: dict[Frame, int]) -> dict[str, Any]:
    """Return a profile of speedscope; `frames` has the number of each frame, to which new ones are added."""
    stacks, weights = [], []
    for stack, ns in samples:
        stacks.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(ns)
    times = {"unit": "nanoseconds", "startValue": 0, "endValue": sum(weights)}
    return {"type": "sampled", "name": name, **times, "samples": stacks, "weights": weights}


def _as_json(frame: Frame) -> dict[str, Any]:
    return frame._asdict() if frame.file else {"name": frame.name}


def _require(times: Sized, source: str) -> None:
    if not len(times):
        raise AnnotError(f"{source} has neither GPU times nor host times")
