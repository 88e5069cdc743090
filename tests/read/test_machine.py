"""The machine of a profile: CPU and versions, from annot's mark, Nsight Systems and torch.profiler, to the reports."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from commands import annot, needs_recorder
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared
from sqlite_profile import thread, training

import annot as annot_package
from annot.analyze.run_summary import by_summary
from annot.attribution.attribute import attribute
from annot.labels.marks import MACHINE, format_machine, parse_machine
from annot.read.formats import load
from annot.read.kineto import reader
from annot.read.nsys import sqlite_export
from annot.runs.run import Run
from annot.util.program import Program

XEON = "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz"
HOSTILE = ("x" * 10_000, "\x1b[31m\x00\n\u202e", "Machine CPU=", "<b>&", "a,b", "9" * 5000)
SCRIPT = """\
import annot, torch
net = torch.nn.Linear(4, 4)
with annot.emit_ranges(net):
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
"""


def _cpu() -> str:
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return names[0] if names else platform.processor()


def _software(path: Path) -> list[str]:
    summary = by_summary(attribute(load(path)))
    return summary.filter(section="system", item="software")["text"].to_list()


def _marked(path: Path, *texts: str) -> Path:
    profile = training(device=False)
    for start, text in enumerate(texts):
        profile.event(34, start, None, text, thread(1), domainId=profile.domain("annot"))
    return profile.write(path)


@given(st.dictionaries(st.sampled_from(["PyTorch", "Python", "annot"]), st.from_regex(r"[\w.+]{1,40}", fullmatch=True)),
       st.text(st.characters(blacklist_categories=["Cs"])))  # fmt: skip
def test_marks_are_parsed_as_they_were_formatted(versions: dict[str, str], cpu: str) -> None:
    """Versions are kept, and the model of the CPU on one line of at most 100 characters."""
    found = parse_machine(format_machine(versions | {"CPU": cpu}))
    assert found is not None
    model = found.pop("CPU", "")
    assert found == versions
    assert len(model) <= 100
    assert model == " ".join(cpu[:400].split())[:100]


@needs_recorder
@pytest.mark.parametrize(
    ("collector", "out"),
    [("recorder", "run.sqlite"), pytest.param("torch", "run.json.gz", marks=pytest.mark.slow)],
)
def test_a_run_has_its_machine(collector: str, out: str, tmp_path: Path) -> None:
    """The CPU and the versions of this environment are in the profile and its reports."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "--collector", collector, "--no-report", "-o", out, "--", sys.executable, "train.py")
    done = annot(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    run = Run(tmp_path / out)
    expected = {"PyTorch": version("torch"), "Python": platform.python_version(), "annot": version("annot-nvtx")}
    assert {name: run.source.meta["software"].get(name) for name in expected} == expected
    assert run.source.meta["cpu"] == _cpu()
    assert f" on {run.source.meta['cpu'].split()[0]}" in run.verdict
    program = Program.of([sys.executable, "train.py"], str(tmp_path))
    assert Program.parse(run.source.meta["program"]) == program
    assert program.script
    assert not (tmp_path / f"{out}.parts").exists()
    assert _software(tmp_path / out)[:3] == [" ".join(one) for one in expected.items()]
    marks = load(tmp_path / out).marks["text"].str.starts_with(MACHINE).sum()
    assert marks == (collector == "recorder")  # however many steps; traces of torch.profiler have no marks


def test_annot_without_its_metadata(tmp_path: Path) -> None:
    """The version of a copy of annot that is not installed is unknown; the other facts are there."""
    (tmp_path / "annot").symlink_to(Path(annot_package.__file__).parent)
    show = "from annot.emit import machine as m; print(m.machine('PyTorch', '2'))"
    program = f"import sys; sys.path.insert(0, sys.argv[1])\n{show}"
    words = [sys.executable, "-S", "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert parse_machine(done.stdout.strip("\n")) == parse_machine(
        format_machine({"PyTorch": "2", "Python": platform.python_version(), "annot": "unknown", "CPU": _cpu()})
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (XEON, "Intel Xeon Platinum 8370C"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("AMD Ryzen 7 5700G with Radeon Graphics", "AMD Ryzen 7 5700G"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "12th Gen Intel Core i7-12700H"),
        ("CPU", "CPU"), ("x" * 99, "x" * 40 + "…"),
    ],
)  # fmt: skip
def test_the_verdict_names_the_cpu(model: str, name: str, tmp_path: Path) -> None:
    """The name is that under which the CPU is sold."""
    path = _marked(tmp_path / "run.sqlite", format_machine({"CPU": model}))
    assert Run(path).verdict.startswith(f"Step 2.12 ms on {name}: ")


def test_several_processes(tmp_path: Path) -> None:
    """Equal facts are listed once, different ones side by side; repeated marks change nothing."""
    texts = [format_machine({"PyTorch": "2.9", "Python": python, "CPU": XEON}) for python in ("3.11.2", "3.12.1")]
    run = Run(_marked(tmp_path / "run.sqlite", *texts, *texts))
    assert run.source.meta["software"] == {"PyTorch": "2.9", "Python": "3.11.2, 3.12.1"}
    assert run.source.meta["cpu"] == XEON


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:9]))
def test_hostile_marks(text: str, tmp_path: Path) -> None:
    """A mark with any text leaves a short, printable report."""
    path = _marked(tmp_path / "run.sqlite", f"{MACHINE}PyTorch={text}", f"{MACHINE}CPU={text}", f"{MACHINE}{text}")
    run = Run(path)
    shown = run.view("summary")
    assert len(run.verdict) < 300
    assert "\x1b" not in repr(shown) + run._repr_html_()
    assert all(len(row["text"]) < 1000 for row in shown.rows.to_dicts())
    assert set(run.source.meta.get("software", {})) <= {"PyTorch"}


