"""How much of annot a report enters, so that a reader of one table has few modules to know."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_MODULES, MOST_FUNCTIONS = 65, 574


def test_a_report_enters_few_modules_and_functions(tmp_path: Path) -> None:
    profile = tmp_path / "transformer.sqlite"
    profile.write_bytes(gzip.decompress((ROOT / "tests/data/transformer.sqlite.gz").read_bytes()))
    script = ROOT / "tests/support/entered.py"
    done = subprocess.run([sys.executable, script, profile], capture_output=True, text=True, check=True)
    last = re.fullmatch(r"(\d+) modules, (\d+) functions", done.stderr.splitlines()[-1])
    assert last is not None
    modules, functions = map(int, last.groups())
    assert 0 < modules <= MOST_MODULES
    assert 0 < functions <= MOST_FUNCTIONS
    assert "report/table.py" in done.stderr
