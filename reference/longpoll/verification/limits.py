"""Computes what a policy does not promise, and the time limits that follow.

A property that the specification finds violated is not promised. Without the two properties of time, a wake or a
time-out may be late by the policy's own fallback: one scan period if it scans, else the pull's deadline. `.history` and
`.broker` use these limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from longpoll.wire.load import LONG_MS
from longpoll_broker.config import BrokerConfig
from longpoll_judge.contract.result import (
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    COMMIT_NEVER_REGRESSES,
    NO_LOST_WAKEUP,
)
from longpoll_judge.run.pipeline import LATE_MS, WAKE_MS
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.survey import survey
from longpoll_spec.findings import FACTS
from longpoll_spec.policy import Policy

OF_BOTH: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE, ANSWERED_ON_STOP, COMMIT_NEVER_REGRESSES)
"""Properties with the same name in specification and judge that a policy may lack."""
SCAN_DRIFT: Final = 1.1
"""A scan's period starts at the end of the last scan: RocketMQ's 5 s were measured as 5.0 to 5.3."""
ECHOES: Final = 2
"""The extra time for a broker, as a multiple of the slowest echo: a wake crosses threads about twice as often."""

COARSE_MS: Final = 1_000
"""A broker that may take this long for the smallest request was not shown to be prompt."""


@frozen
class Limits:
    """How late a held pull may be answered, ms."""

    wake_ms: float
    late_ms: float
    are_coarse: bool = False
    """Echoes took so long that keeping these limits does not show a promise of promptness."""

    def __str__(self) -> str:
        return f"wake {self.wake_ms:g} ms, late {self.late_ms:g} ms"


@frozen
class Declared:
    """The known facts of a policy, before its broker is tested."""

    policy: Policy
    broken: Mapping[str, tuple[str, ...]]
    """The properties of `OF_BOTH` that the specification finds violated, with the letters of the findings."""
    scan_ms: int
    """Its scan's period; 0 if it watches deadlines individually."""

    @property
    def most(self) -> Limits:
        """How much its races and its scan may delay an answer."""
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
    """The promises of a policy: for a preset from a tested table, else by exploring the specification."""
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


def limits_of(echo_ms: float, *, wake_ms: float | None, late_ms: float | None) -> Limits:
    """The given limits, else the judge's own plus the time of the slowest echoes."""
    slack_ms = ECHOES * echo_ms
    return Limits(
        are_coarse=echo_ms > COARSE_MS and None in {wake_ms, late_ms},
        wake_ms=round(WAKE_MS + slack_ms, 1) if wake_ms is None else wake_ms,
        late_ms=round(LATE_MS + slack_ms, 1) if late_ms is None else late_ms,
    )
