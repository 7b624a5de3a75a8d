"""The judge's HTML page as one file: the verdict, and a picture of each finding with its events to scale.

Each row of a finding's picture is a request, from its receipt to its answer, or an event without a request. An
uncertain time is drawn as wide as its interval. Jinja2 escapes all text from the history, and the page's
Content-Security-Policy allows neither scripts nor network access.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Final

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
    POP_IS_KEPT,
    PROPERTIES,
    SEND_IS_KEPT,
    VISIBLE_IS_MONOTONE,
    Finding,
    Result,
)
from longpoll_judge.show.report import clean, followed_by, told_of

FINDINGS_SHOWN_MAX: Final = 500
EVIDENCE_SHOWN_MAX: Final = 100
"""The maximum number of events, the last ones, that are shown of a finding."""
ANSWERED: Final = frozenset({"answer_sent", "message_acknowledged"})
"""The events that answer a request."""
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
    FOLLOWS_THE_LAW: "the specification did not allow a step",
    HELD_AS_ASKED: "a pull was held, or not, against what it asked",
    SEND_IS_KEPT: "an acknowledged message was not kept",
    COMMIT_IS_TOLD: "a committed offset was told wrong",
    POP_IS_KEPT: "a pop, or a message that it got, was not treated as promised",
    EVIDENCE: "the record is damaged",
}
"""Maps each property to the sentence that describes a violation of the property."""
LATENCY_NAMES: Final = {"wake_ms": "message visible to pull answered", "late_ms": "deadline to answer"}


@frozen
class Group:
    """Findings with the same clause and verdict."""

    clause: str
    verdict: str
    title: str
    findings: list[Finding]


@frozen
class Row:
    """One row of a finding's picture: a request, or an event without a request."""

    label: str
    left: float
    """Where the row begins, in percent of the finding's window."""
    width: float
    kind: str
    """The finding's verdict if the row is the request at fault, `open` for another unanswered request, else empty."""


def rows(finding: Finding) -> Iterator[Row]:
    """Yields the rows of a finding's picture, in order of time."""
    events = finding.shown()[-EVIDENCE_SHOWN_MAX:]
    start_ns = min((event["after_ns"] for event in events), default=0)
    end_ns = max((event["before_ns"] for event in events), default=0)
    together: dict[tuple[str, object], list[dict[str, Any]]] = {}
    for event in events:
        together.setdefault((event["source"], event.get("request") or event["sequence"]), []).append(event)
    for (_source, name), mine in together.items():
        names = dict.fromkeys(event["event"] for event in mine)
        is_open = "request_received" in names and names.keys().isdisjoint(ANSWERED)
        first_ns = min(event["after_ns"] for event in mine)
        last_ns = end_ns if is_open else max(event["before_ns"] for event in mine)
        kind = finding.verdict if finding.request == name else "open" if is_open else ""
        label = f"{name}: {', '.join(names)}" if isinstance(name, str) else ", ".join(names)
        scale = 100 / max(end_ns - start_ns, 1)
        yield Row(label, round((first_ns - start_ns) * scale, 2), round((last_ns - first_ns) * scale, 2), kind)


def render_html(result: Result) -> str:
    """Return the whole page."""
    environment = Environment(
        loader=PackageLoader("longpoll_judge", "show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (resources.files("longpoll_judge.show") / "page.css").read_text(encoding="utf-8")
    text = environment.get_template("page.html").render(
        result=result,
        sentence=sentence(result),
        why=why(result),
        groups=groups(result.findings[:FINDINGS_SHOWN_MAX]),
        more=max(len(result.findings) - FINDINGS_SHOWN_MAX, 0) + result.findings_left_out,
        facts=_facts(result),
        latency_names=LATENCY_NAMES,
        broken=[(name, rate) for name, rate in result.rates.items() if rate.violated],
        rows=rows,
        evidence=evidence,
        followed_by=followed_by,
        told_of=told_of,
        style=Markup(style),  # noqa: S704 - a file of this package
    )
    return clean(text)


def sentence(result: Result) -> str:
    """Return the verdict as a sentence."""
    if result.findings:
        worst = worst_of(result)
        said = BROKEN.get(worst.property, f"{worst.property} is broken")
        return f"The history is {result.verdict}: {said if worst.verdict == 'violated' else f'it may be that {said}'}."
    if result.gaps:
        return f"The history is {result.verdict}: {result.gaps[0]['why']}."
    return f"The history is {result.verdict}: {result.requests:,} pulls were looked at, and nothing was found."


def why(result: Result) -> str:
    """Return the reason for the verdict; empty if `sentence` already gives it."""
    if not result.findings:
        return ""
    worst = worst_of(result)
    return f"{worst.topic} / {worst.queue}: {worst.why}."


def worst_of(result: Result) -> Finding:
    """Returns the finding that the page begins with: the first violation, else the first finding."""
    return next((one for one in result.findings if one.verdict == "violated"), result.findings[0])


def groups(findings: Iterable[Finding]) -> list[Group]:
    """Returns the findings grouped by clause and verdict, violations first; the order within a group is unchanged."""
    found: dict[tuple[str, str], Group] = {}
    for one in findings:
        title = BROKEN.get(one.property, one.property)
        group = found.setdefault((one.clause, one.verdict), Group(one.clause, one.verdict, title, []))
        group.findings.append(one)
    return sorted(found.values(), key=lambda group: group.verdict != "violated")


def evidence(finding: Finding) -> list[tuple[str, str]]:
    """Returns, for each event of a finding, how long after the first event it happened, and its line in the record."""
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
