"""Print a script that completes the commands and options of annot in a shell.

The package shtab makes the script: pip install "annot-nvtx[completion]".

examples:
  annot completion bash > ~/.local/share/bash-completion/completions/annot
  annot completion zsh > ~/.zfunc/_annot
  annot completion tcsh > ~/.annot.completion.csh
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

_FILES: Final = ("PROFILE", "A", "B", "RUN", "OUT", "TRACE", "CONFIG", "OTHER", "COMMAND", "FILE")
"""Arguments that are files, by metavar."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="shell that runs the script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from annot.cli.main import COMMANDS, make_parser

    parser = make_parser(*COMMANDS)
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE
    script = shtab.complete(parser, args.shell)
    print(script.replace("complete -o ", "complete -o default -o "))  # bash: `annot PROFILE` completes files
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the arguments of a parser and of the parsers of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
