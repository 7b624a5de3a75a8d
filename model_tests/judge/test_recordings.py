"""Short parts of real recordings keep their verdicts and their rates of violations."""

from __future__ import annotations

from collections import Counter

import pytest
from model_tests.support.judge.histories import RECORDINGS

from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
from longpoll_judge.run import pipeline
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.page import render_html

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
def test_recordings_of_real_brokers_keep_their_verdicts(name: str, violated: dict[str, int]) -> None:
    result = judge([RECORDINGS / name], engine="local", wake_ms=WAKE_MS)
    assert Counter(finding.property for finding in result.findings) == violated
    assert {finding.verdict for finding in result.findings} <= {"violated"}
    assert (result.verdict, result.gaps) == ("invalid" if violated else "valid", [])


def test_unlisted_findings_count_in_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate counts all violations of a queue, even if the queue lists only one of them."""
    monkeypatch.setattr(pipeline, "FINDINGS_MAX", 1)
    result = judge([RECORDINGS / "java-4.9.7-late"], engine="local")
    assert result.findings_left_out > 0
    assert result.rates[ANSWERED_BY_DEADLINE].violated == 6


def test_real_recordings_have_rates_and_hints() -> None:
    """5.5.0 lost two wakeups, repaired by two scans 5 s apart. The page gives the rate and explains the race."""
    result = judge([RECORDINGS / "java-5.5.0-lost-wakeup"], engine="local", wake_ms=WAKE_MS)
    lost, late = result.rates[NO_LOST_WAKEUP], result.rates[ANSWERED_BY_DEADLINE]
    one, two = sorted(finding.window_end_ms for finding in result.findings)

    assert 4_900 < two - one < 5_200
    assert (lost.violated, late.violated) == (2, 0)
    assert all("#7358" in finding.why for finding in result.findings)
    assert "How often" in render_html(result)
