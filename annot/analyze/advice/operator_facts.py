"""Operators with their share of the step time, as the advice rules about operators and the verdict use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.kernel_kinds import MATRIX, classify, with_classes
from annot.analyze.operator_table import operator_table
from annot.analyze.roofline import precision_of, under_roof
from annot.analyze.roofs import Peaks
from annot.analyze.step_time import step_work
from annot.analyze.tensor_cores import matrix_units
from annot.attribution import UNATTRIBUTED, Attribution
from annot.attribution.layer_tables import NO_OPERATION
from annot.labels.tag import Tag, parse

__all__ = ["Operator", "operators_of"]

_MOST_TENSORS: Final = 4
_TILE: Final = re.compile(r"_MT(\d+)x(\d+)x\d+|(?<![\dx])(\d{2,3})x(\d{2,3})(?![\dx]*\d{3})")
_SPLITS: Final = re.compile(r"_GSU([1-9]\d{0,3})_")
_HOST_COPIES: Final = ("(copy HtoD)", "(copy DtoH)")
_LOWEST_RIDGE: Final = {"f32": 10.0, "f64": 4.0}
_LOWEST_TENSOR_RIDGE: Final = 125.0
"""FLOPs per byte at which the devices with the relatively fastest memory become compute-bound: 16 bits on Tensor Cores,
V100 (125 TFLOP/s and 0.9 TB/s: 139) and A100 with 80 GB (312 and 2.04: 153); float32, A100 (19.5 and 2.04: 9.6)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of an operator with the same inputs, in one phase.

    Args:
        group: its number in `annot.analyze.operator_table.OperatorTable`.
        name: name of the operator, such as ``aten::mm``.
        tag: the call with its inputs; None: unknown.
        share: fraction of the step time (0 to 1) that its GPU activities take.
        kernels: names of its kernels, the longest first.
        flops, bytes: work of a call; None: unknown.
        roof_share: achieved performance relative to the roof, 0 to 1; None: the device or the work is unknown.
        ridge: FLOPs per byte from which the operator is compute-bound on the device, or on any device if the device is
            unknown.
        processors: number of multiprocessors (AMD: compute units); None: unknown.
        device: name of the device; empty: unknown.
        units: name of its matrix units, `annot.analyze.tensor_cores.matrix_units`.
        multiplies: fraction of its GPU time (0 to 1) in kernels that multiply matrices, or of unknown kind. The
            rest converts or copies.
        from_host: fraction of its GPU time (0 to 1) in copies from or to the host.
    """

    group: int
    name: str
    tag: Tag | None
    share: float
    kernels: tuple[str, ...]
    flops: float | None
    bytes: float | None
    roof_share: float | None
    ridge: float
    processors: int | None
    device: str
    units: str
    multiplies: float = 1.0
    from_host: float = 0.0

    @property
    def in_pieces(self) -> bool:
        """Whether separate kernels multiply matrices and compute softmax, as attention without a fused kernel does."""
        kinds = {classify(name).kind for name in self.kernels}
        return bool(kinds & {"gemm", "softmax"} == {"gemm", "softmax"}) and "attention" not in kinds

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None: unknown."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def memory_bound(self) -> bool:
        """Whether the operator reads and writes memory for longer than it computes, on a device at its peaks."""
        return self.intensity is not None and self.intensity < self.ridge

    @property
    def title(self) -> str:
        """Name and shapes, as ``aten::mm [8,16]bf16 x [16,4]bf16``; three equal shapes, as of attention, stand once."""
        return self._titled(_MOST_TENSORS)

    @property
    def short_title(self) -> str:
        """Title with two shapes at most."""
        return self._titled(2)

    def _titled(self, most: int) -> str:
        shapes = [*map(str, self.tag.tensors)] if self.tag else []
        shapes = shapes[:1] if len(shapes) > 2 and len(set(shapes)) == 1 else shapes
        more = ["…"] if len(shapes) > most or (self.tag and self.tag.omitted) else []
        return f"{self.name} {' x '.join(shapes[:most] + more)}".strip()

    @property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of the output tiles in the name of the longest kernel that multiplies matrices."""
        names = (name for name in self.kernels if classify(name).kind in MATRIX)
        match = next((match for name in names if (match := _TILE.search(name))), None)
        if match is None:
            return None
        rows, columns = (int(size) for size in match.groups() if size)
        return rows, columns

    @property
    def splits(self) -> int:
        """Number of parts of K that the longest kernel computes beside each other, by its name (Tensile: GSU)."""
        match = _SPLITS.search(self.kernels[0]) if self.kernels else None
        return int(match[1]) if match else 1


