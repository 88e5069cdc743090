"""Documents in Markdown as a reader finds them, and whether their numbers are those of JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from annot.report.columns import Column
from annot.report.export.document import code, inline, prose
from annot.report.tree import row_label
from annot.report.views import View

MORE: Final = "annot run.sqlite"
"""Command that shows all, for the last line."""
_LEFT_OUT: Final = re.compile(r"^Left out: (.+)\. All: `annot run\.sqlite`$")
_UNITS: Final = {"µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
"""Units of headings in ns, and suffixes of numbers."""
_PHASES: Final = ("Forward", "Backward", "Recompute")
Row: TypeAlias = Mapping[str, Any]
"""A row of JSON, or its meta."""


@dataclass(frozen=True)
class Parsed:
    """What a reader finds in a document."""

    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of all tables by the titles of columns, without those for other rows."""
        rows: list[dict[str, str]] = []
        heads: list[str] = []
        for line in self.lines:
            cells = [cell.replace(r"\|", "|") for cell in re.split(r"(?<!\\) \| ", line.strip("|").strip())]
            if not line.startswith("|"):
                heads = []
            elif not heads:
                heads = cells
            elif not line.startswith(("| ---", "| …")):
                rows.append({"label": cells[0]} | dict(zip(heads[1:], line[2:-2].split(" | ")[1:], strict=True)))
        return rows

    @property
    def folded(self) -> int:
        """The number of other rows."""
        return sum(int(number.replace(",", "")) for number in re.findall(r"^\| … ([\d,]+) other", self.text, re.M))

    @property
    def unknown(self) -> list[str]:
        """What the document says that the profile cannot say."""
        _, _, after = self.text.partition("**Cannot say**\n\n")
        return after.partition("\n\n")[0].splitlines()

    @property
    def left_out(self) -> str:
        """The things that are left out."""
        match = _LEFT_OUT.match(self.lines[-1] if self.lines else "")
        return match[1] if match else ""


def check_limit(whole: str, text: str, limit: int) -> None:
    """The text fits, says what is left out exactly if it leaves something out, and keeps the verdict's beginning."""
    full, shown = Parsed(whole), Parsed(text)
    assert len(text) <= limit
    assert bool(shown.left_out) == (text != whole) == (len(whole) > limit)
    assert "Left out" not in "".join(shown.lines[:-1])
    if not shown.left_out:
        return
    missing = len(full.rows) - len(shown.rows)
    said = re.search(r"([\d,]+) rows?\b", shown.left_out)
    assert missing == (int(said[1].replace(",", "")) if said else 0)
    assert shown.folded <= missing  # a table without rows is left out as a whole
    cut = shown.lines[0].partition("…")[0] if "end of the verdict" in shown.left_out else full.lines[0]
    assert full.lines[0].replace("`", "").startswith(cut.replace("`", ""))  # a cut name may no longer need a code span
    assert shown.unknown == full.unknown[: len(shown.unknown)]
    if shown.rows:
        assert len(cut) >= min(55, len(full.lines[0]))
    cells = [{*row.items()} for row in full.rows]
    for row in shown.rows:
        label = row.pop("label")
        name = [part.strip("`") for part in label.split("…")]
        assert any({*row.items()} <= known and dict(known)["label"].startswith(f"`{name[0]}") for known in cells), row


def check_numbers(text: str, view: View, of_json: Sequence[Row], meta: Row) -> None:
    """Assert that a table or an answer has the numbers of JSON, to its digits, and a row for all rows of JSON.

    Args:
        text: the document.
        view: the view of its table; layers are listed by self time, as in an answer.
        of_json: the rows of JSON in the order of the table.
        meta: the meta of JSON.
    """
    rows = Parsed(text).rows
    if view.layout == "advice":
        _check_advice(text, of_json)
    elif view.layout == "tree":
        _check_self_times(rows, of_json, meta)
    else:
        _check_cells(rows, view, of_json, meta)


def _check_cells(rows: Sequence[Mapping[str, str]], view: View, of_json: Sequence[Row], meta: Row) -> None:
    """Each row has all values of its row of JSON; one for repeated layers stands for several."""
    columns, members = {column.title: column for column in view.shown}, _members(of_json, view)
    for cells in rows:
        of_row = members[_name(cells)].pop(0)
        for title, cell in cells.items():
            if title not in ("label", view.end.capitalize()):
                _check_cell(title, cell, columns[_heading(title).replace("MC", "TC")], of_row, meta)
    assert not any(members.values())


