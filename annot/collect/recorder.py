"""Collector that loads annot's recorder, an NVTX injection library, into the command and its children."""

from __future__ import annotations

import os

from annot import native
from annot.collect.run import Collected, Job, meta_of, run_child
from annot.errors import AnnotError

__all__ = ["RecorderCollector"]


class RecorderCollector:
    """Collector for all NVTX calls of the command. It needs only annot's C extension."""

    name = "recorder"
    suffix = ".sqlite"

    def run(self, job: Job) -> int:
        """Run the command with the recorder loaded; see `annot.collect.run.Collector.run`."""
        library = native.recorder_library()
        if library is None:
            raise AnnotError(
                "the recorder is not built: install a C compiler (Debian: apt install gcc), then reinstall "
                f"annot: {native.build_command()}"
            )
        job.say(f"recording with {library}")
        recording = {"NVTX_INJECTION64_PATH": str(library), "ANNOT_RECORD_DIR": str(job.parts)}
        return run_child(job, environ={**os.environ, **recording})

    def convert(self, job: Job, status: int) -> Collected:
        """Assemble the files of all processes; see `annot.collect.run.Collector.convert`."""
        from annot.read.recording.export import assemble

        recording = assemble(job.parts, job.out, meta=meta_of(job, self.name, status))
        return Collected(recording.ranges, _notes(recording.lost, recording.open_ranges, recording.notes))


def _notes(lost: int, open_ranges: int, others: list[str]) -> tuple[str, ...]:
    notes = []
    if lost:
        notes.append(f"{lost} events could not be written and are missing. Check for a full disk.")
    if open_ranges:
        notes.append(f"{open_ranges} ranges were still open when their process ended")
    return (*notes, *others)
