"""Parsers of the ranges that vLLM, SGLang and TensorRT-LLM open around a step of the model.

The formats:

    vLLM           ``execute_context_1(512)_generation_31(31)``: requests (and tokens) in prefill and in decode
                   ``execute_context_1(888_788544)_generation_0(0)``: further sums, here of squares, follow the tokens
                   ``execute_new_1_cached_3`` (2025): new requests, and requests of earlier steps
                   ``execute_543_context_1(sq512sk512sqsq…sqsk…)_generation_31(sq31sk8192…)``: the same with the sums of
                   query lengths (``sq``) and of key lengths (``sk``), as profiled for TraceLens
    SGLang         ``step[DECODE bs=32]``, ``step[EXTEND bs=2 toks=4096]``, ``step[MIXED bs=2 c=1 g=1 c_sk=8 g_sk=12]``
    TensorRT-LLM   ``[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 31 gen reqs``, without tokens or 7 if older
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ServingStep", "serving_engine", "serving_step"]


@dataclass(frozen=True, slots=True)
class ServingStep:
    """Kind and size of a step of a serving engine.

    Args:
        kind: prefill, decode, mixed, idle, or the engine's name of another kind in lower case.
        requests: number of requests, the batch size.
        tokens: number of tokens that the step computes, or None if unknown.
        context: number of tokens in the keys and values of all requests, or None if unknown.
    """

    kind: str
    requests: int
    tokens: int | None = None
    context: int | None = None


_SIZES: Final = r"(\d{1,9})\((?:(\d{1,15})(?:_\d{1,30})*|sq(\d{1,15})sk(\d{1,15})\w*)\)"
_VLLM: Final = re.compile(rf"execute_(?:\d+_)?context_{_SIZES}_generation_{_SIZES}")
_VLLM_2025: Final = re.compile(r"execute_new_(\d{1,9})_cached_(\d{1,9})")
_SGLANG: Final = re.compile(r"step\[([A-Z][A-Z_]*) bs=(\d{1,9})((?: \w+=\d{1,15})*)\]")
_SGLANG_KINDS: Final[Mapping[str, str]] = {"EXTEND": "prefill", "SPLIT_PREFILL": "prefill"}
"""Other names of SGLang's modes; ``DECODE``, ``MIXED`` and ``IDLE`` are those of `ServingStep` in upper case."""
_TENSORRT_LLM: Final = re.compile(
    r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:(\d{1,15}) ctx tokens, )?(\d{1,9}) gen reqs"
)
_CONTEXTS: Final = ("sk", "c_sk", "g_sk")


def serving_step(text: str) -> ServingStep | None:
    """Return kind and size of the step that a range text names, or None for other texts.

    Example:
        >>> serving_step("step[DECODE bs=32]")
        ServingStep(kind='decode', requests=32, tokens=32, context=None)
        >>> serving_step("execute_context_1(512)_generation_0(0)").kind
        'prefill'
    """
    return next((step for parsed in _ENGINES.values() if (step := parsed(text)) is not None), None)


def serving_engine(text: str) -> str:
    """Return the name of the engine whose step a range text names; empty for other texts.

    Example:
        >>> serving_engine("step[DECODE bs=32]"), serving_engine("execute_new_1_cached_3"), serving_engine("train")
        ('SGLang', 'vLLM', '')
    """
    engine = next((engine for engine, parsed in _ENGINES.items() if parsed(text) is not None), "")
    return "vLLM or SGLang" if engine == "vLLM" and "(sq" in text else engine  # TraceLens profiles both in this format


def _vllm(text: str) -> ServingStep | None:
    """Return the step of vLLM. A request of an earlier step counts as decode, although its prompt may continue."""
    if (match := _VLLM_2025.fullmatch(text)) is not None:
        new, cached = int(match[1]), int(match[2])
        return ServingStep(_kind(new, cached), new + cached)
    if (match := _VLLM.fullmatch(text)) is None:
        return None
    prefills, decodes = int(match[1]), int(match[5])
    tokens = sum(int(match[plain] or match[summed]) for plain, summed in ((2, 3), (6, 7)))
    keys = [int(match[group]) for group in (4, 8) if match[group]]
    return ServingStep(_kind(prefills, decodes), prefills + decodes, tokens, sum(keys) if len(keys) == 2 else None)


def _sglang(text: str) -> ServingStep | None:
    if (match := _SGLANG.fullmatch(text)) is None:
        return None
    sizes = {name: int(size) for name, size in (item.split("=") for item in match[3].split())}
    kind, requests = _SGLANG_KINDS.get(match[1], match[1].lower()), int(match[2])
    contexts = [sizes[name] for name in _CONTEXTS if name in sizes]
    tokens = sizes.get("toks", requests if kind == "decode" else None)
    return ServingStep(kind, requests, tokens, sum(contexts) if contexts else None)


def _tensorrt_llm(text: str) -> ServingStep | None:
    """Return the step of TensorRT-LLM. As in SGLang, a request in decode computes one token."""
    if (match := _TENSORRT_LLM.fullmatch(text)) is None:
        return None
    prefills, decodes = int(match[1]), int(match[3])
    tokens = int(match[2]) + decodes if match[2] else None if prefills else decodes
    return ServingStep(_kind(prefills, decodes), prefills + decodes, tokens)


def _kind(prefills: int, decodes: int) -> str:
    return "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else "idle"


_ENGINES: Final[Mapping[str, Callable[[str], ServingStep | None]]] = {
    "vLLM": _vllm,
    "SGLang": _sglang,
    "TensorRT-LLM": _tensorrt_llm,
}
