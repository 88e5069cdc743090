"""What advice says of real profiles first, and why that is right; and the times that it stands on."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from matrices import every_third
from shared_data import shared, unpacked
from step_rows import ALL_REDUCE, GEMM, Rows

from annot.analyze.advice import RULES, Advice, Facts, advise
from annot.analyze.advice.kernels import CONVERSIONS
from annot.analyze.cpu_parts import IDLE
from annot.analyze.gpu_activities import idle_calls
from annot.analyze.run_summary import step_time, step_work
from annot.attribution.attribute import Attribution, attribute
from annot.read.formats import load

FIRST: dict[str, str | None] = {
    # 91 % of the time from the first to the last kernel are sgemm kernels of an A100; weights are copied before that.
    "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz": "mixed_precision",
    # The device works 20 % of a step of 3 ms: 74 kernels of 8 µs, each of which Windows takes 40 µs to launch.
    "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz": "host_bound",
    # Busy for 95 % of the step, 33 % of it elementwise; f32 products are 49 %, but Tensor Cores of a GeForce with f32
    # sums are only twice as fast as f32 outside of them.
    "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz": "fusion",
    # Busy for 90 %, 55 % on Tensor Cores: what is left are casts and elementwise kernels.
    "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz": "fusion",
    # Between its copies and three kernels the script allocates and waits on the host.
    "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz": "host_bound",
    # One graph that is busy without a gap: nothing to save without ranges that tell what it is.
    "nsys/zx_lm_compile_graphtrace_no_nvtx.2024.6.sqlite.gz": "coverage",
    # Two kernels of microseconds with 18 ms between them.
    "nsys/ginda_tiny_no_nvtx.2026.1.sqlite.gz": "host_bound",
    # Rows made by hand: 17 kernels of some 100 ns, whose launches take longer. Nothing shows steps that are alike.
    "nsys/edge_semantics/edge_semantics.sqlite": "host_bound",
    # hipFree takes 3.3 of 3.4 s, and the device does nothing meanwhile: the caching allocator is off.
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz": "allocations",
    # Kernels that were launched start 463 of 474 ms later, while nothing runs: the profile does not say why.
    "kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz": None,
    "kineto/graph_pairs/sglang_decode/execution.json.gz": None,
    # A graph that is busy for 99.8 %, of which 280 kernels take 6 µs each. The model is compiled already, by vLLM.
    "kineto/graph_pairs/vllm_decode_full/execution.json.gz": None,
    # 60 kernels of 5 µs in 4.4 ms of eager inference.
    "kineto/tracelens_h100_bert_small_nnmodule.json.gz": "cuda_graphs",
    # 34 % of the step is DataLoader.__next__; f32 convolutions are 37 %, and a V100 halves them to an eighth at best.
    "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz": "data_loading",
    # Graphs that were launched pause for 527 of 1,074 ms, while the CPU waits for them in blocking cudaMemcpyAsync
    # calls; exposed communication is 15 %.
    "kineto/hta_recsys_a100_cudagraph.json.gz": "collectives",
    # Busy 24 %: 900 kernels of 58 µs in 222 ms of eager Python; exposed communication is 6 %.
    "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz": "host_bound",
    # The measured pass without its warm-up: 5 of 83 ms are kernels, Python takes 46.
    "kineto/hta_alexnet_a100_train.json.gz": "host_bound",
    # It counts events of the hardware and has no times of kernels: nobody knows whether the device idled.
    "kineto/hta_alexnet_a100_cupti_sass_flops.json.gz": None,
    # gloo's collectives on a CPU take 86 % of the steps.
    "kineto/hta_cpu_only.json.gz": "collectives",
    # Files of a handful of events: one collective, for which no kernel waits; one kernel in 413 ms; four in 1.6 ms.
    "kineto/hta_large_integer.json.gz": None,
    "kineto/hta_backward_thread_min.json": "host_bound",
    "kineto/hta_oldcat_Kernel_Runtime.json.gz": "host_bound",
    # Kernels one by one, without a host: nothing of a step is known.
    "ncu/jaxtb_cuda_graph_pdl.ncu-rep": "coverage",
    "ncu/leleucas_bert_attention_torch_a100.csv": None,
    # The two devices that worked were busy for 72 %, 53 % of it elementwise kernels of Eigen.
    "xplane/tf_bert_gpu8_multi_worker.xplane.pb": "fusion",
}


def _opened(name: str, folder: Path) -> Attribution:
    path = unpacked(name, folder) if name.endswith(".sqlite.gz") else shared(name)
    return attribute(load(path))


@pytest.mark.parametrize("name", every_third(FIRST))
def test_first_advice_of_real_profiles(name: str, tmp_path: Path) -> None:
    """What may save most stands first, and no piece claims more than the steps."""
    found = advise(_opened(name, tmp_path))
    assert (found[0].rule if found else None) == FIRST[name]
    saves = [one.saves for one in found]
    assert saves == sorted(saves, reverse=True)
    assert all(0 <= one <= 1 for one in saves)


@pytest.mark.parametrize(
    "name",
    [
        "transformer.sqlite.gz",
        "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
        "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
    ],
)
def test_rules_of_other_devices_are_silent(name: str, tmp_path: Path) -> None:
    """`advise` asks only the rules of the devices at hand."""
    attribution = _opened(name, tmp_path)
    facts = Facts(attribution)
    said = [advice for rule in RULES if (advice := rule(facts)) is not None]
    assert sorted(advice.rule for advice in said) == sorted(advice.rule for advice in advise(attribution, facts))


def test_copies_outside_the_steps_are_no_advice(tmp_path: Path) -> None:
    """zx and athrun copy their weights before what they measure, which no pinned memory makes faster."""
    for name in ("nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz", "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz"):
        assert "pageable_copies" not in {one.rule for one in advise(_opened(name, tmp_path))}


def test_transposes_of_miopen_change_the_layout() -> None:
    """The training of mi300 has 1.7 % of its time in `batched_transpose_…` kernels, which is too little for advice."""
    path = shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz")
    facts = Facts(attribute(load(path)))
    assert facts.share(pl.col("name").str.contains(CONVERSIONS)) == pytest.approx(0.0175, abs=0.002)
    assert "channels_last" not in {one.rule for one in advise(facts.attribution, facts)}


def _causes(rows: Rows) -> dict[str, int]:
    """The idle time (ns) by its part of the step."""
    table = step_time(attribute(rows.build())).filter(pl.col("share").is_in(IDLE), pl.col("ns") > 0)
    return dict(table.select("share", "ns").iter_rows())


def _call(rows: Rows, name: str, start: int, end: int) -> Rows:
    call = {"process": 1, "thread": 10, "start": start, "end": end, "correlation": None, "name": name}
    rows.launches.append(call)
    return rows


MS = 1_000_000


def test_a_gap_after_a_wait_is_synchronisation_as_long_as_the_wait() -> None:
    """The host waits 3 ms until the device is done, then needs 10 ms to launch: without the wait, 3 ms less."""
    rows = Rows().range("Batch 0 |step", 0, 20 * MS).work(GEMM, 0, 0, 6 * MS).work(GEMM, None, 16 * MS, 20 * MS)
    _call(rows, "cudaDeviceSynchronize_v3020", 3 * MS, 6 * MS)
    assert _causes(rows) == {"synchronisation": 3 * MS, "host": 7 * MS}


def test_a_wait_that_leaves_work_queued_costs_nothing() -> None:
    """The device goes on after the call with what was launched before it, so the later gap is another one."""
    rows = Rows().range("Batch 0 |step", 0, 20 * MS).work(GEMM, 0, 0, 4 * MS).work(GEMM, 0, 4 * MS, 10 * MS)
    _call(rows.work(GEMM, None, 12 * MS, 20 * MS), "cudaEventSynchronize", MS, 4 * MS)
    assert _causes(rows) == {"host": 2 * MS}


@pytest.mark.parametrize(
    ("name", "length", "cause"),
    [
        ("hipFree", 4 * MS, "allocation"), ("cudaMalloc_v3020", 4 * MS, "allocation"),
        ("cudaMallocAsync_v11020", 4 * MS, "host"), ("hipMemcpyWithStream", 4 * MS, "synchronisation"),
        ("cudaMemcpyAsync_v3020", 4 * MS, "synchronisation"), ("cudaMemcpyAsync_v3020", 40_000, "host"),
        ("cudaStreamCreate_v3020", 4 * MS, "host"), ("cudaMemsetAsync_v3020", 4 * MS, "host"),
    ],
)  # fmt: skip
def test_what_the_host_does_in_a_gap(name: str, length: int, cause: str) -> None:
    """A gap of 4 ms is due to the call that goes on in it, by its name and how long it takes."""
    rows = Rows().range("Batch 0 |step", 0, 10 * MS).work(GEMM, None, 0, 3 * MS).work(GEMM, None, 7 * MS, 10 * MS)
    _call(rows, name, 3 * MS + 1000, 3 * MS + 1000 + length - 2000)
    found = _causes(rows)
    assert max(found, key=lambda one: found[one]) == cause
    assert sum(found.values()) == 4 * MS
    known = idle_calls(attribute(rows.build()))["cause"].to_list()
    assert known == ([cause] if cause != "host" else [])


def test_short_gaps_are_launches_and_long_ones_python() -> None:
    """Below a millisecond a framework was dispatching; above that, something else took the time."""
    rows = Rows().range("Batch 0 |step", 0, 10 * MS).work(GEMM, None, 0, MS).work(GEMM, None, MS + 900_000, 3 * MS)
    assert _causes(rows.work(GEMM, None, 5 * MS, 10 * MS)) == {"launch": 900_000, "host": 2 * MS}


def _launched(rows: Rows, called: int, begin: int, end: int) -> Rows:
    """Add a kernel whose launch call takes the millisecond before `called`."""
    rows.work(GEMM, called - MS, begin, end)
    rows.launches[-1]["end"] = called
    return rows


def test_a_launched_kernel_that_does_not_start_waits_for_something_unknown() -> None:
    """The CPU waits for the GPU, which has a kernel to run and does not: the wait is not why it is idle."""
    rows = Rows().range("Batch 0 |step", 0, 20 * MS).work(GEMM, None, 0, 4 * MS)
    _call(_launched(rows, 6 * MS, 16 * MS, 20 * MS), "cudaStreamSynchronize_v3020", 7 * MS, 20 * MS)
    assert _causes(rows) == {"host": 2 * MS, "unrecorded": 10 * MS}


def test_a_kernel_that_starts_soon_after_its_launch_waits_for_the_cpu() -> None:
    """The launch call itself, such as one that loads a module, is no wait in a queue; neither is the time before."""
    rows = Rows().range("Batch 0 |step", 0, 20 * MS).work(GEMM, None, 0, 4 * MS)
    assert _causes(_launched(rows, 10 * MS, 10 * MS + 500, 20 * MS)) == {"host": 6 * MS + 500}


def test_a_wait_before_the_first_activity_is_for_something_unknown() -> None:
    """Work that the CPU waits for before the first recorded activity of the device ran before the recording."""
    rows = Rows().range("Batch 0 |step", 0, 20 * MS).work(GEMM, None, 12 * MS, 20 * MS)
    _call(rows, "cudaDeviceSynchronize_v3020", 2 * MS, 10 * MS)
    assert _causes(rows) == {"host": 4 * MS, "unrecorded": 8 * MS}
    _call(rows, "cudaDeviceSynchronize_v3020", 13 * MS, 20 * MS)
    assert _causes(rows) == {"host": 4 * MS, "unrecorded": 8 * MS}


@pytest.mark.parametrize("seed", every_third(range(40)))
def test_work_of_steps_against_a_count_of_every_nanosecond(seed: int) -> None:
    """The times add up to how long devices were busy, and no work takes less than what would be idle without it."""
    chance, rows = random.Random(seed), Rows()
    rows.range("Batch 0 |step", 10, 40).range("Batch 1 |step", 50, 80)
    for _ in range(chance.randrange(1, 14)):
        start = chance.randrange(90)
        rows.work(chance.choice([GEMM, ALL_REDUCE, "copy"]), None, start, start + chance.randrange(1, 15))
    attribution = attribute(rows.build())
    table = step_work(attribution)
    spans = [(row["start"], row["end"], row.get("name", "copy")) for row in [*rows.kernels, *rows.copies]]
    inside = [at for at in range(120) if 10 <= at < 40 or 50 <= at < 80]
    on = {at: {name for start, end, name in spans if start <= at < end} for at in inside}
    assert table["wall_ns"].sum() == sum(bool(names) for names in on.values())
    for name in {name for _, _, name in spans}:
        shown = "(copy HtoD)" if name == "copy" else name
        alone = sum(names == {name} for names in on.values())
        assert table.filter(pl.col("name") == shown)["wall_ns"].sum() >= alone
    parts = step_time(attribution)
    idle = parts.filter(pl.col("share").is_in(IDLE))
    assert int(idle["ns"].sum()) + int(table["wall_ns"].sum()) == parts["wall_ns"][0]


def test_advice_says_what_it_saves() -> None:
    """A piece of advice has the share of the steps that it saves, whatever else the run did."""
    rows = Rows().work("copy", None, 0, 900).range("Batch 0 |step", 1000, 1100).work(GEMM, None, 1000, 1090)
    found: dict[str, Advice] = {one.rule: one for one in advise(attribute(rows.build()))}
    assert "pageable_copies" not in found
    assert found["mixed_precision"].saves == pytest.approx(0.9)
