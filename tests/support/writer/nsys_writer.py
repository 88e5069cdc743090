"""`nsys_writer` as NVIDIA's Analysis Guide describes it, for tests: the real one comes with Nsight Systems only.

Everything below a session is the real `nvtx.writer`. The backend is the library that NSYS_WRITER_BACKEND names.
"""

from __future__ import annotations

import enum
import os
from typing import Any

from nvtx import writer


class TimeBase(enum.Enum):
    """What the times of events count from."""

    RELATIVE = "relative"
    UTC = "utc"


class Session(writer.Session):
    """Copies a report to `name` with the suffix of reports, and adds what is written."""

    def __init__(self, *, name: str, report_merge: str, time_base: TimeBase = TimeBase.UTC, **options: Any) -> None:
        """Hand the options on, as backends take them."""
        backend = writer.load_backend(os.environ["NSYS_WRITER_BACKEND"])
        super().__init__(name, backend=backend, config=f"report_merge={report_merge}\ntime_base={time_base.value}")
