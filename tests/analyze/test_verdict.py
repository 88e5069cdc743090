"""The verdict: its numbers are those of the summary and the advice, and it claims what the profile shows."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from operator_traces import OperatorTrace
from shared_data import shared, unpacked
from sqlite_profile import training
from tables import ENGINE, MAIN, Rows

from annot.analyze.advice import Facts, by_advice
from annot.analyze.cpu_parts import GPU_PARTS
from annot.analyze.run_summary import by_summary
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.profile import Profile
from annot.read.formats import load
from annot.runs.run import Run

US = 1000
REAL = (
    "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz",
    "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz", "kineto/hta_alexnet_a100_train.json.gz",
    "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto/tracelens_h100_bert_small_nnmodule.json.gz",
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", "kineto/hta_cpu_only.json.gz",
    "kineto/graph_pairs/sglang_decode/execution.json.gz", "kineto/graph_pairs/vllm_decode_full/execution.json.gz",
    "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz", "xplane/tf_bert_gpu8_multi_worker.xplane.pb",
)  # fmt: skip
_NS = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}


def _of(profile: Profile) -> str:
    return verdict(Facts(attribute(profile)))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL, ids=lambda name: Path(name).name.partition(".")[0])
def test_numbers_are_those_of_the_summary(name: str, tmp_path: Path) -> None:
    """The time is that of the mean step or of the run, each percentage a share of the step time."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    attribution = attribute(load(path))
    facts, summary = Facts(attribution), by_summary(attribution)
    text = verdict(facts)
    remark = r"(?: without warm-up| \(mean; median [\d.,]+ \w+\))?"
    found = re.fullmatch(rf"(Run|\w* ?[sS]tep) ([\d.,]+) (s|ms|µs|ns){remark} on [^:]+(?:: .+)?\.", text)
    assert found, text
    item = {(section, item): (count, ns) for section, item, count, ns in summary.select(summary.columns[:4]).rows()}
    count, wall = item["time", "wall"]
    expected = wall / count if found[1] == "Run" else item["steps", "mean"][1]
    assert float(found[2].replace(",", "")) * _NS[found[3]] == pytest.approx(expected, rel=0.006)
    busy = facts.work["wall_ns"].sum() / facts.wall_ns  # without overlaps, from single activities
    known = {busy, 1 - busy} if facts.on_device else set()
    known |= set(summary.filter(pl.col("section").is_in(["time", "parts"]))["share"].drop_nulls())
    meta = summarize(attribution)
    known |= {meta["unattributed_gpu_ns"] / meta["gpu_ns"]} if meta["gpu_ns"] else set()
    block = pl.col("layer").map_elements(lambda layer: re.sub(r"\d+(?=[./])", "*", layer), pl.String).alias("block")
    work = facts.work.filter("kernel").with_columns(block)
    of_layer = (["kind", "tensor", name, "module"] for name in ("layer", "block"))
    for keys in (["kind", "tensor"], *of_layer, ["matrix", "tensor", "layer", "module"]):
        sums = work.group_by(keys).agg(pl.col("wall_ns").sum())["wall_ns"]
        known |= {ns / facts.wall_ns for ns in sums}
    evidence = " ".join(by_advice(attribution)["evidence"])
    said = {int(number) for number in re.findall(r"(\d+)% of (?:step time|the run)", evidence)} | {
        round(100 * share) for share in known
    }
    assert {int(number) for number in re.findall(r"(\d+)%", text)} <= said


def _steps(*, on_device: bool = True, kernel: str = "ampere_sgemm_128x64_tn") -> Rows:
    """Three steps of 100 µs, in each of which two layers launch kernels of 20 and 40 µs."""
    rows = Rows()
    for step in range(3):
        zero = step * 200 * US
        rows.range(f"Batch {step} |step", zero, zero + 100 * US)
        rows.range("fc1 Linear |fwd", zero + US, zero + 40 * US).range(
            "fc2 Linear |fwd", zero + 41 * US, zero + 99 * US
        )
        if on_device:
            rows.kernel(zero + 2 * US, (zero + 10 * US, zero + 30 * US), name=kernel)
            rows.kernel(zero + 42 * US, (zero + 50 * US, zero + 90 * US), name=kernel)
    return rows


