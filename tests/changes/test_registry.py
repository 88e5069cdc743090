"""Changes of annot and of other packages, and which of them fit a profile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from advice_runs import V100
from step_rows import GEMM, TENSOR, Rows

from annot.analyze.advice import RULES, Advice, Facts
from annot.analyze.advice.texts import texts
from annot.attribution.attribute import attribute
from annot.changes import numbers
from annot.changes.registry import all_changes, fitting
from annot.profile import Profile

CPU = {"process": 1, "pid": 1, "name": ""}
TWO = {"threads": 2, "cores": 2}


def _loader(workers: int, persistent: int = 0) -> dict[str, int]:
    return {"workers": workers, "persistent": persistent, "pinned": 0}


def _on_cpu(*layers: str, optimizer: str = "AdamW params=8", data: int = 0, **process: object) -> Facts:
    """Two steps on a CPU: a wait for data, the forward of each layer, the backward, an optimizer step."""
    rows = Rows()
    for step in range(2):
        at = begin = step * 1_000_000
        rows.range("Data |data", at, at + data)
        at += data
        rows.range("Forward Net |fwd", at, at + 100_000 * len(layers))
        for layer in layers:
            rows.range(f"{layer} |fwd", at, at + 100_000)
            at += 100_000
        rows.range("Backward |bwd", at, at + 100_000)
        if optimizer:
            rows.range(f"Optimizer {optimizer} |opt", at + 100_000, at + 150_000)
        rows.range(f"Batch {step} |step", begin, at + 150_000)
    return Facts(attribute(rows.build(processes=[CPU | process])))


def _on_gpu(*kernels: str, count: int = 1, text: str = "conv Conv2d [8,8,9,9]f32 out=8", **meta: object) -> Facts:
    """Two steps with a layer that launches kernels, and an optimizer step with one."""
    rows = Rows()
    for step in range(2):
        at = begin = step * 10_000_000
        rows.range(f"{text} |fwd", at, at + 2_000_000)
        for _ in range(count):
            for name in kernels:
                rows.work(name, at, at + 100, at + 900)
                at += 1000
        rows.range("Optimizer AdamW params=8 |opt", begin + 3_000_000, begin + 3_100_000)
        rows.work("adam_kernel", begin + 3_000_000, begin + 3_000_100, begin + 3_050_000)
        rows.range(f"Batch {step} |step", begin, begin + 4_000_000)
    return Facts(attribute(rows.build(**meta)))


# Parameters of tests: every process of pytest-xdist imports this file, and one of them makes the profiles.
cpu, gpu = partial(partial, _on_cpu), partial(partial, _on_gpu)


def _reason(name: str, facts: Facts) -> str:
    return all_changes()[name].fits(facts)


def test_each_change_is_complete() -> None:
    for name, change in all_changes().items():
        assert name == change.name
        assert re.fullmatch(rf"annot\.live\.{change.framework}_changes:{name.replace('-', '_')}_?", change.live) or (
            change.framework == "torch" and change.live.startswith("annot.live.torch_changes:")
        )
        assert change.title
        assert change.code
        assert (change.tolerance > 0) == (change.numbers == "rounding")
        compile(change.code.replace("...", "x=1"), name, "exec")


def test_tolerances_are_some_roundings_of_the_format() -> None:
    """A bit less of significand doubles the tolerance; float32 sums are much more exact than 16-bit inputs."""
    assert numbers.IN_BFLOAT16 == 8 * numbers.IN_TEN_BITS
    assert 2**-24 < numbers.REORDERED < 2**-11 < numbers.IN_TEN_BITS < numbers.IN_BFLOAT16 < 0.05


def test_rules_name_changes_that_exist() -> None:
    """In the code of the rules, and in their translations."""
    folder = Path(sys.modules["annot.analyze.advice"].__file__ or "").parent
    tables = (texts().pytorch, texts().causes, texts().keras)
    named = {name for table in tables for text in table.values() for name in text.changes}
    for file in folder.glob("*.py"):
        code = file.read_text()
        for group in re.findall(r"(?:changes=|_COMPILED\w*: Final = )\(([^)]*)\)", code):
            named |= set(re.findall(r'"([^"]+)"', group))
    assert {"compile", "fused", "threads", "pinned", "jit", "prefetch", "compile-reduce-overhead"} <= named
    assert named <= all_changes().keys()
    assert RULES


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("compile", cpu("fc Linear [8,8]f32 out=8"), ""),
        ("compile-reduce-overhead", cpu("fc Linear [8,8]f32 out=8"), "CUDA graphs need a GPU"),
        ("compile-max-autotune", cpu("fc Linear"), "on a CPU it chooses kernels only for frozen weights"),
        ("compile-blocks", cpu("fc Linear"), "no block of layers is repeated"),
        ("compile-blocks", cpu("h.0 Linear", "h.1 Linear"), "no block of layers is repeated"),
        ("compile-blocks", cpu("h.0 Block", "h.0.fc Linear", "h.1 Block", "h.1.fc Linear"), ""),
        ("compile-blocks", cpu("h.0 Block", "h.0.fc Linear", "h.1 Layer", "h.1.fc Linear"),
         "no block of layers is repeated"),
        ("compile-blocks", cpu("h.0 Block", "h.0.fc Linear", "g.0 Block", "g.0.fc Linear"),
         "no block of layers is repeated"),
        ("bf16", cpu("fc Linear [8,8]f32 out=8"), ""),
        ("bf16", cpu("fc Linear [8,8]f64 out=8"), "autocast leaves float64 as it is"),
        ("bf16", cpu("fc Linear [8,8]bf16 out=8"), "the layers compute in 16 bits already"),
        ("bf16", cpu("fc Linear [8,8]bf16 out=8", "b Linear [8,8]f32 out=8"), ""),
        ("bf16", cpu("fc Linear [8,8]f32 out=8 autocast=bf16"), "the layers compute in 16 bits already"),
        ("fp16", cpu("fc Linear [8,8]f32 out=8"), "a CPU is not faster in float16"),
        ("fp16", gpu(GEMM), ""),
        ("tf32", cpu("fc Linear [8,8]f32 out=8"), "the run uses no GPU"),
        ("tf32", gpu(GEMM), ""),
        ("tf32", gpu(TENSOR), "no matrix multiplication is in float32 outside Tensor Cores"),
        ("tf32", gpu(GEMM, devices=[V100]), "the GPU does not multiply in TF32"),
        ("bf16", gpu(GEMM, devices=[V100]), "the GPU does not multiply in bfloat16"),
        ("channels-last", cpu("c Conv2d [8,8,9,9]f32 out=8"), ""),
        ("channels-last", cpu("c Conv1D [8,8]f32 out=8"), "no layer is a convolution"),
        ("channels-last", cpu("c Conv1d [8,8,9]f32 out=8"), "no layer is a convolution"),
        ("channels-last", gpu("cudnn_convolution_fwd", text="a Mine"), ""),
        ("cudnn-benchmark", cpu("c Conv2d [8,8,9,9]f32 out=8"), "the run uses no GPU"),
        ("cudnn-benchmark", gpu(GEMM), ""),
        ("cudnn-benchmark", gpu(GEMM, text="fc Linear"), "no layer is a convolution"),
        ("fused", cpu("fc Linear"), ""),
        ("fused", cpu("fc Linear", optimizer=""), "no optimizer steps"),
        ("fused", cpu("fc Linear", optimizer="AdamW params=8 fused=True"), "the optimizer is fused already"),
        ("fused", cpu("fc Linear", optimizer="RMSprop params=8"), "RMSprop has no argument fused"),
        ("foreach", cpu("fc Linear"), "on a CPU it computes one parameter after another, too"),
        ("foreach", gpu(GEMM), ""),
        ("workers", cpu("fc Linear"), "the steps do not wait for data"),
        ("workers", cpu("fc Linear", data=30_000), ""),
        ("workers", cpu("fc Linear", data=7_000), "the steps do not wait for data"),
        ("workers", cpu("fc", data=30_000, cpu=TWO, loaders=[_loader(2)]), "2 worker processes load the data"),
        ("workers", cpu("fc Linear", data=30_000, cpu=TWO, loaders=[_loader(1)]), ""),
        ("persistent", cpu("fc Linear", data=30_000, loaders=[_loader(0)]),
         "the DataLoader has no worker processes"),
        ("persistent", cpu("fc Linear", data=30_000, loaders=[_loader(2, persistent=1)]),
         "the worker processes live on already"),
        ("persistent", cpu("fc Linear", data=30_000, loaders=[_loader(2)]), ""),
        ("pinned", cpu("fc Linear", data=30_000), "the run uses no GPU"),
        ("pinned", gpu(GEMM), ""),
        ("threads", cpu("fc Linear", cpu={"threads": 2, "cores": 2}), "each core has a thread"),
        ("threads", cpu("fc Linear", cpu={"threads": 2, "cores": 4, "ranks": 2}), "each core has a thread"),
        ("threads", cpu("fc Linear", cpu={"threads": 1, "cores": 2}), ""),
        ("threads", cpu("fc Linear", cpu={"threads": 4, "cores": 2}), ""),
        ("threads", gpu(GEMM), "a GPU computes"),
        ("sdpa-flash", cpu("fc Linear"), "no layer is attention"),
        ("sdpa-flash", cpu("a SelfAttention"), ""),
        ("sdpa-efficient", cpu("a SelfAttention"), "the run uses no GPU"),
        ("sdpa-efficient", gpu("flash_attention_fwd"), ""),
        ("set-to-none", cpu("fc Linear"), ""),
        ("set-to-none", cpu("fc Linear", optimizer=""), "no optimizer steps"),
        ("cuda-graphs", cpu("fc Linear"), "CUDA graphs need a GPU"),
        ("cuda-graphs", gpu(GEMM, count=9), ""),
        ("cuda-graphs", gpu(GEMM, count=8), "the steps do not launch the same short kernels"),
        ("jit", cpu("net/dense Dense"), ""),
        ("mixed-fp16", cpu("net/dense Dense"), "float16 needs a GPU"),
        ("mixed-bf16", cpu("net/dense Dense [8,8]bf16"), "the layers compute in 16 bits already"),
        ("mixed-bf16", cpu("net/dense Dense [8,8]f32"), ""),
        ("prefetch", cpu("net/dense Dense"), "the steps do not wait for data"),
        ("cache", cpu("net/dense Dense", data=30_000), ""),
    ],
)  # fmt: skip
def test_a_change_that_cannot_help_says_why(name: str, make: Callable[[], Facts], reason: str) -> None:
    assert _reason(name, make()) == reason


@pytest.mark.parametrize("name", ["compile", "compile-blocks", "compile-reduce-overhead", "compile-max-autotune"])
def test_compiled_models_are_not_compiled_again(name: str) -> None:
    facts = _on_gpu(GEMM, "triton_poi_fused_add_0")
    assert _reason(name, facts) == "the model is compiled already"


def test_the_changes_that_advice_proposes_come_first() -> None:
    """The largest bound first. Time of launches and of the work of the device add up."""
    facts = _on_gpu(GEMM, count=9)
    unasked = "compile-reduce-overhead"
    advice = [
        Advice("optimizer", "", "", "", 0.3, changes=("fused",)),
        Advice("fusion", "", "", "", 0.25, changes=("compile", "unknown")),
        Advice("short_kernels", "", "", "", 0.2, changes=("compile",)),
        Advice("host_bound", "", "", "", 0.1, changes=("compile", "workers")),
    ]
    candidates = fitting(facts, advice)
    first = [(candidate.change.name, candidate.bound) for candidate in candidates[:3]]
    assert first == [("compile", pytest.approx(0.35)), ("fused", 0.3), (unasked, None)]
    names = [candidate.change.name for candidate in candidates]
    assert "workers" not in names  # no step waits for data
    assert not {"jit", "prefetch"} & set(names)
    full = [replace(row, saves=0.9) for row in advice]
    assert next(row for row in fitting(facts, full) if row.change.name == "compile").bound == 1.0


def test_programs_in_keras_have_changes_of_keras() -> None:
    names = {candidate.change.name for candidate in fitting(_on_cpu("net/dense Dense", data=30_000), [])}
    assert names == {"jit", "mixed-bf16", "steps-per-execution", "prefetch", "cache", "no-eager"}


def test_programs_without_a_framework_have_no_changes() -> None:
    rows = Rows().range("step", 0, 1000).work("my_kernel", 10, 20, 900)
    assert fitting(Facts(attribute(rows.build())), []) == []
    assert fitting(Facts(attribute(Profile.build({}))), []) != []  # a program of PyTorch, as far as is known


PLUGIN = """
from annot.changes.change import Change

