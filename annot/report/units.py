"""Human-readable numbers: times, shares, counts and amounts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of time.

    Args:
        name: symbol, such as ``ms``.
        ns: length in ns.
        decimals: number of decimals to show.
    """

    name: str
    ns: int
    decimals: int

    def show(self, ns: float | None) -> str:
        """Return a time (ns) in this unit without the symbol; empty for None.

        The format option ``z`` drops the sign of values that round to zero.
        """
        return "" if ns is None else f"{ns / self.ns:z,.{self.decimals}f}"


_UNITS = (
    (10_000_000_000, Unit("s", 10**9, 3)),
    (1_000_000_000, Unit("ms", 10**6, 1)),
    (100_000_000, Unit("ms", 10**6, 2)),
    (1_000_000, Unit("ms", 10**6, 3)),
    (0, Unit("µs", 10**3, 2)),
)


def unit_for(times: Iterable[float | None]) -> Unit:
    """Return the unit for a column of times, chosen by the longest.

    Args:
        times: times in ns; None is ignored.

    Example:
        >>> unit_for([1_500_000, 20_000]).show(1_500_000)
        '1.500'
    """
    longest = max((abs(time) for time in times if time is not None), default=0)
    return next(unit for least, unit in _UNITS if longest >= least)


def duration(ns: float) -> str:
    """Return a time (ns) with its unit.

    Example:
        >>> duration(12_345_678)
        '12.346 ms'
    """
    if not ns:
        return "0"
    unit = unit_for([ns])
    return f"{unit.show(ns)} {unit.name}"


def share(part: float | None, whole: float) -> str:
    """Return a part as a percentage of the whole; empty if the part is None or the whole is 0."""
    return "" if part is None or not whole else f"{100 * part / whole:.1f}%"


def count(number: float | None) -> str:
    """Return a number with thousands separators, and one decimal if it is a mean; empty for None."""
    if number is None:
        return ""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(number: float | None) -> str:
    """Return a number with three significant digits and an SI prefix; empty for None.

    Example:
        >>> amount(140_553_600), amount(999), amount(0.25), amount(None)
        ('141 M', '999', '0.25', '')
    """
    if number is None:
        return ""
    for least, prefix in _PREFIXES:
        if number >= least * 0.9995:
            scaled = number / least
            return f"{scaled:.{_decimals(scaled)}f} {prefix}"
    return _digits(number)


def units_as_data() -> dict[str, Sequence[tuple[float | str, ...]]]:
    """Return the units of times (least time, name, length in ns, decimals) and the SI prefixes for the page."""
    times = [(least, unit.name, unit.ns, unit.decimals) for least, unit in _UNITS]
    return {"times": times, "prefixes": _PREFIXES}


def printable(text: str) -> str:
    r"""Return text with control characters replaced by escape sequences, so that it is safe to print.

    Example:
        >>> printable("a\x1b[31m")
        'a\\x1b[31m'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _digits(number: float) -> str:
    """Three significant digits, without trailing zeros."""
    text = f"{number:.{_decimals(abs(number))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimals(size: float) -> int:
    """Number of decimals of three significant digits: 9.995 rounds to 10.0, and 99.95 to 100."""
    return 2 if size < 9.995 else 1 if size < 99.95 else 0
