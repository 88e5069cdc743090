"""Progress display on a terminal for operations longer than two seconds, on standard error, removed at the end."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from annot.util.progress import listening

if TYPE_CHECKING:
    from rich.progress import Progress, Task
    from rich.text import Text

_SECONDS = 2.0


@contextmanager
def progress() -> Iterator[threading.Event | None]:
    """Show the progress messages of a block (see `annot.util.progress.tell`) after two seconds.

    The event is set when the display appears; it is None if standard error is not a terminal, or has the lines of -v.
    """
    if not sys.stderr.isatty() or logging.getLogger("annot").isEnabledFor(logging.INFO):
        yield None
        return
    display = _Display()
    timer = threading.Timer(_SECONDS, display.start)
    timer.daemon = True
    with listening(display.tell):
        timer.start()
        try:
            yield display.started
        finally:
            timer.cancel()
            display.stop()


class _Display:
    """Progress line. The timer thread starts it, the working thread stops it."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self._lock = threading.Lock()
        self._shown: Progress | None = None
        self._ended = False
        self._latest: tuple[str, int, int | None, str] = ("working", 0, None, "")

    def tell(self, what: str, done: int, total: int | None, unit: str) -> None:
        with self._lock:
            self._latest = (what, done, total, unit)
            self._update()

    def start(self) -> None:
        with self._lock:
            if not self._ended:
                self._shown = _line()
                self._shown.start()
                self._update()
        self.started.set()

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._shown is not None:
                self._shown.stop()

    def _update(self) -> None:
        if self._shown is None:
            return
        task_name, done, total, unit = self._latest
        tasks = self._shown.tasks
        if not tasks or tasks[-1].description != task_name:
            for task in tasks:
                self._shown.remove_task(task.id)
            self._shown.add_task(task_name, total=total, completed=done, unit=unit)
        else:
            self._shown.update(tasks[-1].id, completed=done, total=total)


def _line() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    from annot.report.units import amount, printable

    class Name(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(printable(task.description), overflow="ellipsis", no_wrap=True)

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            unit = task.fields["unit"]
            if not unit or not task.completed:
                return Text()
            rate = f", {amount(task.speed)} {unit}/s" if task.speed else ""
            return Text(f"{amount(task.completed)} {unit}{rate}")

    # rich does not clear the second line of a wrapped display, so all columns stay on one line and the name shrinks.
    console, whole = Console(stderr=True), Column(no_wrap=True)
    bar = BarColumn(20 if console.width >= 80 else 6)
    columns = (Name(), bar, Rate(table_column=whole), TimeElapsedColumn(whole), TimeRemainingColumn(table_column=whole))
    return Progress(*columns, console=console, transient=True)
