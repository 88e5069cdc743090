"""Write ``scopes.hatchet`` and ``scopes.hatchet_msgpack`` into a folder with Triton's own writer, without a GPU.

No kernel runs. The times and counts of the kernels are metrics of the user, which Proton writes into the same fields,
but ``device_id`` as a number and without ``device_type`` and the table of devices.
"""

from __future__ import annotations

import sys
from typing import Any

from triton._C.libproton import proton  # type: ignore[import-not-found]


def scope(name: str, metrics: dict[str, float], *inside: Any) -> None:
    """Enter a scope, add its metrics, and do the same for the scopes inside it."""
    number = proton.record_scope()
    proton.enter_scope(number, name)
    if metrics:
        proton.add_metrics(number, metrics, {})
    for one in inside:
        scope(*one)
    proton.exit_scope(number, name)


def kernel(name: str, ns: int, count: int = 1, **more: float) -> tuple[str, dict[str, float]]:
    """Return the scope of a kernel."""
    return name, {"time (ns)": ns, "count": count, "device_id": 0, **more}


def decode(requests: int, ns: int) -> None:
    """Enter the scopes of a decode step of vLLM: a graph with two layers, then the sampler."""
    layers = [
        (
            f"model.layers.{i}",
            {},
            (f"model.layers.{i}.mlp", {}, kernel("gemm", ns + i, flops16=2.0 * ns)),
            kernel("norm", 3),
        )
        for i in range(2)
    ]
    graph = ("<captured_at>", {}, ("model", {}, *layers, ("model.norm", {}, kernel("norm", 5))))
    step = f"execute_context_0(0)_generation_{requests}({requests})"
    scope(step, {"requests": requests}, graph, ("sampler", {}, kernel("top_k", 101, 2)), kernel("copy_logits", 7))


for output_format in ("hatchet", "hatchet_msgpack"):
    session = proton.start(f"{sys.argv[1]}/scopes", "shadow", "tree", "instrumentation", "cuda")
    for requests, ns in ((1, 1000), (1, 1100), (2, 2000)):
        decode(requests, ns)
    scope("weights.py: load", {"bytes": 64})
    proton.finalize(session, output_format)
