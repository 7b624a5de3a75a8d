"""One judgement as a section for other pages to embed.

The section needs no network and no script, and everything in it is escaped. Its charts are SVG: latency distributions,
and each finding as a sequence chart. The judge's own page: `page`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from longpoll_judge.contract.result import PROPERTIES, Finding, Result
from longpoll_spec.render.pictures import svg

WIDTH: Final = 720
_LEFT: Final = 110
_ROW: Final = 34
_BARS_HEIGHT: Final = 110
_LABELS_MAX: Final = 8
"""Most bars that carry their latency below them."""
_NOTES: Final = {
    "request_received": ("offset", "expression", "timeout_ms"),
    "answer_sent": ("code", "cause", "offset_next", "offsets"),
    "append": ("queue_offset", "tag"),
    "message_acknowledged": ("queue_offset", "tag"),
    "make_visible": ("visible_end",),
}
EVENTS_MAX: Final = 100
"""Most events of a finding that are drawn: the last ones."""


def histogram(buckets: Sequence[tuple[float, int]], title: str) -> str:
    """A chart of `buckets`: (upper end in ms, latencies above the end before it); heights by square root."""
    if not buckets:
        return ""
    most = max(count for _upper, count in buckets)
    step = (WIDTH - 20) / len(buckets)
    parts = []
    for place, (upper_ms, count) in enumerate(buckets):
        height = max(1.0, (count / most) ** 0.5 * (_BARS_HEIGHT - 30))
        left = 10 + place * step
        said, top = f"<title>up to {upper_ms:g} ms: {count}</title>", _BARS_HEIGHT - 20 - height
        parts.append(svg.element("rect", "bar", said, x=left, y=top, width=max(step - 1, 1), height=height))
        if place % -(-len(buckets) // _LABELS_MAX) == 0:
            parts.append(svg.text("label", left, _BARS_HEIGHT - 6, f"{upper_ms:g}"))
    return svg.picture("chart", (WIDTH, _BARS_HEIGHT), title, "", parts)


def sequence_chart(finding: Finding) -> str:
    """The finding's events from top to bottom, each in the column of its request or of the log, with its interval."""
    evidence = finding.shown()[-EVENTS_MAX:]
    lanes = _lanes(evidence)
    start = min((event["after_ns"] for event in evidence), default=0)
    gap = (WIDTH - _LEFT) / max(len(lanes), 1)
    height = 40 + _ROW * len(evidence)
    parts = []
    for place, lane in enumerate(lanes):
        middle = _LEFT + gap * (place + 0.5)
        parts.append(svg.line("lane", middle, 24, middle, height - 8))
        parts.append(svg.text("middle", middle, 16, lane))
    for row, event in enumerate(evidence):
        below = 44 + row * _ROW
        middle = _LEFT + gap * (lanes.index(_lane(event)) + 0.5)
        first, last = (event[name] - start for name in ("after_ns", "before_ns"))
        moment = f"+{first / 1e6:.3f}" if last - first < 1_000_000 else f"+{first / 1e6:.1f} to {last / 1e6:.1f}"
        parts.append(svg.text("time", 4, below + 4, f"{moment} ms"))
        parts.append(svg.element("circle", "event", cx=middle, cy=below, r=5))
        parts.append(svg.text("said", middle + 10, below + 4, _said(event)))
    return svg.picture("chart", (WIDTH, height), f"{finding.property}: {finding.why}", "", parts)


def _lane(event: Mapping[str, Any]) -> str:
    return f"request {event['request']}" if event.get("request") and "queue_offset" not in event else "log"


def _lanes(events: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_lane(event) for event in events))


def _said(event: Mapping[str, Any]) -> str:
    notes = (f"{name} {event[name]}" for name in _NOTES.get(event["event"], ()) if name in event)
    return ", ".join((str(event["event"]), *notes))


MESSAGES_SHOWN_MAX: Final = 5
TAG_SHOWN_MAX: Final = 80
REQUESTS_SHOWN_MAX: Final = 10


