"""From ranges, launches and kernels to layers: pure functions on the tables of a profile.

The package has the name of its main function, so that `annot.correlate` is one or the other, depending on
what was imported first: therefore the package can be called as well.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import polars as pl

from annot.correlate.account import REASONS, UNATTRIBUTED
from annot.correlate.attribution import Attribution, attribute
from annot.correlate.rows import by_kernel, by_layer, by_module, by_op, by_phase
from annot.correlate.step_rows import by_step
from annot.correlate.summary import summarize
from annot.profile import Source

__all__ = [
    "REASONS",
    "UNATTRIBUTED",
    "Attribution",
    "attribute",
    "by_kernel",
    "by_layer",
    "by_module",
    "by_op",
    "by_phase",
    "by_step",
    "correlate",
    "summarize",
]


def correlate(
    profile: Source, *, domain: str | None = None, steps: slice | None = None, step_range: str | None = None
) -> pl.DataFrame:
    """Return which layer, forward and backward, used the time: a row per layer, module class and phase.

    Rows come in order of first appearance. The whole model has the layer ``""``, and so have the whole
    backward pass and the optimizer, told apart by module and phase. Epochs, batches and the wait for data are
    the layers ``(epoch)``, ``(batch)`` and ``(data)``; a range that annot did not make is a layer named by
    its text. What belongs to no range stands in the last rows, ``(unattributed)``, whose module says why, so
    that the column `gpu_self_ns` adds up to all device time exactly.

    Args:
        profile: what `annot.load` gave.
        domain: only ranges of this NVTX domain take part ("" is the default domain); None: all do.
        steps: only steps with these numbers take part; None: all, and what lies in no step.
        step_range: text of the ranges that are the steps, ``#`` for any number; None: they are found.

    Returns:
        layer, module, phase: text; phase is forward, backward, recompute (a forward that runs again
            for the backward), optimizer, data or other.
        calls: number of ranges.
        host_ns: host time of the ranges with what lies in them; a layer inside itself counts once. Layers of a graph
            that run at the same time, as TensorFlow's do, take longer together than what they lie in.
        host_self_ns: host time in them but in no range inside them.
        gpu_ns, gpu_self_ns: time of the kernels, copies and sets launched in the ranges, added up, with what
            lies in them, and in them but in no range inside them.
        gpu_busy_ns: how long devices were busy with it, streams side by side counted once; added over devices.
        gpu_span_ns: from the first start to the last end of it.
        gpu_by_sequence_ns, gpu_by_time_ns: the parts of gpu_self_ns that were launched by operations of the
            backward pass and led here by their sequence number; and in no range of their own thread, and
            belong here only because this was the innermost range of another thread at that time.
        kernels, copies: how many make up gpu_self_ns.
        kernels_total: how many kernels make up gpu_ns.
        memory_source, memory_change_bytes, memory_peak_bytes: only if the profile was made with ``memory=True``: where
            the figures come from (``rss`` or ``cuda:N``), the change from start to end of each range, added up over
            the calls, and the most that was in use in any of them.
        shapes: list of the input shapes seen, the most frequent first, at most 8.

    Raises:
        TypeError: `profile` is no profile.
        ValueError: steps are asked for, and there are none.

    Example:
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> correlate(Profile.build({}, ranges=pl.DataFrame(ranges))).row(0, named=True)["host_ns"]
        900
    """
    if not hasattr(profile, "work_blocks"):
        raise TypeError(f"profile must be a Profile, as annot.load gives it, got {type(profile).__name__}")
    return by_layer(attribute(profile, domain=domain, steps=steps, step_range=step_range))


class _CallablePackage(ModuleType):
    def __call__(self, profile: Source, **options: Any) -> pl.DataFrame:
        """Do what `correlate` does."""
        return correlate(profile, **options)


sys.modules[__name__].__class__ = _CallablePackage
