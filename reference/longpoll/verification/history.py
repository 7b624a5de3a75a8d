"""The history's rows: the recorded run is valid on Spark, and every planted fault in it is found.

A judge that calls everything valid would pass the first row alone; the faults are what makes that row count.
Leaves out the verdicts (`longpoll_judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from longpoll.verification.page import Outcome, Row, Stopwatch
from longpoll_judge.job import judge
from longpoll_judge.plant import plant
from longpoll_judge.result import Result

OUTCOMES: Final[dict[str, Outcome]] = {"valid": "ok", "invalid": "violated", "unknown": "unknown"}
PLANTED: Final = ("answer_deleted", "answer_delayed", "wake_delayed", "answer_duplicated", "next_wrong")


def judged(history: Path, say: Callable[[str], None]) -> tuple[Result, Sequence[Row]]:
    """Judge the recorded run on Spark."""
    watch = Stopwatch()
    result = judge([history], engine="spark", say=say)
    wake, late = result.latency["wake_ms"], result.latency["late_ms"]
    detail = (
        f"{result.events:,} events, {result.requests:,} pulls: {result.verdict}; "
        f"wake p50 {_ms(wake.p50)}, p99 {_ms(wake.p99)}, late p99 {_ms(late.p99)} "
        f"(limits {_limits(result)})"
    )
    if result.findings:
        first = result.findings[0]
        detail += f"; {first.property} {first.verdict}: {first.why}"
    elif result.gaps:
        detail += f"; {result.gaps[0]['why']}"
    return result, [Row("history", "recorded run, judged on Spark", OUTCOMES[result.verdict], detail, watch.lap())]


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} ms"


def _limits(result: Result) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {value:g} ms" for name, value in result.thresholds.items())


def faults_are_found(history: Path, scratch: Path) -> Sequence[Row]:
    """Plant each fault into a copy of the run; the judge must name it. Run with the local engine, which is quicker."""
    watch = Stopwatch()
    missed = []
    for name in PLANTED:
        directory = scratch / name
        fault = plant(history, name, directory)
        result = judge([directory], engine="local")
        found = {finding.property for finding in result.findings}
        if result.verdict != fault.verdict or not found or not found <= fault.properties:
            missed.append(f"{name} ({result.verdict}, {', '.join(sorted(found)) or 'no finding'})")
    detail = f"missed: {'; '.join(missed)}" if missed else f"{len(PLANTED)} of {len(PLANTED)}: {', '.join(PLANTED)}"
    return [Row("history", "planted faults are found", "violated" if missed else "ok", detail, watch.lap())]
