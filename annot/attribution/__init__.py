"""Attribution of host and GPU time in a profile to layers."""

from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import REASONS, UNATTRIBUTED
from annot.attribution.layer_tables import by_kernel, by_layer, by_module, by_op, by_phase
from annot.attribution.summary import by_step, summarize

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
    "summarize",
]
