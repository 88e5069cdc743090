"""Paths of layers: which layers contain others, and how many names a path has at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annot.labels import layer_path, tag

_STEMS = ["a", "a1", *(f"a{separator}b" for separator in (".", "/", layer_path.INSIDE))]
paths = st.sampled_from(["", *_STEMS, *(f"{stem}{separator}c" for stem in _STEMS for separator in "./")])


@given(st.lists(paths, max_size=8), st.lists(paths, max_size=8))
def test_containers_are_those_with_a_layer_inside(outer: list[str], inner: list[str]) -> None:
    """As from comparing each path with each other path; the model contains every layer."""
    contained = {
        path
        for path in outer
        for other in inner
        if other != path and (layer_path.is_within(other, path) if path else other)
    }
    assert layer_path.containers(outer, inner) == contained


@pytest.mark.parametrize("separator", "./")
def test_a_path_has_at_most_128_names(separator: str) -> None:
    """A text with more names is no tag. Each layer of a fused kernel counts by itself."""
    longest = separator.join("a" * tag.MOST_NAMES)
    parsed = tag.parse(f"{longest} Linear |fwd")
    assert parsed is not None
    assert parsed.layer == longest
    assert tag.parse(f"{longest}{separator}a Linear |fwd") is None
    assert tag.parse(f"{longest}+{longest} Linear |fwd") is not None
    assert tag.parse(f"b+{longest}{separator}a Linear |fwd") is None
