"""Session of torch.profiler in the profiled process, from the import of torch to the end of the process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import warnings
from typing import Any

import wrapt

from annot.emit import class_sources, client
from annot.emit.machine import machine
from annot.util.program import FILE


def profile_when_imported(output: str) -> None:
    """Start torch.profiler when torch is imported, and write the Chrome trace to `output` when the process ends."""
    wrapt.register_post_import_hook(lambda torch: _start(torch, output), "torch")


def _start(torch: Any, output: str) -> None:
    import torch.profiler

    owner, program = os.getpid(), os.path.join(os.path.dirname(output), FILE)
    profiler = torch.profiler.profile(**_all_threads(torch))
    with warnings.catch_warnings():
        # Some versions warn that events are cleared, which acc_events=True prevents. It also makes torch.profiler
        # parse all events in Python at the end.
        warnings.simplefilter("ignore")
        profiler.start()

    def finish() -> None:
        if os.getpid() == owner:
            # The trace mixes annot's ranges with torch's operators; the texts identify annot's ranges.
            profiler.add_metadata_json("annot_texts", json.dumps(client.texts()))
            profiler.add_metadata_json("annot_sources", json.dumps(class_sources.noted()))
            profiler.add_metadata_json("annot_machine", json.dumps(machine("PyTorch", str(torch.__version__))))
            with contextlib.suppress(OSError), open(program, encoding="utf-8") as file:
                profiler.add_metadata_json("annot_program", file.read())
            profiler.stop()
            profiler.export_chrome_trace(output)

    atexit.register(finish)
    os.register_at_fork(after_in_child=_exit_without_kineto)


def _all_threads(torch: Any) -> dict[str, Any]:
    """Return the option to profile all threads, if this version of PyTorch supports it."""
    try:
        return {"experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)}
    except TypeError:
        return {}


def _exit_without_kineto() -> None:
    """Skip libkineto's exit handler in a forked child. It waits for a thread that fork does not copy."""
    libc = ctypes.CDLL(None)
    # Handlers run in reverse order of registration: flush C streams, then exit with the given status.
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc._IO_flush_all, None)
