"""What the rules of advice look at, worked out once and only if a rule asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import polars as pl

from annot.analyze.bottleneck import default_peaks
from annot.analyze.kernels import MATRIX, classify
from annot.analyze.peaks import Peaks
from annot.analyze.pieces import KEY, device_idle, idle_of_nodes
from annot.correlate import UNATTRIBUTED, Attribution, by_layer, by_step
from annot.tag import Tag, parse

__all__ = ["Advice", "Facts"]

_WAITS: Final = r"(?i)^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize|^(?:cuda|hip)Memcpy(?:_v\d+)?$"
"""API calls in which the host waits for a device."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try.

    Args:
        rule: its name.
        advice: what to do, in a sentence.
        evidence: what in the profile speaks for it, in a sentence with the numbers.
        code: what to write or to run.
        share: of the run's time that it is about, 0 to 1.
        layers: those that it is about, those with the most time first; empty: the run.
    """

    rule: str
    advice: str
    evidence: str
    code: str
    share: float
    layers: list[str] = field(default_factory=list)


class Facts:
    """A profile, as the rules see it.

    Args:
        attribution: the profile.
    """

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution

    @cached_property
    def gpu_ns(self) -> int:
        """Device time of all work."""
        return int(self.attribution.nodes["gpu_self_ns"].sum())

    @cached_property
    def layers(self) -> pl.DataFrame:
        """As `annot.correlate.by_layer` returns it."""
        return by_layer(self.attribution)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """As `annot.correlate.by_step` returns it, without warm-up if there is more."""
        steps = by_step(self.attribution)
        steady = steps.filter(~pl.col("warmup").fill_null(False))
        return steady if steady.height else steps

    @cached_property
    def all_steps(self) -> pl.DataFrame:
        """As `annot.correlate.by_step` returns it."""
        return by_step(self.attribution)

    @cached_property
    def work(self) -> pl.DataFrame:
        """Device work: layer, module, phase, name, calls, gpu_ns, kernel, kind, library, matrix, tensor."""
        names, keys = self.attribution.forest.keys.names, self.attribution.forest.nodes.keys
        of_node = [names[key] for key in keys]
        table = self.attribution.names.with_columns(pl.col("name").cast(pl.String))
        kinds = {name: classify(name) for name in table["name"].unique()}
        columns: dict[str, pl.Series] = {
            part: pl.Series(part, [of_node[node][place] for node in table["node"]], pl.String)
            for place, part in enumerate(KEY)
        }
        return table.select("name", "calls", "gpu_ns", "kernel", *columns.values()).with_columns(
            pl.Series("kind", [kinds[name].kind for name in table["name"]], pl.String),
            pl.Series("library", [kinds[name].library for name in table["name"]], pl.String),
            pl.Series("matrix", [kinds[name].kind in MATRIX for name in table["name"]], pl.Boolean),
            pl.Series("tensor", [kinds[name].tensor_cores for name in table["name"]], pl.Boolean),
        )

    def share(self, which: pl.Expr) -> float:
        """Return the share of device time of the rows of `work` for which something is true."""
        return float(self.work.filter(which)["gpu_ns"].sum() / self.gpu_ns) if self.gpu_ns else 0.0

    def layers_of(self, which: pl.Expr, most: int = 5) -> list[str]:
        """Return the layers with the most time in those rows of `work`."""
        rows = self.work.filter(which & (pl.col("layer") != UNATTRIBUTED) & (pl.col("layer") != ""))
        sums = rows.group_by("layer").agg(pl.col("gpu_ns").sum())
        return sums.sort("gpu_ns", "layer", descending=[True, False])["layer"].head(most).to_list()

    @cached_property
    def idle_ns(self) -> int:
        """How long devices waited for launches, see `annot.analyze.pieces.device_idle`."""
        idle = idle_of_nodes(self.attribution)
        return 0 if idle is None else int(idle["gpu_idle_ns"].sum())

    @cached_property
    def idle_share(self) -> float:
        """`idle_ns` of the time in which devices worked or waited so."""
        busy = int(self.attribution.device_busy["busy_ns"].sum())
        return self.idle_ns / (self.idle_ns + busy) if busy else 0.0

    @cached_property
    def idle_layers(self) -> list[str]:
        """The layers on which devices waited most."""
        idle = device_idle(self.attribution)
        if idle is None:
            return []
        named = idle.filter((pl.col("layer") != "") & ~pl.col("layer").str.starts_with("("))
        return (
            named.sort("gpu_idle_ns", "layer", descending=[True, False])["layer"]
            .unique(maintain_order=True)
            .head(5)
            .to_list()
        )

    @cached_property
    def mean_kernel_ns(self) -> float:
        """How long a kernel ran, in the mean."""
        kernels = self.work.filter("kernel")
        return int(kernels["gpu_ns"].sum()) / int(kernels["calls"].sum()) if kernels.height else 0.0

    @cached_property
    def peaks(self) -> Peaks | None:
        """Those of the device, as far as the profile tells."""
        return default_peaks(self.attribution)

    @cached_property
    def tags(self) -> dict[str, list[Tag]]:
        """What the ranges of the forward pass of each layer say."""
        texts = self.attribution.forest.says.filter(pl.col("phase") == "forward")["text"]
        found: dict[str, list[Tag]] = {}
        for text in texts:
            if (tag := parse(text)) is not None and tag.tensors:
                found.setdefault(tag.layer, []).append(tag)
        return found

    @cached_property
    def waits(self) -> tuple[int, int]:
        """Calls in which the host waited for a device, in steps if there are any: how many, and how long (ns).

        Both 0 if the source does not tell the names of calls.
        """
        steps, source = self.attribution.steps, self.attribution.source
        process = self.attribution.forest.threads.table.select("process", "process_code").unique()
        count = length = 0
        for block in source.launch_blocks() if source is not None else ():
            if "name" not in block.columns:  # a file that is read in blocks for its layers only
                return 0, 0
            calls = block.filter(pl.col("name").cast(pl.String).str.contains(_WAITS)).join(process, on="process")
            if steps.table.height:
                calls = calls.filter(steps.wanted(steps.at(calls["process_code"], calls["start"])))
            count += calls.height
            length += int((calls["end"] - calls["start"]).sum())
        return count, length