fields = {{
    "name": "mine", "title": "my change", "framework": "torch", "live": "theirs:install", "numbers": "same bits",
    "code": "pass", "fits": lambda facts: "it has no time",
}}
c0, c1, c2, c3, c4, c5, c6, c7, *_ = (Change(**(fields | changed)) for changed in ({changed}, *[{{}}] * 8))
"""
SHOW = """
from annot.analyze.advice import Facts
from annot.attribution.attribute import attribute
from annot.changes.registry import all_changes
from annot.profile import Profile

changes = all_changes()
print(len(changes), changes["mine"].fits(Facts(attribute(Profile.build({})))) if "mine" in changes else "")
"""


def _with_plugin(folder: Path, *changed: str) -> tuple[str, list[str]]:
    """Return what a process prints beside a package with changes, and the reasons why these are left out."""
    (folder / "theirs-1.0.dist-info").mkdir()
    (folder / "theirs.py").write_text(PLUGIN.format(changed=", ".join(f"{{{fields}}}" for fields in changed)))
    (folder / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "".join(f"c{number} = theirs:c{number}\n" for number in range(len(changed)))
    (folder / "theirs-1.0.dist-info" / "entry_points.txt").write_text(f"[annot.changes]\n{points}")
    environ = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip(), re.findall(
        r"the change theirs:c\d of the package theirs is left out: (.*)", done.stderr
    )


def test_a_change_of_another_package(tmp_path: Path) -> None:
    assert _with_plugin(tmp_path, "") == (f"{len(all_changes()) + 1} it has no time", [])


def test_changes_of_a_package_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    """With a warning that names the package; the changes of annot stay."""
    reasons = {
        "'name': 'My change'": "ValueError: name must be words of a-z and 0-9 joined by hyphens, got 'My change'",
        "'name': 'fused'": "ValueError: another change has the name fused",
        "'live': 'theirs'": "ValueError: live must be module:function, got 'theirs'",
        "'numbers': 'none'": "ValueError: numbers must be one of same bits, rounding, another algorithm, got 'none'",
        "'framework': 'jax'": "ValueError: framework must be one of torch, keras, got 'jax'",
        "'tolerance': float('nan')": "ValueError: tolerance must be a number from 0, got nan",
        "'code': None": "TypeError: code must be a str, got None",
    }
    printed, said = _with_plugin(tmp_path, *reasons)
    assert printed == str(len(all_changes()))
    assert said == [f"it failed with {reason}" for reason in reasons.values()]


def test_a_change_that_fails_to_tell_whether_it_fits_does_not_fit(tmp_path: Path) -> None:
    printed, said = _with_plugin(tmp_path, "'fits': lambda facts: 1 / 0")
    assert printed == f"{len(all_changes()) + 1} the change does not tell whether it fits"
    assert said == ["it failed with ZeroDivisionError: division by zero"]
