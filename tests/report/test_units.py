"""Numbers in words, just below and just above each change of unit."""

from __future__ import annotations

import pytest

from annot.report.units import amount, count, duration, printable, share, unit_for


@pytest.mark.parametrize(
    ("below", "above", "texts"),
    [
        (9.994, 9.995, ("9.99", "10")),
        (99.94, 99.95, ("99.9", "100")),
        (999.4, 999.5, ("999", "1.00 k")),
        (9_949, 9_951, ("9.95 k", "9.95 k")),
        (9_994, 9_995, ("9.99 k", "10.0 k")),
        (99_940, 99_950, ("99.9 k", "100 k")),
        (999_499, 999_500, ("999 k", "1.00 M")),
        (999_499_999, 999_500_000, ("999 M", "1.00 G")),
        (999_499_999_999, 999_500_000_000, ("999 G", "1.00 T")),
        (999_499_999_999_999, 999_500_000_000_000, ("999 T", "1.00 P")),
        (999_499_999_999_999_000, 999_500_000_000_000_000, ("999 P", "1.00 E")),
    ],
)
def test_amounts_change_where_three_digits_round_up(below: float, above: float, texts: tuple[str, str]) -> None:
    assert (amount(below), amount(above)) == texts


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, ""),
        (0, "0"),
        (0.25, "0.25"),
        (2.50, "2.5"),
        (-0.5, "-0.5"),
        (-12.34, "-12.3"),
        (20, "20"),
        (4.2e19, "42.0 E"),
    ],
)
def test_small_amounts_have_no_trailing_zeros(number: float | None, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("below", "above", "texts"),
    [
        (999_999, 1_000_000, ("1,000.00 µs", "1.000 ms")),
        (99_999_999, 100_000_000, ("100.000 ms", "100.00 ms")),
        (999_999_999, 1_000_000_000, ("1,000.00 ms", "1,000.0 ms")),
        (9_999_999_999, 10_000_000_000, ("10,000.0 ms", "10.000 s")),
        (0, 1, ("0", "0.00 µs")),
        (-1_000_000, -999_999, ("-1.000 ms", "-1,000.00 µs")),
    ],
)
def test_times_change_the_unit(below: int, above: int, texts: tuple[str, str]) -> None:
    assert (duration(below), duration(above)) == texts


def test_the_longest_time_chooses_the_unit_of_a_column() -> None:
    assert unit_for([None, 5, -2_000_000]).name == "ms"
    assert unit_for([None]).show(0) == unit_for([]).show(-1) == "0.00"
    assert unit_for([]).show(None) == ""


def test_shares_and_counts() -> None:
    assert (share(1, 3), share(0, 3), share(None, 3), share(1, 0)) == ("33.3%", "0.0%", "", "")
    assert (count(None), count(0), count(1_234), count(1_234.0), count(1_234.56)) == (
        "",
        "0",
        "1,234",
        "1,234",
        "1,234.6",
    )


def test_control_characters_are_escaped() -> None:
    assert printable("é\x1b[1m\n'\u202e") == "é\\x1b[1m\\n'\\u202e"
