"""Facts of a run that rules share: what runs it, where its layers and loaders are, and the roofs of its operators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import step_rows
from advice_runs import ELEMENTWISE, SINGLE, TENSOR, US, Run, without_steps
from operator_traces import A100, H100, NO_NAME, OperatorTrace
from tables import Rows

from annot.analyze.advice import Facts
from annot.analyze.advice.facts import Loader
from annot.attribution.attribute import attribute
from annot.profile import Profile

DOUBLE = "ampere_dgemm_64x64_nn"


def _facts(run: Run | Profile, **meta: Any) -> Facts:
    profile = run.build() if isinstance(run, Run) else run
    return Facts(attribute(replace(profile, meta={**profile.meta, **meta})))


@pytest.mark.parametrize(("launches", "on_device"), [(3, True), (4, False)])
def test_at_most_four_launches_are_recorded_of_a_kernel(launches: int, on_device: bool) -> None:
    """A capture into a CUDA graph records launches of kernels that do not run; callbacks are no launches."""
    calls = [("cuLaunchKernel", 1)] * launches + [("cudaLaunchHostFunc", 1)] * 9
    facts = _facts(Run(calls=calls))
    assert facts.on_device == on_device
    assert not facts.on_cpu
    assert facts.is_time_known == on_device


def test_a_run_without_a_device_is_on_the_cpu() -> None:
    rows = Rows().range("fc Linear |fwd", 0, 900)
    assert _facts(rows.build()).on_cpu
    assert _facts(rows.build()).is_time_known
    other = _facts(rows.build(), other_devices={"NPU": 3})
    assert other.other_devices == {"NPU": 3}
    assert not other.on_cpu
    assert not other.is_time_known
    launches = _facts(Profile.build({}, ranges=rows.build().ranges, launches=Run().build().launches))
    assert not launches.on_cpu
    assert not launches.on_device
    assert _facts(Profile.build({})).is_time_known  # nothing has a time


@pytest.mark.parametrize(
    ("names", "shown"),
    [(range(6), [5, 4, 3, 2, 1]), (range(4), [3, 2, 1, 0])],
)
def test_the_longest_five_layers_are_named(names: range, shown: list[int]) -> None:
    rows = Rows().kernel(1, (1, 900 * US), name=SINGLE)  # in no layer
    for layer in names:
        begin = (1000 + 100 * layer) * US
        rows.range(f"net.{layer} Linear |fwd", begin, begin + 90 * US)
        rows.kernel(begin + 1, (begin + 2, begin + (30 + layer) * US), name=SINGLE)
    facts = _facts(rows.build())
    assert facts.layers_of(pl.col("name") == SINGLE) == [f"net.{layer}" for layer in shown]


@pytest.mark.parametrize(
    ("dtype", "devices", "ridge"),
    [
        ("c10::BFloat16", (), 125.0), ("float", (), 10.0), ("double", (), 4.0),
        ("c10::BFloat16", (A100,), 312e12 / 2039e9), ("float", (A100,), 19.5e12 / 2039e9),
    ],
)  # fmt: skip
def test_the_ridge_is_that_of_the_device_or_of_the_fastest_memory(
    dtype: str, devices: tuple[dict[str, Any], ...], ridge: float, tmp_path: Path
) -> None:
    trace = OperatorTrace(*devices).op(
        "aten::mm", [64, 64], [64, 64], dtype=dtype, kernel=DOUBLE if dtype == "double" else NO_NAME
    )
    operator = Facts(trace.attribution(tmp_path)).operators[0]
    assert operator.ridge == pytest.approx(ridge, rel=1e-3)


@pytest.mark.parametrize(
    ("devices", "processors"),
    [((), None), ((H100,), 132), ((H100, {**H100, "id": 1}), 132), ((H100, {**A100, "id": 1}), None),
     (({"id": 0, "name": "x", "numSms": 0},), None)],
)  # fmt: skip
def test_processors_are_known_if_devices_are_alike(
    devices: tuple[dict[str, Any], ...], processors: int | None, tmp_path: Path
) -> None:
    trace = OperatorTrace(*devices).op("aten::mm", [64, 64], [64, 64])
    assert Facts(trace.attribution(tmp_path)).operators[0].processors == processors


def test_operators_have_the_work_of_a_call_and_the_share_of_all(tmp_path: Path) -> None:
    trace = OperatorTrace().op("aten::mm", [64, 32], [32, 16], us=100).op("aten::mm", [64, 32], [32, 16], us=200)
    trace.op("aten::exp", [64, 64], us=300, kernel=ELEMENTWISE).op("aten::sum", [64, 64], us=400)
    operators = Facts(trace.attribution(tmp_path)).operators
    assert [(one.name, pytest.approx(one.share)) for one in operators] == [
        ("aten::sum", 0.4), ("aten::mm", 0.3), ("aten::exp", 0.3),
    ]  # fmt: skip
    multiplication = operators[1]
    assert multiplication.flops == 2 * 64 * 32 * 16
    assert multiplication.bytes == 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert (multiplication.multiplies, operators[2].multiplies) == (1, 0)
    assert operators[2].kernels == (ELEMENTWISE,)


@pytest.mark.parametrize(
    ("texts", "kernel", "has_backward"),
    [
        (("fc Linear |fwd", "Backward |bwd"), "k", True), (("fc Linear |fwd",), "gemm_dgrad", True),
        (("fc Linear |fwd",), "layer_norm_bwd", True), (("fc Linear |fwd",), "k", False), (("work",), "k", None),
        (("work",), "LayerNormBackward", True),
    ],
)  # fmt: skip
def test_a_backward_is_a_range_or_a_kernel(texts: tuple[str, ...], kernel: str, has_backward: bool | None) -> None:
    rows = Rows()
    for place, text in enumerate(texts):
        rows.range(text, 1000 * place, 1000 * place + 900)
    assert _facts(rows.kernel(10, (20, 800), name=kernel).build()).has_backward is has_backward


def test_loaders_of_a_profile() -> None:
    def loader(*loaders: tuple[int, int, int], text: str = "Data |data") -> Loader:
        entries = [dict(zip(("workers", "persistent", "pinned"), one, strict=True)) for one in loaders]
        rows = Rows().range(text, 0, 500).range("fc Linear |fwd", 500, 900)
        return _facts(rows.build(processes=[{"process": 1, "pid": 1, "name": "", "loaders": entries}])).loader

    several, single = (f"enumerate(DataLoader)#_{kind}ProcessingDataLoaderIter" for kind in ("Multi", "Single"))
    single = single.replace("Processing", "Process")
    assert loader() == Loader(None, some=False, persistent=False, pinned=False)
    assert loader((0, 0, 1)) == Loader(0, some=False, persistent=False, pinned=True)
    assert loader((2, 1, 1), (4, 1, 0)) == Loader(4, some=True, persistent=True, pinned=False)
    assert loader((2, 1, 1), (4, 0, 1)) == Loader(4, some=True, persistent=False, pinned=True)
    assert loader(text=several) == Loader(None, some=True, persistent=False, pinned=False)
    assert loader(text=single) == Loader(0, some=False, persistent=False, pinned=False)
    assert loader((0, 0, 0), text="Data Worker 3 |data").workers == 1  # a fetch of a worker says more than the mark


@pytest.mark.parametrize(
    ("source", "processes", "command"),
    [
        ("a/run_rank0.json.gz", (1,), "annot report 'run_rank*.json.gz'"),
        ("run.nsys-rep", (1,), "annot report 'run_rank*.nsys-rep'"),
        ("run.1.json", (1,), "annot report 'run_rank*.sqlite'"), ("run.csv", (1,), "annot report 'run_rank*.sqlite'"),
        ("a b.json", (1, 2), "annot report 'a b.json' --by-process"), ("", (1, 2), "annot report PROFILE --by-process"),
    ],
)  # fmt: skip
def test_the_command_compares_ranks_in_a_profile_or_profiles(
    source: str, processes: tuple[int, ...], command: str
) -> None:
    rows = step_rows.Rows()
    for process in processes:
        rows.range("fc Linear |fwd", 0, 900, process)
    assert _facts(rows.build(source=source)).ranks_command == command


def test_processes_are_named_by_their_rank_or_number() -> None:
    rows = step_rows.Rows().range("fc Linear |fwd", 0, 900, 1).range("fc Linear |fwd", 0, 900, 2)
    processes = [{"process": 1, "pid": 77, "name": "", "rank": 0}, {"process": 2, "pid": 78, "name": ""}]
    facts = _facts(rows.build(), processes=processes)
    assert [facts.name_of(process) for process in (1, 2, 3)] == ["rank 0", "process 78", "process 3"]
    assert facts.processes == facts.devices == 2
    assert not facts.ranked
    assert _facts(rows.build(), processes=[entry | {"rank": 1} for entry in processes]).ranked


def test_the_most_frequent_batch_size_is_that_of_the_run() -> None:
    rows = Rows()
    for step, size in enumerate((64, 64, 64, 7)):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + 900)
        rows.range(f"fc Linear [{size},8]f32 |fwd", 1000 * step, 1000 * step + 900)
    assert _facts(rows.build()).batch == 64
    assert _facts(Rows().range("fc Linear |fwd", 0, 9).build()).batch is None


def test_numbered_layers_are_named_with_their_model_or_class() -> None:
    model = Rows().range("Forward Net |fwd", 0, 100).range("0 Linear |fwd", 0, 50).range("fc Linear |fwd", 50, 90)
    assert _facts(model.build()).where(["0", "fc", "1"]) == ["Net.0", "fc", "Net.1"]
    lone = Rows().range("0 Linear |fwd", 0, 50).range("fc Linear |fwd", 50, 90)
    assert _facts(lone.build()).where(["0", "fc", "1"]) == ["0 Linear", "fc", "1"]


@pytest.mark.parametrize("steps", [4, 0])
def test_shares_and_calls_are_those_of_a_step(steps: int) -> None:
    run = Run([(TENSOR, 598), (SINGLE, 200), (SINGLE, 200)])
    facts = _facts(run if steps else without_steps(run))
    assert facts.time == ("step time" if steps else "the run")
    assert facts.calls(pl.col("name") == SINGLE) == (2 if steps else 8)
    assert facts.share(pl.col("name") == SINGLE) == pytest.approx(0.4, abs=0.001)
    assert facts.mean_kernel_ns == pytest.approx(998_000 / 3)
    assert _facts(Profile.build({})).share(pl.lit(value=True)) == 0
    assert _facts(Profile.build({})).mean_kernel_ns == 0


def test_five_layers_with_idle_time_are_named() -> None:
    rows = Rows()
    for layer in range(6):
        begin = 1000 * (layer + 1)
        rows.range(f"net.{layer} Linear |fwd", begin * US, (begin + 999) * US)
        rows.kernel((begin + 1) * US, ((begin + 500 + layer) * US, (begin + 990) * US), name=TENSOR)
    assert Facts(attribute(rows.build())).idle_layers == [f"net.{layer}" for layer in (5, 4, 3, 2, 1)]


@pytest.mark.parametrize(("gap", "layers"), [(10, ["net.a", "net.b"]), (9, ["net.a"])])
def test_layers_with_little_idle_time_are_not_named(gap: int, layers: list[str]) -> None:
    """A place of idle time has at least a tenth of it: 10 of 100 µs, and not 9 of 99."""
    rows = Rows()
    for layer, begin, idle in (("net.first", 100, 0), ("net.a", 1000, 90), ("net.b", 2000, gap)):
        start = begin + idle
        rows.kernel((begin + 1) * US, (start * US, (start + 50) * US), name=TENSOR)
        rows.range(f"{layer} Linear [64,1024]bf16 |fwd", begin * US, (start + 60) * US)
    assert Facts(attribute(rows.build())).idle_layers == layers


@pytest.mark.parametrize(("written_as", "is_cuda"), [("nsys_sqlite", True), ("kineto", False), ("xplane", False)])
def test_only_frameworks_write_some_formats(written_as: str, is_cuda: bool) -> None:
    """A trace of torch.profiler is of PyTorch, whatever its kernels are."""
    profile = Run(kernels=[("saxpy(int, float)", 100)] * 9, text="solve").build()
    facts = Facts(attribute(replace(profile, meta=profile.meta | {"format": written_as})))
    assert facts.in_cuda == is_cuda


@pytest.mark.parametrize(
    ("text", "written_as", "in_keras"),
    [
        ("net/a Dense [64,1024]bf16 |fwd", "nsys_sqlite", True),
        ("net/a Dense [64,1024]bf16 |opt", "nsys_sqlite", False),
        ("net.a Linear [64,1024]bf16 |fwd", "xplane", False),
        ("net/a |fwd", "xplane", True),
        ("net/a |fwd", "nsys_sqlite", False),
    ],
)
def test_layers_of_keras_have_paths_with_slashes(text: str, written_as: str, in_keras: bool) -> None:
    """A path without a class is one of TensorFlow in a file of its profiler."""
    profile = Run(text=text).build()
    assert Facts(attribute(replace(profile, meta=profile.meta | {"format": written_as}))).in_keras == in_keras
