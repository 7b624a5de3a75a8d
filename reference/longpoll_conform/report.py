"""Reports the result of a run as text, JSON, JUnit XML and HTML pages.

The text has three sections: differences from RocketMQ, bugs of RocketMQ that the broker shares, and untested clauses.
The sections count clauses, not vectors. A broker may answer anything, so its text is escaped for terminals, XML and
HTML. The pages have no scripts and need no network.

Sources: docs/findings.md; `ConsumerFilterManager.build` (it checks with an assertion, which Java does not run by
default).
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from xml.etree import ElementTree as ET

from attrs import frozen

from longpoll_conform.capabilities import Identity
from longpoll_conform.clauses import BY_ID, OF_LOAD, OF_RACE, POLLS, POPS
from longpoll_conform.connection import NO_ANSWER, RecordedFrame
from longpoll_conform.suite import OUTCOMES, Outcome, Result, Seen, Suite, by_clause
from longpoll_conform.vectors import FORMAT, Vector
from longpoll_conform.wire import NotReadableError, decode_command
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import OutputError
from longpoll_spec.findings import HAZARDS, findings_of

_BOTH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hold-150": "A held pull whose topic is deleted waits for the scan after its deadline.",
        **dict.fromkeys(
            BY_ID["PULL-SQL-3"].vectors,
            "An SQL92 expression sent with the pull is not compiled, and every message is returned.",
        ),
    }
)
RECORDED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "4.9.7": {
            **_BOTH,
            "route-384": "The name server never answers a request code that it does not know.",
            "client-344": "A group that may not be created gets members, but its pulls are rejected.",
        },
        "5.5.0": _BOTH,
    }
)
"""Maps a recorded version and a vector to the bug of RocketMQ that the recorded answer shows."""


def bug_of_run(policy: str, seen: str) -> str | None:
    """Return the RocketMQ bug that a load or race test may show; None if the policy promises the tested property."""
    if not (policy.startswith("rocketmq") and seen.startswith((OF_LOAD, OF_RACE))):
        return None
    letters = findings_of(policy, seen.removeprefix(OF_LOAD).removeprefix(OF_RACE).replace("-", "_"))
    return " ".join(HAZARDS[letter] for letter in letters if letter in HAZARDS) or None


PULL, POP = 11, 200_050
HEX_SIZE_MAX: Final = 256
"""How many bytes of a frame are shown in hexadecimal, followed by the number of further bytes."""
HEX_COLUMNS: Final = 32
TEXT_MAX: Final = 600
ARROWS: Final = {"sent": ">", "came": "<", "closed": "x"}


def lines_of(spoken: Sequence[RecordedFrame], *, with_bytes: bool = True) -> Iterator[str]:
    """Yield the lines of each frame: its time, connection, decoded content, and bytes in hexadecimal."""
    for one in spoken:
        yield f"{one.at_ms:9.1f} ms  {one.line} {ARROWS[one.way]} {meaning(one)}"
        if with_bytes:
            yield from (f"              {row}" for row in _hex(one.content))


def meaning(one: RecordedFrame) -> str:
    """Describe a frame in words."""
    if one.way == "closed":
        rest = f", after {len(one.content)} bytes of a frame" if one.content else ""
        return f"the broker closed the connection{rest}"
    if len(one.content) < 8:
        return f"{len(one.content)} bytes that are not a frame"
    try:
        command = decode_command(one.content[4:])
    except NotReadableError as error:
        return f"{len(one.content)} bytes that are not a command: {error}"
    kind = "answer" if command["flag"] & 1 else "request"
    said = {name: command[name] for name in ("remark", "extFields") if command[name]}
    body = f", body of {len(command['body'])} bytes" if command["body"] else ""
    text = json.dumps(said, ensure_ascii=True)
    shown = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    return f"{kind} {command['code']} opaque {command['opaque']} {command['serialize']} {shown}{body}"


def _hex(content: bytes) -> Iterator[str]:
    shown = content[:HEX_SIZE_MAX]
    for start in range(0, len(shown), HEX_COLUMNS):
        yield shown[start : start + HEX_COLUMNS].hex(" ", 4)
    if len(content) > HEX_SIZE_MAX:
        yield f"... and {len(content) - HEX_SIZE_MAX} more bytes"


_VALUE: Final = re.compile(r'"[^"]*"|\d+')


def by_cause(results: Iterable[Result]) -> list[tuple[Result, ...]]:
    """Group failures by cause: the first differences of a group are equal, apart from texts and numbers."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.outcome == "FAIL":
            found.setdefault(_cause(result), []).append(result)
    return list(map(tuple, found.values()))


