"""The answer of a trial as one self-contained page, with the comparison of the best change to the base."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from annot.errors import AnnotError
from annot.report.page.data import comparison_data
from annot.report.page.render import as_page
from annot.runs.run import Run
from annot.trial.answer import Answer
from annot.trial.show import as_data
from annot.util.whole_files import write_file


def write_page(answer: Answer) -> Path:
    """Write the page of an answer into the folder of its trial, and return the file.

    Raises:
        AnnotError: the file cannot be written.
    """
    path = Path(answer.folder) / "answer.html"
    source = shlex.join(answer.command)
    data = {"runs": []} | _comparison(answer) | {"kind": "trial", "source": source, "trial": as_data(answer)}
    write_file(path, [as_page(data, f"{source} · annot")], force=True)
    return path


def _comparison(answer: Answer) -> dict[str, Any]:
    """The page data of the profiles without changes and with the best one; empty if they cannot be compared."""
    best = answer.best
    if best is None or not answer.profile or not best.profile:
        return {}
    base, changed = (Run(Path(answer.folder) / profile) for profile in (answer.profile, best.profile))
    try:
        return comparison_data(base.attribution, changed.attribution, ("without changes", best.name), "layer")
    except (AnnotError, ValueError):  # a profile without layers or without times
        return {}
