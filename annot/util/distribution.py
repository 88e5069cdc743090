"""The distribution of annot on package indexes: its name, its version and its extras.

The name `annot` on package indexes belongs to another project.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "annot-nvtx"
"""The name for pip. The package to import and the command are `annot`."""


def version() -> str:
    """Return the version of the installed distribution; "unknown" for a copy that is only on ``PYTHONPATH``.

    Example:
        >>> version()
        '0.1.0'
    """
    from annot.util.installed_tools import version_of  # slow to import, and `annot --help` does not need it

    return version_of(NAME) or "unknown"


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of annot, with quotes that cmd.exe knows, too.

    Example:
        >>> install_command("xplane")
        'pip install "annot-nvtx[xplane]"'
    """
    return f'pip install "{NAME}[{extra}]"'
