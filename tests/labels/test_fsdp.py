"""Names of FSDP's ranges: hooks around a layer, steps of FSDP itself, and segments of wrappers in paths."""

from __future__ import annotations

import polars as pl
import pytest

from annot.labels.foreign import hooks_of, is_step, unwrapped


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("FSDP::pre_forward (layers.0)", ("pre", "forward", "layers.0")),
        ("FSDP::post_backward_reshard (module.layers.0._orig_mod)", ("post", "backward", "layers.0")),
        ("FSDP::post_backward_rs_wait (layers.0) [pg=3]", ("post", "backward", "layers.0")),
        ("FSDP::pre_backward", ("pre", "backward", "")),
        ("FSDP::all_gather (layers.0)", (None, None, None)),
        ("my FSDP::pre_forward (layers.0)", (None, None, None)),
    ],
)
def test_a_hook_has_a_side_a_phase_and_a_layer(name: str, hook: tuple[str | None, ...]) -> None:
    """The root module has no path, and other ranges are no hooks."""
    assert hooks_of(pl.Series([name])).select("side", "phase", "layer").row(0) == hook


def test_steps_of_fsdp_are_told_from_forward_passes_of_layers() -> None:
    assert is_step("FSDP::all_gather (layers.0)")
    assert is_step("FullyShardedDataParallel._pre_forward")
    assert not is_step("FullyShardedDataParallel.forward")
    assert not is_step("layers.0")


def test_paths_have_no_segments_of_wrappers() -> None:
    assert unwrapped("module._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.fc") == "layers.0.fc"
    assert unwrapped("_orig_mod.fc") == "fc"
    assert unwrapped("encoder.module.fc") == "encoder.module.fc"
    assert unwrapped("modules.0") == "modules.0"
