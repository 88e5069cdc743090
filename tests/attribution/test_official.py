"""Sums over real profiles against what Nsight Systems' own reports say about them."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
from range_tables import crossing_ranges_of, ranges_of
from shared_data import shared, unpacked

from annot.attribution.attribute import Attribution, attribute
from annot.attribution.column_ops import fold
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import summarize
from annot.profile import Profile
from annot.read.formats import load

Sums = dict[tuple[str, str, int], int]

STYLES = {"push": "PushPop", "start": "StartEnd"}
FILES = (
    "athrun_lm_attn_windows.2026.2",
    "ginda_mfu_2gpu_before.2026.2",
    "jsun_lm_fwd_bwd.2025.1",
    "pipit_saxpy_mpi.2022.2",
    "zx_lm_fwd_nvtx.2024.6",
)


def _official(table: str) -> Sums:
    """Kernel time by name, style and thread, from the CSV of nvtx_kern_sum."""
    sums: defaultdict[tuple[str, str, int], int] = defaultdict(int)
    for row in csv.DictReader(io.StringIO(table)):
        if row["NVTX Range"]:
            sums[row["NVTX Range"], row["Style"], int(row["TID"])] += int(row["Total Time (ns)"])
    return dict(sums)


def _ours(result: Attribution, profile: Profile) -> Sums:
    """The same from inclusive times of what each thread launched itself.

    Nsight counts a range in a range of its name twice, and so does this.
    """
    tree = result.forest.tree
    work = result.range_work()
    own = fold(tree["parent"], work["gpu_self_ns"] - work["gpu_by_time_ns"])
    columns = ["id", "domain", "thread", "gpu_ns"]
    nested = ranges_of(result).with_columns(own.alias("gpu_ns"))
    rows = pl.concat([nested.select(columns), crossing_ranges_of(result).select(columns)])
    rows = rows.join(profile.ranges.select("id", "text", "kind"), on="id")
    sums: defaultdict[tuple[str, str, int], int] = defaultdict(int)
    for domain, thread, gpu, text, kind in rows.select("domain", "thread", "gpu_ns", "text", "kind").rows():
        known = domain and not domain.startswith("domain ")
        sums[f"{domain}:{text}" if known else text, STYLES[kind], thread & 0xFFFFFF] += gpu
    return {key: time for key, time in sums.items() if time}


def _kernels_only(profile: Profile) -> Profile:
    return Profile.build(
        profile.meta, ranges=profile.ranges, launches=profile.launches, kernels=profile.kernels
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FILES if "pipit" not in name])
def test_kernel_time_by_range(tmp_path: Path, name: str) -> None:
    """Inclusive kernel times by range name are the official ones, to the nanosecond."""
    official = _official(shared(f"nsys/oracle/{name}.nsys23_nvtx_kern_sum.csv").read_text())
    profile = load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))
    assert _ours(attribute(_kernels_only(profile)), profile) == official


def test_duplicated_launches_do_not_count_twice(tmp_path: Path) -> None:
    """Where the official report doubles the time because of event class 67, ours is the half of it."""
    name = "pipit_saxpy_mpi.2022.2"
    official = _official(shared(f"nsys/oracle/{name}.nsys23_nvtx_kern_sum.csv").read_text())
    profile = load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))
    ours = _ours(attribute(_kernels_only(profile)), profile)
    assert sum(ours.values()) == 88_573_480
    assert {key: 2 * time for key, time in ours.items()} == official


def test_edge_semantics() -> None:
    """Identical, touching, straddling, crossing, open, foreign and repeated ranges: the official kernel times."""
    official = _official(shared("nsys/edge_semantics/edge_nvtx_kern_sum.csv").read_text())
    official["backtrace_dup", "PushPop", 100] //= 2  # event class 67 again
    official["open_push", "PushPop", 100] -= 100
    profile = load(shared("nsys/edge_semantics/edge_semantics.sqlite"))
    result = attribute(profile)
    assert _ours(result, profile) == official


@pytest.mark.parametrize("name", FILES)
def test_real_sums_are_exact(tmp_path: Path, name: str) -> None:
    """On real profiles every nanosecond is with one range or in no range."""
    profile = load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))
    result = attribute(profile)
    work = [*profile.kernels.select("start", "end").rows(), *profile.copies.select("start", "end").rows()]
    meta = summarize(result)
    assert meta["gpu_ns"] == sum(end - start for start, end in work)
    assert meta["attributed_gpu_ns"] == result.range_work()["gpu_self_ns"].sum()
    assert meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"] == meta["gpu_ns"]
    assert meta["kernels"] + meta["copies"] == len(work)
    rows = by_layer(result)
    assert rows["gpu_self_ns"].sum() == meta["gpu_ns"]
    assert (rows["gpu_busy_ns"] <= rows["gpu_ns"]).all()


def test_kernels_of_the_autograd_thread_follow_the_clock(tmp_path: Path) -> None:
    """The 6135 kernels that the official rule loses are with the main thread's range, in a column of their own."""
    profile = load(unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path))
    result = attribute(_kernels_only(profile))
    placed = result.attributor.of(next(_kernels_only(profile).work_blocks()))
    late = placed.filter("by_time")
    assert late.height == 6135
    launches = profile.launches.join(late, on=["process", "correlation"], how="semi")
    assert launches["thread"].n_unique() == 1
    names = ranges_of(result)["text"].gather(late["range"]).value_counts().rows()
    assert dict(names) == {"Backward": 6135}
    row = by_layer(result).row(by_predicate=pl.col("layer").str.ends_with("Warm-up Step # › Backward"), named=True)
    assert row["gpu_by_time_ns"] == late["gpu_ns"].sum() > 0
    assert summarize(result)["unattributed_gpu_ns"] == 0


def test_projected_ranges(tmp_path: Path) -> None:
    """The ranges with device work, copies included, are those of the official projection."""
    name = "zx_lm_fwd_nvtx.2024.6"
    table = shared(f"nsys/oracle/{name}.nsys23_nvtx_gpu_proj_sum.csv").read_text()
    rows = csv.DictReader(io.StringIO(table))
    official = {row["Range"].lstrip(":"): int(row["Range Instances"]) for row in rows}
    tree = ranges_of(attribute(load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))))
    ours = dict(tree.filter(pl.col("gpu_ns") > 0).group_by("text").len().rows())
    assert ours == official
