"""Characters for terminals and files whose encoding lacks those of annot's output."""

from __future__ import annotations

import codecs
from typing import Final

ERRORS: Final = "annot_ascii"
"""Name of the error handler for `codecs`: the character of `ASCII`, or else a question mark."""
ASCII: Final = str.maketrans("−–─├┤┌┐└┘┬┴┼│›►▼░·▒█…µ×", "---+++++++++|>>v..##~ux") | str.maketrans(
    {"±": "+-", "→": "->", "←": "<-", "⇄": "<->", "²": "^2"}
)
"""What stands for a character. Characters that fill tables and drawings have one character, to keep their columns."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return error.object[error.start : error.end].translate(ASCII).encode("ascii", "replace").decode(), error.end


codecs.register_error(ERRORS, _replaced)
