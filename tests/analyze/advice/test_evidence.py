"""What advice stands on: real profiles where each rule speaks and is silent, and commands that give a result."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
from advice_commands import commands_of
from shared_data import shared, unpacked

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
