"""Flame graphs: their times are those of the tables, and speedscope reads them."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from sqlite_profile import SqliteProfile, thread, training

from annot.attribution.layer_tables import by_layer, by_phase
from annot.cli.main import main
from annot.errors import AnnotError
from annot.report.export.flame_graphs import folded, speedscope
from annot.runs.run import Run

_DATA = Path(__file__).parents[1] / "data"
_QUICK = (
    "nsys/edge_semantics/edge_semantics.sqlite.xz", "kineto/annot_h100_transformer.json.xz", "nvprof_trace.csv",
    "kineto/hta_cpu_only.json.xz", "tf_cpu.xplane.pb",
)  # fmt: skip
_UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}


def _stacks(text: bytes) -> list[tuple[list[str], int]]:
    """Return the frames and the time of each line of folded stacks."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines())
    return [(stack.split(";"), int(ns)) for stack, _, ns in lines]


def _folded(run: Run, *, kernels: bool = False) -> list[tuple[list[str], int]]:
    return _stacks(b"".join(folded(run.attribution, run.path, kernels=kernels)))


def _opened(path: Path, folder: Path) -> Run:
    if path.suffix not in _UNPACK:
        return Run(path)
    copy = folder / path.stem
    copy.write_bytes(_UNPACK[path.suffix](path.read_bytes()))
    return Run(copy)


def _check_times(run: Run) -> None:
    """The stacks add up to the table of layers and to each phase of the table of phases, on each clock."""
    layers, phases = by_layer(run.attribution), by_phase(run.attribution)
    document = json.loads(b"".join(speedscope(run.attribution, run.path)))
    for clock, name in (("gpu", "GPU time: "), ("host", "Host time")):
        total = layers[f"{clock}_self_ns"].sum() or 0
        profiles = [profile for profile in document["profiles"] if profile["name"].startswith(name)]
        assert sum(profile["endValue"] for profile in profiles) == total
        if total and (clock == "gpu" or not layers["gpu_self_ns"].sum()):
            for kernels in (False, True):
                sums = Counter[str]()
                for frames, ns in _folded(run, kernels=kernels):
                    sums[frames[0]] += ns
                expected = dict(phases.select("phase", f"{clock}_ns").iter_rows())
                assert sums == {phase: ns for phase, ns in expected.items() if ns}


@pytest.mark.parametrize("name", _QUICK)
def test_times_add_up_to_those_of_the_tables(name: str, tmp_path: Path) -> None:
    _check_times(_opened(_DATA / name, tmp_path))


@pytest.mark.slow
def test_times_of_all_profiles_add_up(tmp_path: Path) -> None:
    """Also for the profiles in ``tests/data`` that take longer; some files there are no profiles, or have no times."""
    checked = 0
    for path in sorted(_DATA.rglob("*")):
        if not path.is_file() or path.suffix in (".md", ".py"):
            continue
        try:
            run = _opened(path, tmp_path)
            list(folded(run.attribution, run.path))
        except AnnotError:
            continue
        _check_times(run)
        checked += 1
    assert checked > 30


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def test_stacks_are_phases_and_layers(trained: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", str(trained), "--format", "folded"]) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "other;Epoch 10000",
        "other;Epoch;Batch 100000",
        "forward;Epoch;Batch;(model) AlexNet;features Sequential;0 Conv2d 1800000",
        "forward;Epoch;Batch;(model) AlexNet;features Sequential;1 ReLU 40000",
        "forward;Epoch;Batch;(model) AlexNet;classifier.1 Linear 600000",
        "backward;Epoch;Batch;(model) AlexNet;features Sequential;0 Conv2d 3000000",
        "backward;Epoch;Batch;(model) AlexNet;features Sequential;1 ReLU 60000",
        "backward;Epoch;Batch;(model) AlexNet;classifier.1 Linear 1200000",
        "optimizer;Epoch;Batch;Optimizer SGD 160000",
        "(unattributed);no launch recorded 30000",
    ]


