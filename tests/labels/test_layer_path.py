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
    longest = separator.join("a" * 128)
    parsed = tag.parse(f"{longest} Linear |fwd")
    assert parsed is not None
    assert parsed.layer == longest
    assert tag.parse(f"{longest}{separator}a Linear |fwd") is None
    assert tag.parse(f"{longest}+{longest} Linear |fwd") is not None
    assert tag.parse(f"b+{longest}{separator}a Linear |fwd") is None


@pytest.mark.parametrize(
    ("path", "outer", "shown"),
    [
        ("a+b+c", "", "a+b+c"), ("a+b+c+d", "", "a+(2 more)+d"),
        ("h", "h", "(self)"), ("h.a", "h", "a"), ("h/a", "h", "a"), ("ha", "h", "ha"),
        (f"h{layer_path.INSIDE}a", "h", "a"), ("a+b+c+d+e+f", "", "a+(4 more)+f"),
    ],
)  # fmt: skip
def test_layers_inside_another_have_short_names(path: str, outer: str, shown: str) -> None:
    assert layer_path.relative(path, outer) == shown


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("a/b.c", "b.c"), ("a.b/c", "b/c"), ("/a.b", "a.b"), (".a/b", "a/b"), ("a", "a"),
        (f"a.b{layer_path.INSIDE}c/d", "c/d"),
    ],
)  # fmt: skip
def test_the_first_separator_of_a_path_separates_all_names(path: str, last: str) -> None:
    assert layer_path.last(path) == last
    assert next(layer_path.above(path)) == path.removesuffix(last)[:-1].removesuffix(layer_path.INSIDE[:-1])


def test_the_innermost_layer_around_layers() -> None:
    """A layer that contains the others is the innermost; layers of different models share the whole model."""
    assert layer_path.common(["a.b", "a.b.c", "a.b.d"]) == "a.b"
    assert layer_path.common(["a.b.c", "a.d"]) == "a"
    assert layer_path.common(["a.b"]) == "a.b"
    assert layer_path.common([]) == layer_path.common(["a", "b"]) == layer_path.common(["", "a"]) == ""


@pytest.mark.parametrize(
    ("path", "shown"), [("2", "Net.2"), ("12.fc", "Net.12.fc"), ("*.fc", "Net.*.fc"), ("fc.2", "fc.2"), ("", "")]
)
def test_paths_that_begin_with_a_number_have_the_class_of_the_model(path: str, shown: str) -> None:
    assert layer_path.with_parent(path, "Net") == shown
    assert layer_path.with_parent(path) == path
