"""Tables of a profile, the common result of all readers."""

from annot.profile.tables import (
    COPIES,
    KERNELS,
    LATEST,
    LAUNCHES,
    MARKS,
    METRICS,
    RANGES,
    ROLES,
    WORK,
    Profile,
    Schema,
    Source,
    conform,
    copies_as_work,
    kernels_as_work,
    pick,
)

__all__ = [
    "COPIES",
    "KERNELS",
    "LATEST",
    "LAUNCHES",
    "MARKS",
    "METRICS",
    "RANGES",
    "ROLES",
    "WORK",
    "Profile",
    "Schema",
    "Source",
    "conform",
    "copies_as_work",
    "kernels_as_work",
    "pick",
]
