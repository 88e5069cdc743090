"""``%load_ext annot``: the magic ``%annot`` of IPython and Jupyter.

%%annot net                 record the cell, with ranges for the layers of `net`, and show the layers
%%annot -o run.sqlite       record the cell and keep the profile
%annot run.sqlite           show the layers of a profile
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot.report.layers import Layers

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_NAME = "annot"


def load_ipython_extension(shell: Any) -> None:
    """Add ``%annot`` and ``%%annot`` to a shell; IPython calls this on ``%load_ext annot``."""

    def annot(line: str, cell: str | None = None) -> Layers | None:
        return _shown(shell, line, cell)

    annot.__doc__ = __doc__
    shell.register_magic_function(annot, "line_cell", _NAME)


def unload_ipython_extension(shell: Any) -> None:
    """Take them away again; IPython calls this on ``%unload_ext annot``."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(_NAME, None)


def _shown(shell: Any, line: str, cell: str | None) -> Layers | None:
    from IPython.core.error import UsageError

    try:
        return _of_file(line) if cell is None else _recorded(shell, line, cell)
    except (AnnotError, _WordsError) as error:  # one sentence without a traceback, as for other magics
        raise UsageError(str(error)) from None


class _WordsError(Exception):
    """What stands behind the magic cannot be understood."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WordsError(f"{self.prog}: {message}")


def _words(parser: _Parser, line: str) -> argparse.Namespace:
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:  # a quotation mark that nothing closes
        raise _WordsError(f"{parser.prog}: {error}") from None


def _of_file(line: str) -> Layers:
    from annot.report.layers import layers

    parser = _Parser("%annot", add_help=False)
    parser.add_argument("profile")
    return layers(_words(parser, line).profile)


def _recorded(shell: Any, line: str, cell: str) -> Layers | None:
    from annot.recording import record
    from annot.report.layers import layers

    parser = _Parser("%%annot", add_help=False)
    parser.add_argument("models", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--force", action="store_true")
    args = _words(parser, line)
    models = [_model(shell, name) for name in args.models]
    with tempfile.TemporaryDirectory(prefix="annot-") as folder:
        path = args.output or Path(folder) / "cell.sqlite"
        recorder = record(path, force=args.force)
        with recorder:
            _run(shell, cell, models)
        if recorder.recording is not None and recorder.recording.ranges:
            return layers(path)
    print("annot: the cell made no ranges: name a model (%%annot net), or use emit_ranges(net) or trace in it")
    return None


def _model(shell: Any, name: str) -> Any:
    if name not in shell.user_ns:
        raise _WordsError(f"%%annot: there is no model {name!r} in this notebook")
    return shell.user_ns[name]


def _run(shell: Any, cell: str, models: list[Any]) -> None:
    """Run a cell as if it stood alone; its exception goes on, but is not shown twice."""
    from annot.instrument import emit_ranges

    with ExitStack() as stack:
        for model in models:
            stack.enter_context(emit_ranges(model))
        result = shell.run_cell(cell, store_history=False)
    if result.error_before_exec is not None:  # the shell has shown it, and would again if it went on
        raise _WordsError("%%annot: the cell did not run")
    error = result.error_in_exec
    if error is not None:
        error._render_traceback_ = list
        raise error
