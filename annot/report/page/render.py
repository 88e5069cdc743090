"""Render a report as one self-contained HTML file, without network, server or framework.

The file combines a template (`page.html`), a style sheet, plain scripts, and the data as JSON in a script element with
a type that browsers do not execute. The Content-Security-Policy allows these scripts and this style by their hashes,
and blocks all requests. The scripts insert texts of the profile as text nodes and attributes, never as markup. A
profile therefore cannot run code in the page, whatever its layers are called.
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

from annot.report.views import page_columns

__all__ = ["as_page"]

_SCRIPTS: Final = (
    "units.js", "dom.js", "address.js", "table.js", "model.js", "folds.js", "tree.js", "icicle.js", "layer.js",
    "fold.js", "kernel.js", "drawing.js", "save.js", "summary.js", "parts.js", "views.js", "timeline.js",
    "timeline_file.js", "timeline_input.js",
    "timeline_interval.js", "compare.js", "first.js", "help.js", "shell.js",
)  # fmt: skip
_COMPRESSED: Final = 200_000
"""Length of the JSON (characters) from which the data is compressed."""


def as_page(data: dict[str, Any], title: str) -> bytes:
    """Return the page with the data of `annot.report.page.data`, UTF-8.

    Example:
        >>> as_page({"kind": "report", "runs": []}, "a <run>").startswith(b"<!doctype html>")
        True
    """
    # All scripts are in one function: they share a scope and add nothing to the global scope.
    script = "".join(("(() => {\n'use strict';\n", *map(_asset, _SCRIPTS), "start();\n})();\n"))
    style = _asset("page.css")
    kind, text = _packed(data | {"columns": page_columns()})
    values = {
        "{{policy}}": _policy(script, style),
        "{{title}}": html.escape(title.encode("utf-8", "replace").decode()),  # UTF-8 has no lone surrogates
        "{{style}}": style,
        "{{kind}}": kind,
        "{{script}}": script,
        "{{data}}": text,
    }
    page = _asset("page.html")
    for mark, value in values.items():  # the data comes last, so that placeholders in its texts stay
        before, separator, after = page.partition(mark)
        assert separator, mark
        page = before + value + after
    return page.encode()


@cache
def _asset(name: str) -> str:
    return (files("annot.report.page") / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    rules = [f"{name} 'sha256-{digest}'" for name, digest in zip(("script-src", "style-src"), digests, strict=True)]
    return "; ".join(["default-src 'none'", *rules, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _packed(data: dict[str, Any]) -> tuple[str, str]:
    """Media type and text of the data. Escapes prevent the text from closing its script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    if len(text) < _COMPRESSED:
        return "application/json", text.replace("<", "\\u003c").replace("&", "\\u0026")
    return "application/gzip+json", base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
