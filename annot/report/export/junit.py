"""Comparisons as JUnit XML, which Jenkins, GitLab and other CI servers show: each tested row is a test case.

Schema: https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree

from annot.analyze.comparison.gate import Decision
from annot.analyze.comparison.rows import NAMES
from annot.report.terminal.compare import ComparisonTable, sides_of, totals_of
from annot.report.units import printable

_NOT_XML: Final = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 excludes."""


def as_junit(table: ComparisonTable, decision: Decision, *, least_share: float = 0.01) -> bytes:
    """Return the document of a comparison.

    Args:
        table: the comparison.
        decision: the decision of the gate.
        least_share: minimum share of the rows that the gate tested.
    """
    comparison, names = table.comparison, NAMES[table.comparison.by]
    texts = {cause.row: cause.text for cause in table.causes}
    suite = ElementTree.Element("testsuite", name="annot compare")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in zip("AB", sides_of(table), strict=True):
        ElementTree.SubElement(properties, "property", name=name, value=_text(value))
    case = _case(suite, "annot", "runs", 0.0)
    why = "; ".join(decision.sentences)
    if decision.status == "incomparable":
        _result(case, "error", f"the runs are not comparable: {why}", "")
    elif decision.status == "undecided":
        _result(case, "skipped", why, "")
    if decision.status != "incomparable":
        step = _case(suite, "annot", "step", _seconds(comparison.step_time or comparison.whole))
        if decision.step_slower:
            _result(step, "failure", "; ".join(totals_of(comparison)), texts.get(None, ""))
        slower = {tuple(row[name] for name in names): row for row in decision.rows.iter_rows(named=True)}
        for row in comparison.rows.iter_rows(named=True):
            key = tuple(row[name] for name in names)
            if row["b_ns"] is None or (row["share"] < least_share and key not in slower):
                continue
            case = _case(suite, f"annot.{comparison.by}", " ".join(filter(None, key)), _seconds(row))
            if key in slower:
                _result(case, "failure", _change(slower[key]), texts.get(key, ""))
    for kind, element in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(1 for _ in suite.iter(element))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, "utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ElementTree.Element, classname: str, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=classname, name=_text(name), time=f"{seconds:.9f}")


def _result(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, kind, message=_text(message), type=kind).text = _text(text)


def _seconds(row: Mapping[str, Any]) -> float:
    return float((row["b_ns"] or 0) / 1e9)


def _change(row: Mapping[str, Any]) -> str:
    """The change of a slower row, a sentence."""
    if row["factor"] is None:
        return f"new, and takes {row['share']:.1%} of the time"
    return f"takes {row['factor']:.3f} times as long in B"


def _text(value: str) -> str:
    return _NOT_XML.sub("\ufffd", printable(value))
