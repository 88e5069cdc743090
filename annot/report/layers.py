"""`layers`: the layers of a profile, a table for programs and a picture for people in a notebook."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.correlate import Attribution, attribute, summarize
from annot.profile import Source
from annot.read import load
from annot.report import Report
from annot.report.pictures import pictures

__all__ = ["Layers", "layers"]

_TEXT_WIDTH: Final = 120


class Layers:
    """The layers of a profile.

    In a notebook it shows the tree of layers with bars, and pictures of the steps and the roofline. It gives its rows
    to whatever reads Arrow (``polars.DataFrame(layers)``, ``pyarrow.table(layers)``, DuckDB) without a copy.

    Args:
        attribution: the profile.
    """

    table: pl.DataFrame
    """The rows, as `annot.correlate` returns them."""
    meta: dict[str, Any]
    """The totals, as `annot.correlate.summarize` returns them."""

    def __init__(self, attribution: Attribution) -> None:
        from annot.correlate import by_layer

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
        """Return the rows as an Arrow stream in a PyCapsule, as the PyCapsule interface of Arrow has it."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self.table.height

    @cached_property
    def _report(self) -> Report:
        return Report("layer", self.table, self.meta)

    def __repr__(self) -> str:
        from rich.console import Console

        from annot.report.table import print_table

        text = io.StringIO()
        print_table(self._report, Console(file=text, width=_TEXT_WIDTH, color_system=None, force_terminal=False))
        return text.getvalue().rstrip("\n")

    @cached_property
    def _html(self) -> str:
        from annot.report.layers_html import layers_html

        return layers_html(self._report, pictures(self._attribution, self.table))

    def _repr_html_(self) -> str:
        return self._html

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        makers = {"text/plain": self.__repr__, "text/html": self._repr_html_}
        wanted = [kind for kind in makers if (not include or kind in include) and not (exclude and kind in exclude)]
        return {kind: makers[kind]() for kind in wanted}


@contextmanager
def _analysis() -> Iterator[None]:
    """Say of a package that is missing which extra of annot brings it."""
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
    """Return the layers of a profile, to be looked at in a notebook and taken on to other tools.

    Args:
        profile: what `annot.load` gave, or the name of a profile.
        domain: only ranges of this NVTX domain take part ("" is the default domain); None: all do.
        steps: only steps with these numbers take part; None: all, and what lies in no step.
        step_range: text of the ranges that are the steps, ``#`` for any number; None: they are found.

    Raises:
        AnnotError: the profile cannot be read.
        TypeError: `profile` is neither a profile nor a name.
        ValueError: steps are asked for, and there are none.

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
        raise TypeError(f"profile must be a Profile, as annot.load gives it, or the name of a file, got {kind}")
    return Layers(attribute(source, domain=domain, steps=steps, step_range=step_range))
