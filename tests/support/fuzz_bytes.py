"""Format-independent damage to files: cut, flip, repeat, move and insert bytes; a list of odd values."""

from __future__ import annotations

import random

__all__ = ["INTEGERS", "TEXTS", "damaged", "lines_damaged"]

INTEGERS = (
    0, 1, -1, 2, 255, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, -(2**63),
    -(2**31), -(2**62), 10**18, -5,
)  # fmt: skip

TEXTS = (
    "", " ", "\0", "a\0b", "\n", "\r\n\t", "\x1b[31mred\x1b[0m", "'; DROP TABLE x; --", '"', "{}", "[bold]x[/bold]",
    "[/]", "|fwd", "x |fwd", "x X [1,2]f32 |bwd", "fc Linear [" + "9" * 400 + "]f32 |fwd",
    "Batch " + "9" * 400 + " |step", "Batch -1 |step", "Batch 1 |step", "a." * 3000 + "b C |fwd", "." * 2000, "|" * 999,
    "ü€𝄞\u202e\ufeff", "\ud7ff\uffff",
    "x" * 70_000, "../../etc/passwd", "<script>alert(1)</script>", "%s%n{0}{x}", "NaN", "1e999", "9" * 5000, "None",
    "ProfilerStep#" + "9" * 30, "Backward |bwd", "(unattributed)", "step 1", "step 999999999999999999999999",
)  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return the content with one to four random damages."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if data:
            chance.choice((_cut, _flip, _flip, _overwrite, _remove, _repeat, _insert, _move))(data, chance)
    return bytes(data)


def lines_damaged(content: bytes, chance: random.Random) -> bytes:
    """Return the content with lines removed, repeated, swapped, cut or joined."""
    lines = content.split(b"\n")
    for _ in range(chance.choice((1, 1, 2, 5))):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                lines[at : at + chance.choice((1, 1, 10))] = [b""]
            case 1:
                lines.insert(other, lines[at])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
            case 4:
                lines[at] = lines[at] + lines[other]
            case 5:
                lines[at] = damaged(lines[at], chance)
    return b"\n".join(lines)


def _span(data: bytearray, chance: random.Random, most: int = 4096) -> tuple[int, int]:
    start = chance.randrange(len(data))
    return start, min(len(data), start + chance.choice((1, 2, 4, 8, 100, most)))


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _flip(data: bytearray, chance: random.Random) -> None:
    # Half of the flips are in the header, which has the structure of a file.
    reach = len(data) if chance.random() < 0.5 else min(len(data), 1024)
    for _ in range(chance.choice((1, 2, 8, 64))):
        data[chance.randrange(reach)] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    filler = chance.choice((b"\0", b"\xff", b"\x80", b"\x7f", b"9", chance.randbytes(1)))
    data[start:end] = filler * (end - start)


def _remove(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    del data[start:end]


def _repeat(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    data[start:start] = data[start:end] * chance.choice((1, 1, 3))


def _insert(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    data[start:start] = chance.choice((chance.randbytes(chance.choice((1, 4, 200))), b"\0" * 5000, b"\xef\xbb\xbf"))


def _move(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    piece = data[start:end]
    at = chance.randrange(len(data))
    data[at : at + len(piece)] = piece
