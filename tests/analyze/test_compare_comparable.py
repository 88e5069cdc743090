"""Which pairs of runs can be compared: a gate in CI passes no pair of two different programs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import compare, regressions
from matrices import every_third
from shared_data import shared, unpacked
from tables import Rows

from annot import batches, emit_ranges, record
from annot.analyze.comparison.comparable import Comparability
from annot.analyze.comparison.comparable import comparability as comparability_of_runs
from annot.analyze.comparison.digest import digest
from annot.attribution.attribute import Attribution, attribute
from annot.cli.main import main
from annot.profile import Profile

REAL: dict[str, str] = {
    "zx": "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz",
    "zx_graph": "nsys/zx_lm_compile_graphtrace_no_nvtx.2024.6.sqlite.gz",
    "jsun": "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
    "athrun": "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz",
    "ginda": "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "tiny": "nsys/ginda_tiny_no_nvtx.2026.1.sqlite.gz",
    "pipit": "nsys/pipit_saxpy_mpi.2022.2.sqlite.gz",
    "bert": "kineto/tracelens_h100_bert_small_nnmodule.json.gz",
    "mi300": "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz",
    "sglang": "kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz",
    "ddp": "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    "recsys": "kineto/hta_recsys_a100_cudagraph.json.gz",
    "alexnet": "kineto/hta_alexnet_a100_train.json.gz",
    "cpu": "kineto/hta_cpu_only.json.gz",
    "v100": "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz",
}

# Two real profiles, and the kind of a reason that must be named.
PAIRS: tuple[tuple[str, str, str], ...] = (
    ("jsun", "tiny", "layers"), ("tiny", "jsun", "kernels"), ("jsun", "zx", "device"), ("zx", "zx_graph", "kernels"),
    ("zx", "athrun", "device"), ("athrun", "jsun", "layers"), ("athrun", "tiny", "layers"), ("ginda", "zx", "layers"),
    ("ginda", "tiny", "layers"), ("pipit", "zx", "device"), ("pipit", "zx_graph", "layers"),
    ("zx_graph", "tiny", "device"),
    ("bert", "mi300", "device"), ("mi300", "sglang", "layers"), ("sglang", "bert", "device"),
    ("ddp", "recsys", "layers"),
    ("ddp", "alexnet", "steps"), ("alexnet", "v100", "device"), ("v100", "ddp", "device"), ("cpu", "recsys", "time"),
    ("cpu", "ddp", "time"), ("mi300", "v100", "device"), ("bert", "zx", "profiler"), ("jsun", "ddp", "profiler"),
)  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a real profile by its short name."""
    folder = tmp_path_factory.mktemp("real")

    def path(name: str) -> Path:
        file = REAL[name]
        found = folder / Path(file).stem
        return found if found.exists() else unpacked(file, folder) if file.startswith("nsys") else shared(file)

    return path


def _train(path: Path, *, width: int = 64, batch: int = 32, steps: int = 4, cast: bool = False, **more: Any) -> Path:
    """Record the training of a small network on the CPU."""
    torch.manual_seed(0)
    dtype = more.get("dtype", torch.float32)
    layers = more.get("layers") or [torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)]
    model = torch.nn.Sequential(*layers).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(more.get("shape", (batch, width)), dtype=dtype)
    with record(path), emit_ranges(model):
        for _ in batches(range(steps)) if more.get("marked", True) else range(steps):
            with torch.autocast("cpu", enabled=cast):
                loss = model(inputs).sum()
            loss.backward()
            optimizer.step()
    return path


