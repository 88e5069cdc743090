"""Recorded trainings that are comparable, and trainings of which something else differs than the time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from recorded_pairs import recorded

from annot.analyze.comparison.comparable import comparability
from annot.analyze.comparison.digest import Digest

pytestmark = pytest.mark.slow

Recorded = Callable[..., Digest]

# What differs from the training, and the kind of a reason that must be named.
MISMATCHED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "one block more": ({"depth": 4}, "layers"),
    "twice the blocks": ({"depth": 6}, "layers"),
    "another width": ({"width": 48}, "shapes"),
    "more words": ({"words": 80}, "parameters"),
    "another batch": ({"batch": 16}, "shapes"),
    "longer texts": ({"length": 24}, "shapes"),
    "double precision": ({"dtype": torch.float64}, "dtypes"),
    "half precision": ({"dtype": torch.bfloat16}, "dtypes"),
    "autocast": ({"autocast": True}, "dtypes"),
    "two micro-batches": ({"accumulate": 2}, "calls"),
    "another model": ({"model": torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 4))}, "layers"),
    "texts of many lengths": ({"random": 1, "steps": 12}, "shapes"),
}

# Both sides of a true pair.
TRUE: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "again": ({}, {}),
    "another seed": ({}, {"seed": 7}),
    "more steps": ({}, {"steps": 20}),
    "few steps": ({"steps": 3}, {"steps": 4}),
    "a smaller last batch": ({"last": 3}, {"steps": 12, "last": 5}),
    "validations": ({"steps": 12, "validate": (5, 11)}, {"steps": 16, "validate": (15,)}),
    "a validation in one run only": ({}, {"steps": 10, "validate": (9,)}),
    "texts of random lengths": ({"random": 1, "steps": 12}, {"random": 2, "steps": 12}),
    "few texts of random lengths": ({"random": 1, "steps": 4}, {"random": 5, "steps": 5}),
    "random blocks": ({"skipping": 1, "steps": 16}, {"skipping": 2, "steps": 16}),
    "random blocks of few steps": ({"skipping": 1, "steps": 4}, {"skipping": 4, "steps": 4}),
    "compiled": ({"compiled": True}, {"compiled": True}),
    "an activation of the same size": ({"activation": torch.nn.ReLU}, {"activation": torch.nn.Tanh}),
    "autocast in both": ({"autocast": True}, {"autocast": True}),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the digest of a recorded training."""
    folder = tmp_path_factory.mktemp("recorded")

    @functools.cache
    def made(items: tuple[tuple[str, Any], ...], number: int) -> Digest:
        return recorded(folder / f"{made.cache_info().currsize}.sqlite", **dict(items))

    def digest_of(number: int = 0, **options: Any) -> Digest:
        return made(tuple(sorted(options.items())), number)

    return digest_of


@pytest.mark.parametrize("pair", MISMATCHED)
def test_another_training_is_refused(pair: str, run: Recorded) -> None:
    options, kind = MISMATCHED[pair]
    for a, b in ((run(), run(**options)), (run(**options), run())):
        assert kind in {reason.kind for reason in comparability([a], [b]).reasons}


@pytest.mark.parametrize("pair", TRUE)
def test_the_same_training_is_comparable(pair: str, run: Recorded) -> None:
    one, other = (run(number, **options) for number, options in enumerate(TRUE[pair]))
    for a, b in ((one, other), (other, one)):
        assert not comparability([a], [b]).reasons


def test_runs_of_a_side_agree(run: Recorded) -> None:
    same, again, other = run(), run(1), run(batch=16)
    assert comparability([same, again], [again, same]).comparable
    (reason,) = comparability([same, again], [again, other]).reasons
    assert (reason.kind, "shapes" in reason.text) == ("shapes", True)
    (reason,) = comparability([same, other], [again]).reasons
    assert reason.kind == "shapes"
