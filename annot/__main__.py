"""Entry point of `python -m annot`, the same as the command `annot`."""

from __future__ import annotations

import sys

from annot.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
