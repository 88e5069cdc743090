"""A report as one HTML page that needs nothing but itself: no network, no server, no framework.

The page is a shell (`page.html`), a style sheet and plain scripts, joined here, and the data as JSON in an element that
no browser runs. A Content-Security-Policy allows exactly these scripts and this style, by their hashes, and no request
at all; scripts put texts of the profile into the page as text only. So a profile, whatever its layers are called,
cannot do anything in the page.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = ["as_page"]

_SCRIPTS: Final = (
    "units.js", "dom.js", "table.js", "model.js", "tree.js", "layer.js", "plots.js", "summary.js", "views.js",
    "timeline.js", "timeline_input.js", "compare.js", "shell.js",
)  # fmt: skip
_COMPRESSED: Final = 200_000
"""Characters of JSON from which the data is compressed."""


def as_page(data: dict[str, Any], title: str) -> bytes:
    """Return the page, UTF-8.

    Args:
        data: as `annot.report.page.data` gives it; whatever its texts are, they stay texts.
        title: what the browser shows as the page's name.

    Example:
        >>> as_page({"kind": "report", "runs": []}, "a <run>").startswith(b"<!doctype html>")
        True
    """
    script, style = _script(), _part("page.css")
    kind, text = _packed(data)
    parts = {
        "{{policy}}": _policy(script, style),
        "{{title}}": html.escape(_sound(title)),
        "{{style}}": style,
        "{{kind}}": kind,
        "{{script}}": script,
        "{{data}}": text,
    }
    page = _part("page.html")
    for mark, part in parts.items():  # the data comes last, so that no mark in it is replaced
        before, found, after = page.partition(mark)
        assert found, mark
        page = before + part + after
    return page.encode()


@cache
def _part(name: str) -> str:
    return (files("annot.report.page") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """All scripts in one function, so that they share names and the page has none of them."""
    return "".join(("(() => {\n'use strict';\n", *map(_part, _SCRIPTS), "start();\n})();\n"))


def _policy(script: str, style: str) -> str:
    allowed = {"script-src": script, "style-src": style}
    rules = [f"{name} 'sha256-{_digest(text)}'" for name, text in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(data: dict[str, Any]) -> tuple[str, str]:
    """How the data is written, and the data: nothing in it can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    if len(text) < _COMPRESSED:
        return "application/json", text.replace("<", "\\u003c").replace("&", "\\u0026")
    return "application/gzip+json", base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _sound(text: str) -> str:
    """Text without halves of characters, which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()
