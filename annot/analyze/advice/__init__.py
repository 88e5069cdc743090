"""Advice: rules that suggest changes to a training run, each with evidence and the code or command to use.

The code of a rule is for PyTorch. For Keras, and for CUDA without a framework, it is translated at the end.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Final

import polars as pl

from annot.analyze.advice import cpu, kernels, loop, operators
from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.advice.texts import Text, texts
from annot.analyze.cpu_parts import CPU_PARTS, GPU_PARTS
from annot.analyze.run_summary import excess_of_long_steps
from annot.attribution.attribute import Attribution
from annot.util.entry_points import Extension, loaded

__all__ = ["RULES", "Advice", "Facts", "advise", "by_advice"]

COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(("rule", "advice", "evidence", "code"), pl.String),
    "saves": pl.Float64,
    **dict.fromkeys(("layers", "changes", "where"), pl.List(pl.String)),
}


def advise(attribution: Attribution, facts: Facts | None = None) -> list[Advice]:
    """Return the advice for a profile, the largest possible saving first.

    The rules are `RULES` and those of other packages (entry points of the group ``annot.advice``).

    Args:
        attribution: the profile.
        facts: quantities of the profile, if they exist already.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> advise(attribute(Profile.build({})))
        []
    """
    facts = facts or Facts(attribution)
    others = _OF_GPUS if facts.on_cpu else cpu.RULES
    suggestions = [advice for rule in RULES if rule not in others and (advice := rule(facts)) is not None]
    if suggestions and (facts.in_keras or facts.in_cuda):
        translate = _in_keras if facts.in_keras else _in_cuda
        suggestions = [advice for suggestion in suggestions if (advice := translate(suggestion)) is not None]
    plugins = (_plugin_advice(rule, facts) for rule in loaded("annot.advice", ("__call__",)))
    return sorted((*suggestions, *filter(None, plugins)), key=lambda advice: -advice.saves)


def _plugin_advice(rule: Extension, facts: Facts) -> Advice | None:
    advice = rule.isolated(Advice)(facts)
    return None if advice is None else rule.call(_checked, advice, default=None)


def _checked(advice: Advice) -> Advice:
    for name in ("rule", "advice", "evidence", "code"):
        if not isinstance(text := getattr(advice, name), str):
            raise TypeError(f"{name} must be a str, got {text!r}")
    if not isinstance(advice.saves, int | float) or not 0 <= advice.saves <= 1:
        raise ValueError(f"saves must be a number from 0 to 1, got {advice.saves!r}")
    if not isinstance(advice.layers, list) or not all(isinstance(layer, str) for layer in advice.layers):
        raise TypeError(f"layers must be a list of str, got {advice.layers!r}")
    if not isinstance(advice.changes, tuple) or not all(isinstance(change, str) for change in advice.changes):
        raise TypeError(f"changes must be a tuple of str, got {advice.changes!r}")
    return advice


def by_advice(attribution: Attribution, facts: Facts | None = None) -> pl.DataFrame:
    """Return a row per suggestion; see `advise`.

    Returns:
        rule, advice, evidence, code, saves (0 to 1), layers, changes   see `Advice`
        where   the names of the layers in reports, see `Facts.where`
    """
    facts = facts or Facts(attribution)
    rows = [[*astuple(advice), facts.where(advice.layers)] for advice in advise(attribution, facts)]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


_EXPLAINED: Final[dict[str, tuple[Rule, ...]]] = {
    "data": (loop.data_loading,),
    "synchronisation": (loop.synchronous_copies,),
    "allocation": (loop.allocations,),
    "launch": (kernels.cuda_graphs, kernels.host_bound),
    "host": (kernels.host_bound,),
    "collectives": (loop.collectives,),
    "copies": (loop.pageable_copies, loop.host_copies),
    "forward": (cpu.own_code,),
    "optimizer": (cpu.optimizer,),
    "other_ranges": (cpu.outside_phases,),
    "outside_ranges": (cpu.outside_phases,),
}
"""Rules that advise on a part of the step."""


def uneven_steps(facts: Facts) -> Advice | None:
    """Step times that vary so much that their mean is misleading, for a reason that no other rule advises on.

    Evidence: host times of at least 8 steps whose interquartile range is at least 20 % of the median, and what the
    steps above the median spend more time on. Silent if other rules advise on the causes of at least half of this
    excess. It is a symptom, so it saves nothing by itself and comes after all advice on causes.
    """
    times = facts.step_lengths
    if times is None or facts.steps.height < 8 or not times["median"] or times["iqr"] < 0.2 * times["median"]:
        return None
    excess = excess_of_long_steps(facts.attribution, facts.steps, facts.parts)
    explained = sum(ratio for cause, ratio in excess.items() if any(rule(facts) for rule in _EXPLAINED.get(cause, ())))
    if explained >= 0.5:
        return None
    names = {**GPU_PARTS, **CPU_PARTS}
    causes = [f"{ratio:.0%} is {names[cause].name}" for cause, ratio in excess.items() if ratio >= 0.1]
    of_excess = f"; of the time that long steps take more, {' and '.join(causes[:2])}" if causes else ""
    of_kernels = excess.get("kernels", 0) + excess.get("tensor_cores", 0) >= 0.5
    why = "their GPU work differs" if of_kernels else "their times vary"
    return Advice.of(
        "uneven_steps",
        f"The interquartile range of step time is {times['iqr'] / times['median']:.0%} of the median{of_excess}",
        0.0,
        why=why,
        source=facts.source,
    )


RULES: Final[tuple[Rule, ...]] = (
    *loop.RULES,
    uneven_steps,
    loop.coverage,
    *kernels.LAUNCH_RULES,
    *cpu.RULES,
    *kernels.RULES,
    *operators.RULES,
)
_OF_GPUS: Final = (
    *(loop.synchronous_copies, loop.pageable_copies, loop.host_copies, loop.allocations, loop.coverage),
    *(*kernels.LAUNCH_RULES, *kernels.RULES, *operators.RULES),
)
"""Rules that are silent without GPU activities, as those of `annot.analyze.advice.cpu` are with them."""


def _in_cuda(advice: Advice) -> Advice | None:
    """Return the advice with CUDA calls; None: it is about PyTorch."""
    translation = texts().cuda.get(advice.rule)
    if translation is None:
        return replace(advice, changes=()) if advice.code.startswith(("annot ", "nsys ")) else None
    code = advice.code if advice.code.startswith("nsys ") else translation.code
    return replace(advice, code=code, advice=translation.advice or advice.advice, changes=())


def _in_keras(advice: Advice) -> Advice | None:
    """Return the advice with code for Keras; None: it does not apply to Keras."""
    # TensorFlow benchmarks the algorithms of cuDNN by default; operations of Keras layers need another recording.
    if advice.rule in ("cudnn_benchmark", "own_code"):
        return None
    translation = texts().keras.get(advice.rule, Text(advice.code))
    code, changes = translation.code, translation.changes
    if advice.rule == "mixed_precision":
        short, name = ("bf16", "bfloat16") if "bfloat16" in code else ("fp16", "float16")
        code, changes = f'keras.mixed_precision.set_global_policy("mixed_{name}")', (f"mixed-{short}",)
    if advice.rule == "collectives":  # the command that compares ranks, without the code
        code = code.partition("\n")[0]
    if advice.rule == "batch_size":
        code = code.replace("DataLoader(dataset, batch_size=", "dataset = dataset.unbatch().batch(")
    return replace(advice, code=code, advice=translation.advice or advice.advice, changes=changes)
