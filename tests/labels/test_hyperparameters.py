"""Hyperparameters of layers: which values a range name has, and which it leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from annot.labels.hyperparameters import ALWAYS, hyperparameter_values


def _values(value: object, default: object) -> dict[str, Any]:
    return dict(hyperparameter_values(SimpleNamespace(size=value), [("size", "size", default)]))


def test_a_hyperparameter_with_its_default_value_is_left_out() -> None:
    assert _values(1, 1) == {}
    assert _values(2, 1) == {"size": 2}
    assert _values(False, False) == {}
    assert _values(1, ALWAYS) == {"size": 1}


def test_a_sequence_is_left_out_where_all_its_items_have_the_default_value() -> None:
    assert _values((1, 1), 1) == {}
    assert _values([1, 2], 1) == {"size": (1, 2)}
    assert _values((2, 2), 1) == {"size": (2, 2)}


def test_an_attribute_without_a_value_is_left_out_unless_it_is_always_recorded() -> None:
    assert _values(None, 1) == {}
    assert _values(None, ALWAYS) == {"size": None}
    layer = SimpleNamespace(linear=SimpleNamespace(bias=True))
    family = [("bias", "linear.bias", ALWAYS), ("missing", "linear.none.bias", False), ("two", lambda _: 2, 1)]
    assert dict(hyperparameter_values(layer, family)) == {"bias": True, "two": 2}


@pytest.mark.parametrize("value", [object(), (1, object()), {"a": 1}])
def test_a_value_that_range_names_cannot_show_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="must be a number, a string or a sequence of these"):
        _values(value, 0)
