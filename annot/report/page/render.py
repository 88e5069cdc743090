"""Render a report as one self-contained HTML file, without network, server or framework.

The file combines a template (`page.html`), a style sheet, the ES modules of the page in one script, and the data as
JSON in a script element with a type that browsers do not execute. The Content-Security-Policy allows this script and
this style by their hashes, and blocks all requests. The scripts insert texts of the profile as text nodes and
attributes, never as markup. A profile therefore cannot run code in the page, whatever its layers are called.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, Final

from annot.report.units import units_as_data
from annot.report.views import page_columns

_IMPORT: Final = re.compile(r"^import \{([^}]*)\} from '\./(\w+)\.js';\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^ *//.*\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)
_COMPRESSED: Final = 200_000
"""Length of the JSON (characters) from which the data is compressed."""


def as_page(data: dict[str, Any], title: str) -> bytes:
    """Return the page with the data of `annot.report.page.data`, UTF-8.

    Example:
        >>> as_page({"kind": "report", "runs": []}, "a <run>").startswith(b"<!doctype html>")
        True
    """
    script, style = bundled("shell"), _asset("page.css")
    kind, text = _packed(data | {"columns": _columns(data), "units": units_as_data()})
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
def bundled(main: str) -> str:
    """Return one script of the module `main` and all modules that it imports.

    Each module becomes a function that returns its exports, so that names which it does not export stay its own. Lines
    that are comments are left out.

    Raises:
        ValueError: a module imports a name that another does not export, or itself through others.
    """
    exports: dict[str, list[str]] = {}
    functions: list[str] = []

    def add(module: str, importers: tuple[str, ...]) -> None:
        if module in importers:
            raise ValueError(f"a circle of imports: {' → '.join((*importers, module))}")
        if module in exports:
            return
        text = _COMMENT.sub("", _asset(f"{module}.js"))
        for names, source in _IMPORT.findall(text):
            add(source, (*importers, module))
            if missing := set(re.findall(r"\w+", names)) - set(exports[source]):
                raise ValueError(f"{module}.js imports {', '.join(sorted(missing))}, which {source}.js does not export")
        exports[module] = [name for _, name in _EXPORT.findall(text)]
        body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const {\1} = \2_module;\n", text))
        functions.append(f"const {module}_module = (() => {{\n{body}return {{{', '.join(exports[module])}}};\n}})();\n")

    add(main, ())
    return f"(() => {{\n'use strict';\n{''.join(functions)}}})();\n"


def _columns(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The columns of the tables, in the words for the matrix units of the GPUs: AMD has Matrix Cores."""
    columns = page_columns()
    if any(run.get("units") == "Matrix Cores" for run in data["runs"]):
        for column in chain.from_iterable(columns.values()):
            column["title"] = re.sub(r"\bTC\b", "MC", column["title"]).replace("Tensor Core", "Matrix Core")
            column["full"] = column["full"].replace("Tensor Core", "Matrix Core")
    return columns


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
