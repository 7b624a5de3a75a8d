"""Finds which properties a policy does not promise, derives time limits, and applies both to a judge's result.

A policy does not promise a property that the specification finds violated. If a policy does not promise
`no_lost_wakeup` or `answered_by_deadline`, an answer may be late by the policy's own fallback: one scan period if the
policy scans, else the time to the pull's deadline. A later answer is still a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen

from longpoll.wire.load import BY_REQUESTS, LONG_MS
from longpoll_broker.config import BrokerConfig
from longpoll_judge.contract.result import (
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    COMMIT_NEVER_REGRESSES,
    NO_LOST_WAKEUP,
    Finding,
    Result,
    overall,
)
from longpoll_judge.run.pipeline import LATE_MS, WAKE_MS, judge
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.survey import survey
from longpoll_spec.findings import FACTS
from longpoll_spec.policy import Policy

OF_BOTH: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE, ANSWERED_ON_STOP, COMMIT_NEVER_REGRESSES)
"""Properties that a policy may lack, with the same name in the specification and in the judge."""
TIMELY: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE)
SCAN_DRIFT: Final = 1.1
"""Limits allow this multiple of a scan period, because a period starts at the end of the last scan: RocketMQ's 5 s were
measured as 5.0 to 5.3 s."""
ECHOES: Final = 2
"""The limits are raised by this multiple of the slowest echo (answer to a small request), because a wakeup has to
switch threads twice as often as an echo."""

COARSE_MS: Final = 1_000
"""If the slowest answer to a small request takes longer than this, the test does not show that the broker is prompt."""


@frozen
class Limits:
    """How late a broker may answer a held pull, in milliseconds."""

    wake_ms: float
    late_ms: float
    are_coarse: bool = False
    """Whether small requests took so long that even a broker within these limits may not be prompt."""

    def __str__(self) -> str:
        return f"wake {self.wake_ms:g} ms, late {self.late_ms:g} ms"


@frozen
class Declared:
    """What is known about a policy before its broker is tested."""

    policy: Policy
    broken: Mapping[str, tuple[str, ...]]
    """The properties of `OF_BOTH` that the specification finds violated, with the letters of the findings."""
    scan_ms: int
    """The period of the policy's scan in milliseconds; 0 if the policy watches each deadline."""

    @property
    def most(self) -> Limits:
        """The longest delay of an answer that the policy's races and scan may cause."""
        remedy_ms = self.scan_ms * SCAN_DRIFT if self.scan_ms else LONG_MS
        return Limits(
            wake_ms=remedy_ms if NO_LOST_WAKEUP in self.broken else 0,
            late_ms=self.scan_ms * SCAN_DRIFT if ANSWERED_BY_DEADLINE in self.broken else 0,
        )

    def name_of(self, name: str) -> str:
        """A property that is not promised, with its findings: `no_lost_wakeup (a, b)`."""
        letters = ", ".join(self.broken[name])
        return f"{name} ({letters})" if letters else name


def declared(policy: Policy) -> Declared:
    """Return the promises of a policy: from a tested table for a preset, else by exploring the specification."""
    if policy.name in FACTS:
        broken = {name: letters for name, letters in FACTS[policy.name].items() if name in OF_BOTH}
    else:
        found = survey(
            policy,
            named("tiny", policy),
            lambda model, properties, _asked: explore(model, properties, engine="packed"),
            names=OF_BOTH,
            alone=False,
        )
        broken = {row.verdict.name: () for row in found.rows if row.verdict.verdict == "violated"}
    return Declared(policy, broken, BrokerConfig().scan_period_ms if policy.expiry == "scan" else 0)


def limits_of(echo_ms: float) -> Limits:
    """The judge's own limits plus the time of the slowest echoes."""
    slack_ms = ECHOES * echo_ms
    return Limits(round(WAKE_MS + slack_ms, 1), round(LATE_MS + slack_ms, 1), are_coarse=echo_ms > COARSE_MS)


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
    """Whether the policy permits a finding and its consequences.

    Only a pull that carries an older offset may set an offset back. Therefore no offset may go back in a group whose
    pulls carry no offset.
    """
    is_unexplained = finding.property == COMMIT_NEVER_REGRESSES and finding.group in BY_REQUESTS
    return not is_unexplained and all(one.property in known.broken for one in finding.told())


def most_of(known: Declared, limits: Limits) -> Limits:
    """The limits plus the time that the policy's races and scan may take."""
    return Limits(round(limits.wake_ms + known.most.wake_ms, 1), round(limits.late_ms + known.most.late_ms, 1))


def _excused(found: Result, broken: Sequence[Finding], still: Sequence[Finding]) -> Counter[str]:
    """Count the permitted violations of each property: those in `broken` without those in `still`."""
    counts = Counter(finding.property for finding in broken)
    counts.update(each.property for finding in broken for each in finding.follows for _one in range(each.count))
    for name in TIMELY:
        if counts[name]:
            counts[name] = max(counts[name], found.rates[name].violated if name in found.rates else 0)
    counts.subtract(finding.property for finding in still)
    return +counts
