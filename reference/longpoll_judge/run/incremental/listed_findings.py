"""Selects the findings that are listed while a history grows, so that each is listed when it is new.

A judgement of the whole history lists the earliest findings of each queue, property and verdict. A follower lists new
ones first, then a few of the earliest, then the latest. New findings beyond the limit are counted.

The command reports them; `tally` and `latest_values` keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from longpoll_judge.contract.causes import finding_order, identified
from longpoll_judge.contract.result import Finding, Gap
from longpoll_judge.run import queue_verdict
from longpoll_judge.run.tally import FIRST_KEPT

NOT_TOLD: Final = (
    "findings came with more than can be told one by one: judging the whole history counts them, at the end"
)
"""The end of the text of the gap that counts them."""
AT_THE_END: Final = "judging the whole history tells, at the end"
"""The end of the text of a gap about subjects that wait for the end."""


@define(eq=False)
class Picked:
    """Selects the listed findings from the known ones.

    Invariant: each certain finding that was ever known was listed, or `untold` counts it.
    """

    seen: set[str] = field(factory=set)
    """The names of all findings of the last call. A finding that is gone does not return."""
    untold: int = 0

    def pick(self, findings: list[Finding]) -> tuple[list[Finding], int]:
        """The listed findings in order, each with its name, and the number of the others."""
        named = identified(sorted(findings, key=finding_order))
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for finding in named:
            group = finding.property, finding.verdict, finding.topic, finding.queue
            groups.setdefault(group, []).append(finding)
        listed = {finding.id for group in groups.values() for finding in self._of_group(group)}
        rest = [finding for finding in named if finding.id not in listed]
        self.untold += sum(one.verdict == "violated" and one.id not in self.seen for one in rest)
        self.seen = {finding.id for finding in named}
        left_out = sum(1 + sum(each.count for each in finding.follows) for finding in rest)
        return [finding for finding in named if finding.id in listed], left_out

    def _of_group(self, group: Sequence[Finding]) -> Sequence[Finding]:
        """The listed findings of one group."""
        if len(group) <= queue_verdict.FINDINGS_MAX:
            return group
        fresh = [finding for finding in group if finding.id not in self.seen][FIRST_KEPT - queue_verdict.FINDINGS_MAX :]
        chosen = {finding.id for finding in (*fresh, *group[:FIRST_KEPT])}
        others = [finding for finding in group if finding.id not in chosen]
        latest = {finding.id for finding in others[len(others) - (queue_verdict.FINDINGS_MAX - len(chosen)) :]}
        return [finding for finding in group if finding.id in chosen or finding.id in latest]


def not_told(count: int) -> list[Gap]:
    """The gap that counts unlisted findings; none if all were listed."""
    return [Gap("not judged", "", count, f"{count} {NOT_TOLD}")] if count else []


def left_to_the_end(counts: Mapping[str, int]) -> list[Gap]:
    """The gaps about subjects that wait for the end, each with a count."""
    return [Gap("not judged", "", count, f"{what}: {AT_THE_END}") for what, count in counts.items() if count]


def what_is_left(gaps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The subjects that wait for the end, with their counts, from the gaps of a result."""
    end = f": {AT_THE_END}"
    return {str(gap["why"]).removesuffix(end): gap["count"] for gap in gaps if str(gap["why"]).endswith(end)}
