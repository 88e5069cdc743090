"""Tests read no peaks that the developer has measured: the data folder of this process and its children is empty."""

from __future__ import annotations

import os
import tempfile

os.environ["XDG_DATA_HOME"] = os.path.join(tempfile.gettempdir(), "annot-tests-without-data")
