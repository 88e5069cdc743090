"""From ranges, launches and kernels to layers: pure functions on the tables of a profile.

The package has the name of its main function, so that `annot.correlate` is one or the other, depending on
what was
imported first: therefore the package can be called as well.
"""

from __future__ import annotations

import sys
from types import ModuleType

import polars as pl

from annot.correlate.attribution import Attribution, attribute
from annot.correlate.rows import UNATTRIBUTED, by_kernel, by_layer, by_module, by_phase
from annot.correlate.steps import by_step
from annot.correlate.summary import summarize
from annot.profile import Profile

__all__ = [
    "UNATTRIBUTED",
    "Attribution",
    "attribute",
    "by_kernel",
    "by_layer",
    "by_module",
    "by_phase",
    "by_step",
    "correlate",
    "summarize",
]


def correlate(profile: Profile, *, domain: str | None = None) -> pl.DataFrame:
    """Return which layer, forward and backward, used the time: a row per layer, module class and phase.

    Rows come in order of first appearance. The whole model has the layer ``""``, and so have the whole
    backward pass and the optimizer, told apart by module and phase. Epochs, batches and the wait for data are
    the layers ``(epoch)``, ``(batch)`` and ``(data)``; a range that annot did not make is a layer named by
    its text. Where the profile has device work, the last row, ``(unattributed)``, is what was launched in no
    range, so that the column `gpu_self_ns` adds up to all of it exactly.

    Args:
        profile: what `annot.load` gave.
        domain: only ranges of this NVTX domain take part ("" is the default domain); None: all do.

    Returns:
        layer, module, phase: text; phase is forward, backward, optimizer, data or other.
        calls: number of ranges.
        host_ns: host time of the ranges with what lies in them; a layer inside itself counts once.
        host_self_ns: host time in them but in no range inside them.
        gpu_ns, gpu_self_ns: time of the kernels, copies and sets launched in the ranges, with what lies in
            them, and in them but in no range inside them.
        kernels, copies: how many make up gpu_self_ns.
        shapes: list of the input shapes seen, the most frequent first, at most 8.

    Example:
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> correlate(Profile.build({}, ranges=pl.DataFrame(ranges))).row(0, named=True)["host_ns"]
        900
    """
    if not isinstance(profile, Profile):
        raise TypeError(f"profile must be a Profile, as annot.load gives it, got {type(profile).__name__}")
    return by_layer(attribute(profile, domain=domain))


class _CallablePackage(ModuleType):
    def __call__(self, profile: Profile, *, domain: str | None = None) -> pl.DataFrame:
        """Do what `correlate` does."""
        return correlate(profile, domain=domain)


sys.modules[__name__].__class__ = _CallablePackage
