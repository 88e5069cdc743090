"""The end of a process whose program does not end after its measured steps."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

from annot.emit import client, guard

PROGRAM_SECONDS = 60.0
"""Time that a program has for its end: `finally`, other threads, and functions of `atexit`."""
PROFILED_SECONDS = 600.0
"""The same under a profiler, which may write a large trace at the end."""
THREAD_SECONDS = 20.0
"""Time that other threads have when the main thread has ended."""


class Deadline:
    """Time that a program has for its end. Afterwards, the process ends with status 0.

    Python waits for all threads and child processes before it ends. They may wait for the main thread in turn, such as
    a thread that puts batches into a full queue. If only threads do not end, functions of `atexit` still run. The
    program may also catch `SystemExit`, or wait in C code, which Python cannot interrupt.

    Args:
        write: writes the result before the process ends.
        profiled: whether the program may run under a profiler.
    """

    def __init__(self, write: Callable[[], object], *, profiled: bool) -> None:
        self._write, self._profiled = write, profiled
        self._started = False
        # The functions of concurrent.futures, which are registered later, are called before: they end idle threads.
        threading._register_atexit(self._wait_for_threads)  # type: ignore[attr-defined]

    def start(self) -> None:
        """Start the time, at the first call."""
        if not self._started:
            self._started = True
            seconds = PROFILED_SECONDS if self._profiled else PROGRAM_SECONDS
            timer = threading.Timer(seconds, self._end, [f"{seconds:g} s after its measured steps"])
            timer.daemon = True
            timer.start()

    def _wait_for_threads(self) -> None:
        """Wait, on the main thread, for the threads that Python would wait for without end."""
        end = time.monotonic() + THREAD_SECONDS
        threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        for thread in threads if self._started else ():
            if not thread.daemon:
                thread.join(max(0.0, end - time.monotonic()))
                if thread.is_alive():
                    when = f"{THREAD_SECONDS:g} s after the end of its main thread: the thread {thread.name} still runs"
                    self._end(when, atexit._run_exitfuncs)

    def _end(self, when: str, exit_functions: Callable[[], object] = lambda: None) -> None:
        client.warn_once(f"the program has not ended {when}, so annot ends it")
        self._write()
        exit_functions()
        for stream in (sys.stdout, sys.stderr):
            guard.attempt(stream.flush, otherwise=None)
        for child in multiprocessing.active_children():
            child.terminate()
        os._exit(0)
