"""Ranges of serving engines: kind and size of a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annot.labels.foreign import ServingStep, serving_engine, serving_step, understand

SIZE = st.integers(0, 10**9 - 1)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        # of the real traces tracelens_mi300_sglang_decode_graph_exec and graph_pairs/vllm_decode_full
        ("step[DECODE bs=32]", ServingStep("decode", 32, 32)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            ServingStep("decode", 32, 32, 55086),
        ),
        ("step[EXTEND bs=2 toks=4096]", ServingStep("prefill", 2, 4096)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 g_sk=12]", ServingStep("mixed", 2, None, 20)),
        ("step[IDLE bs=0]", ServingStep("idle", 0)),
        ("step[TARGET_VERIFY bs=4]", ServingStep("target_verify", 4)),
        ("execute_context_1(512)_generation_0(0)", ServingStep("prefill", 1, 512)),
        ("execute_context_1(512)_generation_31(31)", ServingStep("mixed", 32, 543)),
        ("execute_context_1(512)_generation_31(sq31sk99)", ServingStep("mixed", 32, 543)),
        ("execute_context_1(888_788544)_generation_0(0)", ServingStep("prefill", 1, 888)),
        ("execute_context_2(90_5000)_generation_3(3_9_7)", ServingStep("mixed", 5, 93)),
        ("execute_new_1_cached_3", ServingStep("mixed", 4)),
        ("execute_new_0_cached_3", ServingStep("decode", 3)),
        ("execute_new_2_cached_0", ServingStep("prefill", 2)),
        ("execute_context_0(0)_generation_0(0)", ServingStep("idle", 0, 0)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 31 gen reqs", ServingStep("mixed", 32, 543)),
        ("[Executor] _forward_step 8: 0 ctx reqs, 0 ctx tokens, 31 gen reqs", ServingStep("decode", 31, 31)),
        ("[Executor] _forward_step 9: 2 ctx reqs, 96 ctx tokens, 0 gen reqs", ServingStep("prefill", 2, 96)),
        ("[Executor] _forward_step 9: 2 ctx reqs, 0 gen reqs", ServingStep("prefill", 2)),
        ("[Executor] _forward_step 9: 2 ctx reqs, 3 gen reqs", ServingStep("mixed", 5)),
        ("[Executor] _forward_step: 0 ctx reqs, 4 gen reqs", ServingStep("decode", 4, 4)),
        ("[Executor] _forward_step 1: 0 ctx reqs, 0 ctx tokens, 0 gen reqs", ServingStep("idle", 0, 0)),
        ("step[DECODE bs=2 sk=40]", ServingStep("decode", 2, 2, 40)),
    ],
)
def test_kind_and_size(text: str, step: ServingStep) -> None:
    assert serving_step(text) == step
    label = understand(text)
    assert label is not None
    assert (label.layer, label.layered) == (f"{step.kind} step", False)


@pytest.mark.parametrize(
    "text",
    [
        "step[DECODE]", "step[decode bs=1]", "step [DECODE bs=1]", "step[DECODE bs=1] ", "capture_32_DECODE", "step 12",
        "execute_new_1", "execute_context_1(512)",
        "execute_context_1(888_)_generation_0(0)", "execute_context_1()_generation_0(0)",
        "[Executor] _forward_step 7", "[Executor] _forward_step 7: 1 ctx reqs",
        "_forward_step 7: 1 ctx reqs, 2 gen reqs",
        "execute_context_1(5)_generation_0(0)\n", "step[DECODE bs=99999999999]", "",
    ],
)  # fmt: skip
def test_other_texts(text: str) -> None:
    assert serving_step(text) is None


@given(SIZE, SIZE, SIZE, SIZE, SIZE, SIZE)
def test_sizes_add_up(prefills: int, query: int, key: int, decodes: int, more: int, context: int) -> None:
    """The kind follows from the requests in prefill and in decode, and the sizes are sums over both."""
    text = (
        f"execute_7_context_{prefills}(sq{query}sk{key}sqsq1sqsk2)_generation_{decodes}(sq{more}sk{context}sqsq3sqsk4)"
    )
    kinds = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode", (False, False): "idle"}
    kind = kinds[prefills > 0, decodes > 0]
    assert serving_step(text) == ServingStep(kind, prefills + decodes, query + more, key + context)


@given(st.text())
def test_any_text(text: str) -> None:
    serving_step(text)
    serving_step(f"step[{text}]")
    serving_step(f"execute_{text}")
    serving_step(f"[Executor] _forward_step {text}")


def test_a_step_that_two_engines_can_have_written_names_both() -> None:
    """Traces of vLLM and of SGLang have steps with sums of squares."""
    assert serving_engine("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)") == (
        "vLLM or SGLang"
    )
    assert serving_engine("execute_context_1(512)_generation_0(0)") == "vLLM"