def told_of(finding: Finding) -> str:
    """The messages, the tag, the offsets, the codes and the client that a finding is about, in words."""
    messages = ", ".join(map(str, finding.messages[:MESSAGES_SHOWN_MAX]))
    more = len(finding.messages) - MESSAGES_SHOWN_MAX
    parts = [f"message {messages}" + (f" and {more} more" if more > 0 else "")] if messages else []
    parts += [f"tag {finding.tag[:TAG_SHOWN_MAX]!r}"] if finding.tag else []
    parts += [f"{name} {value}" for name, value in finding.offsets.items()]
    parts += [f"{name} {value}" for name, value in finding.codes.items()]
    about = {"group": finding.group[:TAG_SHOWN_MAX], "connection": finding.connection, "at": finding.time}
    parts += [f"{name} {value}" for name, value in about.items() if value]
    broker = next((event["broker"] for event in finding.evidence if event.get("broker")), "")
    if messages and broker:
        where = f"-b {broker} -t {finding.topic} -i {finding.queue} -o {finding.messages[0]}"
        parts.append(f"see mqadmin queryMsgByOffset {where}")
    return ", ".join(parts)


def followed_by(finding: Finding) -> list[str]:
    """The findings with the same cause, one line a clause."""
    return [
        f"follows from it: {each.count} of {each.clause} {each.verdict} in {each.topic}/{each.queue}"
        + (f" ({', '.join(each.requests[:REQUESTS_SHOWN_MAX])})" if each.requests else "")
        for each in finding.follows
    ]


def clean(text: str) -> str:
    """Text without the characters that XML cannot hold, or that turn the order of letters."""
    return "".join(letter if letter.isprintable() or letter in "\t\n" else " " for letter in text)


FINDINGS_SHOWN_MAX: Final = 500
EVIDENCE_SHOWN_MAX: Final = 100
"""Most events of a finding that are shown: the last ones; JSON and `--evidence` have them all."""
CHARTS_MAX: Final = 100
"""Most findings that are drawn as well."""
LATENCY_NAMES: Final = {"wake_ms": "message visible to held pull answered", "late_ms": "deadline to answer"}

STYLE: Final = """
.judge { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
.judge table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }
.judge th, .judge td { text-align: left; vertical-align: top; padding: .3rem .7rem; border-bottom: 1px solid #d9e0e6 }
.judge th { font-weight: 600; background: #f4f6f8 }
.judge pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; background: #f4f6f8; padding: .5rem }
.judge .verdict { display: inline-block; padding: .1rem .8rem; border-radius: 1rem; color: #fff }
.judge .valid { background: #1a7f4b } .judge .invalid, .judge .violated { background: #b3261e }
.judge .unknown { background: #8a6100 }
.judge svg { width: 100%; height: auto; max-width: 60rem; display: block }
.judge svg text { font-size: 11px; fill: #1c2733 }
.judge svg rect, .judge svg circle { fill: #2a6fb0 } .judge svg .lane { stroke: #b7c2cc }
.judge svg .middle { text-anchor: middle }
"""


