"""GPU activities that a profile lacks, on both sides of each limit; real profiles raise no false alarm."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from edited_profiles import real, scattered, without_work
from shared_data import shared, shared_names
from tables import Rows

from annot.attribution.attribute import attribute
from annot.attribution.lost_work import lost_work
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.errors import AnnotError
from annot.profile import Profile
from annot.runs.run import Run

LINEAR = "kineto/more/param_linear.json.gz"
CUT = {"ginda_h100_2gpu_1s.2026.2.sqlite.gz": "1,714 of 3,346 kernel launches have no kernel"}
"""Real profiles that lack GPU activities: a second cut out of a longer one, in which the GPU is behind the CPU."""


def _names() -> list[str]:
    return [
        name
        for folder, ending in (("kineto", ".json.gz"), ("nsys", ".sqlite.gz"))
        for name in shared_names(folder, ending)
    ]


@pytest.mark.parametrize("name", _names())
def test_real_profiles_lack_nothing(name: str) -> None:
    try:
        sentence = lost_work(attribute(real(name)))
    except AnnotError:
        pytest.skip("this profile cannot be read")
    expected = CUT.get(Path(name).name)
    assert sentence == (f"The profile lacks GPU activities: {expected}." if expected else "")


def _steps(*work: bool, inner: int = 2, launches: bool = False) -> Profile:
    """Steps with ranges inside, some of them with a kernel."""
    rows = Rows()
    for step, has_work in enumerate(work):
        at = 1000 * step
        rows.range(f"Batch {step} |step", at, at + 900)
        for number in range(inner if has_work or not launches else 1):
            rows.range(f"fc{number} Linear [8,8]f32 |fwd", at + 10 * number, at + 10 * number + 9)
        if has_work:
            rows.kernel(at + 5, (at + 10, at + 90))
    return rows.build()


def test_steps_without_work() -> None:
    assert lost_work(attribute(_steps(True, True, True))) == ""
    lost = attribute(_steps(True, True, False))
    assert lost_work(lost) == "The profile lacks GPU activities: 1 of 3 steps has no kernel."
    assert summarize(lost)["cut"] == lost_work(lost)
    assert lost_work(attribute(_steps(False, False))) == ""  # a run on the CPU
    assert lost_work(attribute(_steps(True, True, False, inner=4, launches=True))) == ""  # 2 of 5 ranges: other work
    assert lost_work(attribute(_steps(True, True, False, inner=3, launches=True))) != ""  # 2 of 4


def test_launches_without_a_kernel() -> None:
    launches = [
        {"process": 1, "thread": 1, "start": 10 * number, "end": 10 * number + 1, "correlation": number, "name": name}
        for number, name in enumerate(["cudaLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel"] * 100)
    ]
    kernels = [{"process": 1, "start": 0, "end": 1, "correlation": number, "name": "k"} for number in range(300)]

    def sentence(lost: int, renamed: str = "") -> str:
        calls = [call | ({"name": renamed} if renamed else {}) for call in launches]
        return lost_work(attribute(Profile.build({}, launches=calls, kernels=kernels[lost:])))

    assert sentence(3) == ""  # one percent
    assert sentence(4) == "The profile lacks GPU activities: 4 of 300 kernel launches have no kernel."
    assert sentence(300) == "The profile lacks GPU activities: 300 of 300 kernel launches have no kernel."
    for name in ("cudaStreamSynchronize", "cudaGraphLaunch", "cudaLaunchHostFunc"):
        assert sentence(200, name) == ""


def test_captured_launches_have_no_kernels() -> None:
    names = ["cudaLaunchKernel", "cudaStreamBeginCapture_v10000", *["cudaLaunchKernel"] * 6, "cudaStreamEndCapture"]
    calls = [
        {
            "process": 1,
            "thread": 1 + number % 2,
            "start": 10 * number,
            "end": 10 * number + 1,
            "correlation": number,
            "name": name,
        }
        for number, name in enumerate(names)
    ]
    calls[1]["thread"] = calls[-1]["thread"]
    kernel = {"process": 1, "start": 0, "end": 1, "correlation": 0, "name": "k"}
    assert lost_work(attribute(Profile.build({}, launches=calls, kernels=[kernel]))) == ""
    late = {**calls[2], "start": 500, "end": 501, "correlation": 99}
    assert lost_work(attribute(Profile.build({}, launches=[*calls, late], kernels=[kernel]))) != ""


def test_report_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Run(real(LINEAR)).meta["cut"] == ""
    assert Run(without_work(real(LINEAR), scattered(0.4))).meta["cut"] != ""
    trace = json.loads(gzip.decompress(shared(LINEAR).read_bytes()))
    kernels = sorted(event["ts"] for event in trace["traceEvents"] if event.get("cat") == "kernel")
    last = kernels[int(0.6 * len(kernels))]
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if event.get("cat") != "kernel" or event["ts"] <= last
    ]
    (tmp_path / "lost.json").write_text(json.dumps(trace))
    assert main(["report", str(tmp_path / "lost.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "The profile lacks GPU activities: " in printed
    assert "15 of 39 steps have no kernel." in printed
