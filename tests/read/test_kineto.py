from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from shared_data import shared

from annot import AnnotError, load


def write(path: Path, *events: dict[str, object], **top: object) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events), **top}))
    return path


def event(name: str, category: str, ts: float, dur: float, **more: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": category, "pid": 70, "tid": 71, "ts": ts, "dur": dur, **more}


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("hta_alexnet_a100_train", 79),
        ("hta_resnet_ddp_a100_fwdbwd_gua", 2700),
        ("hta_recsys_a100_cudagraph", 6080),
        ("tracelens_h100_bert_small_nnmodule", 60),
        ("tracelens_mi300_resnet18_train_nnmodule_seq", 2360),
        ("kineto_2021_resnet50_v100_oldcats_seq", 8772),
        ("hta_cpu_only", 0),
    ],
)
def test_kernels_of_real_traces(name, kernels):
    """Every kernel of real traces of 2021 to 2026 is there, NVIDIA's and AMD's."""
    assert load(shared(f"kineto/{name}.json.gz")).kernels.height == kernels


def test_kernels_without_their_launch_are_kept():
    """The 705 kernels of the CUDA-graph trace that have no launch stay in the table."""
    profile = load(shared("kineto/hta_recsys_a100_cudagraph.json.gz"))
    unlaunched = profile.kernels.join(profile.launches, on=["process", "correlation"], how="anti")
    assert unlaunched.height == 705


def test_copies_and_annotations_of_a_real_trace():
    """Copies come with their kind and size, and the user's annotations are ranges."""
    profile = load(shared("kineto/hta_alexnet_a100_train.json.gz"))
    assert profile.copies.height == 19
    assert set(profile.copies["kind"]) == {"HtoD", "memset"}
    assert profile.copies["bytes"][0] == 92928
    assert "[param|cuda]" in profile.ranges["text"].to_list()


def test_ranges_launches_and_kernels_fit_together(tmp_path):
    """annot's ranges are known by their text, a kernel gets the process of its launch, and times are exact."""
    trace = write(
        tmp_path / "trace.json",
        event("fc Linear [2,3]f32 |fwd", "cpu_op", 4403965917570.368, 12.282),
        event("aten::linear", "cpu_op", 4403965917571, 8),
        event("mine", "cpu_op", 4403965917500.001, 0.001),
        event("theirs", "user_annotation", 4403965917000, 5),
        event("cudaLaunchKernel", "cuda_runtime", 4403965917572.5, 1.5, args={"correlation": 9}),
        event("gemm", "kernel", 4403965917580, 2.048, pid=0, tid=7,
              args={"correlation": 9, "device": 0, "stream": 7}),
        event("stranger", "kernel", 4403965917590, 1, pid=0, tid=7, args={"device": 0, "stream": 7}),
        baseTimeNanoseconds=1790857026000000000,
        annot_texts={"mine": "ours"},
    )  # fmt: skip
    profile = load(trace)
    roles = dict(profile.ranges.select("text", "role").iter_rows())
    assert roles.pop("aten::linear") == "operator"
    assert set(roles.values()) == {"annotation"}
    ranges = {row["text"]: row for row in profile.ranges.iter_rows(named=True) if row["text"] in roles}
    assert {text: row["domain"] for text, row in ranges.items()} == {
        "fc Linear [2,3]f32 |fwd": "annot", "mine": "ours", "theirs": "",
    }  # fmt: skip
    layer = ranges["fc Linear [2,3]f32 |fwd"]
    assert layer["start"] == 1790857026000000000 + 4403965917570368
    assert layer["end"] - layer["start"] == 12282
    assert ranges["mine"]["end"] - ranges["mine"]["start"] == 1
    launch = profile.launches.row(0, named=True)
    assert (launch["process"], launch["thread"]) == (layer["process"], layer["thread"])
    kernels = profile.kernels.rows(named=True)
    assert [kernel["process"] for kernel in kernels] == [layer["process"]] * 2
    assert [kernel["correlation"] for kernel in kernels] == [9, None]
    assert kernels[0]["end"] - kernels[0]["start"] == 2048


def test_threads_that_are_names_or_large(tmp_path):
    """Rows whose process or thread is a name or a number of 64 bits are told apart."""
    trace = write(
        tmp_path / "trace.json",
        event("a", "user_annotation", 1, 1, pid="Spans", tid="PyTorch Profiler"),
        event("b", "user_annotation", 1, 1, pid="Spans", tid="other"),
        event("c", "user_annotation", 1, 1, pid=70, tid=140735340871424),
        event("d", "user_annotation", 1, 1, pid=70, tid=-1),
        event("e", "user_annotation", 1, 1, pid=70, tid="71"),
        event("f", "user_annotation", 1, 1, pid=70, tid=71),
    )
    ranges = load(trace).ranges
    assert ranges["thread"].n_unique() == 5
    assert ranges.filter(ranges["text"].is_in(["e", "f"]))["thread"].n_unique() == 1
    assert ranges["process"].n_unique() == 2
    assert ((ranges["thread"] & ~0xFFFFFF) == ranges["process"]).all()


def test_compressed_and_plain_are_found_by_content(tmp_path):
    """The name of the file says nothing: a compressed trace reads under any."""
    plain = write(tmp_path / "trace.sqlite", event("a", "user_annotation", 1, 1))
    packed = tmp_path / "trace.txt"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load(plain).ranges.equals(load(packed).ranges)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda good: good[:-2], id="cut"),
        pytest.param(lambda good: good[: len(good) // 2], id="half"),
        pytest.param(lambda good: gzip.compress(good)[:-9], id="cut gzip"),
        pytest.param(lambda good: gzip.compress(good)[:-8] + b"\0" * 8, id="gzip of another sum"),
        pytest.param(lambda good: gzip.compress(good[:-2]), id="cut inside gzip"),
        pytest.param(lambda good: good.replace(b'"a"', b'"\xff"'), id="not UTF-8"),
        pytest.param(lambda good: good.replace(b"[{", b"{{"), id="not JSON"),
        pytest.param(lambda good: good.replace(b"[{", b"[7]}{"), id="not events"),
        pytest.param(lambda good: good.replace(b'"ts": 1', b'"ts": 1e300'), id="time out of range"),
        pytest.param(lambda good: good.replace(b'"ts": 1', b'"ts": "x"'), id="time that is text"),
    ],
)
def test_damaged_trace_is_one_sentence(damage, tmp_path):
    """A trace that is cut or broken ends in one sentence that names the file."""
    good = write(tmp_path / "good.json", event("a", "user_annotation", 1, 1)).read_bytes()
    bad = tmp_path / "bad.json"
    bad.write_bytes(damage(good))
    assert bad.read_bytes() != good
    with pytest.raises(AnnotError, match=r"bad\.json") as caught:
        load(bad)
    assert "\n" not in str(caught.value)