def _cause(result: Result) -> str:
    if not result.differences:
        return result.vector.id
    first = result.differences[0]
    if first.got.startswith(NO_ANSWER):
        return f"{NO_ANSWER} to {_code_at(result.vector, first.where)}"
    place = re.sub(r"^(response|setup\[\d+\]|during\[\d+\]|after\[\d+\])", "answer", first.where)
    values = f"{first.expected} {first.got}"
    return f"{re.sub(_VALUE, 'N', place)} {values if place.endswith('code') else re.sub(_VALUE, 'N', values)}"


def _code_at(vector: Vector | Seen, where: str) -> int:
    """Return the code of the request in which a difference occurred; clauses without a recording send pulls or pops."""
    step: Mapping[str, Any] = {"code": POP if vector.id in POPS else PULL}
    if isinstance(vector, Vector):
        found = re.match(r"(setup|during|after)\[(\d+)\]", where)
        step = vector.case[found[1]][int(found[2])] if found else vector.case["request"]
    return int(step.get("code", 0))


def does_not_poll(results: Iterable[Result]) -> bool:
    """Whether the broker answered a pull with a long hold at once, so that it probably lacks long polling."""
    return any(result.outcome == "FAIL" and result.vector.id == POLLS[1] for result in results)


def as_json(suite: Suite, results: Sequence[Result], identity: Identity) -> dict[str, Any]:
    """Return the whole run as a JSON object; its lists of results are in the order of the vectors."""
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    found = sections(suite, results)
    return {
        "format": FORMAT,
        "broker": f"{suite.place.broker[0]}:{suite.place.broker[1]}",
        "policy": suite.policy,
        "policy_chosen": {"by": identity.how, "why": identity.why, "version": identity.version or None},
        "capabilities": sorted(suite.capabilities),
        "counts": {outcome: counts.get(outcome, 0) for outcome in OUTCOMES},
        "tested": found.tested,
        "causes": [[result.vector.id for result in group] for group in by_cause(results)],
        "does_not_long_poll": does_not_poll(results),
        "rocketmq_bugs": [
            {"clause": each.clause, "bug": each.bug, "is_there": each.is_there, "seen": each.seen}
            for each in found.bugs
        ],
        "silenced_by": suite.silenced_by,
        "clauses": clauses,
        "results": [result_json(result) for result in results],
    }


def result_json(result: Result) -> dict[str, Any]:
    """Convert the result of one vector to a JSON object."""
    return {
        "vector": result.vector.id,
        "title": result.vector.title,
        "clause": result.clause.id,
        "level": result.clause.level,
        "outcome": result.outcome,
        "why": result.why,
        "seconds": round(result.seconds, 3),
        "differences": [
            {"where": each.where, "expected": each.expected, "got": each.got} for each in result.differences
        ],
        "left_out": result.left_out,
        "conversation": [
            {"at_ms": one.at_ms, "line": one.line, "way": one.way, "means": meaning(one), "hex": one.content.hex()}
            for one in result.spoken
        ],
    }


@frozen
class Difference:
    """A clause that differs from RocketMQ's recorded behaviour."""

    clause: str
    outcome: Outcome
    sentence: str
    seen: str