def test_idle_time_and_matrix_multiplications() -> None:
    """60 of 100 µs are float32 matrix multiplications, 40 of them of one layer; the rest is idle before launches."""
    device = {"name": "NVIDIA GeForce RTX 3070 Ti", "computeMajor": 8, "computeMinor": 6}
    assert _of(_steps().build(devices=[device])) == (
        "Step 100 µs on RTX 3070 Ti: the GPU idles 40%, mostly waiting for launches (36%), and 60% goes to "
        "float32 matrix multiplications outside Tensor Cores, most of it in fc2 Linear (40%)."
    )


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("ampere_fp16_s16816gemm_fp16_128x64", "matrix multiplications on Tensor Cores"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise kernels"),
    ],
)
def test_work_without_a_known_problem_is_named_by_its_kind(kernel: str, words: str) -> None:
    """Kernels that use Tensor Cores are no reason for advice, and the layer is still named."""
    text = _of(_steps(kernel=kernel).build())
    assert text.endswith(f", and 60% goes to {words}, most of it in fc2 Linear (40%).")
    assert text.startswith("Step 100 µs on one GPU: ")


def test_unknown_kernels_are_no_claim() -> None:
    """A kernel whose name says nothing has no kind: the sentence ends with the idle time."""
    text = "Step 100 µs on one GPU: the GPU idles 40%, mostly waiting for launches (36%)."
    assert _of(_steps(kernel="k").build()) == text


def test_a_busy_device_and_several() -> None:
    """Without idle time the device is busy; two devices are counted, and so are their equal names."""
    rows = Rows().kernel(0, (0, 50 * US)).kernel(1, (0, 50 * US), device=1)
    assert _of(rows.build()) == "Run 50.0 µs on 2 GPUs: the GPUs are busy 100%."
    devices = [{"name": "NVIDIA H100"}] * 8
    assert _of(rows.build(devices=devices)).startswith("Run 50.0 µs on 2 × H100: ")


def test_waiting_for_data_is_the_cause() -> None:
    """The GPU is idle while a thread waits for data."""
    rows = Rows().range("Data |data", 10 * US, 90 * US).kernel(1, (0, 10 * US)).kernel(95 * US, (95 * US, 100 * US))
    assert "the GPU idles 85%, mostly waiting for data (80%)" in _of(rows.build())


def test_a_profile_on_the_cpu() -> None:
    """Without GPU activity the device is the CPU, and the long wait for data is a part of the step."""
    rows = Rows()
    for step in range(3):
        zero = step * 100 * US
        rows.range("Data |data", zero, zero + 40 * US).range(f"Batch {step} |step", zero + 40 * US, zero + 100 * US)
        rows.range("fc Linear |fwd", zero + 41 * US, zero + 99 * US)
    assert re.fullmatch(r"Step 100 µs on CPU: .+ and 40% waiting for data\.", _of(rows.build()))


def test_uneven_steps_have_their_mean() -> None:
    """Shares are those of the mean, so its time comes first where a long step makes it much longer than the median."""
    rows, start = Rows(), 0
    for step, length in enumerate((100, 100, 700, 100)):
        rows.range(f"Batch {step} |step", start, start + length * US).range("fc Linear |fwd", start, start + 50 * US)
        start += length * US
    text = _of(rows.build())
    assert text.startswith("Step 250 µs (mean; median 100 µs) on CPU: 80% outside ranges, and 20% in fc ")


def test_layers_of_blocks_count_together() -> None:
    """Layers that differ in the index of their block are named once; the time outside layers is no layer."""
    rows = Rows()
    for step in range(3):
        zero = step * 1000 * US
        rows.range(f"Batch {step} |step", zero, zero + 900 * US).range(
            "Backward |bwd", zero + 300 * US, zero + 800 * US
        )
        rows.range("head Linear |fwd", zero + 200 * US, zero + 260 * US)
        for block in range(5):
            rows.range(f"net.0.h.{block}.fc.0 Linear |fwd", zero + 10 * US * block, zero + 10 * US * (block + 1))
            at = zero + (300 + 40 * block) * US
            rows.range(f"net.0.h.{block}.fc.0 Linear |bwd", at, at + 40 * US)
    text = _of(rows.build())
    assert text == ("Step 900 µs on CPU: 56% backward, and 28% in net.0.h.*.fc.0 Linear (forward and backward).")


