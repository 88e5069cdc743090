"""Mark with the versions of the software and the model of the CPU, when the first model gets ranges."""

from __future__ import annotations

import functools
import platform
import re

from annot.emit import guard
from annot.labels.marks import format_machine
from annot.util import distribution


def say_machine(framework: str, version: str) -> None:
    """Emit the mark of `annot.labels.marks.format_machine`.

    Args:
        framework: ``PyTorch`` or ``TensorFlow``.
        version: version of the framework.
    """
    guard.mark(lambda: machine(framework, version))


@functools.cache
def machine(framework: str, version: str) -> str:
    """Return the text of the mark; see `say_machine`."""
    versions = {framework: version, "Python": platform.python_version(), "annot": distribution.version()}
    return format_machine(versions | {"CPU": cpu_name()})


def cpu_name() -> str:
    """Return the model of the CPU; "": unknown. On Linux, `platform.processor` has the architecture at most.

    Example:
        >>> isinstance(cpu_name(), str)
        True
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            match = re.search(r"^model name\s*:\s*(.*)", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor()
