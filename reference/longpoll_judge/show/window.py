"""A finding's window for other tools: as a ShiViz log and as a trace in Apalache's ITF; and its evidence as a history.

In the ShiViz log every request is a host, and so is the log; an event follows another host's only where their
intervals leave no doubt. Leaves out everything outside the window.

Source: https://bitbucket.org/bestchai/shiviz (log format), https://apalache-mc.org/docs/adr/015adr-trace.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from longpoll_judge.contract.result import Finding
from longpoll_spec.history import META_FILE

SHIVIZ_EXPRESSION: Final = r"(?<host>\S+) (?<clock>\{.*\})\n(?<event>.*)"
"""The log's first line: the pattern with which ShiViz reads it."""
_INTEGERS_EXACT_MAX: Final = 1 << 53


def host(event: dict[str, Any]) -> str:
    """Whose event it is."""
    return str(event["request"]) if event.get("request") and "queue_offset" not in event else "log"


def shiviz(finding: Finding) -> str:
    """The window as a log with vector clocks."""
    clocks: list[dict[str, int]] = []
    lines = [SHIVIZ_EXPRESSION, ""]
    events = finding.shown()
    for number, event in enumerate(events):
        clock: dict[str, int] = {}
        mine = host(event)
        for earlier, known in zip(events[:number], clocks, strict=True):
            if earlier["before_ns"] < event["after_ns"] or host(earlier) == mine:
                clock = {name: max(clock.get(name, 0), known.get(name, 0)) for name in clock | known}
        clock[mine] = clock.get(mine, 0) + 1
        clocks.append(clock)
        lines.append(f"{mine} {msgspec.json.encode(clock).decode()}")
        lines.append(f"{event['event']} {msgspec.json.encode(event).decode()}")
    return "\n".join(lines) + "\n"


def itf(finding: Finding) -> bytes:
    """The window as a trace: a state an event, in order of time."""
    events = finding.shown()
    names = sorted({name for event in events for name in event})
    states = [
        {"#meta": {"index": number}} | {name: _value(event.get(name, "")) for name in names}
        for number, event in enumerate(events)
    ]
    meta = {"format": "ITF", "description": f"{finding.property} {finding.clause} {finding.verdict}: {finding.why}"}
    return msgspec.json.encode({"#meta": meta, "vars": names, "states": states})


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(one) for one in value]
    is_large = isinstance(value, int) and abs(value) >= _INTEGERS_EXACT_MAX
    return {"#bigint": str(value)} if is_large else value


def write_evidence(directory: Path, findings: Sequence[Finding]) -> int:
    """Write the evidence of every violation as a history; returns how many there were.

    The evidence of a user's own property is two events of a pull, and no history.
    """
    violated = [(number, one) for number, one in enumerate(findings, 1) if one.verdict == "violated" and one.meta]
    for number, finding in violated:
        history = directory / f"finding-{number:04}-{finding.clause}"
        history.mkdir(parents=True, exist_ok=True)
        (history / META_FILE).write_bytes(msgspec.json.encode(finding.meta))
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in finding.evidence)
        (history / "part-000000.ndjson").write_bytes(lines)
    return len(violated)


def write_windows(directory: Path, findings: Sequence[Finding]) -> int:
    """Write both files of every finding; returns how many findings there were."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, finding in enumerate(findings, 1):
        name = f"finding-{number:04}-{finding.property}"
        (directory / f"{name}.shiviz.log").write_text(shiviz(finding), encoding="utf-8")
        (directory / f"{name}.itf.json").write_bytes(itf(finding))
    return len(findings)
