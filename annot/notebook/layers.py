"""Function `layers`: the layers of a profile as a table, with an HTML view in notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import polars as pl

from annot.attribution.layer_tables import by_layer
from annot.profile import Source
from annot.runs.run import Run
from annot.runs.selection import Selection
from annot.util.distribution import install_command


class Layers(Run):
    """Layers of a profile.

    A notebook displays the tree of layers with bars, and charts of the steps and the roofline. Libraries that read
    Arrow get the rows without a copy: ``polars.DataFrame(layers)``, ``pyarrow.table(layers)``, DuckDB.
    """

    @cached_property
    def table(self) -> pl.DataFrame:
        """Rows of `annot.correlate`."""
        return by_layer(self.attribution)

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


@contextmanager
def _analysis() -> Iterator[None]:
    """Add the extra of annot that installs a missing package to the error."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}: {install_command('analysis')}", name=error.name) from None


def layers(
    profile: Source | str | os.PathLike[str],
    *,
    domain: str | None = None,
    steps: slice | None = None,
    step_range: str | None = None,
    step_kind: str | None = None,
) -> Layers:
    """Return the layers of a profile, for display in a notebook and for other tools.

    Args:
        profile: profile from `annot.load`, or path of a profile.
        domain: use only ranges of this NVTX domain ("" is the default domain); None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.
        step_kind: use only steps of this kind, such as ``decode``; None: all kinds.

    Raises:
        AnnotError: the profile cannot be read.
        TypeError: `profile` is neither a profile nor a path.
        ValueError: `steps` is given and the profile has no such steps.

    Example:
        >>> from annot.profile import Profile
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> model_layers = layers(Profile.build({}, ranges=pl.DataFrame(ranges)))
        >>> model_layers.table["host_ns"].to_list()
        [900]
    """
    model_layers = Layers(profile, Selection(domain, steps, step_range, step_kind))
    _ = model_layers.attribution  # errors of the profile appear here, not in the display
    return model_layers
