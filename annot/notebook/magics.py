"""Magic ``%annot`` for IPython and Jupyter, loaded with ``%load_ext annot``.

%%annot net                 record the cell with ranges for the layers of `net`, and show the layers
%%annot -o run.sqlite       record the cell and keep the profile; replaces a recording of annot, so that the cell can
                            run again, and another file with --force only
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
    from annot.notebook.layers import Layers

_NAME = "annot"


def load_ipython_extension(shell: Any) -> None:
    """Register ``%annot`` and ``%%annot`` in an IPython shell, which calls this on ``%load_ext annot``."""

    def annot(line: str, cell: str | None = None) -> Layers | None:
        from IPython.core.error import UsageError

        try:
            return _load_file(line) if cell is None else _record_cell(shell, line, cell)
        except (AnnotError, _ArgumentError) as error:  # IPython shows a UsageError on one line, without a traceback
            raise UsageError(str(error)) from None

    annot.__doc__ = __doc__
    shell.register_magic_function(annot, "line_cell", _NAME)


def unload_ipython_extension(shell: Any) -> None:
    """Unregister ``%annot`` and ``%%annot``; IPython calls this on ``%unload_ext annot``."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(_NAME, None)


class _ArgumentError(Exception):
    """The arguments of the magic are wrong."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ArgumentError(f"{self.prog}: {message}")


def _parse(parser: _Parser, line: str) -> argparse.Namespace:
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:  # an unclosed quotation mark
        raise _ArgumentError(f"{parser.prog}: {error}") from None


def _load_file(line: str) -> Layers:
    from annot.notebook.layers import layers

    parser = _Parser("%annot", add_help=False)
    parser.add_argument("profile")
    return layers(_parse(parser, line).profile)


def _record_cell(shell: Any, line: str, cell: str) -> Layers | None:
    from annot.collect.record import record
    from annot.notebook.layers import layers

    parser = _Parser("%%annot", add_help=False)
    parser.add_argument("models", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--force", action="store_true")
    args = _parse(parser, line)
    if args.output is not None and args.output.exists() and not args.force:
        args.force = _is_recording(args.output)
    models = [_model(shell, name) for name in args.models]
    with tempfile.TemporaryDirectory(prefix="annot-") as folder:
        path = args.output or Path(folder) / "cell.sqlite"
        recorder = record(path, force=args.force)
        with recorder:
            _run(shell, cell, models)
        if recorder.recording is not None and recorder.recording.ranges:
            return layers(path)
    print("annot: the cell has no ranges. Name a model (%%annot net), or use emit_ranges(net) or trace in the cell")
    return None


def _is_recording(path: Path) -> bool:
    """Return whether a file is a recording of annot; raise `AnnotError` for another file."""
    from annot.read.formats import source

    try:
        if str(source(path).meta["producer"]).startswith("annot "):
            return True
    except AnnotError:  # another format
        pass
    raise AnnotError(f"{path} exists, and another program wrote it: use another name, or replace it with --force")


def _model(shell: Any, name: str) -> Any:
    if name not in shell.user_ns:
        raise _ArgumentError(f"%%annot: model {name!r} is not defined in this notebook")
    return shell.user_ns[name]


def _run(shell: Any, cell: str, models: list[Any]) -> None:
    """Run a cell and raise its exception, without a second traceback."""
    from annot.dispatch import emit_ranges

    with ExitStack() as stack:
        for model in models:
            stack.enter_context(emit_ranges(model))
        result = shell.run_cell(cell, store_history=False)
    if result.error_before_exec is not None:  # the shell already printed this error
        raise _ArgumentError("%%annot: the cell was not run")
    error = result.error_in_exec
    if error is not None:
        error._render_traceback_ = list  # IPython prints the result of this method; the shell already printed it
        raise error
