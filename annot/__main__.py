"""`python -m annot` is the command `annot`."""

from __future__ import annotations

import sys

from annot.cli import main

if __name__ == "__main__":
    sys.exit(main())
