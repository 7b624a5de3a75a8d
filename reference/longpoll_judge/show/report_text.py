"""The same judgement as Markdown and as JUnit XML, for people who read and machines that count.

Leaves out the HTML page (`report`).
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from longpoll_judge.contract.result import PROPERTIES, Finding, Result

FINDINGS_SHOWN_MAX: Final = 200
MESSAGES_SHOWN_MAX: Final = 5
TAG_SHOWN_MAX: Final = 80
REQUESTS_SHOWN_MAX: Final = 10


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
    if result.notes:
        lines += ["", "## Not judged", "", *(f"- `{note['clause']}`: {_plain(note['why'])}" for note in result.notes)]
    lines += ["", f"## Findings: {len(result.findings) + result.findings_left_out}", ""]
    lines += [_finding_line(finding) for finding in result.findings[:FINDINGS_SHOWN_MAX]]
    left_out = len(result.findings) + result.findings_left_out - FINDINGS_SHOWN_MAX
    if left_out > 0:
        lines.append(f"- {left_out} more")
    if result.observations:
        lines += ["", f"## Observations: {len(result.observations)}", "", *map(_finding_line, result.observations)]
    return clean("\n".join(lines) + "\n")


def _shares(result: Result) -> str:
    return ", ".join(f"{share} {name}" for name, share in result.shares.items())


def _not_applicable(result: Result) -> list[str]:
    return [name for name in PROPERTIES if not result.judged.get(name)]


def _finding_line(finding: Finding) -> str:
    where = f"{finding.topic}/{finding.queue}" + (f" {finding.request}" if finding.request else "")
    about = f" ({_plain(told_of(finding))})" if told_of(finding) else ""
    head = (
        f"- **{finding.property}** `{finding.clause}` {finding.verdict}, {_plain(where)}: {_plain(finding.why)}{about}"
    )
    return "\n".join([head, *(f"  - {_plain(text)}" for text in followed_by(finding))])


def told_of(finding: Finding) -> str:
    """The messages, the tag, the offsets, the codes and the client that a finding is about, in words."""
    messages = ", ".join(map(str, finding.messages[:MESSAGES_SHOWN_MAX]))
    more = len(finding.messages) - MESSAGES_SHOWN_MAX
    parts = [f"message {messages}" + (f" and {more} more" if more > 0 else "")] if messages else []
    parts += [f"tag {finding.tag[:TAG_SHOWN_MAX]!r}"] if finding.tag else []
    parts += [f"{name} {value}" for name, value in finding.offsets.items()]
    parts += [f"{name} {value}" for name, value in finding.codes.items()]
    about = {"group": finding.group[:TAG_SHOWN_MAX], "connection": finding.connection, "at": finding.time}
    return ", ".join([*parts, *(f"{name} {value}" for name, value in about.items() if value)])


def followed_by(finding: Finding) -> list[str]:
    """The findings with the same cause, one line a clause."""
    return [
        f"follows from it: {each.count} of {each.clause} {each.verdict} in {each.topic}/{each.queue}"
        + (f" ({', '.join(each.requests[:REQUESTS_SHOWN_MAX])})" if each.requests else "")
        for each in finding.follows
    ]


def _told(finding: Finding) -> str:
    return f"{finding.clause}: {finding.why}"


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text.replace("\n", " "))


def render_junit(result: Result) -> str:
    """One test case a property, and one for the evidence; unknown counts as skipped, and so does what had no case."""
    names = [*PROPERTIES, *(name for name in result.judged if name not in PROPERTIES)]
    by_property = {name: [one for one in result.findings if one.property == name] for name in names}
    suite = ET.Element("testsuite", name="longpoll judge", tests=str(len(names) + 1))
    for name, findings in by_property.items():
        case = ET.SubElement(suite, "testcase", classname="longpoll.judge", name=name)
        violated = [finding for finding in findings if finding.verdict == "violated"]
        followed = [each for one in result.findings for each in one.follows if each.property == name]
        if violated:
            failure = ET.SubElement(case, "failure", message=clean(_told(violated[0])))
            failure.text = clean("\n".join(_finding_line(finding) for finding in violated[:FINDINGS_SHOWN_MAX]))
        elif findings:
            ET.SubElement(case, "skipped", message=clean(_told(findings[0])))
        elif followed:
            ET.SubElement(case, "skipped", message=clean(f"follows from another finding: {followed[0].why}"))
        elif not result.judged.get(name):
            ET.SubElement(case, "skipped", message="not applicable: nothing in this history was judged by it")
    evidence = ET.SubElement(suite, "testcase", classname="longpoll.judge", name="evidence")
    if result.gaps:
        ET.SubElement(evidence, "skipped", message=clean(f"{result.gaps[0]['clause']}: {result.gaps[0]['why']}"))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def clean(text: str) -> str:
    """Text without the characters that XML cannot hold, or that turn the order of letters."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else " " for letter in text)