@frozen
class Bug:
    """A bug of RocketMQ that a clause can show."""

    clause: str
    outcome: Outcome
    is_there: bool
    """Whether the tested broker has the bug."""
    bug: str
    seen: str
    """The evidence for or against the bug."""


@frozen
class Sections:
    """The sections of a report. The worst vector of a clause decides the clause's outcome, and is listed first."""

    counts: Counter[Outcome]
    """The number of clauses by outcome."""
    differences: tuple[Difference, ...]
    bugs: tuple[Bug, ...]
    untested: dict[str, tuple[str, ...]]
    """Maps each reason to the clauses that were not tested because of it."""

    @property
    def tested(self) -> int:
        """The number of tested clauses. The report gives each count as a share of this number."""
        return self.counts.total() - self.counts["UNTESTED"]

    @property
    def text(self) -> str:
        """The counts in one line."""
        shown = ", ".join(
            f"{self.counts[each]} {each}" for each in OUTCOMES if each != "UNTESTED" and self.counts[each]
        )
        untested = self.counts["UNTESTED"]
        verb = "is" if untested == 1 else "are"
        more = f"; {untested} more {verb} UNTESTED and not counted" if untested else ""
        return f"{self.tested} clauses tested: {shown or 'none'}{more}"


def sections(suite: Suite, results: Sequence[Result]) -> Sections:
    """Sort the results into sections by clause."""
    clauses = by_clause(results)
    differences: list[Difference] = []
    bugs: list[Bug] = []
    untested: dict[str, tuple[str, ...]] = {}
    for name, outcome in clauses.items():
        mine = [result for result in results if result.clause.id == name and result.outcome == outcome]
        known = [(result, bug) for result in mine if (bug := _bug_of(suite, result)) is not None]
        first = mine[0]
        if outcome == "UNTESTED":
            untested[first.why] = (*untested.get(first.why, ()), name)
        elif outcome in {"PASS", "NON-STRICT"} and known and (outcome == "PASS" or len(known) == len(mine)):
            result, bug = known[0]
            if outcome == "NON-STRICT" or isinstance(result.vector, Vector):
                # The broker has a recorded bug if its answer equals the recorded one. In a load or race test, a failure
                # shows the bug.
                has_it = (result.outcome == "PASS") == isinstance(result.vector, Vector)
                bugs.append(Bug(name, outcome, has_it, bug, _seen(result)))
        elif outcome != "PASS":
            differences.append(Difference(name, outcome, BY_ID[name].sentence, _seen(first)))
    return Sections(Counter(clauses.values()), tuple(differences), tuple(bugs), untested)


def _bug_of(suite: Suite, result: Result) -> str | None:
    """Return the bug that a vector's recorded answer, a load test or a race test shows; None if it shows no bug."""
    shown = result.vector
    if isinstance(shown, Vector):
        return RECORDED.get(shown.version, {}).get(shown.id)
    return bug_of_run(suite.policy, shown.id)


def _seen(result: Result) -> str:
    return f"{result.vector.id}: {result.why or 'answered as recorded'}"


