"""HTML fragment with the layers of a profile, to embed in another page such as a notebook.

The fragment contains no scripts or external resources and inherits the colors of the page. Texts from the profile are
escaped by `_plain`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from annot.report.charts.chart import INKS, Chart, as_svg
from annot.report.columns import formatted
from annot.report.folds import shown_columns, shown_lines
from annot.report.layer_tree import Line, other_lines, row_label
from annot.report.totals import totals
from annot.report.units import printable, share, unit_for
from annot.report.views import Report

__all__ = ["as_fragment"]

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


def as_fragment(report: Report, charts: Mapping[str, Chart] | None = None) -> str:
    """Return a table with the totals below, and collapsible charts.

    Args:
        report: report of any view; layers are a tree with bars.
        charts: charts by name, from `annot.report.charts.profile_charts.pictures`.
    """
    tree = report.view.layout == "tree"
    title = f"{'GPU' if report.time == 'gpu_ns' else 'Host'} time by layer" if tree else report.view.heading
    heads, rows = ([report.nothing], "") if report.nothing else _tree(report) if tree else _flat(report)
    head = "".join(f'<th scope="col">{_plain(name)}</th>' for name in heads)
    return (
        f'<div class="annot-layers"><style>{_STYLE}</style>{_verdict(report)}<div class="annot-rows"><table>'
        f"<caption>{_plain(title)}{report.each_step}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{''.join(_below(report))}{''.join(_picture(name, chart) for name, chart in (charts or {}).items())}</div>"
    )


def _flat(report: Report) -> tuple[Sequence[str], str]:
    """The headings, and the table rows of a view with a line per row."""
    view, rows = report.view, report.tree_rows
    rows = rows.with_columns(main_ns=report.column) if report.column else rows
    shown = rows.head(_MOST).to_dicts()
    columns = formatted(view.shown, shown, report.whole)
    unit = unit_for(
        row[one.name] for one in view.shown if one.unit == "ns" and one.name in rows.columns for row in shown
    )
    named = {one.title for one in view.shown if one.unit == "ns"}
    heads = [f"{one.title}, {unit.name}" if one.title in named else one.title for one in columns]
    lines = ""
    for row in shown:
        path, beside = row_label(row, view.label) if view.layout == "rows" else (row["advice"], "")
        cells = "".join(f"<td>{_plain(one.show(row))}</td>" for one in columns)
        whole = f' title="{_plain(row["name"])}"' if view.label == "name" else ""
        lines += f"<tr><td{whole}>{_label(path, beside)}</td>{cells}</tr>"
    return [view.label.capitalize(), *heads], lines


def _tree(report: Report) -> tuple[Sequence[str], str]:
    """The headings, and the table rows of the tree of layers."""
    lines = [*shown_lines(report), *other_lines(report.tree_rows, report.every)]
    unit = unit_for(report.tree_rows[report.time]).name
    columns = shown_columns(report, lines)
    shows = {one.title: one.show for one in columns}
    spread = [one.title for one in columns if one.title.split()[0] in _SPREAD]

    def cells(line: Line, *titles: str) -> str:
        return "".join(f"<td>{shows[title](line) if title in shows else ''}</td>" for title in titles)

    rows = "".join(
        f'<tr><td style="padding-left:{8 + 16 * line.depth}px" title="{_plain(line.label)}">'
        f"{_label(line.label, f'{line.module} {line.count}'.strip())}</td>"
        f"{cells(line, *_TIMES, 'Share')}<td>{_bar(line, report)}</td>"
        f"{cells(line, *spread, 'Calls', 'Kernels')}<td>{_plain(line.input)}</td></tr>"
        for line in lines
    )
    heads = [*(f"{title}, {unit}" for title in _TIMES), "Share", "", *spread, "Calls", "Kernels", "Input"]
    return ["Layer", *heads], rows


_TIMES: Final = ("Forward", "Backward", "Total", "Self")
_SPREAD: Final = ("Median", "Slowest", "Index", "IQR")


def _label(path: str, beside: str) -> str:
    return _plain(path) + (f' <span class="annot-class">{_plain(beside)}</span>' if beside else "")


def _bar(line: Line, report: Report) -> str:
    """Return a bar of forward, backward and other time, as shares of the total time."""
    whole, total = report.whole, line.get(report.time)
    if not whole or not total:
        return ""
    forward, backward = (line.get(report.time, phase) or 0 for phase in ("forward", "backward"))
    parts = (("forward", forward), ("backward", backward), ("rest", total - forward - backward))
    widths = [(kind, min(100.0, 100 * ns / whole)) for kind, ns in parts if ns > 0]
    inside = "".join(f'<span class="annot-{kind}" style="width:{width:.2f}%"></span>' for kind, width in widths)
    return f'<div class="annot-bar" role="img" aria-label="{share(total, whole)} of total time">{inside}</div>'


def _verdict(report: Report) -> str:
    text = report.meta.get("verdict")
    return f"<p><strong>{_plain(text)}</strong></p>" if text else ""


def _below(report: Report) -> Iterator[str]:
    yield from (f"<div>{head}: {_plain(text)}</div>" for head, text in totals(report))
    yield from (f'<div class="annot-note">Note: {_plain(note)}</div>' for note in report.meta["notes"])


def _picture(name: str, chart: Chart) -> str:
    """Return a chart as an image, so that its styles and those of the page do not mix."""
    data = b64encode(as_svg(chart).encode()).decode()
    return (
        f"<details><summary>{_TITLES[name]}</summary>"
        f'<img alt="{_plain(chart.title)}" src="data:image/svg+xml;base64,{data}"></details>'
    )


def _plain(text: str) -> str:
    return escape(printable(text))
