"""A run as JUnit XML, which every CI displays: one suite per area, one case per vector.

Characters that XML forbids are escaped: a broker may answer anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final
from xml.etree import ElementTree as ET

from longpoll_conform.report.conversation import lines_of
from longpoll_conform.suite import Result
from longpoll_runtime.logs import escaped

_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SKIPPED: Final = frozenset({"UNTESTED", "UNIMPLEMENTED", "NON-STRICT"})


def junit(results: Sequence[Result]) -> str:
    """The document."""
    root = ET.Element("testsuites", name="longpoll conform")
    for area, group in groupby(sorted(results, key=_area), key=_area):
        found = list(group)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=area,
            tests=str(len(found)),
            failures=str(sum(each.outcome == "FAIL" for each in found)),
            skipped=str(sum(each.outcome in SKIPPED for each in found)),
            time=f"{sum(each.seconds for each in found):.3f}",
        )
        for result in found:
            _case(suite, result)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _area(result: Result) -> str:
    return result.clause.id.rpartition("-")[0]


def _case(suite: ET.Element, result: Result) -> None:
    name = _plain(f"{result.vector.id} {result.vector.title}")
    case = ET.SubElement(suite, "testcase", classname=result.clause.id, name=name, time=f"{result.seconds:.3f}")
    if result.outcome == "FAIL":
        failure = ET.SubElement(case, "failure", message=_plain(result.why))
        told = [str(each) for each in result.differences]
        lines = [result.clause.sentence, "", *told, "", *lines_of(result.spoken)]
        failure.text = "\n".join(map(_plain, lines))
    elif result.outcome in SKIPPED:
        ET.SubElement(case, "skipped", message=_plain(f"{result.outcome}: {result.why}"))


def _plain(text: str) -> str:
    return _NO_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped(text))
