"""Profile deep-learning models and attribute the time to layers, forward and backward.

examples:
  annot run -- python train.py                            profile a script, then print its layers
  annot annot1.sqlite --by kernel                         print the same profile by kernel
  annot annot1.sqlite --columns roofline                  print what bounds each layer
  annot annot1.sqlite -o page.html                        write an interactive page
  annot annot1.sqlite --format json                       print JSON for other programs
  annot -v annot1.sqlite                                  show the steps of the report and their times
  annot doctor                                            find causes of missing ranges
  annot guide attribution                                 read how time is attributed to layers

exit status:
  0    success
  1    error, with one line on standard error
  2    wrong usage
  3    annot compare --fail-above: slower
  4    annot compare --fail-above: not comparable
  5    annot compare --fail-above: more runs are needed to decide; annot bisect: no commit is named; annot try: no
       change is faster
  130  Ctrl-C
  annot run returns the exit status of its command.

environment:
  ANNOT_DISABLE, NVTX_DISABLE    1: disable all ranges
  ANNOT_ENABLE                   1: emit ranges even without a profiler
  ANNOT_DISABLE_NATIVE           1: use the Python fallback instead of the C extensions, except for the recorder
  ANNOT_NSYS, ANNOT_NCU          paths of nsys and ncu
  ANNOT_BASELINES                folder or URL of the baselines

annot COMMAND --help shows the options of a command.
"""

# The docstring of this module and those of the modules of commands are their help. The module of a command is imported
# when the command is used.

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

from annot.util.ascii import ERRORS
from annot.util.distribution import install_command, version

COMMANDS: Final = {
    "run": "run a command under a profiler, then print the time of each layer",
    "report": "print the time of each layer in a profile; annot PROFILE is short for it",
    "compare": "compare two profiles layer by layer: speedup with its uncertainty",
    "baseline": "keep runs as named baselines, to compare later runs with",
    "roofline": "print layers or kernels relative to the peaks of their device",
    "calibrate": "measure the peaks of this GPU or CPU once, for rooflines and advice",
    "sweep": "run a command with every combination of parameters, and write a table and charts",
    "try": "try changes such as torch.compile on a program, and measure what each one gains",
    "bisect": "find the commit that made a program slower, and the layer",
    "mcp": "serve profiles to language models over the Model Context Protocol",
    "doctor": "show installed software, and find causes of missing ranges or kernels",
    "schema": "print the JSON Schema of a table",
    "guide": "show a chapter of the guide: frameworks, attribution, file formats, extensions",
    "completion": "print a script that completes commands and options in bash, zsh or tcsh",
}
"""Commands with a line of help."""
_MODULES: Final = {"try": "try_command"}
"""Modules of commands whose name is a keyword of Python."""
_NEED_LINUX: Final = ("run", "try", "sweep", "bisect", "calibrate")
"""Commands that record or measure a program. `annot compare --repeat` and `annot doctor` check it themselves."""
_VERBOSE: Final = "show on standard error what annot does: readers, programs, files, and when"
_OPTIONAL: Final = {
    "polars": "pip install polars",
    "rich": "pip install rich",
    "msgspec": "pip install msgspec",
    "adbc_driver_sqlite": "pip install adbc-driver-sqlite",
    "shtab": install_command("completion"),
    "mcp": install_command("mcp"),
}
"""Modules that only some commands need, and the commands that install them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program name; None: the arguments of this process.

    Returns:
        Exit status: 0: success; 1: error, with one line on standard error; 2: wrong usage; 3, 4, 5: see
        `annot compare --fail-above`, `annot bisect` and `annot try`; 130: Ctrl-C. `annot run` returns the status of its
        command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the locale may lack characters such as µ
            stream.reconfigure(errors=ERRORS)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            status = _dispatch(words)
        sys.stdout.flush()
    except SystemExit as exit_:  # argparse: 0 after --help, 2 after a usage error
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        from annot.cli.output import drop_output

        drop_output(sys.stdout)
        return 0 if isinstance(error, BrokenPipeError) else _fail(str(error))  # the reader closed the pipe
    return status


def _show_warning(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning of annot as a line, and others as Python does."""
    if category is RuntimeWarning:
        print(f"annot: warning: {message}", file=sys.stderr)
    else:
        otherwise(message, category, *place)


