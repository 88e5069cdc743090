"""Inside the profiled process: torch.profiler from the import of torch to the end of the process."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
from typing import Any

import wrapt

from annot import emit

__all__ = ["profile_when_imported"]


def profile_when_imported(output: str) -> None:
    """Start torch.profiler as soon as torch is imported, and write its trace when the process ends.

    Args:
        output: the Chrome trace to write; compressed if it ends in ``.gz``.
    """
    wrapt.register_post_import_hook(lambda torch: _start(torch, output), "torch")


def _start(torch: Any, output: str) -> None:
    import torch.profiler

    owner = os.getpid()
    profiler = torch.profiler.profile(**_all_threads(torch))
    profiler.start()

    def finish() -> None:
        if os.getpid() == owner:
            # In the trace annot's ranges stand among torch's operators.
            profiler.add_metadata_json("annot_texts", json.dumps(emit.texts()))
            profiler.stop()
            profiler.export_chrome_trace(output)

    atexit.register(finish)
    os.register_at_fork(after_in_child=_exit_without_kineto)


def _all_threads(torch: Any) -> dict[str, Any]:
    """The option that has torch.profiler watch every thread, where this release has it."""
    try:
        return {"experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)}
    except TypeError:
        return {}


def _exit_without_kineto() -> None:
    """Let a forked child leave: at exit libkineto waits for its own thread, which the child does not have."""
    libc = ctypes.CDLL(None)
    # Called in the opposite order: flush what C code printed, then leave with the status that is passed.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc._IO_flush_all, None)