def test_kernels_are_the_innermost_frames(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.folded"
    assert main(["report", str(trained), "--by", "kernel", "-o", str(out)]) == 0
    stacks = {tuple(frames): ns for frames, ns in _stacks(out.read_bytes())}
    assert stacks["forward", "Epoch", "Batch", "(model) AlexNet", "features Sequential", "1 ReLU", "relu_fwd"] == 40000
    assert stacks["(unattributed)", "no launch recorded", "launched before the capture"] == 30000


def test_selected_steps(trained: Path) -> None:
    """The second step has half of the time, without what runs outside the steps."""
    whole, second = Counter[str](), Counter[str]()
    for sums, words in ((whole, []), (second, ["--steps", "1"])):
        out = trained.with_suffix(".folded")
        assert main(["report", str(trained), *words, "-o", str(out), "--force"]) == 0
        for frames, ns in _stacks(out.read_bytes()):
            sums[frames[-1]] += ns
    assert second["0 Conv2d"] * 2 == whole["0 Conv2d"] == 4_800_000


def test_names_cannot_add_frames_or_lines(tmp_path: Path) -> None:
    profile = SqliteProfile()
    profile.range("a;b 5\nc;d 7", 0, 10)
    run = Run(profile.write(tmp_path / "x.sqlite"))
    (frames, ns), *others = _folded(run)
    assert (len(frames), ns, others) == (2, 10, [])


def test_devices_are_profiles(tmp_path: Path) -> None:
    """The file is one of speedscope by its suffix; devices have the names of the timeline."""
    profile = training(device=True)
    profile.call(300_000, 310_000, 500)
    profile.kernel(320_000, 325_000, 500, "elsewhere", device=1)
    out = tmp_path / "run.speedscope.json"
    assert main(["report", str(profile.write(tmp_path / "run.sqlite")), "-o", str(out)]) == 0
    times = {shown["name"]: shown["endValue"] for shown in json.loads(out.read_text())["profiles"]}
    gpus = {"GPU time: GPU 0 of process 1": 7_000_000, "GPU time: GPU 1 of process 1": 5_000}
    assert times == {**gpus, "Host time": 4_400_000}


def test_layers_have_the_line_of_their_class(tmp_path: Path) -> None:
    profile = SqliteProfile()
    profile.layer("fc Net |fwd", 0, 10)
    profile.layer("fc.0 Linear |fwd", 2, 5)
    profile.event(34, 0, None, "Source Net = model.py:12", thread(1), domainId=profile.domain("annot"))
    document = json.loads(b"".join(speedscope(Run(profile.write(tmp_path / "x.sqlite")).attribution, "x")))
    frames = {frame.pop("name"): frame for frame in document["shared"]["frames"]}
    assert frames["fc Net"] == {"file": "model.py", "line": 12}
    assert frames["0 Linear"] == {}


@pytest.mark.parametrize("name", _QUICK)
def test_schema_of_speedscope(name: str, tmp_path: Path) -> None:
    """The schema is that of speedscope 1.25.0; see ``tests/data/README.md``."""
    validate = pytest.importorskip("jsonschema", reason="needs jsonschema").validate
    run = _opened(_DATA / name, tmp_path)
    for kernels in (False, True):
        document = json.loads(b"".join(speedscope(run.attribution, run.path, kernels=kernels)))
        validate(document, json.loads((_DATA / "speedscope.schema.json").read_text()))
        frames = len(document["shared"]["frames"])
        for profile in document["profiles"]:  # what the schema leaves open
            assert len(profile["samples"]) == len(profile["weights"]) > 0
            assert all(0 <= frame < frames for stack in profile["samples"] for frame in stack)


def test_profile_without_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.folded"
    path = _DATA / "ncu_raw_texts.csv"
    assert main(["report", str(path), "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"annot: error: {path} has neither GPU times nor host times\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--by module", "--by cannot be combined with --format folded"),
        ("--depth 1", "--depth cannot be combined with --format folded"),
        ("--rank 0", "--rank cannot be combined with --format folded"),
    ],
)
def test_options_of_tables_are_refused(
    words: str, error: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert main(["report", str(trained), "--format", "folded", *words.split()]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_speedscope_itself(trained: Path, tmp_path: Path) -> None:
    """It opens both formats, and shows the name of the first profile and the total times of frames."""
    npm = shutil.which("npm") or pytest.skip("needs npm to install speedscope")
    done = subprocess.run([npm, "pack", "speedscope@1.25.0"], cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the npm registry to install speedscope: {done.stderr[-200:]}")
    shutil.unpack_archive(tmp_path / "speedscope-1.25.0.tgz", tmp_path, filter="data")
    index = tmp_path / "package" / "dist" / "release" / "index.html"
    with browser() as page:
        for name, shown in (("run.speedscope.json", "GPU 0 of process 1 (1/2)"), ("run.folded", "run.folded")):
            out = tmp_path / name
            assert main(["report", str(trained), "-o", str(out)]) == 0
            content: Any = base64.b64encode(out.read_bytes()).decode()
            loader = tmp_path / f"{name}.js"  # speedscope's own command passes files in this way
            loader.write_text(f"speedscope.loadFileFromBase64({json.dumps(name)}, {json.dumps(content)})")
            page.send("Page.navigate", url="about:blank")
            page.send("Page.navigate", url=f"{index.as_uri()}#localProfilePath={loader}&view=sandwich")
            page.wait(f"document.body.innerText.includes({json.dumps(shown)})")
            page.wait("document.body.innerText.includes('4.80ms') || document.body.innerText.includes('4,800,000')")
            page.wait("document.body.innerText.includes('0 Conv2d')")
