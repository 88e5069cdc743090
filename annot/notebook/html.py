"""HTML fragment with the layers of a profile, to embed in another page such as a notebook.

The fragment contains no scripts or external resources and inherits the colors of the page. Texts from the profile are
escaped by `_plain`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from annot.report.charts.chart import Chart, as_svg
from annot.report.layer_tree import Line, layer_lines, other_lines
from annot.report.units import count, duration, printable, share, unit_for
from annot.report.views import Report

__all__ = ["layers_html"]

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
    ".annot-layers .annot-forward{background:#2563a8}.annot-layers .annot-backward{background:#c2612c}"
    ".annot-layers .annot-rest{background:#8a8a8a}.annot-layers img{max-width:100%;height:auto}"
)
_TITLES: Final = {"steps": "Steps", "layers": "Longest layers", "roofline": "Roofline"}


def layers_html(report: Report, charts: Mapping[str, Chart]) -> str:
    """Return the table of layers with bars, the totals, and collapsible charts.

    Args:
        report: report of the layers.
        charts: charts by name, from `annot.report.charts.profile_charts.pictures`.
    """
    layers, others = layer_lines(report.rows), other_lines(report.rows)
    rows = "".join([*_rows(layers, report), *_rows(others, report)])
    device = "GPU" if report.time == "gpu_ns" else "Host"
    head = "".join(f'<th scope="col">{name}</th>' for name in _heads(report))
    return (
        f'<div class="annot-layers"><style>{_STYLE}</style><div class="annot-rows"><table>'
        f"<caption>{device} time by layer</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{''.join(_below(report))}{''.join(_picture(name, chart) for name, chart in charts.items())}</div>"
    )


def _heads(report: Report) -> tuple[str, ...]:
    unit = unit_for(report.rows[report.time]).name
    return (
        "Layer", f"Forward, {unit}", f"Backward, {unit}", f"Total, {unit}", f"Self, {unit}", "Share", "",
        "Calls", "Kernels", "Input",
    )  # fmt: skip


def _rows(lines: list[Line], report: Report) -> Iterator[str]:
    time, whole = report.time, report.meta[report.time] or 0
    unit = unit_for(report.rows[time])
    for line in lines:
        forward, backward = (line.get(time, *phases) if line.phases.keys() & phases else None for phases in _SHOWN)
        total, own = line.get(time), line.get(time.replace("_ns", "_self_ns"))
        more = f" (+{len(line.shapes) - 1})" if len(line.shapes) > 1 else ""
        cells = (
            unit.show(forward), unit.show(backward), unit.show(total), unit.show(own), share(total, whole),
        )  # fmt: skip
        last = (count(line.get("calls", *(line.phases.keys() & {"forward"}))), count(line.get("kernels") or None))
        shapes = _plain(line.shapes[0] + more) if line.shapes else ""
        yield (
            f'<tr><td style="padding-left:{8 + 16 * line.depth}px" title="{_plain(line.label)}">'
            f"{_plain(line.label)}{_class(line)}</td>"
            f"{''.join(f'<td>{cell}</td>' for cell in cells)}<td>{_bar(forward, backward, total, whole)}</td>"
            f"{''.join(f'<td>{cell}</td>' for cell in last)}<td>{shapes}</td></tr>"
        )


_SHOWN: Final = (frozenset({"forward"}), frozenset({"backward"}))


def _class(line: Line) -> str:
    return f' <span class="annot-class">{_plain(line.module)}</span>' if line.module else ""


def _bar(forward: int | None, backward: int | None, total: int | None, whole: int) -> str:
    """Return a bar of forward, backward and other time, as shares of the total time."""
    if not whole or not total:
        return ""
    rest = total - (forward or 0) - (backward or 0)
    parts = (("forward", forward or 0), ("backward", backward or 0), ("rest", rest))
    widths = [(kind, min(100.0, 100 * ns / whole)) for kind, ns in parts if ns > 0]
    inside = "".join(f'<span class="annot-{kind}" style="width:{width:.2f}%"></span>' for kind, width in widths)
    return f'<div class="annot-bar" role="img" aria-label="{share(total, whole)} of total time">{inside}</div>'


def _below(report: Report) -> Iterator[str]:
    meta = report.meta
    if meta["kernels"] or meta["copies"]:
        inside, outside = (duration(meta[f"{name}_gpu_ns"]) for name in ("attributed", "unattributed"))
        yield f"<div>GPU: {duration(meta['gpu_ns'])} = {inside} in ranges + {outside} unattributed</div>"
    if meta["host_ns"] is not None:
        yield f"<div>Host: {duration(meta['host_ns'])} in {meta['ranges']:,} ranges</div>"
    if meta["steps"] and meta["step_ns"] is not None:
        yield f"<div>Steps: {meta['steps']:,}, median {duration(meta['step_ns']['median'])}</div>"
    yield from (f'<div class="annot-note">Note: {_plain(note)}</div>' for note in meta["notes"])


def _picture(name: str, chart: Chart) -> str:
    """Return a chart as an image, so that its styles and those of the page do not mix."""
    data = b64encode(as_svg(chart).encode()).decode()
    title = _TITLES[name]
    return (
        f"<details><summary>{title}</summary>"
        f'<img alt="{_plain(chart.title)}" src="data:image/svg+xml;base64,{data}"></details>'
    )


def _plain(text: str) -> str:
    return escape(printable(text))
