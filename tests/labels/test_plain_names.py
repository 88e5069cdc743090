"""Names that programs give to their own ranges: phases, calls of libraries and numbers that count."""

from __future__ import annotations

import re

import pytest

from annot.labels.foreign import WARM_UP, folded, is_call, name_of, phase_of


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward", "forward"),
        ("Forward pass", "forward"),
        ("loss_fn", "forward"),
        ("loss.backward", "backward"),
        ("forward of backward", "other"),
        ("PP:0F 1", "forward"),
        ("PP:0B 1", "backward"),
        ("optimizer.step", "optimizer"),
        ("zero_grad", "optimizer"),
        ("load_batch", "data"),
        ("megatron.core.layer._forward_attention.qkv", "forward"),
        ("_forward_attention", "other"),
        ("benchmark", "other"),
    ],
)
def test_words_of_a_name_tell_its_phase(name: str, phase: str) -> None:
    """A name with a function of a class in it has the phase of the function; a word alone suggests none."""
    assert phase_of(name) == phase


def test_warm_up_is_a_word_of_its_own() -> None:
    for name in ("warmup", "Warm-up Step 1", "loop.warmup"):
        assert re.search(WARM_UP, name), name
    for name in ("swarmup", "warmupper", "megatron.core.pipeline.warmup"):
        assert not re.search(WARM_UP, name), name


def test_pipeline_stages_and_lightning_have_plain_names() -> None:
    assert name_of("PP:0F12") == "PP:0F 12"
    assert name_of("[pl][profile]run_training_batch") == "run_training_batch"


def test_library_calls_begin_with_the_name_of_the_library() -> None:
    assert is_call("ncclAllReduce")
    assert is_call("MPI_Send")
    assert not is_call("ncclAllReduce on rank 0")
    assert not is_call("nccl")


def test_names_fold_where_their_numbers_count_without_a_gap() -> None:
    assert folded(["Step 1", "Step 2"]) == {"Step 1": "Step #", "Step 2": "Step #"}
    assert folded(["Step 1", "Step 3"]) == {}
    assert folded(["Step 1", "Step 3", "Step 4"]) == {}
    assert folded(["Step 7"]) == {}
    assert folded(["conv1", "conv2"]) == {}


def test_only_the_numbers_that_vary_fold() -> None:
    assert folded(["rank 0 step 1", "rank 0 step 2"]) == {
        "rank 0 step 1": "rank 0 step #",
        "rank 0 step 2": "rank 0 step #",
    }
    assert folded(["rank 0 step 1", "rank 1 step 2", "rank 0 step 3"])["rank 1 step 2"] == "rank # step #"
    assert folded(["rank 0 step 1", "rank 1 step 2", "rank 0 step 9"]) == {}
