"""The events of a finding are enough: by themselves they break the same property, whatever else was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from longpoll_judge.contract.result import Finding
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import BROKER, SOURCE, START_NS, UNIX_OFFSET_NS, simulated_meta, write
from longpoll_judge.testing.plant import plant
from longpoll_spec.history import Event

LONG_AFTER_NS: Final = START_NS + 3_600 * 10**9
"""The source is watching for an hour, so that whatever is not answered is seen not to be."""


def alone(evidence: list[dict[str, Any]]) -> list[Event]:
    """The events of a finding as a history of their own."""
    events = [
        Event(
            **{
                **event,
                "after_ns": event["after_ns"] - UNIX_OFFSET_NS,
                "before_ns": event["before_ns"] - UNIX_OFFSET_NS,
            }
        )
        for event in evidence
    ]
    ends = [
        Event(event=name, after_ns=moment_ns, before_ns=moment_ns, source=SOURCE, sequence=0, broker=BROKER)
        for name, moment_ns in (("source_started", START_NS), ("source_stopped", LONG_AFTER_NS))
    ]
    ordered = sorted(events, key=lambda event: (event.after_ns, event.sequence))
    return [msgspec.structs.replace(event, sequence=at) for at, event in enumerate([ends[0], *ordered, ends[1]])]


def violated(directory: Path, evidence: list[dict[str, Any]]) -> set[str]:
    """What these events break by themselves."""
    write(directory, alone(evidence), simulated_meta())
    return {
        finding.property for finding in judge([directory], engine="local").findings if finding.verdict == "violated"
    }


def first_violation(directory: Path) -> Finding:
    """The first certain finding."""
    return next(finding for finding in judge([directory], engine="local").findings if finding.verdict == "violated")


def test_a_window_without_its_answer_is_not(clean: Path, tmp_path: Path) -> None:
    """What makes a finding is in its events: without the answer that was wrong nothing is."""
    plant(clean, "next_wrong", tmp_path / "planted")
    finding = first_violation(tmp_path / "planted")
    rest = [event for event in finding.evidence if event["event"] != "answer_sent"]

    assert finding.property in violated(tmp_path / "alone", finding.evidence)
    assert finding.property not in violated(tmp_path / "rest", rest)
