"""Where the time of steps went: shares that are disjoint and add up."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matrices import every_third
from ranked import ordered_only
from shared_data import shared, unpacked
from step_rows import ALL_REDUCE, GEMM, TENSOR, Rows

from annot.analyze import gpu_activities
from annot.analyze.cpu_parts import COMPUTED, CPU_PARTS, GPU_PARTS, layers_of_parts
from annot.analyze.run_summary import step_time
from annot.analyze.step_parts import shares, step_inputs
from annot.attribution.attribute import attribute
from annot.attribution.summary import step_spans
from annot.read.formats import load

KINDS = {GEMM: "kernels", TENSOR: "tensor_cores", ALL_REDUCE: "collectives", "copy": "copies"}


def _shares(rows: Rows, **options: Any) -> dict[str, int]:
    """The shares that are not empty, over all devices."""
    table = step_time(attribute(rows.build(), **options)).group_by("share").agg(pl.col("ns").sum())
    return {share: ns for share, ns in table.iter_rows() if ns}


def test_each_share_once() -> None:
    """A step in which each share occurs, one after the other."""
    rows = Rows().range("Data |data", 0, 10).range("Batch 0 |step", 10, 100).range("Forward Net |fwd", 15, 60)
    rows.work(TENSOR, 16, 20, 27).work(GEMM, 16, 27, 32).work(ALL_REDUCE, 16, 32, 35).work("copy", 16, 35, 37)
    assert _shares(rows) == {
        "data": 10, "host": 69, "launch": 4, "tensor_cores": 7, "kernels": 5, "collectives": 3, "copies": 2,
    }  # fmt: skip


def test_a_pass_that_waits_for_gloo() -> None:
    """In a range of a whole pass, without a layer or operation, the collective of another thread is what goes on."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("## backward ##", 10, 90).range("aten::mm", 15, 40)
    rows.range("gloo:all_reduce", 30, 80, thread=1)
    assert _shares(rows) == {"backward": 40, "collectives": 40, "outside_ranges": 20}
    table = step_time(attribute(rows.build()))
    assert table.filter(pl.col("share") == "collectives")["hidden_ns"].to_list() == [10]


def test_what_is_hidden() -> None:
    """A collective beside a kernel is hidden as long as the kernel runs, and exposed after it."""
    rows = Rows().range("Batch 0 |step", 0, 100).work(GEMM, None, 10, 50).work(ALL_REDUCE, None, 30, 70)
    rows.work("copy", None, 40, 80)
    table = step_time(attribute(rows.build())).filter(pl.col("ns") > 0)
    assert table.select("share", "ns", "hidden_ns").rows() == [
        ("kernels", 40, 0), ("collectives", 20, 20), ("copies", 10, 30), ("host", 30, 0),
    ]  # fmt: skip


def test_waits_for_data_between_steps_belong_to_the_step_after() -> None:
    """Time between steps counts as far as somebody waits for data; a validation in between does not."""
    rows = Rows().range("Batch 0 |step", 0, 10).range("Data |data", 10, 16).range("Batch 1 |step", 20, 30)
    rows.range("validate", 30, 90).range("Data |data", 92, 95).range("Batch 2 |step", 95, 100)
    assert _shares(rows) == {"data": 9, "outside_ranges": 25}
    assert _shares(rows, steps=slice(1, 2)) == {"data": 6, "outside_ranges": 10}
    assert _shares(rows, steps=slice(2, 3)) == {"data": 3, "outside_ranges": 5}


def test_each_device_shares_out_the_time_of_its_process() -> None:
    """Two devices of a process have its time each; a process without steps has no part."""
    rows = Rows().range("Batch 0 |step", 0, 10).work(GEMM, None, 0, 4).work(GEMM, None, 0, 10, device=1)
    rows.range("worker", 0, 10, process=2).work(GEMM, None, 0, 9, process=3)
    table = step_time(attribute(rows.build())).filter(pl.col("ns") > 0)
    assert table.select("process", "device", "share", "ns", "wall_ns").rows() == [
        (1, 0, "kernels", 4, 10), (1, 0, "host", 6, 10), (1, 1, "kernels", 10, 10),
    ]  # fmt: skip


