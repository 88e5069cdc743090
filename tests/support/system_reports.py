"""Reports of the profiles in the working folder; as a script, those that annot makes on another system.

``python -X warn_default_encoding system_reports.py SYSTEM``, with a system of `other_system`, prints a JSON object with
the reports, and what the commands answer that need Linux.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from unittest import mock

import other_system


def _run(*words: str) -> tuple[int, str, str]:
    """Run annot in this process. Return status, output and errors, which it writes as to a pipe on Windows."""
    from annot.cli.main import main

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2)]
    sizes = mock.patch.dict(os.environ, COLUMNS="120")
    with sizes, mock.patch.multiple(sys, stdout=streams[0], stderr=streams[1]):
        status = main(words)
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))
    return status, texts[0], texts[1]


def _report(*words: str) -> str:
    """Return the output of a command that succeeds."""
    status, output, errors = _run(*words)
    assert status == 0, errors
    return output


def _page(*words: str) -> str:
    _report(*words, "-o", "page.html", "--force")
    return Path("page.html").read_text(encoding="utf-8")


def reports() -> dict[str, str]:
    """Return reports by name."""
    import annot
    from annot import native
    from annot.runs.executors import run_each

    assert native.tables() is not None
    made = {f"a as {form}": _report("a.sqlite", "--format", form) for form in ("table", "json", "markdown")}
    with mock.patch.dict(os.environ, ANNOT_DISABLE_NATIVE="1"):
        assert native.tables() is None
        made["without C"] = _report("a.sqlite", "--format", "json")
    made["page"] = _page("a.sqlite")
    made["torch.profiler"] = _report("a.json", "--format", "json")
    made["recording"] = _report("killed.parts", "--format", "csv")
    made["pattern"] = _report("a.*lite", "--format", "csv", "--by", "kernel")
    made["comparison"] = _report("compare", "a.sqlite", "b.sqlite")
    made["page of a comparison"] = _page("compare", "a.sqlite", "b.sqlite")
    _report("baseline", "save", "a", "a.sqlite", "--force")
    made["comparison with a baseline"] = _report("compare", "--baseline", "a", "b.sqlite")
    made |= {f"schema of {name}": _report("schema", name) for name in ("compare_layer", "bisect", "try", "try_layers")}
    made["notebook"] = annot.layers("a.sqlite")._repr_html_()
    assert run_each(len, ["a"]) == [1]
    return made


_REFUSED = (
    "run -- true", "try -- true", "sweep x.toml", "calibrate", "bisect --good HEAD~1 --bad HEAD -- true",
    "compare --repeat 2 -- true -- true", "doctor --format json",
)  # fmt: skip


if __name__ == "__main__":
    other_system.imitate(sys.argv[1])
    print(json.dumps([reports(), {command: _run(*command.split()) for command in _REFUSED}]))
