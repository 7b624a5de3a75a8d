"""Which findings are listed while a history grows, so that each of them is listed when it is new.

A judgement of the whole lists the earliest of each queue, property and verdict. Who follows a history for weeks would
hear of no others then, so here those that are new go before, then a few of the earliest, then the latest. What is new
and not listed, since too much came at once, is counted.

Leaves out who is told (the command), and what is kept to be listed (`tally`, `latest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from longpoll_judge.contract.causes import finding_order
from longpoll_judge.contract.identity import identified
from longpoll_judge.contract.result import Finding, Gap
from longpoll_judge.run import verdict
from longpoll_judge.run.tally import FIRST_KEPT

NOT_TOLD: Final = (
    "findings came with more than can be told one by one: judging the whole history counts them, at the end"
)
"""How the gap ends that counts them."""
AT_THE_END: Final = "judging the whole history tells, at the end"
"""How a gap ends that says what cannot be told before."""


@define(eq=False)
class Picked:
    """What was picked to be listed, of whatever was at hand.

    Invariant: of each certain finding that was ever at hand, either it was listed, or `untold` counts it.
    """

    seen: set[str] = field(factory=set)
    """The names of all findings that were at hand the last time: what is not at hand any more does not come again."""
    untold: int = 0

    def pick(self, findings: list[Finding]) -> tuple[list[Finding], int]:
        """The findings that are listed, in order, each with its name; and how much is not among them."""
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
        """Those of one group that are listed."""
        if len(group) <= verdict.FINDINGS_MAX:
            return group
        fresh = [finding for finding in group if finding.id not in self.seen][FIRST_KEPT - verdict.FINDINGS_MAX :]
        chosen = {finding.id for finding in (*fresh, *group[:FIRST_KEPT])}
        others = [finding for finding in group if finding.id not in chosen]
        latest = {finding.id for finding in others[len(others) - (verdict.FINDINGS_MAX - len(chosen)) :]}
        return [finding for finding in group if finding.id in chosen or finding.id in latest]


def not_told(count: int) -> list[Gap]:
    """What says that there is more than was told; nothing where there is not."""
    return [Gap("not judged", "", count, f"{count} {NOT_TOLD}")] if count else []


def left_to_the_end(counts: Mapping[str, int]) -> list[Gap]:
    """What says that something is told at the end only, each with how often."""
    return [Gap("not judged", "", count, f"{what}: {AT_THE_END}") for what, count in counts.items() if count]


def what_is_left(gaps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """What is told at the end only, and how often, of the gaps of a result."""
    end = f": {AT_THE_END}"
    return {str(gap["why"]).removesuffix(end): gap["count"] for gap in gaps if str(gap["why"]).endswith(end)}