def test_without_a_device_collectives_are_those_of_the_host() -> None:
    """On a CPU the ranges of collectives are exposed communication, and no part of the phase around them."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("Backward |bwd", 10, 60)
    rows.range("Collective all_reduce@default_pg:2 |coll", 40, 60)
    assert _shares(rows) == {"collectives": 20, "backward": 30, "outside_ranges": 50}
    rows.range("fc Linear |fwd", 45, 52, thread=1)  # communication behind it is hidden
    assert _shares(rows) == {"collectives": 13, "backward": 30, "forward": 7, "outside_ranges": 50}


def test_the_parts_of_a_step_on_a_cpu() -> None:
    """Ranges and operations belong to the phase around them, waits inside a phase to none of it."""
    rows = Rows().range("Data |data", 0, 10).range("Batch 0 |step", 10, 200)
    rows.range("Forward Net |fwd", 20, 80).range("fc Linear |fwd", 25, 50).range("aten::mm", 30, 40)
    rows.range("Data |data", 60, 65).range("metrics", 80, 90).range("Backward |bwd", 90, 150)
    rows.range("fc Linear |re", 95, 110).range("fc Linear |bwd", 85, 140, thread=1).range("c10d::allreduce_", 120, 130)
    rows.range("Optimizer SGD |opt", 150, 160).range("aten::add_", 152, 155)
    assert _shares(rows) == {
        "forward": 55, "backward": 65, "optimizer": 10, "data": 15, "other_ranges": 5, "outside_ranges": 50,
    }  # fmt: skip
    table = step_time(attribute(rows.build()))
    assert table.filter(pl.col("share") == "other_ranges")["hidden_ns"].sum() == 0  # they contain the phases
    layers = layers_of_parts(attribute(rows.build()))
    assert layers.rows() == [
        ("backward", "fc", "Linear", 55), ("forward", "", "Net", 30), ("forward", "fc", "Linear", 25),
        ("backward", "", "", 10), ("optimizer", "", "SGD", 10),
    ]  # fmt: skip


def test_layers_of_selected_steps_keep_their_names() -> None:
    """A layer that only steps before the selected ones have shifts no name."""
    rows = Rows()
    for step, name in enumerate(("first", "second", "third")):
        at = 100 * step
        rows.range(f"Batch {step} |step", at, at + 90).range("Forward Net |fwd", at + 10, at + 60)
        rows.range(f"{name} Linear |fwd", at + 20, at + 50)
    for steps, name in ((slice(0, 1), "first"), (slice(1, 2), "second"), (slice(2, 3), "third")):
        one = attribute(rows.build(), steps=steps)
        assert layers_of_parts(one).rows() == [
            ("forward", name, "Linear", 30), ("forward", "", "Net", 20),
        ]  # fmt: skip


def test_without_steps_the_time_is_that_of_kernels() -> None:
    """Without steps it is the time from the first to the last kernel of a device: no loading of a model before it."""
    rows = Rows().range("something", 5, 70).work("copy", 6, 10, 15).work(GEMM, 6, 20, 50).work(GEMM, 60, 75, 80)
    rows.range("other", 0, 900, process=2)
    assert _shares(rows) == {"launch": 25, "kernels": 35}


def test_without_steps_processes_that_only_load_data_do_not_count() -> None:
    """The run is that of the process that trains, and so are its parts."""
    rows = Rows().range("Data |data", 0, 300).range("net MLP |fwd", 300, 400)
    rows.range("Data Worker 0 |data", -500, 250, process=2)
    assert {name: ns for name, ns in _shares(rows).items() if ns} == {"data": 300, "forward": 100}


def test_without_steps_ranges_of_a_warm_up_do_not_count() -> None:
    """What lies in a range that somebody called a warm-up is none of the time, unless it is all there is."""
    rows = Rows().range("Warm-up", 0, 30).work(GEMM, None, 10, 25).work(GEMM, None, 40, 50)
    assert _shares(rows) == {"kernels": 10, "launch": 10}
    assert step_inputs(attribute(rows.build())).without_warmup
    only = Rows().range("net|warmup|forward", 0, 30).work(GEMM, None, 10, 25)
    assert _shares(only) == {"kernels": 15}
    assert not step_inputs(attribute(only.build())).without_warmup
    before = Rows().range("Warm-up", 0, 5).work(GEMM, None, 10, 25)
    assert not step_inputs(attribute(before.build())).without_warmup


def test_warm_up_is_no_part_of_the_time() -> None:
    """A first step that took twice as long as the others, and the wait before it, do not count."""
    rows = Rows().range("Data |data", 0, 5).range("Batch 0 |step", 5, 205).work(GEMM, None, 10, 200)
    for step in range(1, 5):
        zero = 105 + 100 * step
        rows.range(f"Batch {step} |step", zero, zero + 100).work(GEMM, None, zero, zero + 40)
    assert _shares(rows) == {"kernels": 160, "launch": 180, "host": 60}
    assert _shares(rows, steps=slice(0, 1)) == {"data": 5, "kernels": 190, "launch": 5, "host": 5}


def test_without_host_times_only_devices_count() -> None:
    """Where the host knows only an order of things, the time is that from the first to the last piece of work."""
    table = step_time(attribute(ordered_only())).filter(pl.col("ns") > 0)
    assert table.select("share", "ns").rows() == [("kernels", 40)]


def _nested(chance: random.Random, rows: Rows, thread: int, start: int, end: int, depth: int = 0) -> None:
    """Add ranges of any phase, nested to a depth of 4."""
    at = start
    while at < end and depth < 4:
        begin = at + chance.randrange(6)
        at = begin + chance.randrange(1, 25)
        if at <= end:
            text = chance.choice(list(PHASES))
            rows.range(text, begin, at, thread=thread)
            _nested(chance, rows, thread, begin, at, depth + 1)


PHASES = {
    "a Linear |fwd": "forward", "a Linear |bwd": "backward", "b Linear |re": "backward", "Backward |bwd": "backward",
    "Optimizer SGD |opt": "optimizer", "Data |data": "data", "Collective all_reduce |coll": "collectives",
    "gloo:all_reduce": "collectives", "aten::mm": "", "metrics": "",
}  # fmt: skip


COMPUTES = ("a ", "b ", "aten::")
"""Ranges of layers and operations. A collective takes precedence over other ranges of a pass."""


@pytest.mark.parametrize("seed", every_third(range(90)))
def test_parts_against_a_count_of_every_nanosecond(seed: int) -> None:
    """On a CPU, with nested ranges on several threads, parts and their layers are those of each nanosecond."""
    chance, rows = random.Random(seed), Rows().range("Batch 0 |step", 0, 200)
    for thread in (1, 2, 3)[: chance.randrange(1, 4)]:
        _nested(chance, rows, thread, 0, 200)
    expected: Counter[str] = Counter()
    for at in range(200):
        going_on, computed = set(), set()
        here = {row["text"] for row in rows.ranges if row["start"] <= at < row["end"]}
        for thread in (11, 12, 13):
            open_ = [row for row in rows.ranges if row["thread"] == thread and row["start"] <= at < row["end"]]
            phases = [PHASES[row["text"]] for row in open_]
            going_on |= {phase or "other_ranges" for phase in phases} - set(COMPUTED)
            innermost = set([phase for phase in phases if phase][-1:]) & set(COMPUTED)
            computes = innermost == {"optimizer"} or any(row["text"].startswith(COMPUTES) for row in open_)
            if computes or not any(PHASES.get(text) == "collectives" for text in here):
                computed |= innermost
        expected[next((part for part in CPU_PARTS if part in going_on | computed), "outside_ranges")] += 1
    one = attribute(rows.build())
    found = {share: ns for share, ns in step_time(one).select("share", "ns").iter_rows() if ns}
    layers = layers_of_parts(one).group_by("part").agg(pl.col("ns").sum())
    assert dict(layers.iter_rows()) == {part: ns for part, ns in found.items() if part in COMPUTED}
    computed_ns = {part: ns for part, ns in expected.items() if part in COMPUTED}
    assert {part: ns for part, ns in found.items() if part in COMPUTED} == computed_ns
    assert sum(found.values()) == 200
    for part in ("collectives", "data"):
        assert found.get(part, 0) == expected[part]


def _random(chance: random.Random) -> Rows:
    """A profile of two processes, one with steps, in which everything may overlap everything."""
    rows, end = Rows(), 0
    for step in range(chance.randrange(1, 4)):
        wait, start = end + chance.randrange(4), end + chance.randrange(4, 12)
        rows.range("Data |data", wait, chance.randrange(wait, start + 1))
        end = start + chance.randrange(1, 30)
        rows.range(f"Batch {step} |step", start, end)
    for thread in (1, 2):
        for _ in range(chance.randrange(4)):
            begin = chance.randrange(end)
            rows.range(chance.choice(["fc Linear |fwd", "load"]), begin, begin + chance.randrange(20), thread=thread)
    for _ in range(chance.randrange(12)):
        begin = chance.randrange(end + 10)
        launched = chance.choice([None, max(0, begin - chance.randrange(15))])
        process = chance.choice([1, 1, 1, 2])
        name = chance.choice(list(KINDS))
        rows.work(name, launched, begin, begin + chance.randrange(9), process, chance.randrange(2))
    return rows


def _reference(rows: Rows, late: list[tuple[int, int]]) -> Counter[tuple[int | None, str]]:
    """The same, nanosecond by nanosecond, of the process with steps. `late`: its steps, if the GPU is behind."""

    def within(at: int, spans: list[tuple[int, int]]) -> bool:
        return any(start <= at < end for start, end in spans)

    mine = [row for row in rows.ranges if row["process"] == 1]
    spans = {
        which: [(row["start"], row["end"]) for row in mine if row["text"].endswith(f"|{which}")]
        for which in ("step", "data")
    }
    other = [(row["start"], row["end"]) for row in mine if not row["text"].endswith(("|step", "|data"))]
    forward = [(row["start"], row["end"]) for row in mine if row["text"].endswith("|fwd")]
    steps = sorted(spans["step"])
    later = sorted(end - start for start, end in steps[len(steps) // 2 :])
    quick = [start for start, end in steps if end - start <= 1.5 * later[len(later) // 2]]
    steady = [step for step in steps if step[0] >= quick[0]]
    # A wait belongs to the next step; what of it lies in or before the step in front of it does not count.
    waits = [
        (max([start, *(last for _, last in steps if last <= begin and last <= end)]), end)
        for start, end in spans["data"]
        for begin in [min((first for first, _ in steps if first >= end), default=None)]
        if begin is not None and begin >= steady[0][0]
    ]
    work = [(row, KINDS[row.get("name", "copy")]) for row in [*rows.kernels, *rows.copies] if row["process"] == 1]
    launched = {row["correlation"]: row["start"] for row in rows.launches if row["process"] == 1}
    found: Counter[tuple[int | None, str]] = Counter()
    work_of_process = bool(work)
    for device in sorted({row["device"] for row, _ in work}) or [None]:
        here = [(row, kind) for row, kind in work if row["device"] == device]
        causes = _causes([row for row, _ in here], launched)
        for at in range(200):
            if not within(at, late or [*steady, *waits]):
                continue
            busy = {kind for row, kind in here if row["start"] <= at < row["end"]}
            true = {"data": within(at, spans["data"])} | {name: within(at, times) for name, times in causes.items()}
            if work_of_process:
                first = next((share for share in GPU_PARTS if share in busy or true.get(share)), "host")
            else:
                true |= {"forward": within(at, forward), "other_ranges": within(at, other)}
                first = next((part for part in CPU_PARTS if true.get(part)), "outside_ranges")
            found[device, first] += 1
    return found


def _causes(here: list[dict[str, Any]], launched: dict[int, int]) -> dict[str, list[tuple[int, int]]]:
    """The gaps of a device that are short or end a wait, and the time from launch to start of its activities."""
    busy = {at for row in here for at in range(row["start"], row["end"])}
    edges = sorted(at for at in busy if at - 1 not in busy)
    gaps = [(max((at + 1 for at in busy if at < start), default=-GAP), start) for start in edges]
    launches = [(launched[row["correlation"]], row["start"]) for row in here if row["correlation"] in launched]
    queued = [
        (max(call + 1, done), start)
        for done, start in gaps
        if start - done >= GAP
        for call, at in launches
        if at == start
    ]
    calls = [(call, call + 1) for call in launched.values()]  # each takes a nanosecond
    pending = [(call, start) for call, start in launches if start - call < GAP]
    return {
        "unrecorded": [(since, start) for since, start in queued if start - since >= GAP],
        "launch": calls + pending + [(done, start) for done, start in gaps[1:] if start - done < GAP],
    }


GAP = 5


@pytest.mark.parametrize("seed", every_third(range(60)))
def test_against_a_count_of_every_nanosecond(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random profiles, in which gaps of 5 ns are long, the shares are those that counting each nanosecond gives."""
    monkeypatch.setattr(gpu_activities, "_DISPATCH_NS", GAP)
    rows = _random(random.Random(seed))
    attribution = attribute(rows.build(), steps=slice(0, None))  # also if most GPU time lies outside them
    table = step_time(attribution)
    found = {(device, share): ns for device, share, ns in table.select("device", "share", "ns").iter_rows() if ns}
    steady = attribution.steps.steady()["step"].to_list()  # tests/attribution/test_step_spans.py checks step_spans
    late = step_spans(attribution).filter(pl.col("behind"), pl.col("step").is_in(steady))
    assert found == dict(_reference(rows, late.select("start", "end").rows()))
    assert table["share"].unique(maintain_order=True).to_list() == list(
        GPU_PARTS if table["device"].count() else CPU_PARTS
    )
    assert (table.group_by("device").agg(pl.col("ns").sum() - pl.col("wall_ns").first())["ns"] == 0).all()


