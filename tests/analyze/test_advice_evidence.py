"""What advice stands on: real profiles where each rule speaks and is silent, and commands that give a result."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
from advice_commands import commands_of
from shared_data import shared, unpacked
from step_rows import GEMM, Rows

from annot.analyze.advice import Advice, Facts, advise
from annot.analyze.communication import collectives_of
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.read.formats import load

SPEAKS = {
    # 206 of 610 ms in DataLoader.__next__ of the process itself.
    "data_loading": "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz",
    # cudaMemcpy blocks between the copies of saxpy; 2.6 GB of them come from pageable memory.
    "synchronous_copies": "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz",
    "pageable_copies": "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz",
    # 50.95 GB from pinned memory in a second.
    "host_copies": "nsys/ginda_h100_2gpu_1s.2026.2.sqlite.gz",
    # hipFree takes 3.3 of 3.4 s.
    "allocations": "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz",
    # 39 steps of the same 220 kernels, with gaps between them.
    "cuda_graphs": "kineto/more/param_linear.json.gz",
    "host_bound": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    "collectives": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    # 3,945 of 4,485 kernels are launched outside the three ranges.
    "coverage": "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz",
}
SILENT = {
    "data_loading": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    "synchronous_copies": "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz",
    # All but 3 kB come from pinned memory.
    "pageable_copies": "nsys/ginda_h100_2gpu_1s.2026.2.sqlite.gz",
    "host_copies": "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz",
    "allocations": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    # A run without steps: nothing shows that its steps are alike.
    "cuda_graphs": "xplane/tf_bert_gpu8_multi_worker.xplane.pb",
    # A capture into a graph: 546 launches, of which 2 run.
    "host_bound": "kineto/graph_pairs/sglang_decode/capture_bs32_rank0.json.gz",
    # Batch sizes are known from annot's labels only; two devices that work for the same time.
    "batch_size": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    "stragglers": "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    # One collective and no kernel that could wait for it.
    "collectives": "kineto/hta_large_integer.json.gz",
    # 39 steps with 10 % between the quartiles.
    "uneven_steps": "kineto/more/param_linear.json.gz",
    # Casts, concatenations and changes of layout take 3 % to 4 % each, and normalisations reduce the last dimension.
    **dict.fromkeys(
        ("concatenations", "casts", "tensor_copies", "reduction_shape"),
        "kineto/more/tracelens_h100_qwen15_chat.json.gz",
    ),
    # All launches are in ranges; 436 kernels have no launch.
    "coverage": "kineto/more/tracelens_h100_qwen15_chat.json.gz",
}


@cache
def _facts(name: str, folder: Path) -> Facts:
    return Facts(attribute(load(_path(name, folder))))


def _path(name: str, folder: Path) -> Path:
    return unpacked(name, folder) if name.startswith("nsys") and name.endswith(".gz") else shared(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of unpacked profiles."""
    return tmp_path_factory.mktemp("profiles")


def _advice(name: str, folder: Path) -> dict[str, Advice]:
    facts = _facts(name, folder)
    return {one.rule: one for one in advise(facts.attribution, facts)}


@pytest.mark.parametrize("rule", SPEAKS)
def test_rules_speak_on_real_profiles(rule: str, folder: Path) -> None:
    """Each profile has the evidence of the rule."""
    assert rule in _advice(SPEAKS[rule], folder)


@pytest.mark.parametrize("rule", SILENT)
def test_rules_are_silent_on_real_profiles(rule: str, folder: Path) -> None:
    """Each profile lacks the evidence of the rule, or has evidence against it."""
    assert rule not in _advice(SILENT[rule], folder)


def test_evidence_of_real_profiles(folder: Path) -> None:
    """Loaders, memory and operations are those of the raw events."""
    loading = _advice(SPEAKS["data_loading"], folder)["data_loading"]
    assert loading.advice == "Load data in worker processes, before the step needs it."
    assert loading.evidence.endswith("; the process itself loads the data")
    reduce = _advice(SPEAKS["collectives"], folder)["collectives"]
    assert "6% of step time is exposed communication in all_reduce" in reduce.evidence
    assert "bucket_cap_mb" in reduce.code


