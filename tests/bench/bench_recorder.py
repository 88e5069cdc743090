"""What the recorder costs: nanoseconds of a range, bytes of file, and how fast the profile is assembled.

Run by hand: ``python tests/bench/bench_recorder.py``. The minimal tool is measured in the same rounds.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import build_null_tool, child_environment, report

from annot import native
from annot.read.recording.export import assemble

RANGES, BLOCKS, ROUNDS = 200_000, 5, 5
PYTHON = """
import nvtx, sys, time
domain = nvtx.get_domain("bench")
attributes = domain.get_event_attributes(message="features.0 Conv2d [32,3,224,224]f32 |fwd", category="c")
push, pop, count = domain.push_range, domain.pop_range, int(sys.argv[1])
for _ in range(int(sys.argv[2])):
    begin = time.perf_counter_ns()
    for _ in range(count):
        push(attributes)
        pop()
    print((time.perf_counter_ns() - begin) / count)
"""


def build_caller(folder: Path, null_tool: Path) -> list[str]:
    """Compile `recorder_caller.c` as the null tool was compiled."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    headers = [header.parents[1] for root in roots for header in root.glob("*/include/nvtx3/nvToolsExt.h")]
    source, program = Path(__file__).with_name("recorder_caller.c"), null_tool.with_name("caller")
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O2", f"-I{headers[-1]}", str(source), "-o", str(program), "-ldl"], check=True)
    return [str(program)]


def measure(command: list[str], environ: dict[str, str]) -> float:
    """Run one process; return the median of its blocks."""
    output = subprocess.run(command, env=child_environment(**environ), check=True, capture_output=True, text=True)
    return statistics.median(float(line) for line in output.stdout.split())


def compare(what: str, command: list[str], null: Path, recorder: Path, folder: Path, budget: float | None) -> Path:
    """Measure a caller with the null tool and with the recorder, in turn; return what the recorder wrote last."""
    taken: dict[str, list[float]] = {"null": [], "recorder": []}
    parts = folder / "parts"
    for round_ in range(ROUNDS):
        parts = folder / f"{what} {round_}"
        parts.mkdir()
        taken["null"].append(measure(command, {"NVTX_INJECTION64_PATH": str(null)}))
        environ = {"NVTX_INJECTION64_PATH": str(recorder), "ANNOT_RECORD_DIR": str(parts)}
        taken["recorder"].append(measure(command, environ))
    added = statistics.median(a - b for a, b in zip(taken["recorder"], taken["null"], strict=True))
    cost = {name: statistics.median(figures) for name, figures in taken.items()}
    note = f"{cost['recorder'] / cost['null']:.1f} x null tool ({cost['null']:.1f} ns)"
    report(f"a range, {what}", cost["recorder"] / 1e3, "us", budget, note)
    report(f"a range, {what}, over the null tool", added / 1e3, "us", budget)
    return parts


def sizes(what: str, parts: Path, budget: float | None) -> None:
    """Assemble a recording; report bytes and speed."""
    raw = sum(path.stat().st_size for path in parts.iterdir())
    out = parts.with_suffix(".sqlite")
    begin = time.perf_counter()
    recording = assemble(parts, out)
    taken = time.perf_counter() - begin
    if recording.ranges != RANGES * BLOCKS or recording.lost or recording.open_ranges:
        raise SystemExit(f"not all is there: {recording}")
    report(f"raw file, {what}", raw / recording.ranges, "bytes", budget, "per range")
    report(f"profile, {what}", out.stat().st_size / recording.ranges, "bytes", budget, "per range")
    report(f"assembling, {what}", recording.ranges / taken / 1e3, "k/s", None, "ranges per second")


def main() -> None:
    """Measure and print."""
    recorder = native.recorder_library()
    if recorder is None:
        raise SystemExit("the recorder was not built")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        null = build_null_tool(folder)
        caller = build_caller(folder, null)
        for what, budget in (("registered", 0.15), ("plain", None)):
            command = [*caller, what, str(RANGES), str(BLOCKS)]
            parts = compare(what, command, null, recorder, folder, budget)
            sizes(what, parts, 100 if budget else None)
        command = [sys.executable, "-c", PYTHON, str(RANGES), str(BLOCKS)]
        compare("nvtx package", command, null, recorder, folder, None)


if __name__ == "__main__":
    main()