def _dispatch(words: list[str]) -> int:
    from annot.cli.output import UsageError
    from annot.errors import AnnotError, PlatformError, require_linux

    verbose = words[:1] in (["-v"], ["--verbose"])
    words = with_command(words[verbose:])
    verb = next((word for word in words if not word.startswith("-")), None)
    parser = make_parser(verb)
    args = parser.parse_args(words)
    args.words = words
    if args.verb is None:
        parser.print_help()
        return 2
    try:
        with _logging(verbose or args.verbose):
            if args.verb in _NEED_LINUX:
                require_linux(f"annot {args.verb}")
            return int(_module(args.verb).run(args))
    except AnnotError as error:
        return _fail(str(error), 2 if isinstance(error, UsageError | PlatformError) else 1)
    except ModuleNotFoundError as error:  # installed without the packages for reports
        package = (error.name or "").partition(".")[0]  # an older release may lack a module
        if package not in _OPTIONAL:
            raise
        return _fail(f"annot {args.verb} needs {package}: {_OPTIONAL[package]}")


@contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Print the log messages of annot inside the block, with the milliseconds since annot started."""
    if not verbose:
        yield
        return
    import logging

    log, handler = logging.getLogger("annot"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("annot: %(relativeCreated).0f ms %(name)s: %(message)s"))
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # `annot mcp` has a handler of its own
    try:
        yield
        log.info("finished")
    finally:
        log.setLevel(level)
        log.propagate = propagate
        log.removeHandler(handler)


def _module(command: str) -> Any:
    """Return the module of a command."""
    return importlib.import_module(f"annot.cli.{_MODULES.get(command, command)}")


def with_command(words: list[str]) -> list[str]:
    """Return the arguments with the command: `annot PROFILE` is short for `annot report PROFILE`."""
    first = words[0] if words else "--help"
    if first.startswith("-"):
        is_report = first not in ("-h", "--help", "--version")
    else:  # a file, a pattern or a URL
        is_report = first not in COMMANDS and (os.path.exists(first) or any(mark in first for mark in "./*?"))
    return ["report", *words] if is_report else words


class _Parser(argparse.ArgumentParser):
    """Parser whose errors suggest the nearest name for a misspelt command, value or option.

    A parser with the default `words_after` keeps the words behind the first ``--`` there, and those between options in
    `profiles`.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        before, after = args, None
        if "words_after" in self._defaults and "--" in args:
            place = args.index("--")
            before, after = args[:place], args[place + 1 :]
        parsed, unknown = super().parse_known_args(before, namespace)
        if "words_after" in self._defaults:
            parsed.words_after = after
            parsed.profiles += [word for word in unknown if not word.startswith("-")]
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:  # report it here: the parser of the program lacks the options of its commands
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        import difflib

        if message.startswith("argument COMMAND: invalid choice: "):
            word, _, choices = message.removeprefix("argument COMMAND: invalid choice: ").partition(" (")
            message = f"{word} is neither a file nor a command ({choices}"
        wrong = re.search(r"(?:invalid choice: '|unrecognized arguments: |^')([^\s'=]+)", message)
        names = re.findall(r"[\w-]+", message.partition("choose from")[2]) or list(self._option_string_actions)
        near = difflib.get_close_matches(wrong[1], names, 1) if wrong else []
        super().error(f"{message}; did you mean {near[0]}?" if near else message)


def make_parser(*commands: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of some commands: only their modules are imported."""
    description, epilog = _help_of(__doc__)
    parser = _Parser(
        prog="annot",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        verb = verbs.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name in commands:
            module = _module(name)
            verb.description, verb.epilog = _help_of(module.__doc__)
            module.add_arguments(verb)
            verb.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
    return parser


def _help_of(docstring: str | None) -> tuple[str, str]:
    """Return the text before the options and that after them, from the examples on; empty under ``python -OO``."""
    description, examples, rest = (docstring or "").partition("\nexamples:\n")
    return description, f"{examples}{rest}"


class _Version(argparse.Action):
    """Action that looks up the version on demand, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"annot {version()}")
        parser.exit()


def _fail(message: str, status: int = 1) -> int:
    print(f"annot: error: {message}", file=sys.stderr)
    return status
