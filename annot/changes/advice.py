"""The table of advice, with the command that tries it, and what an earlier trial measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import polars as pl

from annot.analyze import advice as rules
from annot.analyze.advice.facts import Facts
from annot.attribution.attribute import Attribution
from annot.changes.registry import all_changes, framework_of
from annot.changes.tried import program_of, tried_on


def by_advice(attribution: Attribution, facts: Facts | None = None) -> pl.DataFrame:
    """Return the rows of `annot.analyze.advice.by_advice` with columns about `annot try`.

    Returns:
        changes   the changes of the advice that can help this program
        trial     the command that tries them, such as ``annot try --change compile -- python train.py``; with ``...``
                  if the profile does not name its program; null: there are none
        tried     what was measured earlier, such as ``compile 1.42 (1.39–1.45)``; null: nothing
    """
    facts = facts or Facts(attribution)
    table = rules.by_advice(attribution, facts)
    proposed = table["changes"].to_list()
    fitting = [_fitting(names, facts) for names in proposed]
    command = _command(facts)
    trials = [f"annot try --change {','.join(names)} -- {command}" if names else None for names in fitting]
    earlier = tried_on(facts) if any(proposed) else {}
    tried = [", ".join(f"{name} {earlier[name].words}" for name in names if name in earlier) for names in proposed]
    return table.with_columns(
        pl.Series("changes", fitting, pl.List(pl.String)),
        pl.Series("trial", trials, pl.String),
        pl.Series("tried", [words or None for words in tried], pl.String),
    )


def _fitting(names: Sequence[str], facts: Facts) -> list[str]:
    changes = [all_changes()[name] for name in names if name in all_changes()]
    return [change.name for change in changes if change.framework == framework_of(facts) and not change.fits(facts)]


def _command(facts: Facts) -> str:
    program = program_of(facts.attribution.meta)
    return "..." if program is None else shlex.join(program.command)
