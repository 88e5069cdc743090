"""Replicas of DataParallel: the copies of a model for each forward have the ranges of the original."""

from __future__ import annotations

import functools
from typing import Any

import torch

from annot.torch.module_sites import Sites
from annot.torch.patches import Patches

__all__ = ["install"]


def install(patches: Patches, sites: Sites) -> None:
    """Patch the replication so that each replica gets a copy of the site of its module."""
    original: Any = torch.nn.Module._replicate_for_data_parallel

    @functools.wraps(original)
    def replicate(module: torch.nn.Module) -> Any:
        replica = original(module)
        sites.add_replica(replica, module)
        return replica

    patches.replace(torch.nn.Module, "_replicate_for_data_parallel", replicate)
