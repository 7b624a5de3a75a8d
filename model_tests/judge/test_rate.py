"""Rates and their intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_judge.contract.rate import MILLION, rate
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP
from longpoll_judge.run import verdict
from longpoll_judge.run.job import judge
from longpoll_judge.show.page.render import render_html

RECORDINGS = Path(__file__).with_name("recordings")


@given(st.integers(0, 10_000), st.integers(0, 10**9))
def test_a_rate_lies_in_its_interval(violated: int, more: int) -> None:
    """Between 0 and everything, and never outside its own bounds."""
    found = rate(violated, violated + more)
    assert 0 <= found.low <= found.per_million <= found.high <= MILLION


def test_known_intervals() -> None:
    """16 of 28,127, by the textbook's formula; none of a million still leaves four per million possible."""
    found = rate(16, 28_127)
    assert found.per_million == pytest.approx(568.8, abs=0.1)
    assert found.low == pytest.approx(350.2, abs=0.5)
    assert found.high == pytest.approx(923.9, abs=0.5)
    none = rate(0, MILLION)
    assert none.low == 0.0
    assert none.high == pytest.approx(3.84, abs=0.01)
    assert rate(0, 0).high == 0.0


def test_findings_left_out_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that lists only one of its findings still has its whole rate."""
    monkeypatch.setattr(verdict, "FINDINGS_MAX", 1)
    result = judge([RECORDINGS / "java-4.9.7-late"], engine="local")
    assert result.findings_left_out > 0
    assert result.rates[ANSWERED_BY_DEADLINE].violated == 6


def test_real_recordings_have_rates_and_hints() -> None:
    """The lost wakeups of 5.5.0, and what the race is called; a page and JSON carry the rate."""
    result = judge([RECORDINGS / "java-5.5.0-lost-wakeup"], engine="local", wake_ms=500)
    lost, late = result.rates[NO_LOST_WAKEUP], result.rates[ANSWERED_BY_DEADLINE]
    assert (lost.violated, late.violated) == (2, 0)
    assert lost.low > 0
    assert all("#7358" in finding.why for finding in result.findings)
    assert "How often" in render_html(result)
    assert json.dumps(lost.per_million)
