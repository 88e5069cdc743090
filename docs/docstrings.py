"""Extension of Griffe: a section `Example` of a docstring is one of examples. Griffe knows only `Examples`."""

from __future__ import annotations

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Rename the sections before the docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of an object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