COLOURS: Final[dict[Outcome, str]] = {
    "PASS": "#2e7d32", "FAIL": "#c62828", "NON-STRICT": "#b26a00", "UNIMPLEMENTED": "#6a1b9a", "UNTESTED": "#757575",
}  # fmt: skip
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12px }
.mark { color: #fff; border-radius: .3rem; padding: 0 .4rem; white-space: nowrap; font-size: 12px }
"""


def write_pages(directory: Path, suite: Suite, results: Sequence[Result]) -> None:
    """Write `index.html` and one page per vector. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.html").write_text(index(suite, results), encoding="utf-8")
    for result in results:
        if result.outcome not in {"PASS", "UNTESTED"}:
            (directory / f"{result.vector.id}.html").write_text(page(result), encoding="utf-8")


def index(suite: Suite, results: Sequence[Result]) -> str:
    """Return the HTML table of clauses, with the vectors of each clause."""
    clauses = by_clause(results)
    found = sections(suite, results)
    rows = []
    for name, outcome in clauses.items():
        of_clause = [result for result in results if result.clause.id == name]
        links = " ".join(_link(result) for result in of_clause)
        why = next((result.why for result in of_clause if result.outcome == outcome and result.why), "")
        sentence = escape(of_clause[0].clause.sentence)
        rows.append(
            f"<tr><td><code>{escape(name)}</code></td><td>{_mark(outcome)}</td>"
            f"<td>{sentence}<br><small>{escape(why)}</small></td><td>{links}</td></tr>"
        )
    host, port = suite.place.broker
    head = f"<h1>{escape(host)}:{port}, tested as {escape(suite.policy)}</h1><p>{escape(found.text)}.</p>"
    silenced = "".join(f"<p>Stopped answering after <code>{escape(name)}</code>.</p>" for name in suite.silenced_by)
    bugs = "".join(
        f"<li><code>{escape(each.clause)}</code> {escape(each.bug)} This broker "
        f"{'has it' if each.is_there else 'does not have it'}. <small>{escape(each.seen)}</small></li>"
        for each in found.bugs
    )
    own = f"<h2>RocketMQ's own bugs</h2><ul>{bugs}</ul>" if bugs else ""
    table = "<table><tr><th>clause</th><th></th><th>text</th><th>vectors</th></tr>" + "".join(rows) + "</table>"
    return _document("longpoll conform", head + silenced + own + "<h2>Clauses</h2>" + table)


def page(result: Result) -> str:
    """Returns the HTML page of one vector: expected next to received answers, and every byte of the conversation."""
    rows = "".join(
        f"<tr><td><code>{escape(each.where)}</code></td><td>{escape(each.expected)}</td><td>{escape(each.got)}</td></tr>"
        for each in result.differences
    )
    told = "\n".join(map(escape, lines_of(result.spoken)))
    less = (
        f"<p>{result.left_out} steps of the vector are left out: the mismatch does not need them.</p>"
        if result.left_out
        else ""
    )
    body = (
        f"<p><a href='index.html'>all clauses</a></p><h1>{escape(result.vector.id)} {_mark(result.outcome)}</h1>"
        f"<p>{escape(result.vector.title)}</p><p><code>{escape(result.clause.id)}</code> "
        f"{escape(result.clause.sentence)} <small>({escape(result.clause.source)})</small></p>"
        f"<p>{escape(result.why)}</p>"
        f"<table><tr><th>where</th><th>expected</th><th>got</th></tr>{rows}</table>{less}<pre>{told}</pre>"
    )
    return _document(result.vector.id, body)


def escape(text: str) -> str:
    """Escape a text, and join its lines into one."""
    return html.escape(escaped(text))


def _link(result: Result) -> str:
    name = escape(result.vector.id)
    return f"<a href='{name}.html'>{name}</a>" if result.outcome not in {"PASS", "UNTESTED"} else name


def _mark(outcome: Outcome) -> str:
    return f"<span class='mark' style='background:{COLOURS[outcome]}'>{outcome}</span>"


def _document(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><body>{body}</body></html>\n"
    )


_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SKIPPED: Final = frozenset({"UNTESTED", "UNIMPLEMENTED", "NON-STRICT"})


def junit(results: Sequence[Result]) -> str:
    """Returns the results as a JUnit XML document."""
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


def write_reports(suite: Suite, results: Sequence[Result], junit_file: Path | None, pages: Path | None) -> None:
    """Write JUnit XML into a file and HTML pages into a directory, as far as requested. Raises OutputError."""
    for place, write in (
        (junit_file, lambda path: path.write_text(junit(results), encoding="utf-8")),
        (pages, lambda path: write_pages(path, suite, results)),
    ):
        try:
            if place is not None:
                write(place)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror or error}") from error
