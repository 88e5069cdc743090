"""The replicas that DataParallel makes of a model for each forward: their ranges are those of the original."""

from __future__ import annotations

import functools
from typing import Any

import torch

from annot.torch.patches import Patches
from annot.torch.sites import Sites

__all__ = ["install"]


def install(patches: Patches, sites: Sites) -> None:
    """Give every replica of a module with a site a site that says the same."""
    original: Any = torch.nn.Module._replicate_for_data_parallel

    @functools.wraps(original)
    def replicate(module: torch.nn.Module) -> Any:
        replica = original(module)
        sites.add_replica(replica, module)
        return replica

    patches.replace(torch.nn.Module, "_replicate_for_data_parallel", replicate)