@pytest.mark.parametrize(("phases", "words"), [(("fwd",), "forward"), (("fwd", "bwd"), "forward and backward")])
def test_the_phases_of_a_layer_are_those_that_it_has(phases: tuple[str, ...], words: str) -> None:
    """A fused kernel of the forward pass has no backward, whatever other layers have."""
    rows = Rows().range("head Linear |bwd", 2000, 2010)
    for place, phase in enumerate(phases):
        rows.range(f"a+b Linear |{phase}", 1000 * place, 1000 * place + 900)
    assert f" in a+b Linear ({words})" in _of(rows.build())


@pytest.mark.parametrize("length", [64, 65, 240])
def test_long_names_are_shortened_in_the_middle(length: int) -> None:
    """A name of 64 characters is whole; of a longer one the verdict has the beginning and the end."""
    path = "call." + "f4ii27ddivzk" * 20
    name = f"{path[: length - 7]} Linear"
    text = _of(Rows().range(f"{name} |fwd", 0, 1000).build())
    shown = name if length == 64 else f"{name[:31]}…{name[-32:]}"
    assert f"and 100% in {shown} (forward)" in text


def test_profiles_without_times() -> None:
    """Durations of kernels without clock times have a sum; nothing at all has no sentence."""
    assert _of(Profile.build({})) == ""
    rows = Rows().range("fc Linear |fwd", 0, 9, MAIN).kernel(1, (2, 8), name="volta_h884gemm_128x64")
    assert "on Tensor Cores" in _of(rows.build(host_times=False))
    counted = load(Path(__file__).parents[1] / "data" / "nvprof_alexnet_flops.csv")
    assert re.fullmatch(r"\d+ kernels on .*: the profile has no times\.", _of(counted))


def test_reports_begin_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal, the summary, JSON and notebooks have the sentence of the run; other views of files have none."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    path = str(training(device=True).write(tmp_path / "run.sqlite"))
    run = Run(path)
    assert run.verdict.startswith("Step 2.12 ms on one GPU: the GPU is busy 9")
    for options in ([], ["--by", "summary"], ["--by", "kernel"]):
        assert main(["report", path, *options]) == 0
        assert capsys.readouterr().out.splitlines()[0] == run.verdict
    assert run.view(brief=True).meta["verdict"] == run.verdict
    assert f"<strong>{run.verdict}</strong>" in run._repr_html_()
    assert "verdict" not in run.view("step").meta


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    """A layer's name in the sentence is text in HTML and in the terminal."""
    rows = Rows().range("<b>&\x1b[31m Linear |fwd", 0, 90 * US).kernel(1, (2, 80 * US), name="ampere_sgemm_128x64_tn")
    shown = Run(rows.build()).view(brief=True)
    assert "<b>" in shown.meta["verdict"]
    assert "<b>" not in shown._repr_html_()
    assert "\x1b" not in repr(shown)


def test_verdict_bar_and_advice_have_one_name_and_share_for_a_part(tmp_path: Path) -> None:
    """`launch` is all code between kernels less than 1 ms apart (7.5 %), not only the launch calls (2.7 %)."""
    run = Run(load(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path)))
    facts, name = Facts(run.attribution_with_calls), GPU_PARTS["launch"].name
    assert facts.shares["launch"] == facts.idle["launch"] == pytest.approx(0.075, abs=0.001)
    assert f"the GPUs idle 10%, mostly {name} (8%), and" in verdict(facts)
    assert run.view(brief=True).shares[name] == facts.shares["launch"]
    assert by_advice(facts.attribution, facts)["evidence"].str.contains("% of the run is spent").all()