def render_section(result: Result) -> str:
    """The section, to be embedded together with `STYLE`."""
    facts = [
        ("events", f"{result.events:,}"),
        ("queues", f"{result.queues:,}"),
        *((f"{name} judged", f"{share.judged:,} of {share.of:,}") for name, share in result.shares.items()),
        ("not applicable", ", ".join(name for name in PROPERTIES if not result.judged.get(name)) or "nothing"),
        ("engine", f"{result.engine}, {result.seconds:.1f} s after a start of {result.start_seconds:.1f} s"),
        ("thresholds", ", ".join(f"{name} {value:g}" for name, value in result.thresholds.items())),
    ]
    parts = [
        f'<section class="judge"><h2>The history is {badge(result.verdict)}</h2>',
        table((), facts),
        "<h3>Latencies (upper bounds, ms)</h3>",
        table(("", "count", "p50", "p99", "max"), _latency_rows(result)),
        *(
            f"<h4>{escape(LATENCY_NAMES.get(name, name))}</h4>{histogram(bars, name)}"
            for name, bars in result.histogram.items()
            if bars
        ),
    ]
    broken = [(name, rate) for name, rate in result.rates.items() if rate.violated]
    if broken:
        parts += [
            "<h3>How often (per million, 95 % interval)</h3>",
            table(
                ("property", "violated", "of", "per million", "low", "high"),
                ((name, rate.violated, rate.of, rate.per_million, rate.low, rate.high) for name, rate in broken),
            ),
        ]
    if result.gaps:
        parts += [
            "<h3>Missing evidence</h3>",
            table(("clause", "count", "what"), ((gap["clause"], gap["count"], gap["why"]) for gap in result.gaps)),
        ]
    parts += [
        f"<h3>Findings: {len(result.findings) + result.findings_left_out:,}</h3>",
        _findings(result),
        *_observations(result),
        "</section>",
    ]
    return clean("".join(parts))


def _observations(result: Result) -> list[str]:
    """Permitted but notable behaviour, and requests that could not be judged, if there are any."""
    parts = []
    if result.observations:
        rows = ((one.clause, f"{one.topic} / {one.queue}", told_of(one), one.why) for one in result.observations)
        title = f"<h3>Observations: {len(result.observations):,}</h3>"
        parts += [title, table(("clause", "queue", "about", "what"), rows)]
    if result.notes:
        rows_ = ((note["clause"], note["count"], note["why"]) for note in result.notes)
        parts += ["<h3>Not judged</h3>", table(("clause", "count", "what"), rows_)]
    return parts


class Html(str):
    """A cell of a table that is HTML already; other cells are escaped."""

    __slots__ = ()


def badge(verdict: str) -> Html:
    """A verdict on the ground of its colour."""
    return Html(f'<span class="verdict {escape(verdict)}">{escape(verdict)}</span>')


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in the page's style; without heads it has no first line."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{body}</table>"


def _cell(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))


def _latency_rows(result: Result) -> Iterable[tuple[object, ...]]:
    for name, values in result.latency.items():
        yield (LATENCY_NAMES.get(name, name), values.count, *values.texts())


def _findings(result: Result) -> str:
    if not result.findings:
        return "<p>None.</p>"
    rows = "".join(_finding(finding, number) for number, finding in enumerate(result.findings[:FINDINGS_SHOWN_MAX]))
    head = "".join(
        f"<th>{title}</th>" for title in ("property", "clause", "verdict", "queue", "request", "about", "window", "why")
    )
    more = len(result.findings) - FINDINGS_SHOWN_MAX + result.findings_left_out
    return f"<table><tr>{head}</tr>{rows}</table>" + (f"<p>{more:,} more are not shown.</p>" if more > 0 else "")


def _finding(finding: Finding, number: int) -> str:
    window = f"{finding.time} and {finding.window_end_ms - finding.window_start_ms:.3f} ms more"
    place = f"{finding.topic} / {finding.queue}"
    cells = (finding.property, finding.clause, None, place, finding.request, told_of(finding), window)
    columns = "".join(f"<td>{badge(finding.verdict) if cell is None else escape(cell)}</td>" for cell in cells)
    evidence = "\n".join(_evidence_line(event) for event in finding.shown()[-EVIDENCE_SHOWN_MAX:])
    follows = "".join(f"<br>{escape(text)}" for text in followed_by(finding))
    chart = sequence_chart(finding) if number < CHARTS_MAX else ""
    details = f"<details><summary>evidence</summary>{chart}<pre>{escape(evidence)}</pre></details>"
    return f"<tr>{columns}<td>{escape(finding.why)}{follows}{details}</td></tr>"


def _evidence_line(event: dict[str, Any]) -> str:
    return msgspec.json.encode(event).decode()
