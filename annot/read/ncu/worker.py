"""Print an Nsight Compute report as JSON lines with NVIDIA's `ncu_report`.

`annot.read.ncu.ncu_rep` runs this program. It is a separate process because the C++ parser of `ncu_report` can crash on
a damaged report. It imports only the standard library to start fast.

A line ``[name, unit]`` defines a metric. Later lines refer to metrics by their index, from 0. A line with an object is
a kernel: ``name``, ``metrics`` as pairs of index and value, and the NVTX ranges ``pushed`` and ``started`` as lists of
``[domain, text, payload, color]``, outermost first.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_MEMORY = 8 << 30  # bytes of address space; reports have some megabytes


def main(path: str) -> None:
    """Print a report."""
    _limit_memory()
    with os.fdopen(os.dup(1), "w", encoding="ascii") as out:
        os.dup2(2, 1)  # the library prints to stdout: redirect it to stderr
        for value in _values(path):
            out.write(json.dumps(value) + "\n")


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError):  # macOS has no limit below the address space that a process has from its start
        resource.setrlimit(
            resource.RLIMIT_AS, (_MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most), most)
        )


def _values(path: str) -> Iterator[Any]:
    import ncu_report  # type: ignore[import-not-found, import-untyped, unused-ignore]

    numbers: dict[str, int] = {}
    report = ncu_report.load_report(path)
    for range_index in range(report.num_ranges()):
        actions = report.range_by_idx(range_index)
        for index in range(actions.num_actions()):
            action = actions.action_by_idx(index)
            metrics = []
            for name, metric, value in _metrics(action):
                if name not in numbers:
                    numbers[name] = len(numbers)
                    yield [_clean(name), _clean(metric.unit())]
                metrics.append((numbers[name], value))
            pushed, started = _ranges(action.nvtx_state())
            name = _clean(action.name(action.NameBase_DEMANGLED))
            yield {"name": name, "metrics": metrics, "pushed": pushed, "started": started}


def _metrics(action: Any) -> Iterator[tuple[str, Any, float]]:
    for name in action.metric_names():
        try:
            metric = action.metric_by_name(name)
        except TypeError:  # ncu_report raises it for a name that is not UTF-8
            continue
        value = None if metric is None else metric.value()
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, metric, value


def _ranges(state: Any) -> tuple[list[Any], list[Any]]:
    pushed: list[Any] = []
    started: list[Any] = []
    for number in state.domains() if state else ():
        domain = state.domain_by_id(number)
        name = _clean(domain.name())
        pushed += [_range(name, domain.push_pop_range(index)) for index in range(len(domain.push_pop_ranges()))]
        started += [_range(name, domain.start_end_range(index)) for index in range(len(domain.start_end_ranges()))]
    return pushed, started


def _range(domain: str, opened: Any) -> list[Any]:
    payload, color = None, None
    if opened.has_attributes():
        color = opened.color() or None
        kind = opened.payload_type()
        if kind in (opened.PayloadType_PAYLOAD_DOUBLE, opened.PayloadType_PAYLOAD_FLOAT):
            payload = repr(opened.payload_as_double())
        elif kind not in (opened.PayloadType_PAYLOAD_UNKNOWN, opened.PayloadType_PAYLOAD_JSON):
            payload = str(opened.payload_as_uint64())
    return [domain, _clean(opened.name()), payload, color]


def _clean(text: str) -> str:
    """Replace invalid UTF-8 by U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


if __name__ == "__main__":
    main(sys.argv[1])
