"""The grammar of a range's text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.labels import tag
from annot.labels.tag import PHASES, Tag, TensorSpec

names = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["Forward", "Batch", "Other", "12", "+3", "a b", 'q"uote', "[2]f32", "x|fwd", "層.0"]),
    st.sampled_from(["\n", "\\", "\u2028", "", " "]),
)
tensors = st.builds(
    TensorSpec,
    st.lists(st.one_of(st.none(), st.integers(-2, 10**12)), max_size=5).map(tuple),
    st.one_of(st.sampled_from(["f32", "bf16", "bool", ""]), st.text(max_size=6)),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from(["None", "True", "inf", "nan", "infinity", "1", "a,b", "mean", "a=b", "|op", "x ", ","]),
    st.text(max_size=6),
)
values = st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple))
argument_names = st.one_of(st.sampled_from(["stride", "a b", "", "=", "1"]), st.text(max_size=6))


@st.composite
def built(draw: st.DrawFn) -> Tag:
    """Any legal tag."""
    phase = draw(st.sampled_from(PHASES))
    return Tag(
        draw(names),
        draw(names),
        phase,
        draw(st.lists(tensors, max_size=3).map(tuple)),
        draw(st.integers(0, 99)),
        draw(st.one_of(st.none(), st.integers(0, 10**9))),
        draw(names.filter(bool)) if phase == "op" else "",
        draw(st.lists(st.tuples(argument_names, values), max_size=3).map(tuple)),
    )


tags = built()


@settings(max_examples=examples(100), deadline=None)
@given(tags)
def test_parse_gives_back_what_format_wrote(one: Tag) -> None:
    """Every legal tag survives the way through text unchanged, with the types of its values."""
    assert repr(tag.parse(tag.format(one))) == repr(one)


@settings(max_examples=examples(100), deadline=None)
@given(tags, tags)
def test_different_tags_have_different_texts(one: Tag, other: Tag) -> None:
    """No two tags share a text."""
    assert (tag.format(one) == tag.format(other)) == (repr(one) == repr(other))


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=60))
def test_a_text_is_ours_only_if_format_could_have_written_it(text: str) -> None:
    """Arbitrary text parses to nothing, or to the very tag that formats to it."""
    parsed = tag.parse(text)
    assert parsed is None or tag.format(parsed) == text


@settings(max_examples=examples(100), deadline=None)
@given(tags, st.text(alphabet=' "[]|,+?0aF\\\n', min_size=1, max_size=3), st.integers(0, 40))
def test_damaged_texts_never_become_a_wrong_tag(one: Tag, noise: str, place: int) -> None:
    """Text with noise put in is foreign, or reads as exactly what it now says."""
    text = tag.format(one)
    damaged = text[:place] + noise + text[place:]
    parsed = tag.parse(damaged)
    assert parsed is None or tag.format(parsed) == damaged


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "forward",
        "Backward",
        "Batch 12",
        "features.0 Conv2d [32,3]f32",
        "aten::conv2d, seq = 5, op_id = 3, sizes = [[1, 3], [2]]",
        "{'mod': 'torch.nn.functional', 'op': 'conv2d', 'args': [{'shape': (32, 3)}]}",
        "TransformerLayer.forward.self_attention",
        "ProfilerStep#3",
        "layer1.0 | Conv2d | f32[2,4] | bwd",
        "a  Conv2d |fwd",
        " a Conv2d |fwd",
        "a Conv2d |fwd ",
        "a Conv2d [2, 3]f32 |fwd",
        "a Conv2d [02]f32 |fwd",
        '"a" Conv2d |fwd',
        "a Conv2d |train",
        "Forward Backward |bwd",
        "a |op",
        "a Conv2d conv2d |fwd",
        "a Conv2d mm stride=04 |op",
        "a Conv2d mm stride=1e5 |op",
        "a Conv2d mm stride=2,3, |op",
        "a Conv2d mm stride= |op",
        'a Conv2d mm mode="mean" |op',
        "a Conv2d mm stride=1 [2]f32 |op",
        "a=b Conv2d |fwd",
    ],
)
def test_what_others_write_is_not_ours(foreign: str) -> None:
    """Names of other tools, and near misses of our own grammar, are foreign."""
    assert tag.parse(foreign) is None


def test_texts_read_well_in_a_timeline() -> None:
    """The spelling that the documents promise."""
    spec = (TensorSpec((32, 3, 224, 224), "f32"),)
    assert str(Tag("features.0", "Conv2d", "forward", spec)) == "features.0 Conv2d [32,3,224,224]f32 |fwd"
    assert str(Tag("features.0", "Conv2d", "backward", spec)) == "features.0 Conv2d [32,3,224,224]f32 |bwd"
    assert str(Tag("", "AlexNet", "forward", spec, 2)) == "Forward AlexNet [32,3,224,224]f32 +2 |fwd"
    assert str(Tag(phase="backward")) == "Backward |bwd"
    assert str(Tag("", "SGD", "optimizer")) == "Optimizer SGD |opt"
    assert str(Tag(phase="epoch", step=3)) == "Epoch 3 |epoch"
    conv = Tag("features.0", "Conv2d", "op", spec, op="conv2d", arguments=(("stride", (4, 4)), ("mode", "mean")))
    assert str(conv) == "features.0 Conv2d conv2d [32,3,224,224]f32 stride=4,4 mode=mean |op"
    odd = (("a", ()), ("b", (1,)), ("c", 1.0), ("d", True), ("e", None), ("f", "1"), ("g", ("x", -2)))
    assert (
        str(Tag("", "", "op", op="mm", arguments=odd)) == 'Operation mm a=, b=1, c=1.0 d=True e=None f="1" g=x,-2 |op'
    )
    assert str(Tag("fc", "Linear", "recompute")) == "fc Linear |re"
    assert str(Tag("my layer", "", "other", (TensorSpec((None, 4)),))) == '"my layer" [?,4] |other'


def test_forward_and_backward_differ_in_name() -> None:
    """The two directions of one layer never share a text."""
    assert tag.format(Tag("a", "B", "forward")) != tag.format(Tag("a", "B", "backward"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Tag(phase="train"), "phase must be one of forward"),  # type: ignore[arg-type]
        (Tag(step=-1), "must not be negative, got 0 and -1"),
        (Tag(omitted=-2), "must not be negative, got -2 and None"),
        (Tag(phase="op"), "op must be set in the phase op, and only there, got '' in 'op'"),
        (Tag(op="mm"), "op must be set in the phase op, and only there, got 'mm' in 'other'"),
    ],
)
def test_illegal_tags_are_refused(wrong: Tag, message: str) -> None:
    """A tag that has no text raises and says what was expected."""
    with pytest.raises(ValueError, match=re.escape(message)):
        tag.format(wrong)


@pytest.mark.parametrize(
    ("long", "short", "sizes"),
    [
        ("float", "f", (16, 32, 64)), ("bfloat", "bf", (16,)), ("int", "i", (8, 16, 32, 64)),
        ("uint", "u", (8, 16, 32, 64)), ("complex", "c", (32, 64, 128)),
    ],
)  # fmt: skip
def test_dtypes_have_short_names(long: str, short: str, sizes: tuple[int, ...]) -> None:
    assert [tag.short_dtype(f"torch.{long}{bits}") for bits in sizes] == [f"{short}{bits}" for bits in sizes]
    assert [tag.short_dtype(f"{long}{bits}") for bits in sizes] == [f"{short}{bits}" for bits in sizes]
    assert tag.short_dtype(f"{long}4") == f"{long}4"


def test_an_operation_needs_no_class_of_its_layer() -> None:
    assert tag.parse("fc conv2d |op") == Tag("fc", phase="op", op="conv2d")
    assert tag.parse("fc Conv2d conv2d |op") == Tag("fc", "Conv2d", "op", op="conv2d")
    assert tag.parse("fc Conv2d |fwd") == Tag("fc", "Conv2d", "forward")
    assert tag.parse("fc Conv2d conv2d |fwd") is None


def test_names_in_quotes_keep_their_letters() -> None:
    assert tag.format(tag.Tag("größe 1")).startswith('"größe 1"')
