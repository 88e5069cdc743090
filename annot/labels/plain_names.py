"""Names that programs give to their own ranges: guessed phases, warm-up, numbers, calls of libraries.

NVTX ranges of a program or of a training library have no common format. Their names often contain the usual words, and
numbers count steps or layers. The sources of these libraries have ``DeepSpeedEngine.step`` (`instrument_w_nvtx`),
``transformer_engine._Linear.forward.gemm``, ``megatron.core.transformer.transformer_layer._forward_attention.qkv``
(`megatron.core.utils.nvtx_range_push`: function and part), ``[pl][profile][Strategy]DDPStrategy.backward`` (Lightning)
and ``PP:0F1`` (`torch.distributed.pipelining.schedules`: stage, action and micro-batch).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

__all__ = ["WARM_UP", "folded", "is_call", "name_of", "phase_of"]

WARM_UP: Final = r"(?i)(?:^(?:[^.]*\.)?|[^a-z.])warm[-_ ]?up(?:[^a-z]|$)"
"""Names of warm-up ranges: ``warmup``, ``Warm-up Step 1``; not ``megatron.core.….warmup``, part of each step."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PHASES: Final = {
    phase: re.compile(rf"(?:{pattern})")
    for phase, pattern in {
        "backward": r"(?!.*\b(?:forward|fwd)\b)(?:.* )?(?:backward|bwd|backprop|back propagation)(?: pass| step)?"
        r"|pp [biw]",
        "forward": r"(?!.*\b(?:backward|bwd)\b)(?:.* )?(?:(?:forward|fwd)(?: pass| step)?|(?:loss|criterion)(?: fn)?)"
        r"|pp f",
        "optimizer": r"(?:.* )?(?:optimizer|optim|opt)(?:(?: stage)? step| update)?|(?:.* )?zero grad(?:s|ients?)?"
        r"|(?:.* )?engine step",
        "data": r"data(?: ?load(?:er|ing)?)?(?: next| wait| fetch)?"
        r"|.* (?:train dataloader|val|test|predict) next"
        r"|(?:load|fetch|get|next|prepare|wait for)(?: the| next)? (?:data|batch|inputs?)",
    }.items()
}
_FUNCTION: Final = re.compile(r"(?:^|\.)_?(forward|backward)(?!\w*(?:forward|backward))(?:_\w+)?(?=\.|$)")
_PIPELINE: Final = re.compile(r"^(PP:\d+[A-Z_]+)(\d+)$")
_CALL: Final = re.compile(r"(?:nccl|cublas|MPI_)[A-Z]\w*")
_NUMBER: Final = re.compile(r"(?<![^\W_])\d+(?![^\W_])")


def phase_of(name: str) -> str:
    """Return the phase that the words of a name suggest: forward, backward, optimizer, data, or other.

    The loss is part of the forward pass.

    Example:
        >>> [phase_of(name) for name in ("Forward pass", "loss.backward", "zero_grad", "load_batch", "benchmark")]
        ['forward', 'backward', 'optimizer', 'data', 'other']
    """
    words = " ".join(_WORDS.findall(name)).lower()
    inside = _FUNCTION.search(name)
    phases = (phase for phase, pattern in _PHASES.items() if pattern.fullmatch(words))
    return next(phases, inside[1] if inside and "." in name else "other")


def name_of(text: str) -> str:
    """Return the name of a range without Lightning's prefix, and with the micro-batch as a word: ``PP:0F 12``."""
    return _PIPELINE.sub(r"\1 \2", text.removeprefix("[pl][profile]"))


def is_call(name: str) -> bool:
    """Return whether a name is that of a library call, which the library itself records.

    Calls of NCCL, cuBLAS and MPI are known from profiles of Nsight Systems.

    Example:
        >>> is_call("ncclGroupEnd"), is_call("MPI_Send"), is_call("attention")
        (True, True, False)
    """
    return _CALL.fullmatch(name) is not None


def folded(names: Collection[str]) -> dict[str, str]:
    """Return a name with ``#`` instead of numbers for those names that count: equal except for consecutive numbers.

    Example:
        >>> folded(["Step 1", "Step 2", "seq 128", "seq 256", "conv1"])
        {'Step 1': 'Step #', 'Step 2': 'Step #'}
    """
    alike: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for name in names:
        if numbers := _NUMBER.findall(name):
            alike.setdefault(tuple(_NUMBER.split(name)), []).append((name, numbers))
    result: dict[str, str] = {}
    for members in alike.values():
        columns = [set(column) for column in zip(*(numbers for _, numbers in members), strict=True)]
        varies = [len(column) > 1 for column in columns]
        if any(varies) and all(_counts(column) for column in columns):
            result |= {name: _mark_numbers(name, varies) for name, _ in members}
    return result


def _counts(numbers: Collection[str]) -> bool:
    """Return whether numbers have no gap between the least and the greatest."""
    values = {int(number[:18]) for number in numbers}
    return max(values) - min(values) < len(values)


def _mark_numbers(name: str, varies: list[bool]) -> str:
    """Replace the numbers of a name that vary by ``#``."""
    which = iter(varies)
    return _NUMBER.sub(lambda number: "#" if next(which) else number[0], name)
