"""A recording of annot that was never assembled: the folder of parts that a killed run leaves behind."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from annot.collect.parts import PART_SUFFIX
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read import nsys_sqlite

__all__ = ["read_parts"]


def read_parts(folder: Path) -> Profile:
    """Assemble the parts of a recording, and read the result; the folder is not changed.

    Raises:
        AnnotError: the folder holds no parts, or they cannot be read.
    """
    if not any(folder.glob(f"*{PART_SUFFIX}")):
        raise AnnotError(f"{folder} is a folder, and holds no parts of a recording of annot")
    from annot.collect.export import assemble  # not needed for any other profile

    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch) / "recording.sqlite"
        assemble(folder, out)
        profile = nsys_sqlite.read(out)
    return replace(profile, meta=profile.meta | {"source": str(folder)})
