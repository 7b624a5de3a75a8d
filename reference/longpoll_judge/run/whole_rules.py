"""The rules that need the whole record: sends and messages, ends that fall, committed offsets.

Each is one task, which reads the slices itself: in this process, or on an executor (`job.Reading.outcomes`). So on
Spark the driver holds their findings, and none of the events that they gather.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import field, frozen

from longpoll_judge.contract.result import Finding, Gap, Share
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.source import History
from longpoll_judge.rules.across import Tables
from longpoll_judge.rules.commits import judge_commits
from longpoll_judge.rules.falls import judge_falls
from longpoll_judge.rules.sends import judge_sends

SENDS: Final = "sends"
FALLS: Final = "falls"
COMMITS: Final = "commits"
NO_SHARE: Final = Share(0, 0)


@frozen
class Outcome:
    """What a rule finds in a history."""

    findings: list[Finding]
    left_out: int = 0
    """Findings that are not listed."""
    share: Share = NO_SHARE
    gaps: list[Gap] = field(factory=list)


Rule = Callable[[Tables, Context], Outcome]


def rules_of(history: History, survey: Survey) -> dict[str, Rule]:
    """The rules that have anything to judge in a history, by name."""
    rules: dict[str, Rule] = {}
    seen = survey.attendance
    if seen.acknowledged or seen.sends or seen.identified:
        rules[SENDS] = _of_sends
    if seen.min_least < seen.min_most or not survey.answered <= survey.shown:
        rules[FALLS] = _of_falls
    if survey.offset_queries or survey.offset_updates:
        rules[COMMITS] = partial(_of_commits, history)
    return rules


def _of_sends(tables: Tables, context: Context) -> Outcome:
    findings, left_out, share, gaps = judge_sends(tables, context)
    return Outcome(findings, left_out, share, gaps)


def _of_falls(tables: Tables, context: Context) -> Outcome:
    findings, left_out = judge_falls(tables, context)
    return Outcome(findings, left_out)


def _of_commits(history: History, _tables: Tables, context: Context) -> Outcome:
    # It reads the slices by itself, with a few of their columns.
    findings, share, gaps = judge_commits(history, context)
    return Outcome(findings, share=share, gaps=gaps)
