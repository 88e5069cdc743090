"""Function `layers`: the layers of a profile as a table, with an HTML view in notebooks."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.attribution import Attribution, attribute, summarize
from annot.profile import Source
from annot.read.formats import load
from annot.report.charts.profile_charts import pictures
from annot.report.views import Report

__all__ = ["Layers", "layers"]

_TEXT_WIDTH: Final = 120


class Layers:
    """Layers of a profile.

    A notebook displays the tree of layers with bars, and charts of the steps and the roofline. Libraries that read
    Arrow get the rows without a copy: ``polars.DataFrame(layers)``, ``pyarrow.table(layers)``, DuckDB.

    Args:
        attribution: the attributed profile.
    """

    table: pl.DataFrame
    """Rows of `annot.correlate`."""
    meta: dict[str, Any]
    """Totals of `annot.attribution.summarize`."""

    def __init__(self, attribution: Attribution) -> None:
        from annot.attribution import by_layer

        self._attribution = attribution
        self.table, self.meta = by_layer(attribution), summarize(attribution)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises:
            ImportError: pandas or pyarrow is not installed.
        """
        with _analysis():
            return self.table.to_pandas()

    def to_arrow(self) -> Any:
        """Return the rows as a `pyarrow.Table`.

        Raises:
            ImportError: pyarrow is not installed.
        """
        with _analysis():
            return self.table.to_arrow()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream, by the Arrow PyCapsule interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self.table.height

    @cached_property
    def _report(self) -> Report:
        return Report("layer", self.table, self.meta)

    def __repr__(self) -> str:
        from rich.console import Console

        from annot.report.terminal.table import print_table

        text = io.StringIO()
        print_table(self._report, Console(file=text, width=_TEXT_WIDTH, color_system=None, force_terminal=False))
        return text.getvalue().rstrip("\n")

    @cached_property
    def _html(self) -> str:
        from annot.notebook.html import layers_html

        return layers_html(self._report, pictures(self._attribution, self.table))

    def _repr_html_(self) -> str:
        return self._html

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        makers = {"text/plain": self.__repr__, "text/html": self._repr_html_}
        selected = [kind for kind in makers if (not include or kind in include) and not (exclude and kind in exclude)]
        return {kind: makers[kind]() for kind in selected}


@contextmanager
def _analysis() -> Iterator[None]:
    """Add the extra of annot that installs a missing package to the error."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}: pip install 'annot[analysis]'", name=error.name) from None


def layers(
    profile: Source | str | os.PathLike[str],
    *,
    domain: str | None = None,
    steps: slice | None = None,
    step_range: str | None = None,
) -> Layers:
    """Return the layers of a profile, for display in a notebook and for other tools.

    Args:
        profile: profile from `annot.load`, or path of a profile.
        domain: use only ranges of this NVTX domain ("" is the default domain); None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.

    Raises:
        AnnotError: the profile cannot be read.
        TypeError: `profile` is neither a profile nor a path.
        ValueError: `steps` is given and the profile has no such steps.

    Example:
        >>> from annot.profile import Profile
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> found = layers(Profile.build({}, ranges=pl.DataFrame(ranges)))
        >>> found.table["host_ns"].to_list()
        [900]
    """
    source = load(Path(profile)) if isinstance(profile, str | os.PathLike) else profile
    if not hasattr(source, "work_blocks"):
        kind = type(profile).__name__
        raise TypeError(f"profile must be a Profile from annot.load or a path, got {kind}")
    return Layers(attribute(source, domain=domain, steps=steps, step_range=step_range))
