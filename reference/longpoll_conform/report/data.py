"""A run as JSON: every result with its differences and every byte of its conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from longpoll_conform.capabilities import Identity
from longpoll_conform.report.badge import badge
from longpoll_conform.report.conversation import meaning
from longpoll_conform.report.sections import sections
from longpoll_conform.suite import OUTCOMES, Result, Suite, by_clause
from longpoll_conform.vectors import FORMAT


def as_json(suite: Suite, results: Sequence[Result], identity: Identity) -> dict[str, Any]:
    """The whole run; lists of results are in the order of the vectors."""
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    found = sections(suite, results)
    return {
        "format": FORMAT,
        "broker": f"{suite.place.broker[0]}:{suite.place.broker[1]}",
        "policy": suite.policy,
        "policy_chosen": {"by": identity.how, "why": identity.why, "version": identity.version or None},
        "capabilities": sorted(suite.capabilities),
        "counts": {outcome: counts.get(outcome, 0) for outcome in OUTCOMES},
        "tested": found.tested,
        "rocketmq_bugs": [
            {"clause": each.clause, "bug": each.bug, "is_there": each.is_there, "seen": each.seen}
            for each in found.bugs
        ],
        "badge": badge(suite.policy, results),
        "silenced_by": suite.silenced_by,
        "clauses": clauses,
        "results": [result_json(result) for result in results],
    }


def result_json(result: Result) -> dict[str, Any]:
    """One vector's."""
    return {
        "vector": result.vector.id,
        "title": result.vector.title,
        "clause": result.clause.id,
        "level": result.clause.level,
        "outcome": result.outcome,
        "why": result.why,
        "seconds": round(result.seconds, 3),
        "differences": [
            {"where": each.where, "expected": each.expected, "got": each.got} for each in result.differences
        ],
        "left_out": result.left_out,
        "conversation": [
            {"at_ms": one.at_ms, "line": one.line, "way": one.way, "means": meaning(one), "hex": one.content.hex()}
            for one in result.spoken
        ],
    }
