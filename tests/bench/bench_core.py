"""What `@trace`, the recorder and the import of annot cost.

Run by hand: ``make bench``.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from harness import build_null_tool, child_environment, report, run_in_modes, time_variants

REPEATS: Final = 2000
RANGES: Final = 200_000
HEAVY: Final = ("torch", "tensorflow", "polars")


def empty() -> None:
    """Do nothing."""


def _loop(function: Callable[[], object]) -> Callable[[], object]:
    def call() -> None:
        for _ in itertools.repeat(None, REPEATS):
            function()

    return call


def measure_trace() -> None:
    """Compare an empty function with its traced self."""
    from annot import enabled, trace

    traced = trace(empty)
    if not enabled():
        same = "the very same object" if traced is empty else "NOT the same object"
        report("@trace on an empty function, no tool", float(traced is not empty), "µs", 0, same)
        return
    functions = {"plain": empty, "traced": traced}
    current = empty

    def choose(name: str) -> nullcontext[None]:
        nonlocal current
        current = functions[name]
        return nullcontext()

    timings = time_variants(
        {"plain": lambda: choose("plain"), "traced": lambda: choose("traced")},
        lambda: _loop(current)(),
        calls=10,
        rounds=60,
    )
    plain = f"plain {timings.median('plain') / REPEATS / 1000:.3f} µs"
    report("@trace on an empty function", timings.added("traced") / REPEATS / 1000, "µs", 0.4, plain)


def measure_import() -> None:
    """Time the import of annot in fresh processes, and look at what it brought along."""
    script = (
        "import sys, time; begin = time.perf_counter(); import annot; took = time.perf_counter() - begin;"
        f"print(took * 1000, *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    taken, brought = [], set()
    for _ in range(9):
        output = subprocess.check_output([sys.executable, "-c", script], env=child_environment(), text=True)
        milliseconds, *heavy = output.split()
        taken.append(float(milliseconds))
        brought.update(heavy)
    note = f"it imported {', '.join(sorted(brought))}: MISS" if brought else f"none of {', '.join(HEAVY)}"
    report("import annot", statistics.median(taken), "ms", 60, note)


def measure_recorder() -> None:
    """Compare ranges under the recorder with ranges under the null tool, in fresh processes, in turn."""
    from annot.native import recorder_library
    from annot.read.recording.export import assemble

    library = recorder_library()
    if library is None:
        print("  the recorder is not built")
        return

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        null_tool = build_null_tool(folder)
        added, null = [], []
        for round_ in range(7):
            parts = folder / f"parts{round_}"
            parts.mkdir()
            null.append(_time_ranges(null_tool, parts))
            added.append(_time_ranges(library, parts) - null[-1])
        out = folder / "out.sqlite"
        assemble(parts, out)
        note = f"{RANGES} ranges, null tool {statistics.median(null):.3f} µs"
        report("recorder, per range", statistics.median(added), "µs", 0.15, note)
        report("recorder, file per range", out.stat().st_size / RANGES, "bytes", 100)


def _time_ranges(tool: Path, parts: Path) -> float:
    environment = child_environment(NVTX_INJECTION64_PATH=str(tool), ANNOT_RECORD_DIR=str(parts))
    command = [sys.executable, __file__, "ranges"]
    return float(subprocess.check_output(command, env=environment, text=True))


def emit_many() -> None:
    """Open and close many ranges of a few texts; print the microseconds of one."""
    import time

    from annot.emit import client

    client.enabled()
    events = [client.event(f"layer{number} Linear [8,8]f32 |fwd", category="forward") for number in range(20)]
    begin = time.perf_counter()
    for event in itertools.islice(itertools.cycle(events), RANGES):
        client.push(event)
        client.pop()
    print((time.perf_counter() - begin) / RANGES * 1e6)


def main(argv: list[str]) -> None:
    """Measure in this process, or start the processes that do."""
    if argv == ["ranges"]:
        emit_many()
    elif argv == ["measure"]:
        measure_trace()
    else:
        run_in_modes(__file__)
        run_in_modes(__file__, attached=False)
        print("bench_core: processes of their own")
        measure_import()
        measure_recorder()


if __name__ == "__main__":
    main(sys.argv[1:])