def _check_cell(title: str, cell: str, column: Column, rows: Sequence[Row], meta: Row) -> None:
    """The cell has the value of a row, or the sum of several rows; a mean or rate lies between their values."""
    name = _main(meta) if column.name == "main_ns" else column.name
    values = [row[name] for row in rows if row.get(name) is not None]
    if not cell:
        assert not any(values) or len(rows) > 1
    elif column.unit == "text":
        assert cell in map(_text, values)
    else:
        found, error = number_of(title, cell)
        scale = meta["whole_ns"] if column.unit == "of total" else 0.01 if column.unit == "percent" else 1
        is_sum = column.combined in ("sum", "inclusive") or column.unit == "of total"
        values = [value / scale for value in ([sum(values)] if is_sum else values)]
        assert min(values) - error <= found <= max(values) + error, (title, cell, values)


def _check_self_times(rows: Sequence[Mapping[str, str]], of_json: Sequence[Row], meta: Row) -> None:
    """Each row has the self times of its rows of JSON. Rows without a class have the phase of the row around them."""
    own, members = _main(meta).replace("_ns", "_self_ns"), defaultdict[str, list[Row]](list)
    for row in of_json:
        members[_label(row)].append(row)
    for cells in rows:
        of_row = members.pop(_name(cells))
        whole = sum(row[own] for row in of_row)
        known = {"Self": whole, "Share": whole / meta["whole_ns"]}
        if of_row[0]["module"]:
            known |= {title: sum(row[own] for row in of_row if row["phase"] == title.lower()) for title in _PHASES}
        for title, cell in cells.items():
            if cell and _heading(title) in known:
                found, error = number_of(title, cell)
                assert abs(found - known[_heading(title)]) <= error, (title, cell, known)
    assert not any(row[own] for of_row in members.values() for row in of_row)


def _check_advice(text: str, of_json: Sequence[Row]) -> None:
    """The text has the advice, evidence and code of each row, and what it saves."""
    assert len(of_json) == text.count("- Saves: ")
    for row in of_json:
        _, found, after = text.partition(f"**{prose(row['advice'])}**\n")
        item = after.partition("\n**")[0]
        assert found
        assert inline(f"{row['evidence']}.") in item
        assert all(line in item for line in row["code"].splitlines())
        if share := re.search(r"- Saves: at most ([\d.]+%)", item):
            saves, error = number_of("", share[1])
            assert abs(saves - row["saves"]) <= error
        else:
            assert row["saves"] in (None, 0, 1)


def _members(of_json: Sequence[Row], view: View) -> Mapping[str, list[list[Row]]]:
    """The rows of JSON behind the rows of a table, by label. Repeated layers are one row."""
    groups = defaultdict[object, list[Row]](list)
    for place, row in enumerate(of_json):
        groups[(_label(row), row["phase"], row["batch"]) if row.get("group") else place].append(row)
    members = defaultdict[str, list[list[Row]]](list)
    for rows in groups.values():
        members[_label(rows[0], view.label)].append(rows)
    return members


def _name(cells: Mapping[str, str]) -> str:
    """The first cell of a row without the number of repeated layers."""
    return re.sub(r" ×[\d,]+(?=`$)", "", cells["label"])


def _label(row: Row, label: str = "layer") -> str:
    """The first cell of the row for a row of JSON."""
    return code(" ".join(row_label({**row, "layer": row["group"]} if row.get("group") else row, label)))


def _heading(title: str) -> str:
    """A heading without its unit."""
    return re.split(r",? (?=[µm]?s$)", title)[0]


def number_of(title: str, cell: str) -> tuple[float, float]:
    """Return the number of a cell, times in ns, and half the unit of its last digit."""
    digits, suffix = re.fullmatch(r"(-?[\d,.]+) ?(\D*)", cell).groups()  # type: ignore[union-attr]
    unit = _UNITS.get(suffix, 1.0) * _UNITS.get(re.split(r"[ ,]+", title)[-1], 1.0)
    decimals = len(digits.partition(".")[2])
    return float(digits.replace(",", "")) * unit, 0.5001 * unit * 10.0**-decimals


def _main(meta: Row) -> str:
    """The column with the time that counts."""
    return "gpu_ns" if meta["kernels"] or meta["copies"] else "host_ns"


def _text(value: Any) -> str:
    return inline({True: "yes", False: "no"}.get(value, str(value)))
