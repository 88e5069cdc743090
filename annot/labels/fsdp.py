"""Names of the ranges that PyTorch's FSDP2 (`torch.distributed.fsdp.fully_shard`) opens, and segments of wrappers.

``FSDP::pre_forward (X)`` opens the forward pass of layer X, ``FSDP::post_forward (X)`` closes it. ``FSDP::pre_backward
(X)`` opens its backward pass, which ``FSDP::post_backward_accumulate (X)``, ``…_reshard (X)``, ``…_rs_wait (X)`` and
``…_reduce (X)`` close. The root module has no path. (`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` of
PyTorch 2.13; earlier versions have fewer of the closing ranges.) FSDP1 names its ranges without layers:
``FullyShardedDataParallel._pre_forward``.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

__all__ = ["hooks_of", "is_step", "unwrapped"]

_HOOK: Final = (
    r"^FSDP::(?P<side>pre|post)_(?P<phase>forward|backward)(?:_accumulate|_reshard|_rs_wait|_reduce)?"
    r"(?: \((?P<layer>.*)\))?(?: \[pg=\d+\])?$"
)
_WRAPPERS: Final = r"(?:^|\.)(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\b|^module\b"
"""Segments of FSDP1, checkpoint_wrapper, torch.compile and DDP."""


def is_step(name: str) -> bool:
    """Return whether a name is that of a step of FSDP, such as a hook or an all-gather.

    Example:
        >>> is_step("FSDP::all_gather (layers.0)"), is_step("FullyShardedDataParallel.forward")
        (True, False)
    """
    return name.startswith(("FSDP::", "FullyShardedDataParallel.")) and not name.endswith(".forward")


def unwrapped(path: str) -> str:
    """Return the path of a layer without the segments of wrappers: ``layers.0`` for ``module.layers.0._orig_mod``."""
    return re.sub(_WRAPPERS, "", path).removeprefix(".")


def hooks_of(names: pl.Series) -> pl.DataFrame:
    """Return the hook that each name belongs to.

    Args:
        names: range texts without the suffix of emit_nvtx (String).

    Returns:
        side (pre or post), phase (forward or backward) and layer (path without wrappers, empty for the root module);
        null for other names.

    Example:
        >>> hooks_of(pl.Series(["FSDP::pre_forward (blocks.2._checkpoint_wrapped_module)"])).row(0)
        ('pre', 'forward', 'blocks.2')
    """
    hooks = names.str.extract_groups(_HOOK).struct.unnest()
    layer = pl.col("layer").fill_null("").str.replace_all(_WRAPPERS, "").str.strip_prefix(".")
    return hooks.with_columns(pl.when(pl.col("side").is_not_null()).then(layer).alias("layer"))
