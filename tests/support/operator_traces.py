"""Small traces of torch.profiler with operators, their inputs and their kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from annot.analyze.advice.operator_causes import Operator
from annot.attribution.attribute import Attribution, attribute
from annot.labels.tag import parse
from annot.read.formats import load

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
NO_NAME = "void some_matmul_kernel<float>(float*)"


class OperatorTrace:
    """Operators that run one after the other on one thread; each launches a kernel, and the device never idles."""

    def __init__(self, *devices: dict[str, Any]) -> None:
        self._devices, self._events, self._at = devices, list[dict[str, Any]](), 0

    def op(
        self, name: str, *shapes: list[int], us: int = 100, kernel: str = NO_NAME, dtype: str = "c10::BFloat16",
        values: list[str] | None = None, inner: tuple[str, ...] = (),
    ) -> OperatorTrace:  # fmt: skip
        """Add an operator whose kernel takes `us` µs. `inner` are operators around the launch, outermost first."""
        number, at = len(self._events) + 1, self._at
        inputs = {"Input Dims": [*shapes], "Input type": [dtype] * len(shapes)}
        if values is not None:
            inputs["Concrete Inputs"] = values
        for depth, operator in enumerate((name, *inner)):
            times = {"ts": at + depth, "dur": us - 2 * depth - 1}
            self._add("cpu_op", operator, **times, args=inputs if operator != "mystery" else {})
        launch = {"correlation": number}
        self._add("cuda_runtime", "cudaLaunchKernel", ts=at + len(inner) + 1, dur=1, args=launch)
        self._add("kernel", kernel, ts=1000 + at, dur=us, args={**launch, "device": 0, "stream": 7}, pid=0, tid=7)
        self._at += us
        return self

    def _add(self, category: str, name: str, **event: Any) -> None:
        self._events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, **event})

    def attribution(self, folder: Path) -> Attribution:
        """Write the trace into a folder, read and attribute it."""
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": self._events, "deviceProperties": [*self._devices]}))
        return attribute(load(path))


def operator(text: str, *, memory: bool = True, **facts: Any) -> Operator:
    """Return an operator with all of the step time, which is memory-bound with 1 FLOP per byte, or compute-bound.

    Args:
        text: its label, such as ``aten mm [2,3]f32 [3,4]f32``.
        memory: whether it is memory-bound.
        facts: other fields of `Operator`.
    """
    library, name, *_ = text.split()
    usual: dict[str, Any] = {"kernels": (), "flops": 1e6, "bytes": 1e6, "ridge": 2.0 if memory else 0.5}
    usual |= {"roof_share": None, "processors": None, "device": "", "units": "Tensor Cores"}
    return Operator(0, f"{library}::{name}", parse(f"{text} |op"), 1.0, **(usual | facts))
