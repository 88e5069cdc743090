"""The commands of annot in the code of advice."""

from __future__ import annotations

import shlex

from annot.analyze.advice import Advice
from annot.cli.main import make_parser, with_command

__all__ = ["check_commands", "commands_of"]


def commands_of(advice: Advice) -> list[list[str]]:
    """Return the commands as words, without ``annot`` and comments."""
    lines = [line for line in advice.code.splitlines() if line.startswith("annot ")]
    return [with_command(shlex.split(line, comments=True)[1:]) for line in lines]


def check_commands(advice: Advice) -> int:
    """Parse each command as the command line does, and return their number. Fail on options that do not exist."""
    commands = commands_of(advice)
    for words in commands:
        make_parser(words[0]).parse_args(words)
    return len(commands)
