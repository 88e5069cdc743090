"""Two profiles side by side, and the command `annot compare`."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comparisons import compare, regressions
from shared_data import shared
from sqlite_profile import SqliteProfile, training
from tables import Rows

from annot.analyze.comparison.compare import Comparison
from annot.analyze.comparison.gate import decide
from annot.analyze.comparison.runs import SUBJECTS
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.layer_tables import by_layer
from annot.cli.main import main
from annot.profile import Profile
from annot.read.formats import load

US = 1000


def _run(
    conv: list[int],
    *,
    linear: int = 100,
    module: str = "Conv2d",
    kernel: str = "implicit_convolve_sgemm",
    more: str = "",
) -> Profile:
    """Steps with a convolution, which takes as long as the list says, and a linear layer."""
    rows = Rows()
    for step, length in enumerate(conv):
        zero = 10_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 9000).range("net Net [8,8]f32 |fwd", zero + 10, zero + 900)
        rows.range(f"net.conv {module} [8,8]f32 |fwd", zero + 20, zero + 200)
        rows.range("net.fc Linear [8,8]f32 |fwd", zero + 300, zero + 400)
        rows.kernel(zero + 30, (zero + 1000, zero + 1000 + length), name=kernel)
        rows.kernel(zero + 310, (zero + 5000, zero + 5000 + linear), name="sgemm_128x64")
        if more:
            rows.range(f"net.{more} ReLU [8,8]f32 |fwd", zero + 500, zero + 600)
            rows.kernel(zero + 510, (zero + 6000, zero + 6010), name="relu")
    return rows.build()


def _compared(a: Profile, b: Profile, **options: Any) -> dict[str, dict[str, Any]]:
    rows = compare(attribute(a), attribute(b), **options).rows
    return {
        "/".join(row[name] for name in ("layer", "module", "phase", "kind", "name") if name in row): row
        for row in rows.to_dicts()
    }


def test_speed_up_per_step_without_warm_up() -> None:
    """Means are over the steps of each, the warm-up left out, whatever their number."""
    rows = _compared(_run([200, 220, 180]), _run([100, 100, 100, 100]))
    conv = rows["net.conv/Conv2d/forward"]
    assert (conv["a_ns"], conv["b_ns"], conv["difference_ns"]) == (200.0, 100.0, -100.0)
    assert conv["speedup"] == pytest.approx(2)
    assert rows["net/Net/forward"]["speedup"] == pytest.approx(300 / 200)
    assert conv["share"] == pytest.approx(200 / 300)
    assert rows["net.fc/Linear/forward"]["speedup"] == 1.0


def test_warm_up_does_not_count() -> None:
    """A first step that takes much longer is no evidence, for neither side."""
    profile = _run([900, 100, 100, 100])
    ends = pl.when(pl.col("text") == "Batch 0 |step").then(pl.col("start") + 1000).otherwise("end")
    ranges = profile.ranges.with_columns(ends.alias("end"))
    others = pl.when(pl.col("text").str.contains("^Batch [123]")).then(pl.col("start") + 600).otherwise("end")
    ranges = ranges.with_columns(others.alias("end"))
    warm = Profile.build(profile.meta, ranges=ranges, launches=profile.launches, kernels=profile.kernels)
    comparison = compare(attribute(warm), attribute(_run([100, 100])))
    assert comparison.steps == (3, 2)
    assert comparison.rows.filter(pl.col("layer") == "net.conv")["a_ns"].to_list() == [100.0]


def test_the_interval_is_that_of_blocks_of_steps() -> None:
    """Of few steps it is the t interval of the logarithms, of many that of the Mann–Whitney test."""
    a, b = [200, 220, 180], [100, 110, 90]
    conv = _compared(_run(a), _run(b))["net.conv/Conv2d/forward"]
    logarithms = [[math.log(time) for time in times] for times in (a, b)]
    error = (sum(statistics.variance(times) for times in logarithms) / 3) ** 0.5
    assert conv["speedup"] == pytest.approx(2)
    assert conv["speedup_high"] == pytest.approx(2 * math.exp(4.604 * error), rel=1e-3)  # t of 4 degrees, 99 %
    assert conv["speedup_low"] == pytest.approx(2 / math.exp(4.604 * error), rel=1e-3)
    many = compare(attribute(_run([200, 220, 180, 210, 190])), attribute(_run([100, 110, 90, 105, 95])))
    assert many.level == pytest.approx(2 / 252)
    row = many.rows.row(by_predicate=pl.col("layer") == "net.conv", named=True)
    assert (row["speedup_low"], row["speedup_high"]) == (pytest.approx(180 / 110), pytest.approx(220 / 90))
    once = _compared(_run([200]), _run([100]))["net.conv/Conv2d/forward"]
    assert (once["speedup_low"], once["speedup_high"]) == (None, None)


def test_what_is_in_one_only() -> None:
    """A layer that one profile lacks has no speedup, and says where it is; all losses come first."""
    comparison = compare(attribute(_run([100, 100])), attribute(_run([150, 150], more="act")))
    rows = comparison.rows.to_dicts()
    alone = next(row for row in rows if row["layer"] == "net.act")
    assert (alone["a_ns"], alone["b_ns"], alone["only_in"], alone["speedup"]) == (None, 10.0, "b", None)
    losses = comparison.rows["difference_ns"].to_list()
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == 60.0


def test_kernels_that_changed() -> None:
    """A layer says which of its own kernels are gone and new; its container does not repeat it."""
    rows = _compared(_run([100, 100]), _run([90, 90], kernel="winograd_3x3"))
    conv = rows["net.conv/Conv2d/forward"]
    assert (conv["kernels_gone"], conv["kernels_new"]) == (["implicit_convolve_sgemm"], ["winograd_3x3"])
    assert rows["net/Net/forward"]["kernels_new"] == rows["net.fc/Linear/forward"]["kernels_new"] == []


def test_a_class_that_was_replaced_is_the_same_layer() -> None:
    """A layer whose class has another name in the other version is compared all the same."""
    rows = _compared(_run([100, 100]), _run([50, 50], module="FastConv2d", kernel="fast"))
    conv = rows["net.conv/Conv2d → FastConv2d/forward"]
    assert conv["speedup"] == pytest.approx(2)
    assert (conv["kernels_gone"], conv["kernels_new"]) == (["implicit_convolve_sgemm"], ["fast"])


@pytest.mark.parametrize("by", SUBJECTS)
def test_every_subject_adds_up(by: Any) -> None:
    """Classes and kernels, and phases, add up to the whole; so do layers of a level."""
    comparison = compare(attribute(_run([200, 100])), attribute(_run([100, 100])), by=by)
    assert (comparison.whole["a_ns"], comparison.whole["b_ns"]) == (250.0, 200.0)
    total = comparison.rows["a_ns"].sum()
    assert total == {"layer": 250 + 250 + 250, "module": 250 + 250}.get(by, 250)


def test_classes_of_kernels() -> None:
    """By class, kernels of other names are comparable."""
    rows = _compared(_run([100, 100]), _run([50, 50], kernel="cudnn_winograd_conv"), by="kind")
    assert rows["convolution"]["speedup"] == pytest.approx(2)
    assert rows["gemm"]["speedup"] == 1.0


def test_means_are_those_of_the_layer_table(tmp_path: Path) -> None:
    """Without steps the numbers are those of `by_layer`, of a whole profile."""
    profile = SqliteProfile()
    profile.layer("fc Linear [8,8]f32 |fwd", 0, 90 * US)
    profile.call(10 * US, 11 * US, 1)
    profile.kernel(20 * US, 70 * US, 1)
    attribution = attribute(load(profile.write(tmp_path / "run.sqlite")))
    comparison = compare(attribution, attribution)
    assert comparison.steps is None
    assert comparison.rows.select("layer", "a_ns").rows() == [("fc", 50.0 * US)]
    assert by_layer(attribution)["gpu_ns"].to_list() == [50 * US]


def test_host_times_without_device_work(tmp_path: Path) -> None:
    """Runs on a CPU are compared by the time of their ranges."""
    attribution: Attribution = attribute(load(training(device=False).write(tmp_path / "run.sqlite")))
    comparison = compare(attribution, attribution)
    assert comparison.time == "host_ns"
    row = comparison.rows.row(
        by_predicate=(pl.col("layer") == "features.0") & (pl.col("phase") == "backward"), named=True
    )
    assert (row["a_ns"], row["speedup"], row["speedup_low"]) == (520.0 * US, 1.0, 1.0)
    with pytest.raises(ValueError, match="cannot be compared by kernel"):
        compare(attribution, attribution, by="kernel")


def _status(comparison: Comparison, above: float, **options: Any) -> str:
    return decide(comparison, above=above, force=True, **options).status


def test_regressions_must_be_sure_and_matter() -> None:
    """Noise is no regression, nor is what takes no time; one step is no evidence."""
    noisy = compare(attribute(_run([100, 300, 100, 300])), attribute(_run([120, 330, 120, 330])))
    assert regressions(noisy, 1.05).is_empty()
    slower = compare(attribute(_run([200, 201, 199])), attribute(_run([220, 221, 219])))
    assert set(regressions(slower, 1.05)["layer"]) == {"net.conv"}
    assert regressions(slower, 1.2).is_empty()
    assert _status(slower, 1.2) == "same"
    assert _status(slower, 1.05, least_share=0.8) == "undecided"  # only net, which stands out from nothing
    assert _status(compare(attribute(_run([100])), attribute(_run([120]))), 1.05) == "undecided"
    assert _status(compare(attribute(_run([100])), attribute(_run([104]))), 1.05) == "same"
    for above, level in ((0, 0.01), (1.05, 0), (1.05, 1)):
        with pytest.raises(ValueError, match="must be "):
            decide(slower, above=above, level=level)


@pytest.fixture
def profiles(tmp_path: Path) -> tuple[Path, Path]:
    """A profile, and one whose convolutions take twice as long."""
    slow = training(device=True)
    for row in slow.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if row["demangledName"] == slow.strings["conv_fwd"]:
            row["end"] += 900 * US
    return training(device=True).write(tmp_path / "a.sqlite"), slow.write(tmp_path / "b.sqlite")


def test_command_prints_regressions_first(profiles: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The table has what became slower on top, and below it the totals; the status is 0 without a threshold."""
    assert main(["compare", *map(str, profiles), "--all"]) == 0
    lines = [line.removeprefix("> ") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "GPU time per step by layer, ms"
    first = next(line for line in lines if line.split()[:3] == ["features.0", "Conv2d", "forward"])
    assert first.split()[3:7] == ["0.900", "1.800", "0.900", "0.500"]
    assert lines.index(first) < next(
        place for place, line in enumerate(lines) if line.split()[:3] == ["features.0", "Conv2d", "backward"]
    )
    assert lines[-1] == "Total: 3.480 ms → 4.380 ms, speedup 0.795 ± 0.000 (2 and 2 steps)"


def _idle(longer: int) -> Profile:
    """Steps of 9 µs and more with the same device work."""
    rows = Rows()
    for step in range(6):
        zero = 100_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 9000 + 10 * step + longer)
        rows.range("net Net [8,8]f32 |fwd", zero + 10, zero + 900)
        rows.kernel(zero + 30, (zero + 1000, zero + 3000), name="sgemm_128x64")
    return rows.build()


