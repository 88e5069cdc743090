"""Damaged files of Proton: nodes with nonsense values, repeated, missing and deeply nested nodes, broken encodings."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
from fuzz_bytes import INTEGERS, TEXTS, damaged

__all__ = ["proton"]

_SEED = Path(__file__).parents[1] / "data" / "proton" / "scopes.hatchet"
_VALUES: tuple[Any, ...] = (
    *INTEGERS,
    *TEXTS[:12],
    2**64,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    None,
    True,
    [],
    {},
    [1, 2],
    {"a": 1},
)
_METRICS = ("time (ns)", "count", "device_id", "device_type", "flops16", "bytes")
_NAMES = (*TEXTS, "<captured_at>", "model", "model.layers.0", "a.py:1@f", "__proton_launch_metadata", "0", "a." * 900)


def proton(path: Path, chance: random.Random) -> None:
    """Write a damaged file."""
    file: Any = json.loads(_SEED.read_bytes())
    for _ in range(chance.choice((0, 1, 2, 8, 40))):
        _change(chance.choice(_nodes(file[0])), file, chance)
    if chance.random() < 0.05:
        for _ in range(chance.choice((50, 400, 20_000))):
            file[0] = {"frame": {"name": "deep"}, "metrics": {}, "children": [file[0]]}
    content = _encoded(file, chance)
    path.write_bytes(damaged(content, chance) if chance.random() < 0.2 else content)


def _encoded(file: Any, chance: random.Random) -> bytes:
    try:
        return msgspec.msgpack.encode(file) if chance.random() < 0.5 else json.dumps(file).encode()
    except (RecursionError, OverflowError, UnicodeEncodeError):
        return b"[" + b'{"children":[' * 20_000


def _nodes(node: Any) -> list[Any]:
    children = node.get("children") if isinstance(node, dict) else None
    inside = [found for child in children for found in _nodes(child)] if isinstance(children, list) else []
    return [node, *inside] if isinstance(node, dict) else inside


def _change(node: dict[str, Any], file: list[Any], chance: random.Random) -> None:
    match chance.randrange(8):
        case 0 | 1:
            node["metrics"] = {chance.choice(_METRICS): chance.choice(_VALUES) for _ in range(3)}
        case 2:
            node["metrics"] = {"time (ns)": chance.choice(INTEGERS), "count": chance.choice((0, 1, 2**60))}
        case 3 | 4:
            node["frame"] = {"name": chance.choice(_NAMES)}
        case 5:
            node.pop(chance.choice(tuple(node)), None) if node else None
        case 6:
            node[chance.choice(("frame", "metrics", "children", "x"))] = chance.choice(_VALUES)
        case 7:
            file.append(chance.choice((json.loads(json.dumps(node)), {"CUDA": {"0": node}}, {"HIP": 3}, 7)))
