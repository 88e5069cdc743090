"""The command `annot`: one module per verb, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["main", "make_parser"]

_VERBS: Final = {
    "run": "run a command under a profiler, then print which layer used the time",
    "report": "print which layer used the time in a profile",
    "compare": "compare two profiles, layer by layer: what became faster, what slower, and how sure that is",
    "roofline": "print how far layers are from the peaks of their device, or measure the peaks",
    "sweep": "run a command with every combination of some parameters: one table, and its plots",
    "doctor": "show what is installed, what would be recorded, and why ranges or kernels would be missing",
    "guide": "show a chapter of the guide: frameworks, attribution, formats, extending",
}
_REPORTING: Final = {
    "polars": "polars", "rich": "rich", "msgspec": "msgspec", "adbc_driver_sqlite": "adbc-driver-sqlite",
}  # fmt: skip
"""Modules that ranges do not need, and the packages they come from."""
_EXAMPLES: Final = """\
examples:
  annot run -- python train.py                            profile a script, then print its layers
  annot report annot1.sqlite --by kernel                  the same profile, by kernel
  annot report annot1.sqlite --format html -o page.html   as a page to look through
  annot report annot1.sqlite --format json                for programs
  annot doctor                                            why are there no ranges?
  annot guide attribution                                 how time gets to layers

exit status:
  0 done, 1 an error that is said in one line, 2 wrong usage, 130 Ctrl-C; annot run: that of the command it ran;
  annot compare: with --fail-above 3 if something became slower, 4 if the two runs cannot be compared

environment:
  ANNOT_DISABLE, NVTX_DISABLE    1: no ranges at all
  ANNOT_ENABLE                   1: ranges also before a profiler is there
  ANNOT_DISABLE_NATIVE           1: without the C parts, except the recorder
  ANNOT_NSYS, ANNOT_NCU          the Nsight Systems and the Nsight Compute to use

annot VERB --help says more about each verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: its words, without the program's name; None: those of this process.

    Returns:
        0; 1 after one line about what went wrong on standard error; 2 for wrong usage; 130 after Ctrl-C. The
        verb `run` returns the status of what it ran.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale that cannot spell µ is no reason to print nothing
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _dispatch(words)
        sys.stdout.flush()
    except SystemExit as exit_:  # argparse: 0 after --help, 2 after a usage error
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has had enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _fail(str(error))
    return status


def _drop_output() -> None:
    """Let what is left in the buffer go nowhere, or Python would fail to write it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    from annot.errors import AnnotError

    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = make_parser(chosen)
    args = parser.parse_args(words)
    if args.verb is None:
        parser.print_help()
        return 2
    try:
        return int(importlib.import_module(f"annot.cli.{args.verb}").run(args))
    except AnnotError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:  # annot was installed for its ranges alone
        if error.name not in _REPORTING:
            raise
        return _fail(f"annot {args.verb} needs {error.name}: pip install {_REPORTING[error.name]}")


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        chosen: the verb whose options it knows; those of others are left out, so that only one module is imported.
    """
    parser = argparse.ArgumentParser(
        prog="annot",
        description="Which layer of a deep-learning model, forward and backward, used the time.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, summary in _VERBS.items():
        verb = verbs.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == chosen:
            module = importlib.import_module(f"annot.cli.{name}")
            verb.description = module.__doc__
            module.add_arguments(verb)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than all the rest of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"annot {version('annot')}")
        parser.exit()


def _fail(message: str) -> int:
    print(f"annot: error: {message}", file=sys.stderr)
    return 1
