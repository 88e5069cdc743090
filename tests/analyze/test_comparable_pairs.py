"""Pairs of runs that are no pair, and pairs that are: real profiles with one thing changed, and parts of them.

Each mismatched pair names its reason, in both directions. No true pair is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl
import pytest
from edited_profiles import (
    attributed,
    of_steps,
    real,
    scattered,
    slower,
    twice,
    with_kernels,
    with_meta,
    with_texts,
    without_layers,
    without_ranges,
    without_work,
)

from annot.analyze.comparison.comparable import Comparability, comparability
from annot.analyze.comparison.digest import Digest, digest
from annot.attribution.attribute import attribute
from annot.profile import Profile

LINEAR: Final = "kineto/more/param_linear.json.gz"
V100: Final = "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz"
MI300: Final = "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"
DDP: Final = "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz"
RECSYS: Final = "kineto/hta_recsys_a100_cudagraph.json.gz"
BERT: Final = "kineto/tracelens_h100_bert_small_nnmodule.json.gz"
QWEN: Final = "kineto/more/tracelens_h100_qwen15_chat.json.gz"
ALEXNET: Final = "kineto/hta_alexnet_a100_train.json.gz"
SGLANG: Final = "kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz"
ZX: Final = "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz"
GRAPH: Final = "nsys/zx_lm_compile_graphtrace_no_nvtx.2024.6.sqlite.gz"
JSUN: Final = "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz"
ATHRUN: Final = "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz"
GINDA: Final = "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz"
TINY: Final = "nsys/ginda_tiny_no_nvtx.2026.1.sqlite.gz"
PIPIT: Final = "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz"
RECORDED: Final = "transformer.sqlite.gz"

PLACE = pl.col("place")
LATE, EARLY, MIDDLE = PLACE > 0.6, PLACE < 0.4, PLACE.is_between(0.3, 0.5)

Edit = Callable[[Profile], Profile]


def lost(drop: pl.Expr, *, launches: bool = False) -> Edit:
    return lambda profile: without_work(profile, drop, launches=launches)


def gone(*layers: str) -> Edit:
    return lambda profile: without_layers(profile, lambda name: any(layer in name for layer in layers))


def texts(*changes: tuple[str, str], column: str = "text") -> Edit:
    return lambda profile: with_texts(profile, *changes, column=column)


def calls(*changes: tuple[str, str]) -> Edit:
    return texts(*changes, column="call")


def meta(**facts: object) -> Edit:
    return lambda profile: with_meta(profile, **facts)


def one_device(profile: Profile) -> Profile:
    kernels, copies = (table.filter(pl.col("device") == 0) for table in (profile.kernels, profile.copies))
    ids = pl.concat([kernels.select("process", "correlation"), copies.select("process", "correlation")])
    launches = profile.launches.join(ids, on=["process", "correlation"], how="semi")
    return Profile.build(
        profile.meta, ranges=profile.ranges, marks=profile.marks, launches=launches, kernels=kernels, copies=copies
    )


def without_late_ranges(profile: Profile, place: float) -> Profile:
    """The layers of the last steps are lost, but not the steps."""
    start, is_step = pl.col("start"), pl.col("text").str.ends_with("|step")
    late = start > start.min() + place * (start.max() - start.min())
    return Profile.build(profile.meta, ranges=profile.ranges.filter(is_step | ~late), marks=profile.marks)


def no_work(profile: Profile) -> Profile:
    return without_work(profile, PLACE >= 0, launches=True)


def bare(edit: Edit | None = None, **facts: object) -> Edit:
    """The profile without ranges, and what else a program without ranges has."""
    return lambda profile: with_meta((edit or (lambda same: same))(without_ranges(profile)), **facts)


# Profile, what is changed, and the kind of a reason that must be named.
MISMATCHED: Final[dict[str, tuple[str, Edit, str]]] = {
    "40 % of the GPU events are lost at the end": (LINEAR, lost(LATE), "truncated"),
    "40 % are lost with their launches": (LINEAR, lost(LATE, launches=True), "truncated"),
    "40 % are lost at the beginning": (LINEAR, lost(EARLY, launches=True), "truncated"),
    "20 % are lost in the middle": (LINEAR, lost(MIDDLE, launches=True), "truncated"),
    "40 % are lost here and there": (LINEAR, lost(scattered(0.4), launches=True), "truncated"),
    "kernels of launches are lost": (MI300, lost(scattered(0.1)), "truncated"),
    "a training loses its end": (MI300, lost(LATE, launches=True), "truncated"),
    "a training loses something everywhere": (MI300, lost(scattered(0.4), launches=True), "truncated"),
    "a run without steps loses its end": (ZX, lost(LATE), "truncated"),
    "a run without steps loses something": (JSUN, lost(scattered(0.4), launches=True), "truncated"),
    "an unnamed model loses something": (ATHRUN, lost(scattered(0.4), launches=True), "kernels"),
    "ResNet-50 loses a quarter": (V100, lost(PLACE > 0.75, launches=True), "truncated"),
    "a run of graphs loses its end": (RECSYS, lost(LATE), "truncated"),
    "two GPUs lose their end": (GINDA, lost(PLACE > 0.7), "truncated"),
    "ranges of a recording are lost": (RECORDED, lambda profile: without_late_ranges(profile, 0.6), "truncated"),
    "5 %: no activation in backward": (V100, gone("ReluBackward1"), "layers"),
    "4 %: no activation": (LINEAR, gone("aten::relu"), "layers"),
    "5 %: no gradients are added": (LINEAR, gone("AccumulateGrad"), "layers"),
    "5 %: no copies of the batch": (RECSYS, gone("## copy_batch_to_gpu ##"), "layers"),
    "9 %: a block less": (MI300, gone("Sequential_1.BasicBlock_3"), "layers"),
    "6 %: no pooling": (MI300, gone("MaxPool2d_0"), "layers"),
    "a layer of BERT less": (BERT, gone("BertLayer_3"), "layers"),
    "a softmax less": (BERT, gone("BertLayer_3.BertAttention_3"), "layers"),
    "6 %: one of 19 blocks less": (GINDA, gone("blocks.18"), "calls"),
    "half of the blocks": (GINDA, gone(*(f"blocks.1{number}" for number in range(10))), "calls"),
    "1 %: no last product": (ZX, gone("final matmul"), "layers"),
    "3 %: no initialization": (JSUN, gone("Initialize Model"), "layers"),
    "8 %: no warm-up": (ALEXNET, gone("warmup|forward"), "layers"),
    "no collectives": (DDP, gone("nccl:all_reduce"), "layers"),
    "an encoder layer less": (RECORDED, gone("encoder.5"), "layers"),
    "a normalization less": (RECORDED, gone("encoder.3.norm"), "layers"),
    "another name": (RECORDED, texts(("^head ", "lm_head ")), "layers"),
    "another dtype beside shared scalars": (MI300, calls((r"\]bf16", "]f32")), "dtypes"),
    "half the batch": (MI300, calls((r"\[512,", "[256,")), "shapes"),
    "half precision": (BERT, calls((r"\]bf16", "]f16")), "dtypes"),
    "twice the tokens": (BERT, calls(("141", "282")), "shapes"),
    "another dtype of a chat": (QWEN, calls((r"\]bf16", "]f16")), "dtypes"),
    "a longer prompt": (QWEN, calls(("559", "1118")), "shapes"),
    "another dtype of a recording": (RECORDED, texts((r"\]f32", "]bf16")), "dtypes"),
    "another batch of a recording": (RECORDED, texts((r"\[4,", "[8,")), "shapes"),
    "another vocabulary": (RECORDED, texts(("num=32000", "num=50000")), "parameters"),
    "autocast": (RECORDED, texts((r"^(Forward .*) \|fwd$", "$1 autocast=bfloat16 |fwd")), "dtypes"),
    "two micro-batches": (RECORDED, lambda profile: twice(profile, "^head .*fwd$"), "calls"),
    "attention runs twice": (ZX, lambda profile: twice(profile, "computing softmax"), "layers"),
    "another GPU": (ZX, meta(devices=[{"cuDevice": 0, "name": "NVIDIA H100"}]), "device"),
    "one of two GPUs": (GINDA, one_device, "device"),
    "another CPU": (RECORDED, meta(cpu="Intel Xeon"), "device"),
    "another profiler": (LINEAR, meta(producer="NVIDIA Nsight Systems 2026.1"), "profiler"),
    "other ranks": (RECSYS, meta(world_size=8), "ranks"),
    "no GPU": (BERT, no_work, "time"),
    "no steps": (LINEAR, without_ranges, "steps"),
}

# Two profiles, what is changed in both, and the kind of a reason.
OF_TWO: Final[dict[str, tuple[str, Edit, str, Edit, str]]] = {
    "models without ranges": (JSUN, bare(devices=[]), ZX, bare(devices=[]), "kernels"),
    "another model without ranges": (JSUN, bare(devices=[]), ATHRUN, bare(devices=[]), "kernels"),
    "57 times faster": (JSUN, bare(), JSUN, bare(lambda profile: slower(profile, 57)), "kernels"),
    "half as many kernels": (ZX, bare(), ZX, bare(lost(PLACE > 0.5, launches=True)), "kernels"),
    "a large model and a small one": (
        ATHRUN,
        bare(),
        ATHRUN,
        bare(lambda profile: slower(without_work(profile, scattered(0.5), launches=True), 3)),
        "kernels",
    ),
}


def checked(a: Digest, b: Digest, kind: str) -> None:
    for one, other in ((a, b), (b, a)):
        result = comparability([one], [other])
        assert kind in {reason.kind for reason in result.reasons}, result
        assert all(len(reason.text) > 20 for reason in result.reasons)


@pytest.mark.parametrize("pair", MISMATCHED)
def test_mismatched_pairs_name_their_reason(pair: str) -> None:
    name, edit, kind = MISMATCHED[pair]
    checked(digest(attributed(name)), digest(attribute(edit(real(name)))), kind)


@pytest.mark.parametrize("pair", OF_TWO)
def test_other_models_name_their_reason(pair: str) -> None:
    first, edit_first, second, edit_second, kind = OF_TWO[pair]
    checked(*(digest(attribute(edit(real(name)))) for name, edit in ((first, edit_first), (second, edit_second))), kind)


def test_enough_pairs() -> None:
    assert len(MISMATCHED) + len(OF_TWO) >= 40
    assert len(NOISY) + len(PARTS) + len(NEUTRAL) >= 40


NOISY: Final = (
    LINEAR, V100, MI300, DDP, RECSYS, BERT, QWEN, ALEXNET, SGLANG,
    ZX, GRAPH, JSUN, ATHRUN, GINDA, TINY, PIPIT, RECORDED,
)  # fmt: skip

PARTS: Final = (
    (LINEAR, slice(0, 20), slice(20, 40)),
    (LINEAR, slice(0, 5), slice(30, 40)),
    (LINEAR, slice(7, 8), slice(23, 24)),
    (LINEAR, slice(1, 2), slice(2, 40)),
    (V100, slice(0, 3), slice(3, 6)),
    (V100, slice(0, 1), slice(5, 6)),
    (MI300, slice(0, 2), slice(2, 5)),
    (MI300, slice(1, 2), slice(4, 5)),
    (DDP, slice(0, 1), slice(1, 3)),
    (RECSYS, slice(0, 2), slice(2, 5)),
    (RECSYS, slice(1, 2), slice(3, 4)),
    (RECORDED, slice(0, 4), slice(4, 8)),
    (RECORDED, slice(2, 3), slice(6, 7)),
)


def other_process(profile: Profile) -> Profile:
    tables = {}
    for name in ("ranges", "marks", "launches", "kernels", "copies"):
        table = getattr(profile, name)
        numbers = [column for column in ("process", "thread", "end_thread") if column in table.columns]
        tables[name] = table.with_columns(pl.col(numbers) + 77_000)
    return Profile.build(profile.meta, **tables)


def validated(profile: Profile) -> Profile:
    """A validation in the last step, with a batch of its own."""
    forwards = profile.ranges.filter(pl.col("text").str.ends_with("|fwd"))
    last = forwards.filter(pl.col("start") >= forwards["start"].sort()[int(0.9 * forwards.height)]).tail(20)
    rows = last.with_columns(
        id=pl.col("id") + profile.ranges["id"].max() + 1,
        start=pl.col("start") + (pl.col("end") - pl.col("start")) // 4,
        end=pl.col("end") - (pl.col("end") - pl.col("start")) // 4,
        text=pl.lit("metrics.") + pl.col("text").str.replace(r"\[4,", "[16,"),
    )
    return Profile.build(profile.meta, ranges=pl.concat([profile.ranges, rows]), marks=profile.marks)


def last_batch(profile: Profile) -> Profile:
    """The last step has a smaller batch."""
    start = profile.ranges.filter(pl.col("text").str.starts_with("Batch "))["start"].max()
    text = pl.when(pl.col("start") > start).then(pl.col("text").str.replace_all(r"\[4,", "[3,")).otherwise("text")
    return Profile.build(profile.meta, ranges=profile.ranges.with_columns(text.alias("text")), marks=profile.marks)


NEUTRAL: Final[dict[str, tuple[str, Edit]]] = {
    "another process": (ZX, other_process),
    "another process with steps": (LINEAR, other_process),
    "a version of the profiler": (ZX, meta(producer="NVIDIA Nsight Systems 2026.3.1.12")),
    "a version of the driver": (BERT, meta(software={"CUDA driver": "13.2"})),
    "a version of PyTorch": (RECORDED, meta(software={"PyTorch": "2.14.0"})),
    "other kernels of a library": (MI300, lambda profile: with_kernels(profile, ("Cijk_", "Other_"))),
    "other kernels of cuDNN": (V100, lambda profile: with_kernels(profile, ("volta", "ampere"))),
    "other kernels of an optimizer": (LINEAR, lambda profile: with_kernels(profile, ("sgemm", "cutlass"))),
    "a slow layer": (MI300, lambda profile: slower(profile, 1.5)),
    "a slow model": (BERT, lambda profile: slower(profile, 3)),
    "a slow GPU without layers": (ATHRUN, lambda profile: slower(profile, 1.6)),
    "numbers of other steps": (JSUN, texts((r"Warm-up Step (\d)", "Warm-up Step 7$1"))),
    "a validation in the last step": (RECORDED, validated),
    "a smaller last batch": (RECORDED, last_batch),
    "numbers of kernels that depend on the data": (JSUN, lost(scattered(0.05), launches=True)),
    "few lost kernels": (LINEAR, lost(PLACE.is_between(0.5, 0.5005))),
}


def compared(a: Digest, b: Digest) -> list[Comparability]:
    return [comparability([one], [other]) for one, other in ((a, b), (b, a))]


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_no_reason(name: str) -> None:
    noisy = attribute(slower(real(name), 1.1, noise=0.05))
    for result in compared(digest(attributed(name)), digest(noisy)):
        assert result.comparable, result.reasons


@pytest.mark.parametrize(("name", "first", "second"), PARTS)
def test_steps_of_a_run_are_comparable_with_others(name: str, first: slice, second: slice) -> None:
    for result in compared(*(digest(of_steps(name, steps)) for steps in (first, second))):
        assert result.comparable, result.reasons


@pytest.mark.parametrize("pair", NEUTRAL)
def test_what_a_comparison_is_about_is_no_reason(pair: str) -> None:
    name, edit = NEUTRAL[pair]
    for result in compared(digest(attributed(name)), digest(attribute(edit(real(name))))):
        assert result.comparable, result.reasons
