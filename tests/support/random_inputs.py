"""Number of random inputs of a test: a tenth of them in `make test`, and all of them in `make test-all`."""

from __future__ import annotations

import os

TIMES = float(os.environ.get("ANNOT_FUZZ", "0.1"))
"""Factor for the number of random inputs. `make test-all` sets it to 1."""


def examples(count: int) -> int:
    """Return how many of `count` random inputs a test tries in this run."""
    return max(1, round(count * TIMES))
