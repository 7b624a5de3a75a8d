"""What can be said of a history that is still written: the verdict so far, and up to where.

A record that goes on has no end yet, and its held pulls have no answers. A judgement of it as if it were complete is
`unknown` for these two reasons alone; here they are told apart from evidence that is missing for good. Whatever else is
unknown stays so: a record that breaks off in two sources may be one that was restarted, and the first a broker that was
killed. Leaves out the judging (`longpoll_judge.run.follow`).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from attrs import frozen

from longpoll_judge.contract.result import Result
from longpoll_judge.run.growing.told import NOT_TOLD
from longpoll_judge.run.verdict import NOTE_OPEN

StandingVerdict = Literal["invalid", "valid so far", "unknown"]
STANDING_VERDICTS: Final = ("invalid", "valid so far", "unknown")
SOURCE_END: Final = "source end"


@frozen
class Standing:
    """The verdict so far."""

    verdict: StandingVerdict
    events: int
    """How many were judged."""
    open_pulls: int
    """Those that may still be answered, of which nothing is said."""
    why: str
    """What keeps it from being `valid so far`; empty where nothing does."""
    not_told: int = 0
    """Certain findings that came with too many others to be told one by one."""

    def sentence(self) -> str:
        """As it is told to people."""
        still_open = f"; {self.open_pulls} pulls are still open" if self.open_pulls else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict} up to event {self.events}{why}{still_open}"


def standing(result: Result) -> Standing:
    """What a judgement of what there is so far says of a record that goes on."""
    open_pulls = sum(gap["count"] for gap in result.gaps if _is_open_pulls(gap))
    not_told = sum(gap["count"] for gap in result.gaps if str(gap["why"]).endswith(NOT_TOLD))
    violated = [finding for finding in result.findings if finding.verdict == "violated"]
    if violated:
        many = f"{len(violated)} findings, the first is {violated[0].clause}" if violated[1:] else violated[0].clause
        return Standing("invalid", result.events, open_pulls, many, not_told)
    lacking = _lacking(result)
    return Standing("unknown" if lacking else "valid so far", result.events, open_pulls, lacking, not_told)


def _lacking(result: Result) -> str:
    """The first thing that is unknown for another reason than that the record goes on; empty where there is none."""
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
