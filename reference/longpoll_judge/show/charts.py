"""Charts of a judgement as SVG text, without script: latency distributions, and each finding as a sequence chart.

Leaves out the page around them (`report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from longpoll_judge.contract.result import Finding
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
