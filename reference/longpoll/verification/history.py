"""The rows of the history: the recorded run is valid for its policy, and the judge finds every injected fault.

If the policy does not promise a property, its races and its scan may delay an answer up to a limit. A later answer is
still a violation. The injected faults show that the judge does not call every history valid. The verdicts come from
`longpoll_judge`, the policy's promises from `limits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from longpoll.verification.limits import OF_BOTH, Declared, Limits
from longpoll.verification.report import Outcome, Row, Stopwatch
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, NO_LOST_WAKEUP, Finding, Result, overall
from longpoll_judge.faults import ALLOWANCE_MS, WAKE_DELAY_MS, plant
from longpoll_judge.run.pipeline import judge

OUTCOMES: Final[dict[str, Outcome]] = {"valid": "ok", "invalid": "violated", "unknown": "unknown"}
PLANTED: Final = ("answer_deleted", "answer_delayed", "wake_delayed", "answer_duplicated", "next_wrong")
FAULTS_FOUND: Final = "planted faults are found"
TIMELY: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE)


def judged(history: Path, known: Declared, limits: Limits, say: Callable[[str], None]) -> tuple[Result, Sequence[Row]]:
    """Judge the recorded run on Spark, by the promises of the broker's declared policy."""
    watch = Stopwatch()
    found = judge([history], engine="spark", wake_ms=limits.wake_ms, late_ms=limits.late_ms, say=say)
    result, excused = by_promises(found, history, known, limits)
    outcome = OUTCOMES[result.verdict]
    if outcome == "ok" and not result.requests:
        outcome = "unknown"  # nothing was judged
    detail = _detail(result)
    if outcome == "ok" and limits.are_coarse and not set(TIMELY) <= known.broken.keys():
        outcome = "unknown"
        detail += "; the host was too slow to measure promptness; set --wake-ms and --late-ms"
    rows = [Row("history", "recorded run, judged on Spark", outcome, detail, watch.lap())]
    if excused:
        what = f"not promised by {known.policy.name}"
        detail = f"{_counted(excused, known)}, as the policy declares: within {most_of(known, limits)}"
        rows.append(Row("history", what, "ok", detail))
    return result, rows


def by_promises(
    found: Result, history: Path, known: Declared, limits: Limits
) -> tuple[Result, Sequence[tuple[str, int]]]:
    """The result without behaviour that the policy permits, and how often each permitted violation was seen.

    A late answer is checked again with the time that the policy's own fallback may take.
    """
    broken = [finding for finding in found.findings if _is_of(finding, known)]
    if not broken:
        return found, []
    longer = most_of(known, limits)
    again = judge([history], engine="local", wake_ms=longer.wake_ms, late_ms=longer.late_ms)
    still = [finding for finding in again.findings if _is_of(finding, known) and finding.property in TIMELY]
    kept = [finding for finding in found.findings if not _is_of(finding, known)]
    findings = sorted(still + kept, key=lambda finding: (finding.verdict != "violated", finding.window_start_ms))
    result = msgspec.structs.replace(
        found,
        findings=findings,
        verdict="unknown" if found.gaps and overall(findings, ()) == "valid" else overall(findings, ()),
        thresholds=found.thresholds | {f"declared_{name}": getattr(longer, name) for name in ("wake_ms", "late_ms")},
    )
    return result, sorted(_excused(found, broken, still).items())


def _is_of(finding: Finding, known: Declared) -> bool:
    """Whether a finding and its consequences are behaviour that the policy permits."""
    return all(one.property in known.broken for one in finding.told())


def most_of(known: Declared, limits: Limits) -> Limits:
    """The limits plus the time that the policy's races and scan may take."""
    return Limits(round(limits.wake_ms + known.most.wake_ms, 1), round(limits.late_ms + known.most.late_ms, 1))


def _excused(found: Result, broken: Sequence[Finding], still: Sequence[Finding]) -> Counter[str]:
    """The violations and possible violations by property, less the remaining findings."""
    counts = Counter(finding.property for finding in broken)
    counts.update(each.property for finding in broken for each in finding.follows for _one in range(each.count))
    for name in TIMELY:
        if counts[name]:
            counts[name] = max(counts[name], found.rates[name].violated if name in found.rates else 0)
    counts.subtract(finding.property for finding in still)
    return +counts


def _counted(excused: Sequence[tuple[str, int]], known: Declared) -> str:
    assert {name for name, _count in excused} <= set(OF_BOTH)
    return ", ".join(f"{known.name_of(name)} {count} times" for name, count in excused)


def _detail(result: Result) -> str:
    wake, late = result.latency["wake_ms"], result.latency["late_ms"]
    detail = (
        f"{result.events:,} events, {result.requests:,} pulls: {result.verdict}; "
        f"wake p50 {_ms(wake.p50)}, p99 {_ms(wake.p99)}, late p99 {_ms(late.p99)} "
        f"(limits {_limits(result)})"
    )
    if result.findings:
        first = result.findings[0]
        detail += f"; {first.property} {first.verdict}: {first.why}{_others(result)}"
    elif result.gaps:
        detail += f"; {result.gaps[0]['why']}"
    return detail


def _others(result: Result) -> str:
    """The violated properties, except that of the first finding."""
    others: dict[str, None] = {}
    for finding in result.findings:
        others |= dict.fromkeys([finding.property] if finding.verdict == "violated" else [])
        others |= dict.fromkeys(each.property for each in finding.follows if each.verdict == "violated")
    others.pop(result.findings[0].property, None)
    return f"; also violated: {', '.join(others)}" if others else ""


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} ms"


def _limits(result: Result) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {value:g} ms" for name, value in result.thresholds.items())


def faults_are_found(history: Path, limits: Limits, scratch: Path) -> Sequence[Row]:
    """Inject each fault into a copy of the run; the judge must report it. Uses the local engine, which is faster.

    The limits are at most half of the faults' delay, because wider ones would hide them.
    """
    watch = Stopwatch()
    limits = Limits(min(limits.wake_ms, WAKE_DELAY_MS / 2), min(limits.late_ms, ALLOWANCE_MS / 2))

    def judge_locally(directory: Path) -> Result:
        return judge([directory], engine="local", wake_ms=limits.wake_ms, late_ms=limits.late_ms)

    clean = judge_locally(history)
    if clean.verdict != "valid":
        why = f"the recorded run is {clean.verdict} with {limits}, so injected faults would show nothing"
        return [Row("history", FAULTS_FOUND, "skipped", why, watch.lap())]
    missed = []
    for name in PLANTED:
        directory = scratch / name
        fault = plant(history, name, directory)
        result = judge_locally(directory)
        found = {one.property for finding in result.findings for one in finding.told()}
        if result.verdict != fault.verdict or not found or not found <= fault.properties:
            missed.append(f"{name} ({result.verdict}, {', '.join(sorted(found)) or 'no finding'})")
    detail = f"missed: {'; '.join(missed)}" if missed else f"{len(PLANTED)} of {len(PLANTED)}: {', '.join(PLANTED)}"
    return [Row("history", FAULTS_FOUND, "violated" if missed else "ok", detail, watch.lap())]
