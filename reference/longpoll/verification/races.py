"""Makes the report's row about the race: whether each held pull is answered in the time that the policy promises.

A lost wakeup that the policy permits is counted; it is a violation only if the answer comes later than the policy's
scan. Host pauses are subtracted. The load is `longpoll.wire.race`; the policy's promises are in `limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from longpoll.verification.broker_process import HostLatency
from longpoll.verification.limits import Declared, Limits, limits_of
from longpoll.verification.report import Outcome
from longpoll.wire.load import LONG_MS
from longpoll.wire.race import QUEUE_IDS, Delivery, RacePlan, RaceReport, RaceTopic, prepare, race
from longpoll_judge.contract.result import NO_LOST_WAKEUP
from longpoll_runtime import Address, Runtime

WHAT: Final = "races over the wire"
DELIVERIES_MIN: Final = 500
"""A race with fewer deliveries shows nothing."""
LATE_MS: Final = 50.0
"""Deliveries later than this are recorded, because the real limits are known only after the race."""
OTHERS: Final = 2
"""If the broker made this many deliveries per queue during a delay, it served other pulls and forgot the delayed pull.
"""
ALONE_MS: Final = 1_000.0
"""A delay that exceeds the limit by more than this counts even if no other pulls were served meanwhile."""
UNHELD_SHARE: Final = 0.1
"""If the broker answers more than this share of the pulls at once, the race does not show that it wakes any."""
PATIENCE_MS: Final = 2_000.0
"""The race waits this much longer than the limits for an answer, so that the row can give its time."""


@frozen
class Told:
    """The result of a race under a policy."""

    outcome: Outcome
    detail: str
    is_declared: bool = False
    """Whether some answers were late, as the policy permits."""


def races(
    runtime: Runtime,
    address: Address,
    topic: str,
    seconds: float,
    progress: Callable[[int, int], None],
    *,
    known: Declared,
    limits: Limits | None = None,
    process_id: int | None = None,
    seed: int = 0,
) -> Told:
    """Run a race for `seconds`. Without `limits`, the host's latency during the race sets the limit for a wakeup.

    `topic` must be new to the broker, whose process is `process_id` if known. Raises ClientError if the broker does not
    answer at all, and OSError if the broker cannot be reached.
    """
    with HostLatency(runtime, address, topic) as echo:
        found = prepare(runtime, address, topic, QUEUE_IDS)
        patience_ms = known.most.wake_ms + (limits or limits_of(echo.worst_ms)).wake_ms + PATIENCE_MS
        report = race(
            address,
            RacePlan(topic, seconds, hold_ms=LONG_MS, late_ms=LATE_MS, patience_ms=patience_ms, seed=seed),
            lambda done_s: progress(min(round(1000 * done_s), round(1000 * seconds)), round(1000 * seconds)),
            queues=found.first_offsets,
            process_id=process_id,
        )
    return told(report, found, known, limits or limits_of(echo.worst_ms))


def told(report: RaceReport, topic: RaceTopic, known: Declared, limits: Limits) -> Told:
    """Evaluate a race's report under a policy."""
    others = OTHERS * len(topic.first_offsets)
    late = forgotten(report, limits.wake_ms, others)
    most_ms = round(limits.wake_ms + known.most.wake_ms, 1)
    beyond = forgotten(report, most_ms, others)
    detail = f"{report.delivered_count:,} deliveries raced on {topic}; {_late(late, report, limits.wake_ms)}"
    is_declared = bool(known.most.wake_ms and late)
    if is_declared:
        detail += f", as the policy declares ({known.name_of(NO_LOST_WAKEUP)}): within {most_ms:g} ms"
    if beyond:
        return Told("violated", f"{detail}; {len(beyond)} later than promised, the first: {beyond[0]}")
    doubt = _doubt(report, known, limits)
    return Told("unknown", f"{detail}; {doubt}") if doubt else Told("ok", detail, is_declared)


def forgotten(report: RaceReport, limit_ms: float, others: int) -> list[Delivery]:
    """Return the deliveries that exceed the limit without host pauses, while the broker served other pulls.

    A delivery far above the limit (`ALONE_MS`) counts even if the broker served no other pulls.
    """
    return [
        one
        for one in report.late
        if one.own_ms > limit_ms and (one.overtaken_count >= others or one.own_ms > limit_ms + ALONE_MS)
    ]


def _late(late: Sequence[Delivery], report: RaceReport, limit_ms: float) -> str:
    if not late:
        return f"none over {limit_ms:g} ms late"
    rate = 1e6 * len(late) / max(1, report.delivered_count + len(late))
    latest = max(one.delay_ms for one in late)
    return f"{len(late):,} over {limit_ms:g} ms late ({rate:,.0f} of a million), the latest by {latest:,.0f} ms"


def _doubt(report: RaceReport, known: Declared, limits: Limits) -> str | None:
    """Say why a race without a violation does not show that the broker keeps the policy; None if the race shows it."""
    if report.trouble is not None:
        return f"ended early: {report.trouble}"
    if report.delivered_count < DELIVERIES_MIN:
        return f"fewer than {DELIVERIES_MIN} deliveries are too few; increase --race-seconds"
    if report.unheld_count > UNHELD_SHARE * report.delivered_count:
        return (
            f"the broker answered {report.unheld_count:,} pulls at once instead of holding them; it can lose no wakeup"
        )
    if limits.are_coarse and not known.most.wake_ms:
        return "the host was too slow to measure promptness; run it again on an idle host"
    return None
