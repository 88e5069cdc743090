"""Objects of other packages that register with an entry point: readers, views, advice, formulas."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from annot.errors import AnnotError

__all__ = ["loaded", "loaded_by_name"]


@cache
def loaded(group: str, kind: type | tuple[str, ...]) -> tuple[Any, ...]:
    """Return the objects of all entry points in a group; see `loaded_by_name`."""
    return tuple(loaded_by_name(group, kind).values())


def loaded_by_name(group: str, kind: type | tuple[str, ...]) -> dict[str, Any]:
    """Return the objects of all entry points in a group by the name of the entry point.

    Args:
        group: group of the entry points, such as ``annot.readers``.
        kind: the type of the objects, or the attributes that they must have.

    Raises:
        AnnotError: an object cannot be loaded or has another type; the message names its package.
    """
    return {point.name: _loaded(point, kind) for point in entry_points(group=group)}


def _loaded(point: EntryPoint, kind: type | tuple[str, ...]) -> Any:
    what = point.group.removeprefix("annot.").removesuffix("s")
    whose = f"the {what} {point.value} of the package {point.dist.name if point.dist else point.name}"
    try:
        found = point.load()
    except Exception as error:
        raise AnnotError(f"{whose} cannot be loaded: {error}") from error
    if isinstance(kind, type):
        lacks = "" if isinstance(found, kind) else f"is a {type(found).__name__}, not a {kind.__name__}"
    else:
        missing = [name for name in kind if not hasattr(found, name)]
        lacks = f"lacks {', '.join(missing)}" if missing else ""
    if lacks:
        raise AnnotError(f"{whose} {lacks}. See `annot guide extending`, or uninstall the package.")
    return found