def test_an_idle_gpu_does_not_let_the_cpu_wait() -> None:
    """A copy of 463 ms waits for kernels that were launched and do not start: no advice about copies follows."""
    facts = Facts(attribute(load(shared("kineto/graph_pairs/sglang_decode/execution.json.gz"))))
    words = "the GPU idles 98%, mostly unexplained (98%)."
    assert verdict(facts) == f"Decode step 466 ms on MI300X: {words}"
    assert by_advice(facts.attribution, facts).is_empty()


@pytest.mark.parametrize(("outside", "begins"), [(100, "the GPU"), (101, "50% of the GPU time lies outside any range")])
def test_most_gpu_time_outside_ranges_comes_first(outside: int, begins: str) -> None:
    """The sentence is then about the run, also if its ranges repeat."""
    rows = Rows()
    for step in range(5):
        rows.range("work", 100 * step, 100 * step + 90).kernel(100 * step + 5, (100 * step + 6, 100 * step + 26))
    profile = rows.kernel(495, (1000, 1000 + outside)).build()
    subject, _, said = _of(profile).partition(": ")
    assert subject.startswith("Run" if outside > 100 else "Step")
    assert said.startswith(begins)
    assert (by_summary(attribute(profile)).filter(section="steps", item="all")["count"].item() == 0) == (outside > 100)


def test_without_ranges_nothing_lies_outside_them() -> None:
    assert "outside any range" not in _of(Rows().kernel(5, (6, 26)).build())


def test_layers_on_threads_of_a_pool() -> None:
    """A layer on another thread has its time, not the model that is open on the thread that waits for it."""
    rows = Rows().range("model Sequential |fwd", 0, 1000 * US, MAIN)
    rows.range("model/conv Conv2D |fwd", 100 * US, 900 * US, ENGINE)
    assert _of(rows.build()) == "Run 1.00 ms on CPU: 100% forward, and 80% in model/conv Conv2D (forward)."


GEMM, ADD = "ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4>"


def _of_steps(*kernels: tuple[str, str, int]) -> str:
    """The sentence on three steps of 1,000 µs with these kernels: layer, name and length (µs)."""
    rows = Rows()
    for zero in (0, 1000 * US, 2000 * US):
        rows.range(f"Batch {zero // 1000 // US} |step", zero, zero + 1000 * US)
        at = zero
        for layer, name, length in kernels:
            rows.range(f"{layer} Linear |fwd", at, at + 10)
            rows.kernel(at + 1, (at + 2, at + length * US + 2), name=name)
            at += length * US
    return _of(rows.build())


def _on_cpu(*ranges: tuple[str, int]) -> str:
    """The sentence on three steps with these ranges one after another: text and length (µs)."""
    rows, at = Rows(), 0
    for step in range(3):
        begin = at
        for text, length in ranges:
            rows.range(text, at, at + length * US)
            at += length * US
        rows.range(f"Batch {step} |step", begin, at)
    return _of(rows.build())


def test_a_device_is_busy_with_less_than_5_percent_of_idle_time() -> None:
    assert "the GPU is busy 95%" in _of_steps(("a", "k", 951))
    assert "the GPU idles 5%" in _of_steps(("a", "k", 950))


def test_work_of_at_least_10_percent_is_named() -> None:
    """Float32 matrix multiplications come first, and then the longest kind."""
    assert "10% goes to elementwise kernels" in _of_steps(("a", ADD, 100))
    assert "goes to" not in _of_steps(("a", ADD, 99))
    assert "10% goes to float32 matrix multiplications" in _of_steps(("a", GEMM, 100), ("b", ADD, 200))
    assert "20% goes to elementwise kernels" in _of_steps(("a", GEMM, 99), ("b", ADD, 200))


def test_layers_of_at_least_5_percent_are_named() -> None:
    equal = [(layer, ADD, 50) for layer in ("first", "second", "third", "fourth")]
    assert "20% goes to elementwise kernels, the largest share in first Linear (5%)" in _of_steps(*equal)
    assert "elementwise kernels." in _of_steps(*((layer, name, length - 1) for layer, name, length in equal))


