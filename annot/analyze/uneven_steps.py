"""Parts of the step on which long steps spend more time than the others."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from annot.analyze.step_parts import StepInputs
from annot.analyze.step_time import shares_of_steps
from annot.attribution.attribute import Attribution
from annot.attribution.summary import step_spans

__all__ = ["excess_of_long_steps"]


def excess_of_long_steps(attribution: Attribution, steps: pl.DataFrame, inputs: StepInputs) -> dict[str, float]:
    """Return how much of the excess of the long steps each cause has, the largest part first.

    The excess is the difference of the mean times of the steps that are longer than the median, and of the others.

    Args:
        attribution: the profile.
        steps: process, step and step_ns of the compared steps.
        inputs: `annot.analyze.step_parts.step_inputs` of the profile.

    Returns:
        Fractions of the excess, which add up to 1, by the parts of `annot.analyze.part_names`. Empty: all steps take
        the same time.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.attribution.summary import by_step
        >>> from annot.analyze.step_parts import step_inputs
        >>> from annot.profile import Profile
        >>> empty = attribute(Profile.build({}))
        >>> excess_of_long_steps(empty, by_step(empty), step_inputs(empty))
        {}
    """
    long = pl.col("step_ns") > pl.col("step_ns").median()
    means = [_mean_times(attribution, steps.filter(which), inputs) for which in (long, ~long)]
    causes = {name: means[0].get(name, 0) - means[1].get(name, 0) for name in (*means[0], *means[1])}
    excess = sum(causes.values())
    shares = {name: ns / excess for name, ns in causes.items()} if excess > 0 else {}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _mean_times(attribution: Attribution, steps: pl.DataFrame, inputs: StepInputs) -> dict[str, float]:
    """Return the mean time (ns) of each cause in a step."""
    codes = attribution.whole.threads.table.select("process", "process_code").unique()
    spans = step_spans(attribution).join(codes, on="process_code").join(steps, on=["process", "step"], how="semi")
    windows = inputs.windows.join(spans, on=["process", "start"], how="semi", nulls_equal=True)
    shares = shares_of_steps(attribution, replace(inputs, windows=windows))
    sums = shares.group_by("share").agg(pl.col("ns").sum())
    return {name: ns / max(steps.height, 1) for name, ns in sums.iter_rows()}
