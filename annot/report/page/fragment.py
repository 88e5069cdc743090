"""HTML fragment with the layers of a profile, to embed in another page such as a notebook.

The fragment contains no scripts or external resources and inherits the colors of the page. Texts from the profile are
escaped by `_plain`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from annot.report.charts.chart import INKS, Chart, as_svg
from annot.report.columns import Formatted
from annot.report.table import Table
from annot.report.terminal.ranks import RanksTable, ranks_columns, ranks_heading, ranks_totals
from annot.report.terminal.table import tree_columns
from annot.report.totals import totals
from annot.report.tree import Line, row_label
from annot.report.units import printable, share

_STYLE: Final = (
    ".annot-layers{font:13px system-ui,sans-serif;overflow-x:auto}"
    ".annot-layers .annot-rows{max-height:70vh;overflow:auto}"
    ".annot-layers table{border-collapse:collapse;margin:0;font:inherit}.annot-layers caption{text-align:left}"
    ".annot-layers th,.annot-layers td{padding:2px 8px;text-align:right;white-space:nowrap;background:none}"
    ".annot-layers th:first-child,.annot-layers td:first-child{text-align:left}"
    ".annot-layers td:first-child{max-width:18em;overflow:hidden;text-overflow:ellipsis}"
    ".annot-layers th{border-bottom:1px solid currentColor;font-weight:600}"
    ".annot-layers .annot-class,.annot-layers .annot-note{opacity:.7}"
    ".annot-layers .annot-bar{display:flex;width:120px;height:10px;background:rgba(128,128,128,.15)}"
    f".annot-layers .annot-forward{{background:{INKS['forward']}}}"
    f".annot-layers .annot-backward{{background:{INKS['backward']}}}"
    f".annot-layers .annot-rest{{background:{INKS['other']}}}.annot-layers img{{max-width:100%;height:auto}}"
)
_MOST: Final = 1000
"""Number of rows of a table in a notebook."""
_TITLES: Final = {"steps": "Steps", "layers": "Longest layers", "roofline": "Roofline"}


def as_fragment(report: Table, charts: Mapping[str, Chart] | None = None) -> str:
    """Return a table with the totals below, and collapsible charts.

    Args:
        report: report of any view; layers are a tree with bars.
        charts: charts by name, from `annot.report.charts.profile_charts.pictures`.
    """
    tree = report.view.layout == "tree"
    title = f"{'GPU' if report.time == 'gpu_ns' else 'Host'} time by layer" if tree else report.view.heading
    heads, rows = ([report.nothing], "") if report.nothing else _tree(report) if tree else _flat(report)
    pictures = "".join(_picture(name, chart) for name, chart in (charts or {}).items())
    return _fragment(f"{title}{report.scope}{report.each_step}", heads, rows, report, totals(report), pictures)


def as_ranks_fragment(report: RanksTable) -> str:
    """Return the comparison of ranks as a table with the totals below."""
    shown = report.across.head(_MOST).to_dicts()
    columns = [column for column in ranks_columns(report) if any(map(column.show, shown))]
    heads = [report.view.by.capitalize(), *(column.title for column in columns)]
    rows = "".join(_row(_label(*row_label(row, report.view.label)), columns, row) for row in shown)
    return _fragment(ranks_heading(report), heads, rows, report, ranks_totals(report))


def _fragment(
    title: str, heads: Sequence[str], rows: str, report: Table, lines: Iterable[tuple[str, str]], pictures: str = ""
) -> str:
    """Return the verdict, a table, the lines below it, notes and charts."""
    head = "".join(f'<th scope="col">{_plain(name)}</th>' for name in heads)
    below = [f"<div>{name}: {_plain(text)}</div>" for name, text in lines]
    below += [f'<div class="annot-note">Note: {_plain(note)}</div>' for note in report.meta["notes"]]
    return (
        f'<div class="annot-layers"><style>{_STYLE}</style>{_verdict(report.meta)}<div class="annot-rows"><table>'
        f"<caption>{_plain(title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{''.join(below)}{pictures}</div>"
    )


def _row(label: str, columns: Iterable[Formatted[Any]], row: Any, whole: str = "") -> str:
    """Return a table row; `whole` is the tooltip of its label."""
    tooltip = f' title="{_plain(whole)}"' if whole else ""
    cells = "".join(f"<td>{_plain(column.show(row))}</td>" for column in columns)
    return f"<tr><td{tooltip}>{label}</td>{cells}</tr>"


def _flat(report: Table) -> tuple[Sequence[str], str]:
    """The headings, and the table rows of a view with a line per row."""
    view = report.view
    shown, columns = report.cells(_MOST)
    lines = ""
    for row in shown:
        path, beside = row_label(row, view.label) if view.layout == "rows" else (row["advice"], "")
        lines += _row(_label(path, beside), columns, row, row["name"] if view.label == "name" else "")
    return [view.label.capitalize(), *(column.full_title for column in columns)], lines


def _tree(report: Table) -> tuple[Sequence[str], str]:
    """The headings, and the table rows of the tree of layers: the columns of the terminal, a bar, and the input."""
    layers = report.tree
    lines = [*layers, *report.others]
    columns = [column for column in tree_columns(report) if any(map(column.show, lines))]
    heads = [column.full_title for column in columns]
    bar = heads.index("Share") + 1 if "Share" in heads else 0
    rows = ""
    for line in lines:
        cells = [_plain(column.show(line)) for column in columns]
        cells[bar:bar] = [_bar(line, report)]
        rows += (
            f'<tr><td style="padding-left:{8 + 16 * line.depth}px" title="{_plain(line.label)}">'
            f"{_label(line.label, f'{line.module} {line.count}'.strip())}</td>"
            f"{''.join(f'<td>{cell}</td>' for cell in (*cells, _plain(line.input)))}</tr>"
        )
    return ["Layer", *heads[:bar], "", *heads[bar:], "Input"], rows


def _label(path: str, beside: str) -> str:
    return _plain(path) + (f' <span class="annot-class">{_plain(beside)}</span>' if beside else "")


def _bar(line: Line, report: Table) -> str:
    """Return a bar of forward, backward and other time, as shares of the total time."""
    whole, total = report.whole, line.get(report.time)
    if not whole or not total:
        return ""
    forward, backward = (line.get(report.time, phase) or 0 for phase in ("forward", "backward"))
    times = (("forward", forward), ("backward", backward), ("rest", total - forward - backward))
    widths = [(kind, min(100.0, 100 * ns / whole)) for kind, ns in times if ns > 0]
    inside = "".join(f'<span class="annot-{kind}" style="width:{width:.2f}%"></span>' for kind, width in widths)
    return f'<div class="annot-bar" role="img" aria-label="{share(total, whole)} of total time">{inside}</div>'


def _verdict(meta: Mapping[str, Any]) -> str:
    texts = filter(None, (meta.get("cut"), meta.get("verdict")))
    return "".join(f"<p><strong>{_plain(text)}</strong></p>" for text in texts)


def _picture(name: str, chart: Chart) -> str:
    """Return a chart as an image, so that its styles and those of the page do not mix."""
    data = b64encode(as_svg(chart).encode()).decode()
    return (
        f"<details><summary>{_TITLES[name]}</summary>"
        f'<img alt="{_plain(chart.title)}" src="data:image/svg+xml;base64,{data}"></details>'
    )


def _plain(text: str) -> str:
    return escape(printable(text))
