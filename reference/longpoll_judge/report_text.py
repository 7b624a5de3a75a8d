"""The same judgement as Markdown and as JUnit XML, for people who read and machines that count.

Leaves out the HTML page (`report`).
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from longpoll_judge.result import PROPERTIES, Finding, Result

FINDINGS_SHOWN_MAX: Final = 200


def render_markdown(result: Result) -> str:
    """Headings, tables and one line a finding."""
    limits = ", ".join(f"{name} {value:g}" for name, value in result.thresholds.items())
    lines = [
        f"# The history is {result.verdict}",
        "",
        f"{result.events} events, {result.requests} pulls, {result.queues} queues; thresholds: {limits}.",
        "",
        f"Judged: {_shares(result)}. Not applicable: {', '.join(_not_applicable(result)) or 'nothing'}.",
        "",
        "| latency (upper bounds, ms) | count | p50 | p99 | max |",
        "|---|---|---|---|---|",
    ]
    for name, values in result.latency.items():
        lines.append(f"| {name} | {values.count} | {' | '.join(values.texts())} |")
    if result.gaps:
        lines += ["", "## Missing evidence", "", *(f"- `{gap['clause']}`: {_plain(gap['why'])}" for gap in result.gaps)]
    lines += ["", f"## Findings: {len(result.findings) + result.findings_left_out}", ""]
    lines += [_finding_line(finding) for finding in result.findings[:FINDINGS_SHOWN_MAX]]
    left_out = len(result.findings) + result.findings_left_out - FINDINGS_SHOWN_MAX
    if left_out > 0:
        lines.append(f"- {left_out} more")
    return "\n".join(lines) + "\n"


def _shares(result: Result) -> str:
    return ", ".join(f"{share} {name}" for name, share in result.shares.items())


def _not_applicable(result: Result) -> list[str]:
    return [name for name in PROPERTIES if not result.judged.get(name)]


def _finding_line(finding: Finding) -> str:
    where = f"{finding.topic}/{finding.queue}" + (f" {finding.request}" if finding.request else "")
    return f"- **{finding.property}** `{finding.clause}` {finding.verdict}, {_plain(where)}: {_plain(finding.why)}"


def _told(finding: Finding) -> str:
    return f"{finding.clause}: {finding.why}"


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text.replace("\n", " "))


def render_junit(result: Result) -> str:
    """One test case a property, and one for the evidence; unknown counts as skipped, and so does what had no case."""
    by_property = {name: [one for one in result.findings if one.property == name] for name in PROPERTIES}
    suite = ET.Element("testsuite", name="longpoll judge", tests=str(len(PROPERTIES) + 1))
    for name, findings in by_property.items():
        case = ET.SubElement(suite, "testcase", classname="longpoll.judge", name=name)
        violated = [finding for finding in findings if finding.verdict == "violated"]
        if violated:
            failure = ET.SubElement(case, "failure", message=_clean(_told(violated[0])))
            failure.text = _clean("\n".join(_finding_line(finding) for finding in violated[:FINDINGS_SHOWN_MAX]))
        elif findings:
            ET.SubElement(case, "skipped", message=_clean(_told(findings[0])))
        elif not result.judged.get(name):
            ET.SubElement(case, "skipped", message="not applicable: nothing in this history was judged by it")
    evidence = ET.SubElement(suite, "testcase", classname="longpoll.judge", name="evidence")
    if result.gaps:
        ET.SubElement(evidence, "skipped", message=_clean(f"{result.gaps[0]['clause']}: {result.gaps[0]['why']}"))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold, or that turn the order of letters."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else " " for letter in text)