def test_steps_in_which_devices_idle_longer_are_slower() -> None:
    """Each row takes as long as before, and a step takes twice as long."""
    same, slower = (compare(attribute(_idle(0)), attribute(_idle(longer))) for longer in (0, 9000))
    assert same.whole == slower.whole
    assert slower.step_time is not None
    assert slower.step_time["speedup"] == pytest.approx(0.5, abs=0.01)
    assert [_status(same, 1.05), _status(slower, 1.05), _status(slower, 2.1)] == ["same", "undecided", "same"]
    assert regressions(slower, 1.05).is_empty()


@pytest.mark.parametrize("steps", ["100:200", "2:2"])
def test_steps_that_are_not_there(profiles: tuple[Path, Path], capsys: pytest.CaptureFixture[str], steps: str) -> None:
    """One line says so, as that of `annot report`."""
    assert main(["compare", *map(str, profiles), "--steps", steps]) == 1
    assert "has no such steps, only 0 to" in capsys.readouterr().err


def test_profiles_without_times(capsys: pytest.CaptureFixture[str]) -> None:
    """Counters of Nsight Compute without any duration are no run."""
    path = str(shared("ncu/leleucas_bert_attention_torch_a100.csv"))
    assert main(["compare", path, path]) == 1
    assert "neither profile contains times" in capsys.readouterr().err


