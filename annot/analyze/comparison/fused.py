"""Layers that torch.compile or TensorFlow fused in one of two runs.

They are no difference between programs: eager mode has the rows ``h.0.ln_1`` and ``h.0.attn.c_attn``, a compiled model
``h.0.ln_1+h.0.attn.c_attn``. The time of a fused kernel belongs to several layers, so that the runs are compared at the
layer around these: ``h.0``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from annot.labels import layer_path
from annot.labels.tag import FUSED

Layer: TypeAlias = tuple[str, str]
"""Path and phase of a layer or of a fused kernel."""


def fused_layers(a: Collection[Layer], b: Collection[Layer]) -> tuple[set[Layer], set[Layer]]:
    """Return the layers and fused kernels of each profile whose time is elsewhere in the other profile.

    These are the fused kernels of one profile only, and the layers that such a kernel is fused from. Layers with others
    inside remain if both profiles have them: they have most of their work inside.

    Example:
        >>> eager = [("h", "forward"), ("h.ln", "forward"), ("h.fc", "forward"), ("h.drop", "forward")]
        >>> [*map(sorted, fused_layers(eager, [("h", "forward"), ("h.ln+h.fc", "forward")]))]
        [[('h.fc', 'forward'), ('h.ln', 'forward')], [('h.ln+h.fc', 'forward')]]
    """
    layers = set(a), set(b)
    fused = [{layer for layer in side if FUSED in layer[0]} for side in layers]
    only = fused[0] - fused[1], fused[1] - fused[0]
    if not any(only):
        return set(), set()
    members, around = [_members(side) for side in only], [_enclosing(side) for side in layers]
    # Layers of both profiles without others inside, a part of whose time is in a fused kernel.
    cut = (layers[0] & layers[1] & (members[0] | members[1])) - around[0] - around[1]
    sides = []
    for mine, other in ((0, 1), (1, 0)):
        present = layers[other] | members[other] | around[other]
        kernels = {kernel for kernel in only[mine] if not present.isdisjoint(_members([kernel]))}
        alone = (layers[mine] - layers[other]) & (members[other] | _enclosing(members[other]))
        sides.append(kernels | alone | cut)
    return sides[0], sides[1]


def _members(kernels: Iterable[Layer]) -> set[Layer]:
    """Return the layers that kernels are fused from."""
    return {(layer, phase) for path, phase in kernels for layer in layer_path.layers_of(path)}


def _enclosing(layers: Iterable[Layer]) -> set[Layer]:
    """Return the layers around layers and fused kernels."""
    return {(outer, phase) for path, phase in layers for outer in layer_path.around(path)}
