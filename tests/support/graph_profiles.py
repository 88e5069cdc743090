"""Profiles of captures of GPU graphs and of their replays, from lists of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from annot.profile import COPIES, KERNELS, LAUNCHES, RANGES, Profile

Node = tuple[str, str, str | None]
"""Layer, kernel and grid of a node. Kernels named memcpy and memset are copies and memsets."""

CAPTURING, REPLAYING = 101, 101
"""Threads with the same number in both profiles, as in traces of one program."""
_CALLS = {"memcpy": "cudaMemcpyAsync", "memset": "hipMemsetAsync"}


def capture(*graphs: Sequence[Node], name: str = "capture.json", threads: Sequence[int] = (CAPTURING,)) -> Profile:
    """Return the profile of the capture of graphs one after the other. A layer is a module around each launch.

    Eager kernels run before a capture, and on another thread during it. After it comes a launch whose kernel is lost.
    The launches of a graph are on `threads` in turn.
    """
    launches, ranges, kernels, now = list[Any](), list[Any](), list[Any](), 0
    for graph in graphs:
        now += 100
        for at, thread in ((now, CAPTURING), (now + 60, 103)):
            ran = len(launches)
            launches.append(_call("hipLaunchKernel", at, ran, thread, kernel="eager", grid="1,1,1 1,1,1"))
            kernels.append({"process": 1, "start": at + 5, "end": at + 8, "correlation": ran, "name": "eager"})
        launches.append(_call("hipStreamBeginCapture", now + 50, len(launches)))
        for number, (layer, kernel, grid) in enumerate(graph):
            now += 100
            thread = threads[number % len(threads)]
            where = {"process": 1, "thread": thread, "start": now + 1, "end": now + 99}
            ranges.append({"text": f"{layer} Linear |fwd", "role": "module", "kind": "push", "domain": "", **where})
            name_of_call = _CALLS.get(kernel, "hipModuleLaunchKernel")
            known = {} if kernel in _CALLS else {"kernel": kernel, "grid": grid}
            launches.append(_call("cudaStreamIsCapturing", now + 10, len(launches), thread))
            launches.append(_call(name_of_call, now + 20, len(launches), thread, **known))
        now += 100
        launches.append(_call("hipStreamEndCapture", now, len(launches)))
        launches.append(_call("hipLaunchKernel", now + 10, len(launches), kernel="lost"))
    ranges = [{"id": number, **row} for number, row in enumerate(ranges)]
    return _profile(name, ranges, launches, kernels, [])


def execution(*replays: Sequence[tuple[str, str | None]], step: bool = True) -> Profile:
    """Return the profile of replays, each of kernels with a grid, and an eager kernel before each.

    A step is around each replay. The n-th GPU activity of all takes 1 + n % 7 ns.
    """
    launches, ranges, kernels, copies, now = list[Any](), list[Any](), list[Any](), list[Any](), 0
    for number, replay in enumerate(replays):
        if step:
            text = {"text": f"Batch {number} |step", "domain": "annot", "kind": "push"}
            ranges.append({"id": number, "process": 1, "thread": REPLAYING, "start": now, "end": now + 90, **text})
        launches += [_call("hipLaunchKernel", now + 10, 2 * number), _call("hipGraphLaunch", now + 20, 2 * number + 1)]
        for correlation, (name, grid) in [(2 * number, ("eager", None)), *((2 * number + 1, one) for one in replay)]:
            length = 1 + (len(kernels) + len(copies)) % 7
            row = {"process": 1, "device": 0, "start": now + 30, "end": now + 30 + length, "correlation": correlation}
            if name in _CALLS:
                copies.append(row | {"kind": "memset" if name == "memset" else "DtoD"})
            else:
                kernels.append(row | {"name": name, "grid": grid})
            now += 10
        now += 100
    return _profile("execution.json", ranges, launches, kernels, copies)


def _call(name: str, start: int, correlation: int, thread: int = CAPTURING, **more: Any) -> dict[str, Any]:
    times = {"process": 1, "thread": thread, "start": start, "end": start + 5}
    return {**times, "correlation": correlation, "name": name, **more}


def _profile(source: str, ranges: list[Any], launches: list[Any], kernels: list[Any], copies: list[Any]) -> Profile:
    return Profile.build(
        {"source": source, "format": "kineto"},
        ranges=pl.DataFrame(ranges, schema=dict(RANGES), orient="row"),
        launches=pl.DataFrame(launches, schema=dict(LAUNCHES), orient="row"),
        kernels=pl.DataFrame(kernels, schema=dict(KERNELS), orient="row"),
        copies=pl.DataFrame(copies, schema=dict(COPIES), orient="row"),
    )
