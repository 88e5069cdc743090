"""The two columns in which a CSV of Nsight Compute keeps the NVTX ranges around a kernel.

Both are lists of quoted entries, two spaces between them, that of pushed ranges after the number of the thread::

    4733  "<default domain>:train:none:none:none:none:ASCII:train"  "annot:fc:Uint64:12:RGB:0xff00ff00:ASCII:fc"
     "77:annot:Epoch 0:none:none:none:none:none:none"

An entry is [id:]domain:text, then type and value of payload and color, then type and text of the message. Neither
quotes nor colons in texts are escaped (ncu 2022.3 prints them so), therefore an entry is found by its middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from annot.read.launch_order import DEFAULT_DOMAIN, OpenRange

__all__ = ["PUSHED", "STARTED", "pushed_ranges", "started_ranges"]

PUSHED: Final = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""The column of pushed ranges."""

STARTED: Final = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""The column of started ranges."""

# Bounded, so that no text makes the search slow.
_MIDDLE: Final = re.compile(
    r":(?:none:none|(?:Uint64|Int64|Double|Uint32|Int32|Float):(?P<number>[^:\"]{1,64})|Json\w{0,16}:.{0,256}?)"
    r":[A-Za-z]{0,16}:(?:none|0x(?P<color>[0-9A-Fa-f]{1,8})|):[A-Za-z]{0,16}:",
    re.DOTALL,
)
_THREAD: Final = re.compile(r"\s*([0-9]{1,10})\b")
_BETWEEN: Final = '"  "'


def pushed_ranges(field: str) -> tuple[int | None, dict[str, list[OpenRange]]]:
    """Return the thread, and the pushed ranges of each domain, outer ones first.

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
    """Return the started ranges.

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
    """Give the `width` parts before the middle of each entry, the last of which is the text, and the middle."""
    start = field.find('"') + 1
    while start and (middle := _MIDDLE.search(field, start)):
        parts = field[start : middle.start()].split(":", width - 1)
        parts += [""] * (width - len(parts))
        yield parts, middle
        start = _next_entry(field, parts[-1], middle.end())


def _next_entry(field: str, text: str, message: int) -> int:
    """Return where the next entry starts, 0 if there is none.

    The message is the text of the range once more, or "none"; only if it is neither can a quote in it mislead.
    """
    for known in (text, "none"):
        if field.startswith(known + _BETWEEN, message):
            return message + len(known + _BETWEEN)
    end = field.find(_BETWEEN, message)
    return 0 if end < 0 else end + len(_BETWEEN)
