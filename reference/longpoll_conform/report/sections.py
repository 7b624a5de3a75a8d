"""A run in three sections: differences from RocketMQ, bugs of RocketMQ in the broker, untested clauses.

Clauses are counted, not vectors. The denominator has only tested clauses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import frozen

from longpoll_conform.clauses import BY_ID
from longpoll_conform.report.bugs import bug_of, bug_of_run
from longpoll_conform.suite import OUTCOMES, Outcome, Result, Suite, by_clause
from longpoll_conform.vectors import Vector


@frozen
class Difference:
    """A clause that differs from RocketMQ's recorded behaviour."""

    clause: str
    outcome: Outcome
    sentence: str
    seen: str


@frozen
class Bug:
    """A bug of RocketMQ that some clause shows."""

    clause: str
    outcome: Outcome
    is_there: bool
    """Whether this broker has it."""
    bug: str
    seen: str
    """The evidence for or against it."""


@frozen
class Sections:
    """The sections; each clause's worst vector decides, and comes first."""

    counts: Counter[Outcome]
    """Clauses by their outcome."""
    differences: tuple[Difference, ...]
    bugs: tuple[Bug, ...]
    untested: dict[str, tuple[str, ...]]
    """Reason -> the clauses that were not tested for it."""

    @property
    def tested(self) -> int:
        """The denominator: clauses that were tested."""
        return self.counts.total() - self.counts["UNTESTED"]

    @property
    def text(self) -> str:
        """The counts in one line."""
        shown = ", ".join(
            f"{self.counts[each]} {each}" for each in OUTCOMES if each != "UNTESTED" and self.counts[each]
        )
        untested = self.counts["UNTESTED"]
        verb = "is" if untested == 1 else "are"
        more = f"; {untested} more {verb} UNTESTED and not counted" if untested else ""
        return f"{self.tested} clauses tested: {shown or 'none'}{more}"


def sections(suite: Suite, results: Sequence[Result]) -> Sections:
    """Sort the results by clause."""
    clauses = by_clause(results)
    differences: list[Difference] = []
    bugs: list[Bug] = []
    untested: dict[str, tuple[str, ...]] = {}
    for name, outcome in clauses.items():
        mine = [result for result in results if result.clause.id == name and result.outcome == outcome]
        known = [(result, bug) for result in mine if (bug := _bug_of(suite, result)) is not None]
        first = mine[0]
        if outcome == "UNTESTED":
            untested[first.why] = (*untested.get(first.why, ()), name)
        elif outcome in {"PASS", "NON-STRICT"} and known and (outcome == "PASS" or len(known) == len(mine)):
            result, bug = known[0]
            if outcome == "NON-STRICT" or isinstance(result.vector, Vector):
                bugs.append(Bug(name, outcome, _has_it(result), bug, _seen(result)))
        elif outcome != "PASS":
            differences.append(Difference(name, outcome, BY_ID[name].sentence, _seen(first)))
    return Sections(Counter(clauses.values()), tuple(differences), tuple(bugs), untested)


def _bug_of(suite: Suite, result: Result) -> str | None:
    shown = result.vector
    return bug_of(shown.version, shown.id) if isinstance(shown, Vector) else bug_of_run(suite.policy, shown.id)


def _has_it(result: Result) -> bool:
    """A recorded bug is present if the answer is the recorded one; a load or race shows it by lateness."""
    return (result.outcome == "PASS") == isinstance(result.vector, Vector)


def _seen(result: Result) -> str:
    return f"{result.vector.id}: {result.why or 'answered as recorded'}"
