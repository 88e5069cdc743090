"""Expected work of each layer: FLOPs, bytes and parameters, from the shapes and arguments in its range labels."""

from __future__ import annotations

from annot.analyze.work.layer_work import layer_work

__all__ = ["layer_work"]
