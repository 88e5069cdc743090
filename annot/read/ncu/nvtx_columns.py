"""Parse the two NVTX columns of Nsight Compute's CSV output: the ranges around a kernel.

Both columns are lists of quoted entries, separated by two spaces. The column of push/pop ranges begins with the thread
id::

    4733  "<default domain>:train:none:none:none:none:ASCII:train"  "annot:fc:Uint64:12:RGB:0xff00ff00:ASCII:fc"
     "77:annot:Epoch 0:none:none:none:none:none:none"

An entry consists of [id:]domain:text, type and value of the payload, type and value of the color, and type and text of
the message. ncu 2022.3 does not escape quotes and colons in texts. The parser therefore searches for payload and color,
in the middle of an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from annot.read.ncu.launch_order import DEFAULT_DOMAIN, OpenRange

__all__ = ["PUSHED", "STARTED", "pushed_ranges", "started_ranges"]

PUSHED: Final = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""Column of push/pop ranges."""

STARTED: Final = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""Column of start/end ranges."""

# The repetitions are bounded to limit backtracking.
_MIDDLE: Final = re.compile(
    r":(?:none:none|(?:Uint64|Int64|Double|Uint32|Int32|Float):(?P<number>[^:\"]{1,64})|Json\w{0,16}:.{0,256}?)"
    r":[A-Za-z]{0,16}:(?:none|0x(?P<color>[0-9A-Fa-f]{1,8})|):[A-Za-z]{0,16}:",
    re.DOTALL,
)
_THREAD: Final = re.compile(r"\s*([0-9]{1,10})\b")
_BETWEEN: Final = '"  "'


def pushed_ranges(field: str) -> tuple[int | None, dict[str, list[OpenRange]]]:
    """Return the thread, and the push/pop ranges of each domain, outermost first.

    Example:
        >>> pushed_ranges('17  "<default domain>:train:none:none:none:none:ASCII:train" ')[1][""][0].text
        'train'
    """
    thread = _THREAD.match(field)
    stacks: dict[str, list[OpenRange]] = {}
    for (domain, text), middle in _entries(field, 2):
        opened = _range(domain, text, None, middle)
        stacks.setdefault(opened.domain, []).append(opened)
    return int(thread[1]) if thread else None, stacks


def started_ranges(field: str) -> list[OpenRange]:
    """Return the start/end ranges.

    Example:
        >>> started_ranges(' "77:annot:Epoch 0:none:none:none:none:none:none" ')[0].number
        77
    """
    found = []
    for (number, domain, text), middle in _entries(field, 3):
        known = number.isascii() and number.isdecimal() and len(number) < 21
        found.append(_range(domain, text, int(number) if known else None, middle))
    return found


def _range(domain: str, text: str, number: int | None, middle: re.Match[str]) -> OpenRange:
    color = middle["color"]
    named = "" if domain == DEFAULT_DOMAIN else domain
    return OpenRange(named, text, number, middle["number"], int(color, 16) if color else None)


def _entries(field: str, width: int) -> Iterator[tuple[list[str], re.Match[str]]]:
    """Yield the middle of each entry and the `width` fields before it. The last of these fields is the text."""
    start = field.find('"') + 1
    while start and (middle := _MIDDLE.search(field, start)):
        parts = field[start : middle.start()].split(":", width - 1)
        parts += [""] * (width - len(parts))
        yield parts, middle
        start = _next_entry(field, parts[-1], middle.end())


def _next_entry(field: str, text: str, message: int) -> int:
    """Return the index of the next entry, or 0.

    The message repeats the text of the range or is "none". Any other message ends at the first separator.
    """
    for known in (text, "none"):
        if field.startswith(known + _BETWEEN, message):
            return message + len(known + _BETWEEN)
    end = field.find(_BETWEEN, message)
    return 0 if end < 0 else end + len(_BETWEEN)
