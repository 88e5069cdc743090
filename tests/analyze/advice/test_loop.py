"""Rules about the training loop: each threshold from both sides, and the numbers of the evidence."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
import tables
from advice_runs import NCCL, TENSOR, US, Run, advice_on, lost_kernels, without_steps
from step_rows import GEMM, Rows

from annot.analyze.advice import Advice
from annot.profile import Profile

GATHER, SCATTER = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
BROADCAST, SEND = "ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_SendRecv"
DOUBLE = "net.a Linear [64,1024]f64 |fwd"
AGAIN = "net.a Linear [64,1024]bf16 |re"
MALLOC, FREE, WAIT = (f"cuda{name}_v3020" for name in ("Malloc", "Free", "StreamSynchronize"))


@pytest.mark.parametrize(
    ("rule", "at", "below"),
    [
        # Steps take 2 µs more than their kernels: 50 of 1,000 µs, and 49.
        ("collectives", Run([(TENSOR, 948), (NCCL, 50)]), Run([(TENSOR, 949), (NCCL, 49)])),
        ("collectives", Run([(TENSOR, 1), (NCCL, 997)]), Run([(NCCL, 998)])),
        ("collectives", Run([("k", 1), (NCCL, 997)]), Run([(NCCL, 998)])),
        ("data_loading", Run([(TENSOR, 898)], wait=100), Run([(TENSOR, 899)], wait=99)),
        ("synchronous_copies", *(Run(gap=100, calls=[(WAIT, us)]) for us in (67, 66))),
        ("allocations", *(Run(gap=100, calls=[("hipFree", us)]) for us in (31, 30))),
        ("pageable_copies", Run(copy=28), Run(copy=27)),
        ("host_copies", Run(copy=28, pinned=True), Run(copy=27, pinned=True)),
        ("double_precision", *(Run([(TENSOR, us)], lengths=(1000,) * 4, text=DOUBLE) for us in (100, 99))),
        ("recomputation", *(Run([(TENSOR, us)], lengths=(1000,) * 4, text=AGAIN) for us in (50, 49))),
        ("stragglers", *(Run([(TENSOR, 500)], devices=(0, 1, 2), slow=slow) for slow in (1.2, 1.198))),
        ("stragglers", *(Run([(TENSOR, us)], devices=(0, 1), lengths=(1000,) * 4, slow=2) for us in (50, 49))),
    ],
)
def test_rules_speak_from_their_threshold_on(rule: str, at: Run, below: Run) -> None:
    assert rule in advice_on(at)
    assert rule not in advice_on(below)


@pytest.mark.parametrize(
    ("rule", "run", "evidence", "saves"),
    [
        (
            "data_loading",
            Run([(TENSOR, 598)], wait=400),
            "40% of step time is spent waiting for data, 400 µs in each of 4 steps; the profile does not show whether "
            "worker processes load the data",
            0.4,
        ),
        (
            "synchronous_copies",
            Run(gap=400, calls=[(WAIT, 1), ("cudaDeviceSynchronize_v3020", 300)]),
            "17% of step time is spent synchronising, 2.0 times per step, mostly in cudaDeviceSynchronize",
            3 * 300 / (4 * 1302),
        ),
        (
            "stragglers",
            Run([(TENSOR, 500)], devices=(0, 1), slow=2),
            "GPU 1 of process 1 is busy 2.00 times as long as the median of 2 GPUs",
            500 / 1002,
        ),
        (
            "allocations",
            Run(gap=200, calls=[("hipFree", 100)]),
            "9% of step time is spent allocating memory, 1.0 times per step, mostly in hipFree",
            100 / 1102,
        ),
        (
            "pageable_copies",
            Run([(TENSOR, 598)], copy=400),
            "40% of step time is spent in host-to-device copies from pageable memory that do not overlap with kernels",
            0.4,
        ),
        (
            "host_copies",
            Run([(TENSOR, 598)], copy=400, pinned=True),
            "40% of step time is spent in host-to-device copies from pinned memory that do not overlap with kernels",
            0.4,
        ),
        (
            "stragglers",
            Run([(TENSOR, 200)], devices=(0, 1, 2, 3), lengths=(1000,) * 4, slow=2),
            "GPU 3 of process 1 is busy 2.00 times as long as the median of 4 GPUs",
            0.2,
        ),
        (
            "collectives",
            Run([(TENSOR, 898), (NCCL, 100)]),
            "10% of step time is exposed communication in all_reduce, including the wait for the slowest rank",
            0.1,
        ),
    ],
)
def test_evidence_has_the_numbers(rule: str, run: Run, evidence: str, saves: float) -> None:
    said = advice_on(run)[rule]
    assert said.evidence == evidence
    assert said.saves == pytest.approx(saves)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (((GATHER, 20),), "collectives (10% all_reduce, 1% all_gather)"),
        (((GATHER, 19),), "all_reduce"),
        (((BROADCAST, 100), (SCATTER, 140), (GATHER, 160)),
         "collectives (10% all_reduce, 8% all_gather, 7% reduce_scatter)"),
        (((SCATTER, 160), (GATHER, 160)), "collectives (10% all_reduce, 8% all_gather, 8% reduce_scatter)"),
        (((GATHER, 100), ("ncclKernel", 120)), "collectives (10% all_reduce, 5% all_gather)"),
        (((GATHER, 100), ("ncclKernel", 320)), "collectives (10% all_reduce, 5% all_gather)"),
    ],
)  # fmt: skip
def test_the_longest_three_operations_from_1_percent_on_are_named(
    others: tuple[tuple[str, int], ...], words: str
) -> None:
    computing = 1798 - sum(us for _, us in others)
    said = advice_on(Run([(TENSOR, computing), *others, (NCCL, 200)]))["collectives"]
    assert f" in {words}, including the wait" in said.evidence


def test_calls_are_counted_in_the_run_if_it_has_no_steps() -> None:
    said = advice_on(without_steps(Run(gap=400, calls=[(WAIT, 300)] * 2)))["synchronous_copies"]
    assert "of the run is spent synchronising, 8 times, mostly in cudaStreamSynchronize" in said.evidence


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ([(MALLOC, 200)], "expandable_segments"), ([(MALLOC, 70)] * 3 + [(FREE, 70)], "expandable_segments"),
        ([(MALLOC, 70)] * 2 + [(FREE, 70)], "empty_cache"), ([(MALLOC, 1), (FREE, 200)], "empty_cache"),
    ],
)  # fmt: skip
def test_memory_is_kept_if_it_is_freed_less_than_half_as_often(calls: list[tuple[str, int]], code: str) -> None:
    """Allocations without frees are those of a cache that grows, which the caching allocator cannot avoid."""
    assert code in advice_on(Run(gap=300, calls=calls))["allocations"].code


def _copying(*copies: tuple[int, int, bool | None]) -> dict[str, Advice]:
    """Advice on steps of 1,000 µs in which a kernel runs from 400 µs on, with copies: start, end (µs), pinned."""
    profile = Run([(TENSOR, 598)], copy=400).build()
    rows = [
        step | {"start": step["start"] + start * US, "end": step["start"] + end * US, "pinned": pinned}
        for step in profile.copies.to_dicts()
        for start, end, pinned in copies
    ]
    copied = pl.DataFrame(rows, schema=profile.copies.schema)
    said = advice_on(Profile.build(profile.meta, ranges=profile.ranges, launches=profile.launches,
                                   kernels=profile.kernels, copies=copied))  # fmt: skip
    return {rule: said[rule] for rule in ("pageable_copies", "host_copies") if rule in said}


def test_copies_beside_kernels_cost_nothing() -> None:
    assert _copying((500, 900, False), (500, 900, True)) == {}
    said = _copying((300, 700, False))["pageable_copies"]  # for 100 µs no kernel runs
    assert said.saves == pytest.approx(0.1)
    said = _copying((350, 650, True), (350, 650, None))["host_copies"]
    assert said.saves == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("pinned", "unknown", "words"), [(100, 100, "from pinned memory"), (99, 101, "(pinned or pageable: the profile")]
)
def test_copies_from_pinned_and_unknown_memory_count_together(pinned: int, unknown: int, words: str) -> None:
    said = _copying((0, pinned, True), (pinned, pinned + unknown, None))
    assert set(said) == {"host_copies"}
    assert said["host_copies"].saves == pytest.approx(0.2)
    assert words in said["host_copies"].evidence


def test_gpus_that_are_as_slow_have_one_order() -> None:
    """The first of them is named, in every run."""
    built = Run(devices=(0, 1, 2, 3, 9), slow=2).build()
    slow = built.kernels.filter(pl.col("device") == 9)
    more = [slow.with_columns(pl.lit(device, slow["device"].dtype).alias("device")) for device in (8, 7, 6)]
    profile = Profile.build(
        built.meta, ranges=built.ranges, launches=built.launches, kernels=pl.concat([built.kernels, *more])
    )
    assert advice_on(profile)["stragglers"].evidence.startswith("GPU 6 of process 1 is busy 2.00 times as long")


@pytest.mark.parametrize(
    ("pinned", "rule", "words"),
    [
        (False, "pageable_copies", "from pageable memory"), (True, "host_copies", "from pinned memory"),
        (None, "host_copies", "the profile does not show it"),
    ],
)  # fmt: skip
def test_advice_on_copies_reads_the_kind_of_memory(pinned: bool | None, rule: str, words: str) -> None:
    """Pinned memory is advised where the profile shows pageable memory, and nowhere else."""
    said = advice_on(Run(copy=200, pinned=pinned))
    assert words in said[rule].evidence
    assert {"pageable_copies", "host_copies"} & said.keys() == {rule}
    assert ("pin_memory" in said[rule].code) == (pinned is False)


WAITS = {
    "cudaDeviceSynchronize_v3020": "torch.cuda.synchronize()", "cudaMemcpy_v3020": "copy asynchronously",
    "cudaStreamSynchronize_v3020": ".item()",
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_the_call_that_waits_is_what_to_remove(name: str) -> None:
    """An explicit synchronisation is not told to copy asynchronously."""
    assert WAITS[name] in advice_on(Run(gap=100, calls=[(name, 400)]))["synchronous_copies"].advice


def test_coverage_is_about_launches_that_ranges_could_own() -> None:
    """Kernels without a recorded launch lie in no range whatever the program does; nor does time outside the steps."""
    lost = lost_kernels()
    unknown = lost.kernels.with_columns(pl.when(pl.col("end") != 900).then("correlation").alias("correlation"))
    assert "coverage" in advice_on(lost)
    assert "coverage" not in advice_on(replace(lost, kernels=unknown))
    rows = tables.Rows()
    for step in range(4):
        at = 1000 + 1000 * step
        rows.range(f"Batch {step} |step", at, at + 900).range("fc Linear |fwd", at, at + 900)
        rows.kernel(at + 10, (at + 10, at + 600))
    before = rows.kernel(10, (20, 900)).build()
    inside = rows.kernel(990, (5900, 9900)).build()
    assert "coverage" not in advice_on(before)  # 27 % of GPU time
    assert "coverage" in advice_on(inside)  # most of the GPU time is outside the steps


def test_graphs_that_were_traced_as_a_whole_need_another_recording() -> None:
    """Ranges around the launch of a graph do not tell its kernels apart."""
    lost = lost_kernels()
    assert "emit_ranges" in advice_on(lost)["coverage"].code
    graphs = lost.kernels.with_columns(name=pl.lit("CUDA graph 4"))
    said = advice_on(replace(lost, kernels=graphs))["coverage"]
    assert "--cuda-graph-trace=node" in said.code
    assert "traced as a whole" in said.evidence


@pytest.mark.parametrize(("outside", "advised"), [(30, True), (29, False)])
def test_coverage_needs_three_tenths_of_the_gpu_time_outside_ranges(outside: int, advised: bool) -> None:
    rows = tables.Rows().kernel(10, (20, 20 + outside)).range("net.a Linear [8,8]f32 |fwd", 1000, 1100)
    assert ("coverage" in advice_on(rows.kernel(1010, (1020, 1120 - outside)).build())) == advised


KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "send_recv": "ncclDevKernel_SendRecv",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL", "": "ncclKernel",
}  # fmt: skip


def _communicating(
    kernel: str, *, backward: bool = True, text: str = "", forward: bool = True, launched: int = 402
) -> Advice:
    """Advice on four steps that compute for 600 ns and communicate for 300 ns."""
    rows = Rows()
    for step in range(4):
        at = step * 1000
        rows.range(f"Batch {step} |step", at, at + 1000)
        if forward:
            rows.range("fc Linear |fwd", at, at + 300)
        if backward:
            rows.range("Backward |bwd", at + 300, at + 950)
        if text:
            rows.range(text, at + 401, at + 410)
        rows.work(GEMM, at + 1, at + 10, at + 610).work(kernel, at + launched, at + 650, at + 950)
    return advice_on(rows.build())["collectives"]


@pytest.mark.parametrize(
    ("operation", "backward", "words"),
    [
        ("all_reduce", True, "DistributedDataParallel(model, bucket_cap_mb"),
        ("all_reduce", False, "dist.all_reduce(x, async_op=True)"),
        ("all_gather", True, "forward_prefetch=True"), ("all_gather", False, "dist.all_gather_into_tensor"),
        ("reduce_scatter", True, "reshard_after_forward=False"), ("send_recv", True, "n_microbatches"),
    ],
)  # fmt: skip
def test_each_operation_has_its_own_advice(operation: str, backward: bool, words: str) -> None:
    """Buckets and the backward pass are for the gradients of a training run."""
    said = _communicating(KERNELS[operation], backward=backward)
    assert words in said.code
    assert ("backward pass" in said.advice) == (operation == "all_reduce" and backward)
    assert f"is exposed communication in {operation}" in said.evidence


def test_operations_without_specific_advice() -> None:
    """An all-to-all is not told about gradients, and an unnamed collective only which rank is late."""
    exchange = _communicating(KERNELS["send_recv"], text="nccl:all_to_all")
    assert "all_to_all_single" in exchange.code
    assert "backward" not in exchange.advice
    for said in (_communicating(KERNELS[""]), _communicating(KERNELS["all_reduce"], backward=False, forward=False)):
        assert said.advice == "Find the rank that the others wait for, and communicate less often."
        assert said.code.splitlines() == [said.code]
    assert "broadcast_buffers" not in _communicating(KERNELS["broadcast"]).code


def _loading(meta: dict[str, object] | None = None, *, waits: tuple[int, ...] = (800,) * 8, text: str = "") -> Advice:
    """Advice on eight steps that wait for data and then compute for 200 ns."""
    rows, at = Rows(), 0
    for step, wait in enumerate(waits):
        rows.range(text or "Data |data", at, at + wait)
        rows.range(f"Batch {step % 4} |step", at + wait, at + wait + 200)
        rows.range("fc Linear |fwd", at + wait, at + wait + 200)
        at += wait + 200
    process = {"process": 1, "pid": 1, "name": "", "cpu": {"threads": 2, "cores": 8}} | (meta or {})
    said = advice_on(rows.build(processes=[process]))
    return said["late_batches" if "late_batches" in said else "data_loading"]


def _marked(**facts: int | str) -> dict[str, object]:
    return {"loaders": [{"workers": 0, "persistent": 0, "pinned": 0} | facts]}


def test_workers_that_are_not_seen_may_exist() -> None:
    """Advice depends on what the profile shows of the loader."""
    unknown = _loading()
    assert unknown.evidence.endswith("the profile does not show whether worker processes load the data")
    assert "or in more of them if the loader has some" in unknown.advice
    none = _loading(_marked())
    assert none.evidence.endswith("; the process itself loads the data")
    assert none.advice.startswith("Load data in worker processes,")
    more = _loading(_marked(workers=3))
    assert more.evidence.endswith("; 3 DataLoader workers load the data")
    assert more.advice == "Load data in more worker processes."
    enough = _loading(_marked(workers=8))
    assert enough.advice.startswith("Make loading cheaper")
    several = _loading(text="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    assert several.evidence.endswith("; worker processes of the DataLoader load the data")
    assert several.advice.startswith("Load data in more worker processes, or")


def test_datasets_are_named_with_their_code() -> None:
    photos, texts = ({"dataset": name, "source": f"data.py:{line}"} for name, line in (("Photos", 12), ("Texts", 30)))
    one = _loading(_marked(**photos)).evidence
    assert one.endswith("; the process itself loads the data of Photos (data.py:12)")
    loaders = [{"workers": 0, "persistent": 0, "pinned": 0} | facts for facts in (photos, texts, {}, photos)]
    assert _loading({"loaders": loaders}).evidence.endswith(" of Photos (data.py:12) and Texts (data.py:30)")


def test_one_late_batch_is_one_late_batch() -> None:
    """A single long wait is not spread over all steps, and more workers do not shorten it."""
    late = (0, 0, 0, 0, 0, 600, 0, 0)
    one = _loading(_marked(), waits=late)
    assert "1 of 8 batches is late" in one.advice
    assert "0 ns in the median of 8 steps and 600 ns before step 5" in one.evidence
    assert "DataLoader(" not in one.code
    assert "batches" not in _loading(_marked(), waits=(100,) * 7 + (600,)).advice  # all batches are slow
    burst = _loading(_marked(workers=4), waits=(0, 0, 0, 600) * 2)  # four workers deliver at once
    assert burst.advice == "Load data in more worker processes."
    epochs = _loading(_marked(workers=1), waits=(600, 0, 0, 0, 600, 0, 0, 0))
    assert epochs.advice.startswith("Keep the worker processes of the DataLoader between epochs: 2 of 8")
    kept = _loading(_marked(workers=1, persistent=1), waits=(600, 0, 0, 0, 600, 0, 0, 0))
    assert "persistent_workers" not in kept.code


@pytest.mark.parametrize(
    ("kernel", "launched", "backward", "words"),
    [
        ("broadcast", 100, True, "broadcast_buffers=False"), ("broadcast", 100, False, ""),
        ("broadcast", 402, True, ""), ("all_reduce", 100, True, "dist.all_reduce(x, async_op=True)"),
        ("all_reduce", 402, True, "bucket_cap_mb"),
    ],
)  # fmt: skip
def test_operations_of_the_forward_pass_are_no_gradients(
    kernel: str, launched: int, backward: bool, words: str
) -> None:
    code = _communicating(KERNELS[kernel], backward=backward, launched=launched).code
    assert ("\n" in code) == bool(words)
    assert words in code


def _gloo(waits: int, *, backend: str = "", text: str = "gloo:all_reduce") -> str:
    """Evidence of a step of 20,000 ns on a CPU: 2,000 ns of communication, and some in 10,000 ns of backward."""
    rows = Rows().range("Batch 0 |step", 0, 20_000).range("fc Linear |fwd", 0, 3_000).range(text, 16_000, 18_000)
    rows.range("Backward |bwd", 5_000, 15_000).range(text, 6_000, 6_000 + waits)
    cpu = {"threads": 1, "cores": 1} | ({"backend": backend} if backend else {})
    return advice_on(rows.build(processes=[{"process": 1, "pid": 1, "name": "", "cpu": cpu}]))["collectives"].evidence


def test_the_share_of_the_backward_pass_is_named_from_1_percent_on() -> None:
    assert _gloo(99).endswith("exposed communication in gloo all_reduce")
    assert _gloo(100).endswith("exposed communication in gloo all_reduce, 1% of the backward pass")


def test_the_backend_is_that_of_the_mark_or_of_the_range() -> None:
    assert "in mpi all_reduce" in _gloo(0, backend="mpi")
    assert "in all_reduce" in _gloo(0, text="Collective all_reduce |coll")


@pytest.mark.parametrize(
    ("meta", "waits", "code"),
    [
        ({}, 800, "num_workers=5,"),  # 1 + 800 / 200
        (_marked(workers=3), 800, "num_workers=8,"),
        (_marked(workers=2), 790, "num_workers=6,"),
        ({"cpu": {}}, 3800, "num_workers=8,"),
        ({"cpu": {"cores": 9}}, 3800, "num_workers=9,"),
        ({"cpu": {"cores": 4, "ranks": 2}}, 800, "num_workers=2,"),
        ({"cpu": {"cores": 1, "ranks": 2}}, 800, "num_workers=1,"),
        ({"cpu": {"cores": 1000}}, 39_800, "num_workers=100,"),  # 99.5 % as if the rest of the step took 1 %
    ],
)
def test_workers_that_hide_the_wait(meta: dict[str, object], waits: int, code: str) -> None:
    """One for each time that the rest of a step fits into the wait, at most one for each core of a rank."""
    assert code in _loading(meta, waits=(waits,) * 8).code


@pytest.mark.parametrize(
    ("loaders", "device", "code"),
    [
        ([], True, ", pin_memory=True, prefetch_factor=4)"), ([], False, "persistent_workers=True)"),
        ([{"workers": 2, "persistent": 0, "pinned": 1}], True, "persistent_workers=True, prefetch_factor=4)"),
        ([{"workers": 2, "persistent": 0, "pinned": 1}, {"workers": 12, "persistent": 0, "pinned": 0}], True, ""),
    ],
)  # fmt: skip
def test_loaders_beside_a_gpu_pin_and_prefetch(loaders: list[dict[str, int]], device: bool, code: str) -> None:
    meta = {"processes": [{"process": 1, "pid": 1, "name": "", "loaders": loaders}]}
    run = Run(wait=400, meta=meta)
    profile = run.build() if device else Profile.build(meta, ranges=run.build().ranges)
    said = advice_on(profile)["data_loading"]
    assert said.code.endswith(code)
    assert ("num_workers=12," in said.code) == (len(loaders) == 2)
    assert said.advice.startswith("Load data in worker" if not loaders else
                                  "Load data in more" if len(loaders) == 1 else "Make loading cheaper")  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "waits", "rule"),
    [
        (3, (0,) * 7 + (600,), "late_batches"), (4, (0,) * 7 + (600,), "data_loading"),  # 4 batches come together
        (0, (0,) * 5 + (600,) * 3, "late_batches"), (0, (0,) * 4 + (600,) * 4, "data_loading"),
        # The usual wait is 240 of 2,410 ns, or 248 of 2,417 ns.
        (0, (30,) * 7 + (600,), "late_batches"), (0, (31,) * 7 + (600,), "data_loading"),
    ],
)  # fmt: skip
def test_few_batches_are_late_if_the_others_are_in_time(workers: int, waits: tuple[int, ...], rule: str) -> None:
    assert _loading(_marked(workers=workers), waits=waits).rule == rule


def test_workers_of_unknown_number_deliver_eight_batches_together() -> None:
    text = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert _loading(text=text, waits=(0,) * 15 + (3000,)).rule == "data_loading"
    assert _loading(text=text, waits=(0,) * 16 + (3000,)).rule == "late_batches"


@pytest.mark.parametrize(("generations", "advised"), [(3, True), (2, False)])
def test_workers_that_start_three_times_start_in_each_epoch(generations: int, advised: bool) -> None:
    """Two processes of one number may be those of two loaders."""
    rows = Rows()
    for step in range(6):
        at = 1000 * step
        rows.range(f"Batch {step} |step", at, at + 1000).range("Data |data", at, at + 800)
        rows.range("fc Linear |fwd", at + 800, at + 1000)
        for worker in range(2):
            process = 2 + worker + 2 * (step * generations // 6)
            rows.range(f"Data Worker {worker} |data", at + worker, at + 1000, process)
    said = advice_on(rows.build(processes=[{"process": 1, "pid": 1, "name": "", "cpu": {"cores": 2}}]))["data_loading"]
    assert said.advice.startswith("Keep the worker processes" if advised else "Make loading cheaper")


def test_the_wait_of_a_lone_step_is_its_share() -> None:
    assert "; " in _loading(waits=(800,)).evidence
    assert "steps" not in _loading(waits=(800,)).evidence
    assert "800 ns in each of 2 steps, while the rest of a step takes 200 ns;" in _loading(waits=(800,) * 2).evidence
    said = _loading(waits=(500, 800, 800, 700, 700)).evidence
    assert "700 ns in the median of 5 steps and 800 ns before step 1, while the rest of a step takes 200 ns;" in said


def _outside(inside: int, outside: int, *, graphs: int = 0) -> dict[str, Advice]:
    """Advice on four steps with so much GPU time (ns) launched in ranges and between steps, some in CUDA graphs."""
    rows = tables.Rows()
    for step in range(1, 5):
        at = 10_000 * step
        rows.range(f"Batch {step} |step", at, at + 9_000).range("fc Linear |fwd", at, at + 100)
        times = [(at + 10, inside, "k"), (at - 100, outside - graphs, "k"), (at - 90, graphs, "CUDA graph 7")]
        begin = at + 20
        for launched, ns, name in times:
            rows.kernel(launched, (begin, begin + ns), name=name)
            begin += ns
    return advice_on(rows.build())


@pytest.mark.parametrize(
    ("times", "graphs", "evidence"),
    [
        ((700, 300), 0, "30% of the GPU time of the steps, 8 kernels and copies, was launched outside any range"),
        ((701, 299), 0, None),
        ((500, 500), 251, "50% of the GPU time of the steps was launched outside any range, mostly"),
        ((500, 500), 250, "50% of the GPU time of the steps, 8 kernels and copies, was launched outside"),
    ],
)
def test_coverage_needs_three_tenths_of_the_gpu_time_of_the_steps(
    times: tuple[int, int], graphs: int, evidence: str | None
) -> None:
    said = _outside(*times, graphs=graphs)
    if evidence is None:
        assert "coverage" not in said
    else:
        assert said["coverage"].evidence.startswith(evidence)
        assert said["coverage"].saves == 0
