"""One program with and without a tool: it computes the same and raises the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from annot import native

CALLS = '''
import warnings
warnings.simplefilter("ignore")
import annot
from annot import batch, epoch, mark, trace

class Opaque:
    """Does not let itself be looked at."""
    def __repr__(self): raise RuntimeError("repr")
    @property
    def shape(self): raise KeyError("shape")
    def __getattr__(self, name): raise RuntimeError(name)

def attempt(name, function):
    try: function(); print(name, "works")
    except Exception as error: print(name, type(error).__name__, error)

def block(text="x", **options):
    with trace(text, **options): pass

def number(range_):
    with range_: pass

@trace(shapes=True)
def with_shapes(*args, **kwargs): pass

itself = []
itself.append(itself)
for payload in (2**63, -(2**70), 1.5, float("nan"), "text", None):
    attempt(f"payload {payload}", lambda: block(payload=payload))
for text in ("", "a\\0b", "\\ud800", "x" * 10**6):
    attempt(f"text {text[:9]!a}", lambda: block(text))
for name in ("a\\0b", "\\udcff", "c" * 10**5):
    attempt(f"domain {name[:9]!a}", lambda: block(domain=name))
    attempt(f"category {name[:9]!a}", lambda: block(category=name))
for color in ("red", "no such color", 2**40, -1, 1.5):
    attempt(f"color {color}", lambda: block(color=color))
for count in (-1, 2**63 - 1, 2**63, 2**70):
    attempt(f"epoch {count}", lambda: number(epoch(count)))
    attempt(f"batch {count}", lambda: number(batch(count)))
attempt("mark", lambda: mark("m", payload=2**64))
attempt("shapes of what cannot be looked at", lambda: with_shapes(Opaque(), at=Opaque()))
attempt("shapes of a list in itself", lambda: with_shapes(itself))
'''

RECURSION = """
import sys
from annot import trace
@trace
def down(n): return down(n - 1) if n else 0
def reaches(n):
    try: return down(n) == 0
    except RecursionError: return False
print(max(n for n in range(0, 1000, 50) if reaches(n)))
"""

INTERPRETERS = '''
import sys
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
program = """
import warnings
warnings.simplefilter('ignore')
from annot import trace
@trace
def twice(n): return 2 * n
assert [twice(n) for n in range(3)] == [0, 2, 4]
"""
for _ in range(2):
    failed = run(interpreters.create(), program)
    assert not failed, failed
print("done")
'''


def run(program: str, folder: Path, **environ: str) -> str:
    """Return what the program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("disabled", ["0", "1"], ids=["native", "python"])
def test_calls_raise_alike(tmp_path: Path, disabled: str) -> None:
    """What is wrong is wrong without a tool, too; what works there, works with one."""
    without, with_ = (run(CALLS, tmp_path, ANNOT_ENABLE=enable, ANNOT_DISABLE_NATIVE=disabled) for enable in ("0", "1"))
    assert with_ == without
    assert "color no such color ValueError" in without
    assert "color red works" in without


@pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off")
def test_traced_functions_recurse_as_deep(tmp_path: Path) -> None:
    """CPython 3.11 counts calls of C towards the limit of recursion."""
    assert run(RECURSION, tmp_path, ANNOT_ENABLE="1") == run(RECURSION, tmp_path, ANNOT_ENABLE="0") == "950\n"


def test_sub_interpreters_run(tmp_path: Path) -> None:
    """They have no ranges, because neither annot's own client nor the nvtx package loads there, and a warning."""
    assert run(INTERPRETERS, tmp_path, ANNOT_ENABLE="1") == "done\n"