def _system(path: Path, kernels: bool = True, **values: str) -> dict[str, Any]:
    profile = training(device=kernels)
    for number, (name, value) in enumerate(values.items()):
        profile.add(
            "TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName="Local (CLI)", name=name, nameEnum=number, value=value
        )
    return sqlite_export.read(profile.write(path)).meta


def test_driver_in_nsight_systems(tmp_path: Path) -> None:
    """Versions of the driver are those of a profile with kernels; Nsight writes 0 where there is no driver."""
    known = {"NvDriverVersion": "550.54.15", "CudaDriverVersion": "12020", "CpuDescription": XEON, "Hostname": "vm"}
    meta = _system(tmp_path / "a", True, **known)
    assert meta["software"] == {"NVIDIA driver": "550.54.15", "CUDA driver": "12.2"}
    assert meta["cpu"] == XEON
    meta = _system(tmp_path / "b", False, **known)
    assert (meta.get("software"), meta["cpu"]) == (None, XEON)
    meta = _system(tmp_path / "c", NvDriverVersion="0", CudaDriverVersion="0", CpuDescription=" ")
    assert not meta.keys() & {"software", "cpu"}
    for number, text in enumerate(HOSTILE):
        meta = _system(tmp_path / f"h{number}", NvDriverVersion=text, CudaDriverVersion=text, CpuDescription=text)
        assert all(len(value) <= 100 for value in (meta.get("cpu", ""), *meta.get("software", {}).values()))


def _trace(path: Path, **top: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event], **top}))
    return reader.read(path).meta


def test_versions_in_traces(tmp_path: Path) -> None:
    """Runtime and driver of CUDA are in a real trace; nonsense is left out."""
    real = reader.read(shared("kineto/tracelens_h100_bert_small_nnmodule.json.gz")).meta["software"]
    assert real == {"CUDA": "12.4", "CUDA driver": "12.9"}
    values: tuple[object, ...] = (*HOSTILE, 10**4000, -1, None, [], {"a": 1}, 1.5, True)
    for value in values:
        meta = _trace(tmp_path / "t.json", cuda_driver_version=value, hip_runtime_version=value, annot_machine=value)
        assert not meta.keys() & {"software", "cpu"}, value
    meta = _trace(tmp_path / "u.json", annot_machine=f"{MACHINE}PyTorch=2.9.0 CPU={'y' * 5000}")
    assert (meta["software"], meta["cpu"]) == ({"PyTorch": "2.9.0"}, "y" * 100)


def test_profiles_without_the_mark(tmp_path: Path) -> None:
    """Files of earlier versions have neither."""
    meta = load(_marked(tmp_path / "old.sqlite")).meta
    assert not meta.keys() & {"software", "cpu"}
