"""A section about one judgement for other pages to embed: no network, no script, everything escaped.

Leaves out how charts are drawn (`charts`) and the judge's own page (`page`).
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

import msgspec

from longpoll_judge.contract.result import PROPERTIES, Finding, Result
from longpoll_judge.show.charts import histogram, sequence_chart
from longpoll_judge.show.report_text import clean, followed_by, told_of

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
        f'<section class="judge"><h2>The history is {_badge(result.verdict)}</h2>',
        _table((), facts),
        "<h3>Latencies (upper bounds, ms)</h3>",
        _table(("", "count", "p50", "p99", "max"), _latency_rows(result)),
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
            _table(
                ("property", "violated", "of", "per million", "low", "high"),
                ((name, rate.violated, rate.of, rate.per_million, rate.low, rate.high) for name, rate in broken),
            ),
        ]
    if result.gaps:
        parts += [
            "<h3>Missing evidence</h3>",
            _table(("clause", "count", "what"), ((gap["clause"], gap["count"], gap["why"]) for gap in result.gaps)),
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
        parts += [title, _table(("clause", "queue", "about", "what"), rows)]
    if result.notes:
        rows_ = ((note["clause"], note["count"], note["why"]) for note in result.notes)
        parts += ["<h3>Not judged</h3>", _table(("clause", "count", "what"), rows_)]
    return parts


def _badge(verdict: str) -> str:
    return f'<span class="verdict {escape(verdict)}">{escape(verdict)}</span>'


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{body}</table>"


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
    columns = "".join(f"<td>{_badge(finding.verdict) if cell is None else escape(cell)}</td>" for cell in cells)
    evidence = "\n".join(_evidence_line(event) for event in finding.shown()[-EVIDENCE_SHOWN_MAX:])
    follows = "".join(f"<br>{escape(text)}" for text in followed_by(finding))
    chart = sequence_chart(finding) if number < CHARTS_MAX else ""
    details = f"<details><summary>evidence</summary>{chart}<pre>{escape(evidence)}</pre></details>"
    return f"<tr>{columns}<td>{escape(finding.why)}{follows}{details}</td></tr>"


def _evidence_line(event: dict[str, Any]) -> str:
    return msgspec.json.encode(event).decode()
