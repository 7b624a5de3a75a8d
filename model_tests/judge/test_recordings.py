"""Short pieces of real recordings, made by `longpoll observe` before real brokers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from model_tests.judge.cut_recording import cut

from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
from longpoll_judge.run.job import judge
from longpoll_judge.testing.recording import load

RECORDINGS = Path(__file__).with_name("recordings")
WAKE_MS = 500.0


@pytest.mark.parametrize(
    ("name", "violated"),
    [
        ("java-4.9.7-lost-wakeup", {NO_LOST_WAKEUP: 1}),
        ("java-5.5.0-lost-wakeup", {NO_LOST_WAKEUP: 2}),
        ("java-4.9.7-late", {ANSWERED_BY_DEADLINE: 6}),
        ("strict", {}),
    ],
)
def test_real_brokers_keep_their_verdicts(name: str, violated: dict[str, int]) -> None:
    """Each finding is certain and named; nothing else is said, and no evidence is missing."""
    result = judge([RECORDINGS / name], engine="local", wake_ms=WAKE_MS)
    assert Counter(finding.property for finding in result.findings) == violated
    assert {finding.verdict for finding in result.findings} <= {"violated"}
    assert (result.verdict, result.gaps) == ("invalid" if violated else "valid", [])


def test_a_lost_wakeup_ends_at_the_scan() -> None:
    """The two that 5.5.0 lost one after the other were answered 5 s apart: by two ticks of its scan."""
    result = judge([RECORDINGS / "java-5.5.0-lost-wakeup"], engine="local", wake_ms=WAKE_MS)
    one, two = sorted(finding.window_end_ms for finding in result.findings)
    assert 4_900 < two - one < 5_200


def test_cutting_keeps_a_finding_and_drops_the_rest() -> None:
    """A piece of one exchange to each side is numbered from 0 and judged as the whole was."""
    recording = load(RECORDINGS / "java-4.9.7-lost-wakeup")
    request = judge([RECORDINGS / "java-4.9.7-lost-wakeup"], engine="local", wake_ms=WAKE_MS).findings[0].request
    asked = next(event for event in recording.events if event.request == request)
    events = cut(recording, asked.topic, asked.queue, request, 1)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [event.event for event in events].count("request_received") == 3
    assert (events[0].event, events[-1].event) == ("source_started", "source_stopped")
