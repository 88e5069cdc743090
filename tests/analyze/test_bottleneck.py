"""What holds layers back: by phase and batch size, with the counters of Nsight Compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sqlite_profile import training
from tables import Rows

from annot.analyze.hardware_counters import layer_counters
from annot.analyze.roofline import by_bottleneck, step_batches
from annot.attribution.attribute import attribute
from annot.profile import METRICS, Profile
from annot.read.formats import load


def _row(rows: pl.DataFrame, **key: Any) -> dict[str, Any]:
    return rows.row(by_predicate=pl.all_horizontal(pl.col(name) == value for name, value in key.items()), named=True)


def test_batch_sizes_have_rows_of_their_own(tmp_path: Path) -> None:
    """Two steps of batches of 32 and 16: each layer and phase has a row for both, whose times add up."""
    attribution = attribute(load(training(device=True).write(tmp_path / "run.sqlite")))
    assert step_batches(attribution) == [(0, 32), (1, 16)]
    rows = by_bottleneck(attribution)
    forward = rows.filter((pl.col("layer") == "features.0") & (pl.col("phase") == "forward"))
    assert forward.select("batch", "calls", "time_ns").rows() == [(32, 1, 900_000), (16, 1, 900_000)]
    backward = _row(rows, layer="features.0", phase="backward", batch=16)
    assert backward["backward_to_forward"] == pytest.approx(1500 / 900)
    assert backward["time_share"] == pytest.approx(1500 / 3480)
    assert forward["backward_to_forward"].to_list() == [None, None]


def test_stretches_of_one_size_add_up() -> None:
    """A smaller batch at the end of each epoch does not tear the others apart."""
    profile = Rows()
    for step, size in enumerate((8, 8, 4, 8, 4)):
        zero = 1000 * step
        profile.range(f"Batch {step} |step", zero, zero + 500).range(
            f"a Linear [{size},8]f32 |fwd", zero + 1, zero + 90
        )
        profile.kernel(zero + 5, (zero + 10, zero + 10 + size))
    rows = by_bottleneck(attribute(profile.build()))
    assert rows.select("layer", "batch", "calls", "time_ns").rows() == [("a", 8, 3, 24), ("a", 4, 2, 8)]


def test_domain_and_steps_that_were_asked_for_stay() -> None:
    """Rows by batch size are of the same ranges and the same steps as the rest of the report."""
    profile = Rows()
    for step, size in enumerate((8, 8, 4)):
        zero = 1000 * step
        profile.range(f"turn {step}", zero, zero + 500, domain="mine")
        profile.range(f"a Linear [{size},8]f32 |fwd", zero + 1, zero + 90, domain="mine")
        profile.range("b Linear [2,8]f32 |fwd", zero + 2, zero + 80, domain="other")
        profile.kernel(zero + 5, (zero + 10, zero + 20))
    rows = by_bottleneck(attribute(profile.build(), domain="mine", step_range="turn #", steps=slice(1, 3)))
    assert rows.select("layer", "batch", "calls", "time_ns").rows() == [("a", 8, 1, 10), ("a", 4, 1, 10)]


def _profile(*counters: tuple[int, str, float, str], **meta: Any) -> Profile:
    """Two layers below a container, a kernel of 100 ns and one of 300 ns in the first, one of 100 in the second."""
    rows = Rows().range("net Sequential [2,8]f32 |fwd", 0, 100).range("net.0 Linear [2,8]f32 |fwd", 10, 30)
    rows.kernel(11, (0, 100), name="one").kernel(12, (100, 400), name="two")
    rows.range("net.1 Linear [2,8]f32 |fwd", 40, 60).kernel(41, (400, 500), name="three")
    built = rows.build(host_times=False, **meta)
    table = pl.DataFrame(counters, schema=["kernel", "name", "value", "unit"], orient="row")
    table = table.cast({"kernel": pl.Int64})
    return Profile.build(
        built.meta,
        ranges=built.ranges,
        launches=built.launches,
        kernels=built.kernels,
        metrics=table.select(list(METRICS)),
    )


def test_counts_add_up_and_rates_are_weighted() -> None:
    """Instructions are sums; a hit rate of a layer is that of its kernels, weighted by how long they ran."""
    attribution = attribute(
        _profile(
            (0, "smsp__inst_executed.sum", 100.0, "inst"), (1, "smsp__inst_executed.sum", 300.0, "inst"),
            (2, "smsp__inst_executed.sum", 50.0, "inst"), (0, "smsp__inst_executed_pipe_lsu.sum", 60.0, "inst"),
            (1, "smsp__inst_executed_pipe_lsu.sum", 40.0, "inst"), (0, "lts__t_sector_hit_rate.pct", 80.0, "%"),
            (1, "lts__t_sector_hit_rate.pct", 40.0, "%"), (2, "L2 Hit Rate", 10.0, "%"),
            (0, "dram__bytes_read.sum", 2.0, "Kbyte"), (1, "dram__bytes_read.sum", 6000.0, "byte"),
        )
    )  # fmt: skip
    rows = layer_counters(attribution)
    assert rows is not None
    first, second = _row(rows, layer="net.0"), _row(rows, layer="net.1")
    assert (first["instructions"], first["load_store_share"], first["l2_hit_rate"]) == (400, 0.25, 50.0)
    assert first["dram_read_bytes_per_s"] == pytest.approx(8000 / 400e-9)
    assert (second["instructions"], second["load_store_share"], second["l2_hit_rate"]) == (50, None, 10.0)
    assert second["dram_read_bytes_per_s"] is None
    whole = _row(rows, layer="net")
    assert (whole["instructions"], whole["load_store_share"]) == (450, 0.25)
    assert whole["l2_hit_rate"] == pytest.approx((80 * 100 + 40 * 300 + 10 * 100) / 500)


def test_stalls_have_a_share_and_a_reason() -> None:
    """Of the cycles of warps those that issue nothing are stalls; the most frequent reason is named."""
    name = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    attribution = attribute(
        _profile(
            (0, name.format("selected"), 1.0, "inst"), (0, name.format("long_scoreboard"), 3.0, "inst"),
            (1, name.format("selected"), 1.0, "inst"), (1, name.format("barrier"), 1.0, "inst"),
            (2, "stall_memory_dependency", 70.0, "%"), (2, "stall_sync", 30.0, "%"),
        )
    )  # fmt: skip
    rows = layer_counters(attribution)
    assert rows is not None
    first, second = _row(rows, layer="net.0"), _row(rows, layer="net.1")
    assert first["stall_share"] == pytest.approx((0.75 * 100 + 0.5 * 300) / 400)
    assert first["stall_reason"] == "barrier"
    assert (second["stall_share"], second["stall_reason"]) == (None, "memory_dependency")


def test_stalls_that_are_as_frequent_have_one_order() -> None:
    """The first by name is the reason, in every run."""
    names = [f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in "hgfedcba"]
    rows = layer_counters(attribute(_profile(*((kernel, name, 2.0, "inst") for name in names for kernel in (0, 1)))))
    assert rows is not None
    assert _row(rows, layer="net.0")["stall_reason"] == "a"


def test_table_has_counters_beside_times() -> None:
    """The rows of the table join both; what nobody counted is null, and no number."""
    rows = by_bottleneck(attribute(_profile((0, "DRAM Throughput", 33.0, "%"))))
    assert _row(rows, layer="net.0")["dram_throughput"] == 33.0
    assert _row(rows, layer="net.1")["dram_throughput"] is None
    assert _row(rows, layer="net.0")["time_ns"] == 400
    assert rows["instructions"].null_count() == rows.height
    assert rows["batch"].to_list() == [2, 2, 2]


def test_profile_without_counters_or_layers() -> None:
    """Neither is an error."""
    assert layer_counters(attribute(Rows().range("a Linear [2]f32 |fwd", 0, 9).build())) is None
    assert by_bottleneck(attribute(Profile.build({}))).height == 0