def test_ranges_name_the_operations_of_kernels() -> None:
    """This NCCL names all kernels SendRecv; their launches lie in nccl:all_reduce, nccl:all_to_all and so on."""
    facts = Facts(attribute(load(shared("kineto/hta_recsys_a100_cudagraph.json.gz"))))
    counts = dict(collectives_of(facts.attribution).table["operation"].value_counts().iter_rows())
    assert counts == {"all_to_all": 45, "all_reduce": 10, "all_gather": 10, "reduce_scatter": 10, "send_recv": 5}
    said = {one.rule: one for one in advise(facts.attribution, facts)}["collectives"]
    assert "in collectives (10% all_reduce, 3% all_to_all, 2% send_recv)" in said.evidence


KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "send_recv": "ncclDevKernel_SendRecv",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL", "": "ncclKernel",
}  # fmt: skip


def _communicating(kernel: str, *, backward: bool = True, text: str = "", forward: bool = True) -> Advice:
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
        rows.work(GEMM, at + 1, at + 10, at + 610).work(kernel, at + 402, at + 650, at + 950)
    return {one.rule: one for one in advise(attribute(rows.build()))}["collectives"]


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


def test_broadcasts_in_the_forward_of_a_training_send_buffers() -> None:
    """Only a training broadcasts buffers in its forward: an inference broadcasts something else."""
    in_forward = {
        backward: _communicating(KERNELS["broadcast"], backward=backward, text="fc Linear |fwd").code
        for backward in (True, False)
    }
    assert "broadcast_buffers=False" in in_forward[True]
    assert "broadcast_buffers" not in in_forward[False]


def _loading(meta: dict[str, object] | None = None, *, waits: tuple[int, ...] = (800,) * 8, text: str = "") -> Advice:
    """Advice on eight steps that wait for data and then compute for 200 ns."""
    rows, at = Rows(), 0
    for step, wait in enumerate(waits):
        rows.range(text or "Data |data", at, at + wait)
        rows.range(f"Batch {step % 4} |step", at + wait, at + wait + 200)
        rows.range("fc Linear |fwd", at + wait, at + wait + 200)
        at += wait + 200
    process = {"process": 1, "pid": 1, "name": "", "cpu": {"threads": 2, "cores": 8}} | (meta or {})
    said = {one.rule: one for one in advise(attribute(rows.build(processes=[process])))}
    return said["late_batches" if "late_batches" in said else "data_loading"]


def _marked(**facts: int) -> dict[str, object]:
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


@pytest.mark.parametrize("name", sorted({*SPEAKS.values(), *SILENT.values()}))
def test_commands_give_a_result(name: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each command about the profile itself prints rows."""
    facts = _facts(name, folder)
    for said in advise(facts.attribution, facts):
        for words in commands_of(said):
            if facts.source not in map(shlex.quote, words):
                continue  # a command about other profiles, or about a script
            written = [str(tmp_path / word) if word == "run.html" else word for word in words]
            assert main(written) == 0
            out = capsys.readouterr().out
            assert "No layers were recorded" not in out
            assert "run.html" in words or len(out.splitlines()) > 5


def test_captures_have_no_time_of_the_gpu(folder: Path) -> None:
    """A profile of launches that do not run says nothing about an idle GPU, nor that the run is on a CPU."""
    for name in ("kineto/graph_pairs/sglang_decode/capture_bs32_rank0.json.gz",
                 "kineto/graph_pairs/vllm_decode_full/capture_rank0.json.gz"):  # fmt: skip
        facts = _facts(name, folder)
        assert "the time of the GPU is unknown" in verdict(facts)
        assert "CPU" not in verdict(facts)
        assert advise(facts.attribution, facts) == []