def operators_of(attribution: Attribution, windows: pl.DataFrame, wall_ns: int, peaks: Peaks) -> list[Operator]:
    """Return the operators with GPU time in the steps, the longest first; none without GPU activities.

    Args:
        attribution: the profile.
        windows: times of the steps, as in `annot.analyze.step_parts.StepInputs`.
        wall_ns: their sum over devices in ns.
        peaks: peaks of the device.
    """
    rows = _timed(attribution, windows, peaks)
    devices, units = attribution.meta.get("devices") or (), matrix_units(attribution.meta)
    counts = {device.get("numSms", device.get("smCount")) for device in devices}
    count = counts.pop() if len(counts) == 1 else None
    processors = count if isinstance(count, int) and count > 0 else None
    operators = []
    for row in rows.iter_rows(named=True):
        flops, moved = (None if row[of] is None else row[of] / max(row["calls"], 1) for of in ("flops", "bytes"))
        tag = parse(row["call"]) if row["call"] else None
        operators.append(Operator(
            row["group"], row["op"], tag, row["wall_ns"] / wall_ns, tuple(row["kernels"]), flops, moved,
            row["roof_share"], _ridge(peaks, row["precision"]), processors, peaks.device, units,
            row["matrix_ns"] / row["wall_ns"], row["host_ns"] / row["wall_ns"],
        ))  # fmt: skip
    return operators


def _timed(attribution: Attribution, windows: pl.DataFrame, peaks: Peaks) -> pl.DataFrame:
    """The rows of `OperatorTable` with wall_ns (in the steps), kernels (names, longest first) and their roofline."""
    table = operator_table(attribution)
    work = step_work(attribution, windows, table.groups) if table.rows.height else None
    if work is None:
        return table.rows
    work = with_classes(work).sort("wall_ns", "name", descending=[True, False])
    work = work.group_by(group="node", maintain_order=True).agg(
        pl.col("wall_ns").sum(),
        kernels=pl.col("name").filter("kernel"),
        matrix_ns=pl.col("wall_ns").filter("kernel", pl.col("kind").is_in([*MATRIX, "other"])).sum(),
        host_ns=pl.col("wall_ns").filter(pl.col("name").is_in(_HOST_COPIES)).sum(),
    )
    times = table.kernels.group_by("group").agg(time_ns=pl.col("gpu_ns").sum())
    rows = table.rows.filter(~pl.col("op").is_in([NO_OPERATION, UNATTRIBUTED]))
    rows = rows.join(work, on="group").join(times, on="group").filter(pl.col("wall_ns") > 0)
    matrix = [
        next((name for name in names if classify(name).kind in MATRIX), None) for names in rows["kernels"].to_list()
    ]
    precisions = [precision_of(name, shapes) for name, shapes in zip(matrix, rows["inputs"], strict=True)]
    unknown = pl.lit(None, pl.Int64)
    rows = rows.with_columns(
        pl.Series("precision", precisions, pl.String),
        bytes=pl.col("bytes_read") + pl.col("bytes_written"),
        gpu_idle_ns=unknown,
        gpu_launch_ns=unknown,
    )
    return under_roof(rows.sort("wall_ns", "group", descending=[True, False]), peaks)


def _ridge(peaks: Peaks, precision: str | None) -> float:
    name, _, tensor = (precision or "f32").partition(" ")
    peak = peaks.of(name, tensor_cores=bool(tensor))
    if peak and peaks.bandwidth:
        return peak / peaks.bandwidth
    return _LOWEST_RIDGE.get(name, _LOWEST_TENSOR_RIDGE)
