"""Histories that someone wrote from docs/history.md alone, each with its right verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from longpoll_judge.contract.result import NO_LOST_WAKEUP, Result
from longpoll_judge.run.job import judge

CASES: Final = Path(__file__).parent / "cases"
RIGHT: Final[dict[str, tuple[str, str]]] = {
    "acked_and_gone": ("unknown", "pull.min.kept"),
    "batch_torn": ("invalid", "send.batch.gapless"),
    "busy_below_limit": ("valid", ""),
    "delivered_then_denied": ("invalid", "pull.max.never_falls"),
    "expired_twice": ("invalid", "pull.take.once"),
    "found_at_max": ("invalid", "pull.found.within"),
    "illegal_held": ("invalid", "pull.unheld.prompt"),
    "kept_after_run": ("invalid", "pull.take.once"),
    "kept_twice": ("invalid", "pull.take.once"),
    "log_lost_by_orderly_restart": ("unknown", "pull.max.never_falls"),
    "min_acked_twice_two_sources": ("invalid", "send.sequential"),
    "min_falls_other_connection": ("invalid", "pull.min.never_falls"),
    "min_mayhold_left_out": ("unknown", ""),
    "min_pull_commits_lower": ("valid", ""),
    "min_removing_20": ("unknown", "pull.passed.none_match"),
    "min_removing_found": ("unknown", "pull.found.complete"),
    "min_slow_immediate": ("unknown", "pull.unheld.prompt"),
    "next_negative": ("invalid", "pull.none.next"),
    "passed_beyond_max": ("invalid", "pull.found.within"),
    "passed_beyond_seen": ("invalid", "pull.max.never_falls"),
    "refuses_nearly_all": ("unknown", "evidence.not_judged"),
    "removed_between_20": ("unknown", "pull.filter.agrees"),
    "removed_between_found": ("unknown", "pull.filter.agrees"),
    "retention-4.9.7-commit": ("unknown", "evidence.excerpt"),
    "retention-4.9.7-found": ("unknown", "pull.found.complete"),
    "run_twice": ("invalid", "pull.take.once"),
    "same_filter_disagrees": ("invalid", "pull.filter.agrees"),
    "same_filter_gap": ("invalid", "pull.filter.agrees"),
    "scan_takes_expired": ("valid", ""),
    "send_answered_19": ("invalid", "send.code.known"),
    "send_slow": ("unknown", "send.answered"),
    "sends_inverted_two_sources": ("invalid", "send.sequential"),
    "take_without_hold": ("invalid", "pull.step.held"),
    "taken_after_expiry": ("invalid", "pull.take.once"),
    "taken_twice": ("invalid", "pull.take.once"),
}
"""Of each folder the verdict, and a clause that the report names."""


def clauses(result: Result) -> set[str]:
    """What findings and gaps rest on."""
    return {told.clause for finding in result.findings for told in finding.told()} | {
        str(gap["clause"]) for gap in result.gaps
    }


@pytest.mark.parametrize("name", RIGHT)
def test_an_outsider_s_history_has_its_verdict(name: str) -> None:
    """No legal one is invalid, no wrong one valid without a clause that names it."""
    verdict, clause = RIGHT[name]
    result = judge([CASES / name], engine="local")
    assert result.verdict == verdict, (result.findings, result.gaps)
    assert not clause or clause in clauses(result)


def test_a_slow_read_is_no_lost_wakeup() -> None:
    """The pull was never held: the finding says so, and the rate counts no wake."""
    result = judge([CASES / "min_slow_immediate"], engine="local")
    (finding,) = result.findings
    assert finding.property != NO_LOST_WAKEUP
    assert "slowly" in finding.why
    assert (result.rates[NO_LOST_WAKEUP].violated, result.rates[NO_LOST_WAKEUP].of) == (0, 0)
