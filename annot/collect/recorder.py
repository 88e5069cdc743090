"""The collector that loads annot's own recorder, an NVTX tool, into the command and its children."""

from __future__ import annotations

import os

from annot import native
from annot.collect.run import Collected, Job, meta_of, run_child
from annot.errors import AnnotError

__all__ = ["RecorderCollector"]


class RecorderCollector:
    """Sees every NVTX call of the command; needs nothing but the C part of annot."""

    name = "recorder"
    suffix = ".sqlite"

    def run(self, job: Job) -> int:
        """Run the command with the recorder loaded; see `annot.collect.run.Collector.run`."""
        library = native.recorder_library()
        if library is None:
            raise AnnotError(
                "the recorder was not built: install a C compiler (Debian: apt install gcc) and then annot "
                f"again: {native.build_command()}"
            )
        job.say(f"recording with {library}")
        recording = {"NVTX_INJECTION64_PATH": str(library), "ANNOT_RECORD_DIR": str(job.parts)}
        return run_child(job, environ={**os.environ, **recording})

    def convert(self, job: Job, status: int) -> Collected:
        """Assemble what the processes wrote; see `annot.collect.run.Collector.convert`."""
        from annot.collect.export import assemble

        recording = assemble(job.parts, job.out, meta=meta_of(job, self.name, status))
        return Collected(recording.ranges, _notes(recording.lost, recording.open_ranges, recording.notes))


def _notes(lost: int, open_ranges: int, others: list[str]) -> tuple[str, ...]:
    notes = []
    if lost:
        notes.append(f"{lost} events could not be written and are missing (is the disk full?)")
    if open_ranges:
        notes.append(f"{open_ranges} ranges were still open at the end")
    return (*notes, *others)
