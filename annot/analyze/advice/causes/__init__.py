"""Why an operator is slow on a GPU: a small rule for each cause.

Each rule states its evidence: the shapes and arguments of the operator, or the roof of a known device. Sources:
NVIDIA, "Matrix Multiplication Background User's Guide" (tiles, waves, alignment of 16 bytes) and "Convolutional Layers
User's Guide"; Dao et al., "FlashAttention-2" (arXiv 2307.08691), section 3.2; Shazeer et al., arXiv 1701.06538,
section 3.1 (batches of experts); PyTorch, `torch.nn.Embedding` (sparse gradients).
"""

from __future__ import annotations

from typing import Final

from annot.analyze.advice.causes.attention import attention_cause
from annot.analyze.advice.causes.cause import LOW_ROOF, Cause, Family, is_fast
from annot.analyze.advice.causes.convolution import convolution_cause
from annot.analyze.advice.causes.experts import experts_cause
from annot.analyze.advice.causes.gemm import gemm_cause
from annot.analyze.advice.causes.memory import embedding_cause, reduction_cause
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.work.call import CONTRADICTIONS, Call

__all__ = ["Cause", "cause_of"]

_FAMILIES: Final[dict[str, Family]] = {
    "conv": convolution_cause,
    "attention": attention_cause,
    "moe": experts_cause,
    "experts": experts_cause,
    "embedding": embedding_cause,
    "": lambda operator, call: gemm_cause(operator, call) or reduction_cause(operator, call),
}
"""Words in the names of operators, and the causes of their family; the first match wins."""


def cause_of(operator: Operator) -> Cause | None:
    """Return why an operator is slow; None: its inputs are unknown, or nothing is wrong with them."""
    if operator.tag is None or operator.tag.phase != "op":
        return None
    call = Call.of(operator.tag)
    family = next(family for word, family in _FAMILIES.items() if word in call.name)
    try:
        cause = family(operator, call)
    except CONTRADICTIONS:
        return None
    return cause or _low_roof(operator) or _low_intensity(operator)


def _low_roof(operator: Operator) -> Cause | None:
    """A compute-bound operator whose kernels that multiply are far below the roof of a known device.

    It saves at most what separates it from `LOW_ROOF`: a profile does not show that more is possible.
    """
    if operator.roof_share is None or operator.memory_bound or is_fast(operator):
        return None
    reached = operator.roof_share / operator.multiplies
    return Cause(
        "low_efficiency",
        f"{operator.roof_share:.0%} of the peak of the device at this precision",
        "Let the compiler or the library choose another kernel.",
        'model = torch.compile(model, mode="max-autotune")',
        operator.multiplies * (1 - reached / LOW_ROOF),
    )


def _low_intensity(operator: Operator) -> Cause | None:
    """An operator that moves more bytes than a device can compute with. It has no advice: fusing needs two."""
    if not operator.memory_bound or operator.intensity is None:
        return None
    roof = "" if operator.roof_share is None else f", {operator.roof_share:.0%} of the memory bandwidth"
    return Cause("memory_bound", f"memory-bound with {operator.intensity:.2g} FLOPs per byte{roof}")