def _convolutions() -> list[torch.nn.Module]:
    return [torch.nn.Conv2d(3, 32, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32 * 15 * 15, 8)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Recorded runs: the same program twice, and others, each with something else."""
    folder = tmp_path_factory.mktemp("runs")
    options: dict[str, dict[str, Any]] = {
        "base": {}, "again": {}, "more steps": {"steps": 9}, "batch": {"batch": 512},
        "double": {"dtype": torch.float64}, "autocast": {"cast": True}, "once": {"marked": False, "steps": 1},
        "convolution": {"layers": _convolutions(), "shape": (16, 3, 32, 32)},
        "deeper": {"layers": [layer for _ in range(12) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]},
    }  # fmt: skip
    return {name: _train(folder / f"{name}.sqlite", **more) for name, more in options.items()}


RECORDED: tuple[tuple[str, str, str], ...] = (
    ("base", "batch", "shapes"), ("base", "double", "dtypes"), ("base", "autocast", "dtypes"),
    ("base", "once", "steps"), ("base", "convolution", "shapes"), ("convolution", "batch", "shapes"),
    ("autocast", "convolution", "dtypes"), ("base", "deeper", "layers"),
)  # fmt: skip


def comparability(a: Attribution, b: Attribution) -> Comparability:
    return comparability_of_runs([digest(a)], [digest(b)])


def _gate(a: Path, b: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    status = main(["compare", str(a), str(b), "--fail-above", "1.05", "--format", "json", *more])
    captured = capsys.readouterr()
    return status, json.loads(captured.out)["meta"], captured.err


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    every_third(PAIRS),
)
def test_unrelated_profiles_end_with_4(
    real: Callable[[str], Path], capsys: pytest.CaptureFixture[str], a: str, b: str, kind: str
) -> None:
    """No pair of two programs passes, and each says why."""
    status, meta, error = _gate(real(a), real(b), capsys)
    assert status == 4
    assert meta["comparable"] is False
    assert kind in {reason["kind"] for reason in meta["reasons"]}
    assert all(reason["reason"] in error for reason in meta["reasons"])


@pytest.mark.parametrize(("a", "b", "kind"), every_third(RECORDED))
def test_recorded_runs_that_differ_end_with_4(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], a: str, b: str, kind: str
) -> None:
    """Other inputs, types, steps or layers are another run, whatever its times."""
    status, meta, _ = _gate(runs[a], runs[b], capsys)
    assert status == 4
    assert kind in {reason["kind"] for reason in meta["reasons"]}


def test_there_are_thirty_pairs() -> None:
    """What the issue asks for."""
    assert len(set(PAIRS)) + len(set(RECORDED)) >= 30


@pytest.mark.parametrize("name", every_third(REAL))
def test_a_profile_can_be_compared_with_itself(real: Callable[[str], Path], name: str) -> None:
    """No real profile differs from itself."""
    assert main(["compare", str(real(name)), str(real(name)), "--fail-above", "1.05"]) == 0


def test_runs_of_one_program_can_be_compared(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of one program can be compared, also of different numbers of steps, which is said."""
    for other in ("again", "more steps"):
        status, meta, error = _gate(runs["base"], runs[other], capsys)
        assert (meta["comparable"], meta["reasons"]) == (True, [])
        assert status in (0, 3, 5)
        assert "cannot be compared" not in error
    assert any("numbers of steps" in note for note in meta["notes"])


def test_force_compares_all_the_same(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """With --force the status is that of what became slower; the reasons are said in the table still."""
    assert main(["compare", str(runs["batch"]), str(runs["base"]), "--fail-above", "1000", "--force"]) == 0
    printed = capsys.readouterr()
    assert "Not comparable: the input shapes differ" in " ".join(printed.out.split())
    assert "not comparable" not in printed.err


def test_other_programs_have_no_speed_up(real: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The ratio of the times of two programs means nothing, so it is not said."""
    assert main(["compare", str(real("jsun")), str(real("tiny"))]) == 0
    printed = capsys.readouterr().out
    assert "speedup" not in printed
    assert "the runs are not comparable" in printed


def _layers(*lengths: tuple[str, int]) -> Profile:
    """Two steps of some layers, each of which has a kernel."""
    rows = Rows()
    for step in range(2):
        at = 100_000 * step
        rows.range(f"Batch {step} |step", at, at + 90_000)
        for name, length in lengths:
            rows.range(f"{name} Linear [8,8]f32 |fwd", at, at + 10).kernel(at + 5, (at + 10, at + 10 + length))
            at += length + 20
    return rows.build()


def test_what_is_new_counts() -> None:
    """A new layer is another program; it is slower than none, and one that replaces another as long is not."""
    base = attribute(_layers(("a", 9000), ("b", 600)))
    new = compare(base, attribute(_layers(("a", 9000), ("b", 600), ("c", 500))))
    assert [reason.kind for reason in new.comparability.reasons] == ["layers"]
    assert new.comparability.same_program
    assert set(regressions(new, 1.05)["layer"]) == {"c"}
    moved = compare(base, attribute(_layers(("a", 9000), ("c", 600))))
    assert "layers only in A take 6% of its time, such as b forward" in moved.comparability.reasons[0].text
    assert regressions(moved, 1.05).is_empty()
    gone = compare(base, attribute(_layers(("a", 5000))))
    assert regressions(gone, 1.05).is_empty()


def test_much_that_is_new_or_gone_is_another_program() -> None:
    """Layers of more than a tenth of the time that only one has."""
    base, other = attribute(_layers(("a", 9000), ("b", 2000))), attribute(_layers(("a", 9000)))
    for one, two in itertools.permutations((base, other)):
        assert [reason.kind for reason in comparability(one, two).reasons] == ["layers"]


def test_names_that_take_as_long_have_one_order() -> None:
    """The first by name is the example, in every run."""
    names = "hgfedcba"
    layers = [attribute(_layers(*((f"{side}{name}", 5000) for name in names))) for side in "xy"]
    assert [reason.text for reason in comparability(*layers).reasons] == [
        "layers only in A take 100% of its time, such as xa forward; layers only in B take 100% of its time, such as "
        "ya forward"
    ]
    kernels = []
    for side in "xy":
        rows = Rows()
        for number, name in enumerate(names):
            rows.kernel(None, (10 * number, 10 * number + 5), name=f"{side}{name}")
        kernels.append(attribute(rows.build()))
    assert [reason.text for reason in comparability(*kernels).reasons] == [
        "kernels only in A take 100% of its time, such as xa; kernels only in B take 100% of its time, such as ya"
    ]


def test_kernels_of_a_comparison_have_one_order() -> None:
    """The list has the order of the rows, so that a page is the same in every run."""
    names = [f"kernel{number}" for number in range(20)]
    sides = []
    for late in (0, 5):
        rows = Rows()
        for number, name in enumerate(names):
            rows.kernel(None, (100 * number, 100 * number + 10 + number + late), name=name)
        sides.append(attribute(rows.build()))
    comparison = compare(*sides, by="kernel")
    assert comparison.kernels == comparison.rows["name"].to_list()
    assert sorted(comparison.kernels) == sorted(names)


def test_without_steps_calls_count() -> None:
    """Times of whole runs can be compared if layers were called as often."""
    runs = []
    for calls in (3, 4):
        rows = Rows()
        for call in range(calls):
            at = 10_000 * call * call  # no pattern that repeats
            rows.range(f"{'abca'[call]} Linear [8,8]f32 |fwd", at, at + 10).kernel(at + 5, (at + 10, at + 60))
            rows.range("x Linear [8,8]f32 |fwd", at + 2000, at + 2010).kernel(at + 2005, (at + 2010, at + 9000))
        runs.append(attribute(rows.build()))
    assert not runs[0].steps.table.height
    assert [reason.kind for reason in comparability(*runs).reasons] == ["calls"]


def test_versions_and_profilers() -> None:
    """Another version of a profiler is a note, another profiler a reason."""

    def made(producer: str) -> Profile:
        profile = _layers(("a", 9000))
        return Profile.build(profile.meta | {"producer": producer}, ranges=profile.ranges, kernels=profile.kernels,
                             launches=profile.launches)  # fmt: skip

    old, new, other = (
        attribute(made(name)) for name in ("NVIDIA Nsight Systems 2024.6", "Nsight Systems 2026.1", "torch.profiler")
    )
    assert comparability(old, new).comparable
    assert "2024.6" in comparability(old, new).notes[0]
    assert [reason.kind for reason in comparability(old, other).reasons] == ["profiler"]


def test_layers_without_a_class_are_none_of_a_module() -> None:
    """Nothing is left to compare by module where no range names a class."""
    sides = [attribute(Rows().range("plain", 0, end).kernel(1, (2, end)).build()) for end in (50, 60)]
    rows = compare(*sides, by="module").rows
    assert rows.is_empty()
    assert rows.columns[:2] == ["module", "phase"]