def test_parts_and_layers_on_the_cpu_are_named_from_10_and_5_percent_on() -> None:
    assert "10% waiting for data" in _on_cpu(("Data |data", 100), ("fc Linear |fwd", 900))
    assert "data" not in _on_cpu(("Data |data", 99), ("fc Linear |fwd", 901))
    assert "5% in fc Linear (forward)" in _on_cpu(("fc Linear |fwd", 50), ("Optimizer SGD |opt", 950))
    assert "fc Linear" not in _on_cpu(("fc Linear |fwd", 49), ("Optimizer SGD |opt", 951))


def test_a_layer_with_more_than_half_of_the_work_has_most_of_it() -> None:
    assert "the largest share in a Linear (10%)" in _of_steps(("a", ADD, 100), ("b", ADD, 100))
    assert "most of it in a Linear (10%)" in _of_steps(("a", ADD, 101), ("b", ADD, 99))


def test_a_cause_with_more_than_half_of_the_idle_time_is_named() -> None:
    """Half of the time the GPU is idle: before the kernel waiting for data, and after it for its launch."""

    def text(wait: int) -> str:
        rows = Rows()
        for zero in (0, 1000 * US, 2000 * US):
            rows.range(f"Batch {zero // 1000 // US} |step", zero, zero + 1000 * US)
            rows.range("Data |data", zero, zero + wait * US)
            rows.kernel(zero + wait * US, (zero + 500 * US, zero + 1000 * US))
        return _of(rows.build())

    assert text(250).endswith(": the GPU idles 50%.")
    assert "the GPU idles 50%, mostly waiting for data (25%)" in text(251)


def test_processes_on_a_cpu_are_counted_from_two_on() -> None:
    rows = Rows().range("fc Linear |fwd", 0, 90 * US, 100)
    assert _of(rows.build()).startswith("Run 90.0 µs on CPU")
    assert _of(rows.range("fc Linear |fwd", 0, 90 * US, 200).build()).startswith("Run 90.0 µs of 2 processes on CPU")


def _of_operators(folder: Path, *operators: tuple[str, str, int]) -> str:
    """The sentence on operators without layers: name, kernel and length (µs)."""
    trace = OperatorTrace()
    for place, (name, kernel, us) in enumerate(operators):
        trace.op(name, [8192 + 8 * place, 64], us=us, kernel=kernel, values=["", "[0]"])
    return verdict(Facts(trace.attribution(folder)))


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        # Of the run at least 10 %.
        ((("my::op", "k", 100), *[("my::other", "k", 90)] * 10), "10% goes to my::op"),
        ((("my::op", "k", 99), ("my::other", "k", 91), *[("my::other", "k", 90)] * 9), ""),
        # Of the longest kind of kernels at least half.
        ((("my::op", ADD, 150), ("my::a", ADD, 149), *[("my::c", "k", 100)] * 7), "15% goes to my::op"),
        ((("my::op", ADD, 150), ("my::a", ADD, 149), ("my::b", ADD, 3), *[("my::c", "k", 99)] * 7), "30% goes to ele"),
        # Without a cause 10 % of the run more than what a change could avoid, else as much.
        ((("my::op", "k", 200), ("my::a", GEMM, 100), *[("my::b", "k", 100)] * 7), "20% goes to my::op"),
        ((("my::op", "k", 199), ("my::a", GEMM, 100), ("my::b", "k", 101), *[("my::b", "k", 100)] * 6), "10% goes to"),
        ((("aten::sum", "k", 200), *[("my::a", GEMM, 100)] * 2, *[("my::b", "k", 150)] * 4), "20% goes to aten::sum"),
        ((("aten::sum", "k", 199), *[("my::a", GEMM, 100)] * 2, *[("my::b", "k", 150)] * 4), "20% goes to float32"),
    ],
)  # fmt: skip
def test_the_longest_operator_is_named_if_it_takes_more_than_a_kind(
    operators: tuple[tuple[str, str, int], ...], words: str, tmp_path: Path
) -> None:
    said = _of_operators(tmp_path, *operators)
    assert words in said
    assert ("goes to" in said) == bool(words)


