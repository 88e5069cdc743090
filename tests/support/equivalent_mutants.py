"""Mutants that do what the code does, or differ in what has no right value: no test can notice them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_equivalent"]

_EQUIVALENT: Final = (
    # file, pattern of the line of code, change, reason
    ("annot/report/units.py", r"longest = max\(.*default=0\)", "0 becomes 1", "1 ns has the unit of 0 ns"),
    ("annot/analyze/verdict.py", r"several = .* else 1", "1 becomes 0", "only more than 1 is named"),
    (
        "annot/attribution/gpu_time.py",
        r"if topmost.* == 1:",
        "1 becomes 0",
        "a shorter way to the same",
    ),
    ("annot/attribution/nesting.py", r"weight = .*", "2 becomes 3", "the same order of weights"),
    ("annot/attribution/nesting.py", r"if order\.is_sorted.*", "1 becomes 0", "only the copy is saved, or no column"),
    ("annot/attribution/nesting.py", r"takes = .*", "< becomes <=", "equal ranges of two threads have no order"),
    ("annot/attribution/ingest.py", r"return rows\.group_by.*", "(> becomes >=|0 becomes -1)", "0 ns more"),
    (
        "annot/attribution/attribute.py",
        r"for sort in \(False, False, True\):",
        "False becomes True",
        "sorted earlier than necessary",
    ),
    (
        "annot/attribution/gpu_time.py",
        r"for node in range\(len\(nodes\) - 1.*",
        "- becomes \\+",
        "a node without activity",
    ),
    ("annot/attribution/gpu_time.py", r"_NULL_NAME.*", r"\d+ becomes \d+", "any code above those of names"),
    ("annot/attribution/step_sequences.py", r"if needed <= .*", "<= becomes <", "the other set has the optimizer, too"),
    ("annot/attribution/nesting.py", r"children: .*", "1 becomes 2", "a list that stays empty"),
    ("annot/attribution/attribute.py", r"_SLICE: .*", r"\d+ becomes \d+", "a size of blocks"),
    ("annot/attribution/ingest.py", r"_PART_ROWS: .*", r"\d+ becomes \d+", "a size of blocks"),
    ("annot/attribution/layer_tables.py", r"_SLICE: .*", r"\d+ becomes \d+", "a size of blocks"),
    ("annot/attribution/range_trees.py", r"_PART: .*", r"\d+ becomes \d+", "a size of blocks"),
    ("annot/attribution/column_ops.py", r"inside\[around\] \+= .*", r"\+ becomes -", "only whether it is 0 matters"),
    ("annot/attribution/column_ops.py", r"row = pl\.when\(value >= 0\).*", "0 becomes -1", "-1 in either case"),
    ("annot/attribution/graphs.py", r"first_id = 0", "0 becomes -?1", "ids are different, whatever the first"),
    ("annot/attribution/ingest.py", r"key \+= .*", r"\+ becomes -|1 becomes 2", "other numbers, as different"),
    ("annot/attribution/range_trees.py", r"passes = .*unique.*", "True becomes False", "the order of labels is free"),
    ("annot/read/sqlite.py", r"if native is None or not roots.*", "0 becomes -1", "a single row with a single value"),
    ("annot/labels/hyperparameters.py", r"return items if .* else items\[0\]", "0 becomes -1", "a single item"),
    ("annot/analyze/verdict.py", r'return 0\.0, "", pl\.lit.*', "False becomes True", "a share of 0 is not named"),
    ("annot/labels/name_scopes.py", r"length, begin = .*", "0 becomes -?1", "no marked scope, whatever its place"),
    ("annot/labels/layer_path.py", r"return next\(reversed\(\[names\[0\].*", "0 becomes -1", "all names are equal"),
    ("annot/labels/marks.py", r"return .*4 \* _LONGEST.*", r"4 becomes \d", "a bound for white space"),
    ("annot/analyze/verdict.py", r"if over < _LEAST_SLOWER:", "< becomes <=", "a ratio - 1 is never 0.05"),
    ("annot/report/units.py", r'\(0, Unit\("µs".*', "0 becomes -1", "no length is negative"),
    ("annot/analyze/verdict.py", r"if idle < LEAST_CHANGE:", "< becomes <=", "1 - share is never the float 0.05"),
    ("annot/labels/tag.py", r'"\w+": 0xFF\w{6},', r"\d+ becomes \d+", "a color of a range"),
    (
        "annot/analyze/advice/gemm_causes.py",
        r"return first_cause\(_GEMM_CAUSES, .*",
        "0 becomes -1",
        "a single GEMM",
    ),
    ("annot/analyze/advice/gemm_causes.py", r"small = .*min\(TILE\)", "min becomes max", "the tile is a square"),
)


def is_equivalent(path: str, code: str, change: str) -> bool:
    """Whether a change of a line of code is in the table of equivalent mutants."""
    return any(
        path == file and re.fullmatch(line, code) and re.fullmatch(changes, change)
        for file, line, changes, _ in _EQUIVALENT
    )
