"""The page as one file: its sentence, its tables and its data, put into the template.

Everything that comes from outside is escaped: texts by Jinja2, data by `as_data`, and the script writes texts alone.
The page's own policy lets no script run but the one whose hash it names, and no address be asked for anything.

Leaves out what is drawn (`gather`, `picture`) and the drawing itself (`page.js`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

import msgspec
from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    EVIDENCE,
    FOLLOWS_THE_LAW,
    HELD_AS_ASKED,
    HOLD_LIMIT_KEPT,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    PROPERTIES,
    SEND_IS_KEPT,
    VISIBLE_IS_MONOTONE,
    Finding,
    Result,
)
from longpoll_judge.show.page.gather import Drawn, of_findings
from longpoll_judge.show.page.picture import as_data, picture
from longpoll_judge.show.report_text import clean, followed_by, told_of

FINDINGS_SHOWN_MAX: Final = 500
EVIDENCE_SHOWN_MAX: Final = 100
"""Most events of a finding that are shown: the last ones."""
BROKEN: Final = {
    NO_LOST_WAKEUP: "a wakeup was lost or late",
    ANSWERED_BY_DEADLINE: "a pull was answered after its deadline",
    ANSWERED_ON_STOP: "a pull was not answered when its broker stopped",
    ANSWERED_ONCE: "a pull was not answered exactly once",
    ANSWER_IS_RIGHT: "an answer was wrong",
    OFFSETS_IN_ORDER: "a log's offsets were out of order",
    VISIBLE_IS_MONOTONE: "a visible end went back",
    COMMIT_NEVER_REGRESSES: "a committed offset went back",
    HOLD_LIMIT_KEPT: "more pulls were held than promised",
    FOLLOWS_THE_LAW: "a step was none of the law",
    HELD_AS_ASKED: "a pull was held, or not, against what it asked",
    SEND_IS_KEPT: "an acknowledged message was not kept",
    COMMIT_IS_TOLD: "a committed offset was told wrong",
    EVIDENCE: "the record is damaged",
}
"""The meaning of a broken property."""
LATENCY_NAMES: Final = {"wake_ms": "message visible to pull answered", "late_ms": "deadline to answer"}


@frozen
class Group:
    """Findings of one clause and verdict: those that rest on one line of the contract."""

    clause: str
    verdict: str
    title: str
    findings: list[tuple[int, Finding]]
    """With their numbers."""


def render_html(result: Result, drawn: Drawn | None = None) -> str:
    """The whole page; without `drawn` its timeline has the events of the findings alone."""
    drawn = of_findings(result) if drawn is None else drawn
    shown = picture(result, drawn)
    script = _part("page.js")
    page = _environment().get_template("page.html")
    text = page.render(
        result=result,
        sentence=sentence(result),
        why=why(result),
        groups=groups(result.findings[:FINDINGS_SHOWN_MAX]),
        more=max(len(result.findings) - FINDINGS_SHOWN_MAX, 0) + result.findings_left_out,
        picture=shown,
        is_part=drawn.pulls_in_all > len(shown.bars),
        facts=_facts(result),
        latency_names=LATENCY_NAMES,
        broken=[(name, rate) for name, rate in result.rates.items() if rate.violated],
        evidence=evidence,
        followed_by=followed_by,
        told_of=told_of,
        style=Markup(_part("page.css")),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - the same
        data=Markup(as_data(shown)),  # noqa: S704 - it has none of the letters that HTML looks at
        script_hash=_hash(script),
    )
    return clean(text)


def sentence(result: Result) -> str:
    """The verdict in a sentence."""
    if result.findings:
        worst = worst_of(result)
        said = BROKEN.get(worst.property, f"{worst.property} is broken")
        return f"The history is {result.verdict}: {said if worst.verdict == 'violated' else f'it may be that {said}'}."
    if result.gaps:
        return f"The history is {result.verdict}: {result.gaps[0]['why']}."
    return f"The history is {result.verdict}: {result.requests:,} pulls were looked at, and nothing was found."


def why(result: Result) -> str:
    """The reason behind the sentence; empty if the sentence is complete."""
    if not result.findings:
        return ""
    worst = worst_of(result)
    return f"{worst.topic} / {worst.queue}: {worst.why}."


def worst_of(result: Result) -> Finding:
    """The finding that the page begins with: the first violation, else the first finding."""
    return next((one for one in result.findings if one.verdict == "violated"), result.findings[0])


def groups(findings: Iterable[Finding]) -> list[Group]:
    """The findings by clause and verdict, violations first, then in their own order."""
    found: dict[tuple[str, str], Group] = {}
    for number, one in enumerate(findings):
        title = BROKEN.get(one.property, one.property)
        group = found.setdefault((one.clause, one.verdict), Group(one.clause, one.verdict, title, []))
        group.findings.append((number, one))
    return sorted(found.values(), key=lambda group: group.verdict != "violated")


def evidence(finding: Finding) -> list[tuple[str, str]]:
    """When each event of a finding was, after the first of them, and its line of the record."""
    events = finding.shown()[-EVIDENCE_SHOWN_MAX:]
    start_ns = min((event["after_ns"] for event in events), default=0)
    return [(_moment(event, start_ns), msgspec.json.encode(event).decode()) for event in events]


def _moment(event: Mapping[str, int], start_ns: int) -> str:
    first, last = ((event[name] - start_ns) / 1e6 for name in ("after_ns", "before_ns"))
    return f"+{first:.3f} ms" if last - first < 1 else f"+{first:.1f} to {last:.1f} ms"


def _facts(result: Result) -> list[tuple[str, str]]:
    idle = [name for name in PROPERTIES if not result.judged.get(name)]
    return [
        ("events", f"{result.events:,}"),
        ("queues", f"{result.queues:,}"),
        *((f"{name} judged", f"{share.judged:,} of {share.of:,}") for name, share in result.shares.items()),
        ("not applicable", ", ".join(idle) or "nothing"),
        ("engine", f"{result.engine}, {result.seconds:.1f} s after a start of {result.start_seconds:.1f} s"),
        ("thresholds", ", ".join(f"{name} {value:g}" for name, value in result.thresholds.items())),
    ]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("longpoll_judge.show", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _part(name: str) -> str:
    return (resources.files("longpoll_judge.show") / "page" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """As a content security policy names a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
