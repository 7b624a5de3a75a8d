"""The row of the clauses: replays recorded conversations at a named broker, if its policy is a recorded version.

`longpoll conform` also shows the differing bytes.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from longpoll.verification.report import Outcome, Row, Stopwatch
from longpoll_conform.capabilities import VERSIONS
from longpoll_conform.connection import SilentError
from longpoll_conform.play import Place
from longpoll_conform.suite import OUTCOMES, Result, Suite, by_clause
from longpoll_conform.vectors import recorded
from longpoll_runtime import Address

WHAT: Final = "recorded conversations"
NAME_SERVER_PORT: Final = 9876


def conversations(
    broker: Address,
    name_server: Address | None,
    policy: str,
    progress: Callable[[int, int], None],
    *,
    scans: bool,
) -> Sequence[Row]:
    """Play every vector of a preset's version; `scans` says whether a scan checks deadlines."""
    if policy not in VERSIONS:
        return [Row("clauses", WHAT, "skipped", f"there are no recordings of a broker with the policy {policy}")]
    watch = Stopwatch()
    place = Place(broker, name_server or (broker[0], NAME_SERVER_PORT))
    suite = Suite(place, policy, secrets.token_hex(4), scans, makes_smaller=False)
    vectors, played = recorded(VERSIONS[policy]), Counter[str]()

    def told(result: Result) -> None:
        played[result.outcome] += 1
        progress(played.total(), len(vectors))

    suite.told = told
    try:
        suite.find()
        results = suite.run(vectors)
    except SilentError as error:
        return [Row("clauses", WHAT, "unknown", str(error), watch.lap())]
    outcome, detail = seen(results, suite.silenced_by)
    return [Row("clauses", f"{WHAT} of {VERSIONS[policy]}", outcome, detail, watch.lap())]


def seen(results: Sequence[Result], silenced_by: Sequence[str]) -> tuple[Outcome, str]:
    """The outcome and the sentence for a run's results."""
    clauses = by_clause(results)
    counts = Counter(clauses.values())
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    failed = [result for result in results if result.outcome == "FAIL"]
    detail = f"{len(clauses)} clauses: {told}"
    if silenced_by:
        detail += f"; it stopped responding after {silenced_by[0]}"
    if failed:
        first = failed[0]
        return (
            "violated",
            f"{detail}; first {first.clause.id} ({first.vector.id}): {first.why}; see `longpoll conform` for details",
        )
    return "ok" if counts["PASS"] and not silenced_by else "unknown", detail
