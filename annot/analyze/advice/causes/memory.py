"""Causes of slow operators that mostly move memory: reductions and gradients of embeddings."""

from __future__ import annotations

import math

from annot.analyze.advice.causes.cause import Cause, is_fast, roof_words
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.work.call import Call
from annot.analyze.work.operators import REDUCTIONS, reduced_dimensions

__all__ = ["embedding_cause", "reduction_cause"]


def reduction_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause of a reduction whose elements are not neighbours in memory; None: another operator.

    Evidence: dimensions that a reduction of a contiguous tensor reduces, without the last one, and less than half of
    the memory bandwidth of a known device.
    """
    if call.name not in REDUCTIONS:
        return None
    dimensions = reduced_dimensions(call)
    apart = math.prod(call.shape()[max(dimensions, default=0) + 1 :])
    if apart <= 1 or is_fast(operator):
        return None
    which = f"dimension{'s' * (len(dimensions) > 1)} {', '.join(map(str, dimensions))}"
    return Cause(
        "strided_reduction",
        f"a reduction over {which}, whose elements are {apart} elements apart in memory{roof_words(operator)}",
        "Reduce over the last dimension: write the tensor in this layout, or fuse the reduction with what writes it.",
        "y = torch.compile(lambda x: f(x).sum(0))(x)      # f writes x; or keep x with the reduced dimension last",
        1 - (operator.roof_share or 0.0),
    )


def embedding_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause of a dense gradient of an embedding: it has more rows than the indices can reach.

    Evidence: the number of rows of the table and of the indices of ``aten::embedding_dense_backward``.
    """
    if call.name != "embedding_dense_backward":
        return None
    rows, indices = call.number("num"), call.count(1)
    if rows <= indices:
        return None
    return Cause(
        "dense_gradient",
        f"a dense gradient of {rows:,} rows, of which {indices:,} indices reach at most {indices / rows:.0%}",
        "Use sparse gradients for the embedding, or a smaller table.",
        "embedding = torch.nn.Embedding(rows, width, sparse=True)\n"
        "optimizer = torch.optim.SparseAdam(embedding.parameters())",
        1 - indices / rows,
    )
