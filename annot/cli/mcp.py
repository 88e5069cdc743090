"""Serve profiles to language models over the Model Context Protocol (standard input and output).

The tools are open, summary, rows, explain_row, compare and advice. They read profiles in FOLDER and below, never
outside, also not through symbolic links, and write nothing. --allow-run adds the tool record, which runs commands.
Configure the client of your agent with the command `annot mcp FOLDER`. `annot guide agents` has units, keys and limits.

examples:
  annot mcp
  annot mcp runs /data/profiles
  annot mcp --allow-run .
"""

from __future__ import annotations

import argparse

from annot.cli.output import whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot mcp`."""
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="folder to read; default: the working folder")
    parser.add_argument("--allow-run", action="store_true", help="offer the tool record, which runs any command")
    size = "refuse profiles larger than N GiB; default: 4"
    parser.add_argument("--max-gib", type=whole_number(1), default=4, metavar="N", help=size)


def run(args: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    from annot.agents.folders import Folders
    from annot.agents.server import serve

    serve(Folders(args.folders or ["."], args.max_gib << 30), allow_run=args.allow_run)
    return 0
