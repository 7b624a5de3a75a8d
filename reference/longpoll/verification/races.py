"""The row of the races: the broker answers every held pull of the racing load in the time that the policy promises.

A lost wakeup that the policy permits is counted; it is a violation only if the answer comes later than the policy's
scan. Host pauses are subtracted. The load is `longpoll.wire.racing`; the policy's promises are in `.declared`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from longpoll.verification.limits import Declared, Limits
from longpoll.verification.report import Outcome
from longpoll.wire.load import LONG_MS
from longpoll.wire.racing.load import race
from longpoll.wire.racing.plan import QUEUE_IDS, Delivery, RacePlan, RaceReport
from longpoll.wire.racing.topic import RaceTopic, prepare
from longpoll_judge.contract.result import NO_LOST_WAKEUP
from longpoll_runtime import Address, Runtime

WHAT: Final = "races over the wire"
RACE_S: Final = 8.0
"""How long is raced unless told otherwise."""
DELIVERIES_MIN: Final = 500
"""Fewer show nothing."""
LATE_MS: Final = 50.0
"""What the load notes; the limits that count are known when the race is over."""
OTHERS: Final = 2
"""How many deliveries on each queue meanwhile show that others were served while one was forgotten."""
ALONE_MS: Final = 1_000.0
"""How much later one must be that no others overtook: where all stand still, little accuses nobody."""
UNHELD_SHARE: Final = 0.1
"""A broker that holds fewer of the pulls than the rest of this was not seen to wake any."""
PATIENCE_MS: Final = 2_000.0
"""How much later than the limits is waited for an answer, so that the row can say when it came."""


@frozen
class Told:
    """What a race shows of a broker that is held to a policy."""

    outcome: Outcome
    detail: str
    is_declared: bool = False
    """Whether some came late, as the policy declares."""


def races(
    runtime: Runtime,
    address: Address,
    topic: str,
    seconds: float,
    progress: Callable[[int, int], None],
    *,
    known: Declared,
    limits: Callable[[], Limits],
    process_id: int | None = None,
    seed: int = 0,
) -> Told:
    """Race for `seconds`; `limits` tells how late a wake may be, once the race is over.

    `topic` must be new to the broker, which runs as `process_id` where that is known. Raises ClientError when it does
    not answer at all, OSError when it is not there.
    """
    found = prepare(runtime, address, topic, QUEUE_IDS)
    plan = RacePlan(
        topic,
        seconds,
        hold_ms=LONG_MS,
        late_ms=LATE_MS,
        patience_ms=known.most.wake_ms + limits().wake_ms + PATIENCE_MS,
        seed=seed,
    )
    report = race(
        address,
        plan,
        lambda done_s: progress(min(round(1000 * done_s), round(1000 * seconds)), round(1000 * seconds)),
        queues=found.first_offsets,
        process_id=process_id,
    )
    return told(report, found, known, limits())


def told(report: RaceReport, topic: RaceTopic, known: Declared, limits: Limits) -> Told:
    """What a race's report shows of a broker that is held to a policy."""
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
    """The deliveries that are later than a limit without the machine's stalls, while others were served."""
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
    """Why a race in which nothing is wrong shows nothing; None where it does."""
    if report.trouble is not None:
        return f"ended early: {report.trouble}"
    if report.delivered_count < DELIVERIES_MIN:
        return f"fewer than {DELIVERIES_MIN} deliveries are too few; increase --race-seconds"
    if report.unheld_count > UNHELD_SHARE * report.delivered_count:
        return (
            f"the broker answered {report.unheld_count:,} pulls at once instead of holding them; it can lose no wakeup"
        )
    if limits.are_coarse and not known.most.wake_ms:
        return "the host was too slow to measure promptness; set --wake-ms and --late-ms"
    return None