def test_the_longest_operator_of_slow_kernels_is_named_with_its_share(tmp_path: Path) -> None:
    said = _of_operators(
        tmp_path, ("my::op", "k", 300), ("my::a", GEMM, 150), ("my::b", GEMM, 151), ("my::c", "k", 399)
    )
    assert (
        "30% goes to float32 matrix multiplications outside Tensor Cores, most of it in my::b [8208,64]bf16 (15%)."
        in said
    )


@pytest.mark.parametrize(("events", "words"), [({"NPU": 1}, "1 event"), ({"NPU": 1_500, "TPU": 1}, "1,501 events")])
def test_devices_that_are_not_supported_are_named(events: dict[str, int], words: str) -> None:
    profile = Rows().range("fc Linear |fwd", 0, 900 * US).build(other_devices=events)
    skipped = f"annot does not support this device and skipped its {words}, so its time is unknown"
    assert _of(profile) == f"Run 900 µs on {' and '.join(events)}: {skipped}."


def test_two_idle_devices_are_plural() -> None:
    rows = Rows().range("Data |data", 10 * US, 90 * US)
    for device in (0, 1):
        rows.kernel(1, (0, 10 * US), device=device).kernel(95 * US, (95 * US, 100 * US), device=device)
    assert _of(rows.build()) == (
        "Run 100 µs on 2 GPUs: 100% of the GPU time lies outside any range, and the GPUs idle 85%, mostly waiting for "
        "data (80%)."
    )


@pytest.mark.parametrize(("kernels", "words"), [(1, "1 kernel"), (2, "2 kernels"), (1_200, "1,200 kernels")])
def test_kernels_without_times_are_counted(kernels: int, words: str) -> None:
    rows = Rows()
    for place in range(kernels):
        rows.kernel(place, (0, 0))
    assert _of(rows.build(host_times=False)) == f"{words} on one GPU: the profile has no times."


def test_totals_do_not_show_whether_a_device_is_idle() -> None:
    profile = Rows().kernel(0, (0, 50 * US), name=ADD).kernel(60 * US, (60 * US, 100 * US), name=ADD)
    assert "idles 10%" in _of(profile.build())
    assert "idle" not in _of(profile.build(totals=True))


def test_long_waits_follow_the_longest_part() -> None:
    """Waits for data and for other processes of at least 10 % are named after the layer."""
    wait = ("Collective all_reduce |coll", 150)
    said = _on_cpu(("Data |data", 200), ("fc Linear |fwd", 500), wait, ("Optimizer SGD |opt", 150))
    assert said.endswith("on CPU: 50% forward, and 50% in fc Linear (forward), and 20% waiting for data, and 15% "
                         "exposed communication.")  # fmt: skip
    assert _on_cpu(("Data |data", 600), ("fc Linear |fwd", 400)).endswith(
        ": 60% waiting for data, and 40% in fc Linear (forward)."
    )


@pytest.mark.parametrize("folded", [True, False])
def test_layers_of_a_fold_count_together(folded: bool) -> None:
    rows = Rows()
    for place in range(3):
        rows.range(f"net.{place} Linear |fwd", 100 * place, 100 * place + 90)
    rows.range("head Linear |fwd", 300, 420)
    folds = {(f"net.{place}", "Linear"): "net.0-2" for place in range(3)}
    said = verdict(Facts(attribute(rows.build()), folds if folded else None))
    assert said.endswith("64% in net.0-2 Linear (forward)." if folded else "29% in head Linear (forward).")


def test_the_layer_of_the_work_is_a_fold() -> None:
    rows = Rows()
    for place, length in enumerate((30, 30, 40)):
        rows.range(f"net.{place} Linear |fwd", 100 * US * place, 100 * US * place + 90 * US)
        rows.kernel(100 * US * place, (100 * US * place + 1, 100 * US * place + length * US), name=ADD)
    attribution = attribute(rows.build())
    assert "the largest share in net.2 Linear" in verdict(Facts(attribution))
    assert "most of it in net.0-1 Linear" in verdict(
        Facts(attribution, {("net.0", "Linear"): "net.0-1", ("net.1", "Linear"): "net.0-1"})
    )
