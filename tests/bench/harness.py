"""What the benches share: a tool that does nothing, interleaved timing, and lines against a budget."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MODES",
    "Timings",
    "Variant",
    "build_null_tool",
    "child_environment",
    "mode",
    "null_tool_pushes",
    "null_tool_starts",
    "report",
    "run_in_modes",
    "time_variants",
]

Variant = Callable[[], AbstractContextManager[object]]
"""Enters the state in which the calls are timed."""

MODES: Mapping[str, dict[str, str]] = {"native": {}, "python": {"ANNOT_DISABLE_NATIVE": "1"}}
"""Environment that selects the C parts of annot, or their Python fallback."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds per call of every variant, one figure per round; the baseline is called ``plain``."""

    rounds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """Return the nanoseconds of one call."""
        return statistics.median(self.rounds[name])

    def added(self, name: str) -> float:
        """Return the nanoseconds that a variant adds to a plain call of the same round."""
        pairs = zip(self.rounds[name], self.rounds["plain"], strict=True)
        return statistics.median(mine - plain for mine, plain in pairs)

    def ratio(self, name: str) -> float:
        """Return the time of a variant over that of a plain call of the same round."""
        pairs = zip(self.rounds[name], self.rounds["plain"], strict=True)
        return statistics.median(mine / plain for mine, plain in pairs)


def time_variants(variants: Mapping[str, Variant], call: Callable[[], object], *, calls: int, rounds: int) -> Timings:
    """Time `call` under each variant, in turn, in many short blocks.

    Args:
        variants: what to enter, by name; one of them ``plain``.
        call: what is timed.
        calls: how often per block.
        rounds: how many blocks per variant.
    """
    taken: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    gc.freeze()
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            with variants[name]():
                call()  # what is built once per block, such as a cache, is no part of the figure
                call()
                taken[name].append(_block(call, calls))
        order.append(order.pop(0))
    return Timings(taken)


def _block(call: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begin) / calls


def report(what: str, value: float, unit: str, budget: float | None = None, note: str = "", width: int = 48) -> None:
    """Print one figure and, if it has a budget, whether it keeps it."""
    verdict = "" if budget is None else f"at most {budget:.3g} {unit}".ljust(18)
    if budget is not None:
        verdict += "pass" if value <= budget else "MISS"
    print(f"  {what:{width}} {value:9.3f} {unit:6} {verdict:24} {note}".rstrip(), flush=True)


def build_null_tool(folder: Path) -> Path:
    """Compile `null_tool.c` with the NVTX headers of the package `nvidia-nvtx`; return the library's path."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    headers = [header.parents[1] for root in roots for header in root.glob("*/include/nvtx3/nvToolsExt.h")]
    if not headers:
        raise SystemExit("the benches need the NVTX headers: pip install nvidia-nvtx")
    library = folder / "null_tool.so"
    source = Path(__file__).with_name("null_tool.c")
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{headers[-1]}"]
    subprocess.run([os.environ.get("CC", "gcc"), *flags, str(source), "-o", str(library)], check=True)
    return library


def null_tool_pushes() -> int:
    """Return how many ranges this thread has opened in the null tool; all of them must be closed."""
    tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    tool.null_tool_pushes.restype = ctypes.c_long
    if tool.null_tool_depth() != 0:
        raise SystemExit(f"{tool.null_tool_depth()} ranges are still open")
    return int(tool.null_tool_pushes())


def null_tool_starts() -> int:
    """Return how many start/end ranges any thread has opened in the null tool; all of them must be closed."""
    tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    tool.null_tool_starts.restype = tool.null_tool_started.restype = ctypes.c_long
    if tool.null_tool_started() != 0:
        raise SystemExit(f"{tool.null_tool_started()} ranges are still open")
    return int(tool.null_tool_starts())


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without annot's switches, and with `changes`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ANNOT_", "NVTX_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", **changes}


def mode() -> str:
    """Return which implementation this process uses: ``native`` or ``python``."""
    from annot.emit import client

    return "native" if client.IS_NATIVE else "python"


def run_in_modes(script: str, *, attached: bool = True) -> None:
    """Run `script` with the argument ``measure`` in a process of its own per mode.

    Args:
        script: path of the bench.
        attached: load the null tool before anything else makes an NVTX call.
    """
    with tempfile.TemporaryDirectory() as folder:
        tool = {"NVTX_INJECTION64_PATH": str(build_null_tool(Path(folder)))} if attached else {}
        for name, switch in MODES.items():
            print(f"{Path(script).stem}: {name}, {'null tool' if attached else 'no tool'}", flush=True)
            environment = child_environment(**tool, **switch)
            subprocess.run([sys.executable, script, "measure"], env=environment, check=True)