@pytest.mark.parametrize(
    "name",
    every_third([
        "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto/hta_recsys_a100_cudagraph.json.gz",
        "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz", "kineto/hta_cpu_only.json.gz",
        "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
        "ncu/leleucas_bert_attention_torch_a100.csv", "xplane/tf_bert_gpu8_multi_worker.xplane.pb",
    ]),
)  # fmt: skip
def test_real_profiles_add_up(name: str, tmp_path: Path) -> None:
    """Whatever the format, the shares of each device add up to its time, and what ran is not more than was busy."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    attribution = attribute(load(path))
    table = step_time(attribution)
    sums = table.group_by("process", "device").agg(pl.col("ns").sum(), pl.col("wall_ns").unique())
    assert sums["wall_ns"].list.len().eq(1).all()
    assert sums.filter(pl.col("ns") != pl.col("wall_ns").list.first()).is_empty()
    assert (table["ns"] >= 0).all()
    ran = table.filter(pl.col("share").is_in(["tensor_cores", "kernels", "collectives", "copies"]))
    ran = ran.group_by("process", "device").agg(pl.col("ns").sum().alias("ran"))
    joined = ran.join(attribution.device_busy, on=["process", "device"])
    assert (joined["ran"] <= joined["busy_ns"]).all()
    if attribution.steps.table.is_empty() and not step_inputs(attribution).without_warmup:
        # But for copies before the first kernel and after the last.
        assert (joined["ran"] >= 0.98 * joined["busy_ns"]).all()


def test_shares_of_nothing() -> None:
    """Without a window there is no time to share out."""
    nothing = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    assert shares(nothing, {"work": pl.DataFrame({"start": [1], "end": [5]})}).rows() == [
        ("work", 0, 0),
        ("idle", 0, 0),
    ]
