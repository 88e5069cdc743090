"""The C files of a part have an order: none includes or uses another one that, in turn, needs it."""

from __future__ import annotations

import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import annot

NATIVE = Path(annot.__file__).parent / "native"
PARTS = sorted({path.parent for path in NATIVE.glob("*/*.c")})
pytestmark = pytest.mark.skipif(not PARTS, reason="annot is installed, without its C sources")

_NO_CODE = re.compile(
    r'/\*.*?\*/|"(?:\\.|[^"\\])*"|^#\s*\w+|__attribute__\(\([^()]*(?:\([^()]*\))?[^()]*\)\)\s*',
    re.DOTALL | re.MULTILINE,
)
_DEFINITION = re.compile(
    r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][\w *()]*?[\s*](?P<name>\w+)\s*(?:\([^;{}]*\)\s*\{|=[^;]*;|;$|\[)",
    re.MULTILINE,
)
_DECLARATION = re.compile(r"^(?!static\b|typedef\b)[A-Za-z_][\w *]*?[\s*](\w+)\s*(?:\([^{}]*?\))?\s*;", re.MULTILINE)
_BLOCK = re.compile(r"^(?:typedef|static inline|enum).*?^}[^\n]*", re.DOTALL | re.MULTILINE)


def code(path: Path) -> str:
    """Return a file without comments, strings, attributes, names of directives, and lines that include files."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return _NO_CODE.sub("", "\n".join(line for line in lines if not line.startswith("#include")))


def definitions(path: Path) -> set[str]:
    """Return the functions and variables that other files may use."""
    if path.suffix == ".h":
        return set(re.findall(r"^static inline [\w *]*?(\w+)\(", code(path), re.MULTILINE))
    return {match["name"] for match in _DEFINITION.finditer(code(path))}


def includes(sources: list[Path]) -> dict[str, set[str]]:
    """Return the files of the same part that each file includes."""
    names = {path.name for path in sources}
    return {
        path.name: set(re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)) & names
        for path in sources
    }


def uses(sources: list[Path]) -> dict[str, set[str]]:
    """Return, per unit (a C file with the header of its name), the units whose functions and variables it uses."""
    owners = {name: path.stem for path in sources for name in definitions(path)}
    units = defaultdict[str, set[str]](set)
    for path in sources:
        words = set(re.findall(r"\w+", code(path)))
        if path.suffix == ".h":  # a declaration uses nothing; inline functions do
            words = set(re.findall(r"\w+", "".join(re.findall(r"^static inline .*?^}", code(path), re.M | re.S))))
        used = {owners[word] for word in words & owners.keys()} | {
            name.removesuffix(".h") for name in includes(sources)[path.name]
        }
        units[path.stem] |= used - {path.stem}
    return units


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of a circle, empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_c_files_use_each_other_in_one_direction(part: Path) -> None:
    """A unit uses only units below it, and includes only their headers."""
    sources = sorted(part.glob("*.[ch]"))
    assert circle(includes(sources)) == []
    assert circle(uses(sources)) == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_declaration_stands_in_the_header_of_its_owner(part: Path) -> None:
    """A header declares what the C file of its name defines; `parts.h` declares what module.c registers."""
    strays = {
        f"{path.name}: {name}"
        for path in part.glob("*.h")
        if path.name != "parts.h"
        for name in _DECLARATION.findall(_BLOCK.sub("", code(path)))
        if name not in definitions(path.with_suffix(".c"))
    }
    assert strays == set()


def test_circles_are_found(tmp_path: Path) -> None:
    """A file that calls its caller is a circle, and so are headers that include each other."""
    (tmp_path / "low.h").write_text("int low(void);\n")
    (tmp_path / "low.c").write_text('#include "low.h"\nint low(void) {\n    return high; /* no word of high() */\n}\n')
    (tmp_path / "high.c").write_text('#include "low.h"\nint high(void) {\n    return low();\n}\n')
    sources = sorted(tmp_path.glob("*.[ch]"))
    assert set(circle(uses(sources))) == {"low", "high"}
    assert circle(includes(sources)) == []
    (tmp_path / "high.h").write_text('#include "low.h"\n')
    (tmp_path / "low.h").write_text('#include "high.h"\n')
    assert set(circle(includes(sorted(tmp_path.glob("*.[ch]"))))) == {"low.h", "high.h"}
