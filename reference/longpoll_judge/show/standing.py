"""The verdict so far on a history that is still written, and the event up to which it applies.

A growing record has no end yet, and its held pulls have no answers. If the record were judged as complete, the verdict
would be `unknown` for these two reasons. This module separates the two reasons from evidence that is permanently
missing. The verdict stays `unknown` if two sources have no end, because the broker of the first source may have been
killed. `longpoll_judge.run.follow` judges the history.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from attrs import frozen

from longpoll_judge.contract.result import Result
from longpoll_judge.kernel.verdict import NOTE_OPEN
from longpoll_judge.run.tally import NOT_TOLD

StandingVerdict = Literal["invalid", "valid so far", "unknown"]
STANDING_VERDICTS: Final = ("invalid", "valid so far", "unknown")
SOURCE_END: Final = "source end"


@frozen
class Standing:
    """The verdict so far on a growing history, with its reason."""

    verdict: StandingVerdict
    events: int
    """The number of judged events."""
    open_pulls: int
    """The number of pulls that may still be answered and are not judged yet."""
    why: str
    """The reason why the verdict is not `valid so far`; empty if the verdict is `valid so far`."""
    not_told: int = 0
    """The number of violations that are not listed."""

    def sentence(self) -> str:
        """Returns the verdict so far as a sentence for the user."""
        still_open = f"; {self.open_pulls} pulls are still open" if self.open_pulls else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict} up to event {self.events}{why}{still_open}"


def standing(result: Result) -> Standing:
    """Derive the verdict so far from the result of judging a growing record."""
    open_pulls = sum(gap["count"] for gap in result.gaps if _is_open_pulls(gap))
    not_told = sum(gap["count"] for gap in result.gaps if str(gap["why"]).endswith(NOT_TOLD))
    violated = [finding for finding in result.findings if finding.verdict == "violated"]
    if violated:
        many = f"{len(violated)} findings, the first is {violated[0].clause}" if violated[1:] else violated[0].clause
        return Standing("invalid", result.events, open_pulls, many, not_told)
    lacking = _lacking(result)
    return Standing("unknown" if lacking else "valid so far", result.events, open_pulls, lacking, not_told)


def _lacking(result: Result) -> str:
    """Returns the first gap in the evidence that the record's growth does not explain, or an empty text."""
    if result.findings:
        return f"{result.findings[0].clause}: {result.findings[0].why}"
    unfinished = [gap for gap in result.gaps if gap["kind"] == SOURCE_END and gap["count"] == 0]
    others = [gap for gap in result.gaps if gap not in unfinished and not _is_open_pulls(gap)]
    if others:
        return str(others[0]["why"])
    if len(unfinished) > 1:
        return f"{len(unfinished)} sources have no end, and the record does not tell which of them go on"
    return ""


def _is_open_pulls(gap: dict[str, Any]) -> bool:
    return str(gap["why"]).endswith(NOTE_OPEN)
