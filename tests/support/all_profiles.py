"""All profiles in one folder: the real ones, and small ones of what these lack.

The small ones have ranks, memory, experts, pipeline stages, a serving engine, or a planted inefficiency.
"""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Final

from planted_traces import NOTHING, PLANTED
from ranked import write_ranks
from sqlite_profile import SqliteProfile, thread, training

__all__ = ["write_profiles"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_DATA: Final = {"tests": _ROOT / "tests" / "data", "shared": _ROOT.parent / "shared" / "data"}
_TEXTS: Final = (".md", ".py")
_US: Final = 1000
_MARK: Final = 34
_RANKS: Final = 6
"""Number of ranks; the last one is slow, see `ranked`."""


def write_profiles(folder: Path) -> None:
    """Write the folders ``tests`` and ``shared`` of real profiles, without compression, and ``made`` of small ones."""
    for place, data in _DATA.items():
        for path in data.rglob("*"):
            if path.is_file() and path.suffix not in _TEXTS:
                unpacked = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix)
                out = folder / place / path.relative_to(data)
                out = out.with_suffix("") if unpacked else out
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(unpacked(path.read_bytes()) if unpacked else path.read_bytes())
    _write_made(folder / "made")


def _write_made(folder: Path) -> None:
    """Write ``ranks/run_rank*.sqlite``, ``planted/*.json`` and a profile each for views that need special ranges."""
    (folder / "planted").mkdir(parents=True)
    write_ranks(folder / "ranks", _RANKS)
    for name, make in (NOTHING | {name: case[0] for name, case in PLANTED.items()}).items():
        make().save(folder / "planted").rename(folder / "planted" / f"{name}.json")
    training(device=False).write(folder / "host_only.sqlite")
    _with_memory().write(folder / "memory.sqlite")
    _with_experts().write(folder / "experts.sqlite")
    _with_stages().write(folder / "stages.sqlite")
    _with_serving().write(folder / "serving.sqlite")


def _with_memory() -> SqliteProfile:
    profile = training(device=True)
    for number, at in enumerate((410, 495, 690, 1220, 1810)):
        for figure, size in (("change", (number - 2) * 4096), ("peak", 1 << (16 + number))):
            where = {"domainId": profile.domain("annot"), "int64Value": size}
            profile.event(_MARK, at * _US, None, f"memory {figure} |cuda:0", thread(1), **where)
    return profile


def _with_experts() -> SqliteProfile:
    profile = SqliteProfile()
    for number, (expert, length) in enumerate([(3, 5), (1, 5), (3, 40), (0, 20), (7, 1)]):
        for phase, at in (("fwd", 200 * number * _US), ("bwd", (200 * number + 100) * _US)):
            profile.layer(f"0.mlp.experts.{expert} MLP |{phase}", at, at + 50 * _US)
            _launch(profile, at + _US, length * _US, "ampere_sgemm_64x64_nn")
    return profile


def _with_stages() -> SqliteProfile:
    profile = SqliteProfile()
    for number, action in enumerate(["0F0", "1RECV_F0", "1F0", "0F1", "1F1", "1B0", "1SEND_B0", "0B0"]):
        at = 100 * number * _US
        profile.range(f"PP:{action}", at, at + 80 * _US)
        _launch(profile, at + _US, (20 + 7 * number) * _US, "ncclDevKernel_SendRecv" if "_" in action else "gemm")
    return profile


def _with_serving() -> SqliteProfile:
    profile = SqliteProfile()
    texts = ["step[EXTEND bs=1 toks=64]", *["step[DECODE bs=8]"] * 3, "step[DECODE bs=9]", "step[EXTEND bs=1 toks=32]"]
    for number, text in enumerate(texts):
        at = 200 * number * _US
        profile.range(text, at, at + 90 * _US)
        profile.layer("attn Attention |fwd", at + _US, at + 80 * _US)
        _launch(profile, at + 2 * _US, (30 + number) * _US, "flash_fwd_kernel")
    return profile


def _launch(profile: SqliteProfile, at: int, length: int, kernel: str) -> None:
    """Add a launch of 2 µs and its kernel, which starts 5 µs after it."""
    correlation = len(profile.rows.get("CUPTI_ACTIVITY_KIND_KERNEL", ())) + 1
    profile.call(at, at + 2 * _US, correlation)
    profile.kernel(at + 5 * _US, at + 5 * _US + length, correlation, kernel)