def test_narrow_terminals_tell_layers_and_phases_apart(
    profiles: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 60 columns names and phases are whole, and what is compared is the difference and the speedup."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", *map(str, profiles), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["features.0", "Conv2d", "fwd", "0.900", "0.500", "0.000"] in [
        line.removeprefix("> ").split()[:6] for line in lines
    ]
    assert not any("…" in line for line in lines[:8])


def test_threshold_is_the_exit_status(profiles: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """3 if something became slower than allowed, said on standard error; 0 if not, or the other way round."""
    a, b = map(str, profiles)
    assert main(["compare", a, b, "--fail-above", "1.05", "--format", "json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["meta"]["whole"]["speedup"] == pytest.approx(3.48 / 4.38)
    assert "features.0 forward takes 2.000 times as long in B" in captured.err
    assert "one run of each side" in captured.err
    assert main(["compare", a, b, "--fail-above", "2.5"]) == 0
    assert main(["compare", b, a, "--fail-above", "1.05"]) == 0
    assert main(["compare", a, a, "--fail-above", "1.05"]) == 0


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_formats(profiles: tuple[Path, Path], tmp_path: Path, form: str) -> None:
    """All formats go to a file, which is not replaced without --force."""
    out = tmp_path / "out"
    words = ["compare", *map(str, profiles), "--format", form, "-o", str(out)]
    assert main(words) == 0
    assert out.stat().st_size > 100
    assert main(words) == 1
    assert main([*words, "--force"]) == 0


@pytest.mark.parametrize(
    "words", [["--fail-above", "0"], ["--fail-above", "much"], ["--format", "parquet"], ["--by", "x"]]
)
def test_wrong_usage(profiles: tuple[Path, Path], words: list[str]) -> None:
    """Nonsense is wrong usage, not a comparison."""
    assert main(["compare", *map(str, profiles), *words]) == 2


def test_what_cannot_be_compared(
    profiles: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is none, and kernels of a run without any, are one sentence."""
    assert main(["compare", str(profiles[0]), str(tmp_path / "none")]) == 1
    host = training(device=False).write(tmp_path / "host.sqlite")
    assert main(["compare", str(host), str(host), "--by", "kernel"]) == 1
    assert capsys.readouterr().err.endswith("error: profiles without GPU activities cannot be compared by kernel\n")


def _blocks(length: int, number: int = 20) -> Profile:
    """Three steps with blocks that take as long as their place and a length, and a head."""
    rows = Rows()
    for step in range(3):
        zero = 100_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 90_000)
        for place in range(number):
            start = zero + 1000 * place + 10
            rows.range(f"layers.{place} Block |fwd", start, start + 900)
            rows.range(f"layers.{place}.fc Linear |fwd", start + 10, start + 500)
            rows.kernel(start + 20, (start + 30, start + 30 + length + place + step), name=f"gemm_{length}")
        rows.range("head Linear |fwd", zero + 50_000, zero + 50_900)
        rows.kernel(zero + 50_010, (zero + 50_100, zero + 50_200), name="gemv")
    return rows.build()


def test_repeated_layers_are_one_row() -> None:
    """Its times are the sums of both sides, with their own uncertainty; kernels are those of all blocks."""
    a, b = attribute(_blocks(100)), attribute(_blocks(200, 15))
    layers = [by_layer(side).filter(pl.col("layer").str.starts_with("layers.")) for side in (a, b)]
    of_a, of_b = (
        {(layer, module): re.sub(r"\d+", "*", layer) for layer, module in side.select("layer", "module").iter_rows()}
        for side in layers
    )
    comparison = compare(a, b, folds=(of_a, of_b))
    assert comparison.rows.equals(compare(a, b).rows)
    assert comparison.folded is not None
    found = {row["layer"]: row for row in comparison.folded.to_dicts()}
    assert {path: row["folded"] for path, row in found.items() if path.startswith(("layers", "head"))} == {
        "layers.*": 20, "layers.*.fc": 20, "head": None,
    }  # fmt: skip
    for path in ("layers.*", "layers.*.fc"):
        rows = comparison.rows.filter(pl.col("layer").str.replace(r"\d+", "*") == path)
        row = found[path]
        assert (row["a_ns"], row["b_ns"]) == (rows["a_ns"].sum(), rows["b_ns"].sum())
        assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    assert (found["layers.*.fc"]["kernels_gone"], found["layers.*.fc"]["kernels_new"]) == (["gemm_100"], ["gemm_200"])


def test_options_of_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folds in the terminal, all rows in files; `--expand`, `--top` and `--min-share` as in `annot report`."""
    paths = [str(training(device=True).write(tmp_path / f"{name}.sqlite")) for name in "ab"]

    def printed(*options: str) -> list[str]:
        assert main(["compare", *paths, *options]) == 0
        return capsys.readouterr().out.splitlines()

    every = json.loads("".join(printed("--format", "json")))["layers"]
    top = json.loads("".join(printed("--format", "json", "--top", "2")))["layers"]
    assert top == [row for row in every if row in top]
    assert len(top) == 2
    least = json.loads("".join(printed("--format", "json", "--min-share", "30%")))["layers"]
    assert least == [row for row in every if row["share"] >= 0.3]
    assert 0 < len(least) < len(every)
    for options, message in (
        (["--top", "0"], "must be a whole number, 1 or more, got '0'"),
        (["--expand", "--by", "kernel"], "--expand cannot be combined with --by kernel"),
        (["--expand", "--format", "csv"], "files have a row for each layer"),
        (["--top", "3", "--format", "html", "-o", "x.html"], "--top cannot be combined with --format html"),
        (["--expand", "nowhere"], "expand must be the path of a layer, got 'nowhere'"),
    ):
        assert main(["compare", *paths, *options]) != 0
        assert message in capsys.readouterr().err
