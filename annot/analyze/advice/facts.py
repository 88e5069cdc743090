"""What the rules of advice look at, worked out once and only if a rule asks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from annot.analyze.bottleneck import default_peaks
from annot.analyze.idle import idle_calls, idle_time
from annot.analyze.kernels import MATRIX, with_classes
from annot.analyze.peaks import Peaks
from annot.analyze.pieces import KEY, device_idle
from annot.analyze.step_parts import Parts, parts_of
from annot.analyze.step_time import step_time
from annot.analyze.step_work import step_work
from annot.correlate import UNATTRIBUTED, Attribution, by_layer, by_step
from annot.tag import Tag, parse

__all__ = ["Advice", "Facts"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try.

    Args:
        rule: its name.
        advice: what to do, in a sentence.
        evidence: what in the profile speaks for it, in a sentence with the numbers.
        code: what to write or to run.
        saves: by which share the steps would be shorter at most, 0 to 1 of their wall-clock time without the warm-up;
            see `annot.analyze.step_parts.parts_of`. 0: it saves nothing itself, but shows what would.
        layers: those that it is about, those with the most time first; empty: the run.
    """

    rule: str
    advice: str
    evidence: str
    code: str
    saves: float
    layers: list[str] = field(default_factory=list)


class Facts:
    """A profile, as the rules see it.

    Args:
        attribution: the profile.
    """

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution

    @cached_property
    def on_device(self) -> bool:
        """Whether a device worked in the steps, as far as the profile has times of what it did."""
        return bool(self.work["wall_ns"].sum() > 0)

    @cached_property
    def layers(self) -> pl.DataFrame:
        """As `annot.correlate.by_layer` returns it."""
        return by_layer(self.attribution)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """As `annot.correlate.by_step` returns it, without warm-up if there is more."""
        steady = self.all_steps.filter(~pl.col("warmup").fill_null(False))
        return steady if steady.height else self.all_steps

    @cached_property
    def all_steps(self) -> pl.DataFrame:
        """As `annot.correlate.by_step` returns it."""
        return by_step(self.attribution)

    @cached_property
    def parts(self) -> Parts:
        """As `annot.analyze.step_parts.parts_of` returns it."""
        return parts_of(self.attribution)

    @cached_property
    def step_time(self) -> pl.DataFrame:
        """As `annot.analyze.step_time.step_time` returns it."""
        return step_time(self.attribution, self.parts)

    @cached_property
    def shares(self) -> dict[str, float]:
        """What each of `annot.analyze.step_time.SHARES` takes of the time of the steps, 0 to 1."""
        return _of_wall(self.step_time, "share")

    @cached_property
    def idle(self) -> dict[str, float]:
        """Which share of the time of the steps devices did nothing, by `annot.analyze.idle.CAUSES`."""
        return _of_wall(idle_time(self.attribution, self.parts), "cause")

    @cached_property
    def idle_calls(self) -> pl.DataFrame:
        """As `annot.analyze.idle.idle_calls` returns it."""
        return idle_calls(self.attribution)

    @cached_property
    def wall_ns(self) -> int:
        """How long the steps took, added over devices."""
        places = self.step_time.unique(["process", "device"])
        return int(places["wall_ns"].sum())

    @cached_property
    def work(self) -> pl.DataFrame:
        """Work of the steps: layer, module, phase, name, calls, wall_ns, kernel, kind, library, matrix, tensor."""
        names, keys = self.attribution.forest.keys.names, self.attribution.forest.nodes.keys
        rows = step_work(self.attribution, self.parts.windows)
        nodes = rows["node"].to_list()
        columns = [
            pl.Series(part, [names[keys[node]][place] for node in nodes], pl.String) for place, part in enumerate(KEY)
        ]
        kinds = with_classes(rows).rename({"tensor_cores": "tensor"})
        return kinds.drop("node").with_columns(*columns, matrix=pl.col("kind").is_in(MATRIX))

    def share(self, which: pl.Expr) -> float:
        """Return the share of the time of the steps in the rows of `work` for which something is true."""
        return float(self.work.filter(which)["wall_ns"].sum() / self.wall_ns) if self.wall_ns else 0.0

    def calls(self, which: pl.Expr) -> float:
        """Return how many pieces of work in those rows of `work` a step has, or the run if it has no steps."""
        return float(self.work.filter(which)["calls"].sum() / max(self.steps.height, 1))

    def layers_of(self, which: pl.Expr, most: int = 5) -> list[str]:
        """Return the layers with the most time in those rows of `work`."""
        rows = self.work.filter(which & (pl.col("layer") != UNATTRIBUTED) & (pl.col("layer") != ""))
        sums = rows.group_by("layer").agg(pl.col("wall_ns").sum())
        return sums.sort("wall_ns", "layer", descending=[True, False])["layer"].head(most).to_list()

    @cached_property
    def idle_layers(self) -> list[str]:
        """The layers on which devices waited most."""
        idle = device_idle(self.attribution)
        if idle is None:
            return []
        named = idle.filter((pl.col("layer") != "") & ~pl.col("layer").str.starts_with("("))
        order = named.sort("gpu_idle_ns", "layer", descending=[True, False])["layer"]
        return order.unique(maintain_order=True).head(5).to_list()

    @cached_property
    def mean_kernel_ns(self) -> float:
        """How long a kernel takes of the steps, in the mean."""
        kernels = self.work.filter("kernel")
        return int(kernels["wall_ns"].sum()) / max(int(kernels["calls"].sum()), 1)

    @cached_property
    def graphs(self) -> bool:
        """Whether work is launched as CUDA graphs already."""
        source = self.attribution.source
        for block in source.launch_blocks() if source is not None else ():
            if "name" in block.columns and block["name"].cast(pl.String).str.contains("GraphLaunch").any():
                return True
        return False

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


def _of_wall(table: pl.DataFrame, column: str) -> dict[str, float]:
    """What each value of a column has of the wall-clock time of all devices."""
    wall = int(table.unique(["process", "device"])["wall_ns"].sum())
    sums = table.group_by(column).agg(pl.col("ns").sum())
    return defaultdict(float, {name: ns / wall for name, ns in sums.iter_rows() if wall})
