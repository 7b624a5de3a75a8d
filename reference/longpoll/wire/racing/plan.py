"""The parameters and results of a race. `load` runs it; `longpoll.verification.races` compares it with a policy."""

from __future__ import annotations

from typing import Final

from attrs import frozen

QUEUE_IDS: Final = (*range(56), 63, 64, 65, 126, 127, 128, 254, 255)
"""Beyond the shards of any hold table that is seen: a wake that goes astray for some ids does not for others."""


@frozen
class RacePlan:
    """What to race, and for how long."""

    topic: str
    seconds: float
    queue_count: int = 8
    """Queue ids from 0 on; `queues` of the load wins."""
    gap_ms: float = 1.5
    """How long after its message a pull is written at most, where nothing better is known."""
    hold_ms: int = 15_000
    late_ms: float = 500.0
    """A delivery later than this after its message was acknowledged and its pull was written counts as late."""
    patience_ms: float = 30_000.0
    """One that is later than this is waited for no longer."""
    connection_count: int = 4
    """A message and its pull go over any of them: the same one, or two that other threads of the broker serve."""
    seed: int = 0


@frozen
class Delivery:
    """One late delivery; moments are milliseconds since the race began."""

    queue: int
    offset: int
    delay_ms: float
    """From the later of the acknowledgement and the pull to the answer; so far, where there is none."""
    stalled_ms: float = 0.0
    """How much of the delay the machine, as a control thread saw it, stood still."""
    overtaken_count: int = 0
    """Deliveries on all queues meanwhile: few when everything stood still, many when this one was forgotten."""
    acknowledged_ms: float = 0.0
    asked_ms: float = 0.0
    answered_ms: float | None = None
    """None: it had no answer when it was waited for no longer."""

    @property
    def own_ms(self) -> float:
        """The delay less what the machine stood still."""
        return self.delay_ms - self.stalled_ms

    def __str__(self) -> str:
        answered = "never answered" if self.answered_ms is None else f"answered at {self.answered_ms:,.1f} ms"
        return (
            f"queue {self.queue}, offset {self.offset}: its send acknowledged at {self.acknowledged_ms:,.1f} ms, "
            f"pull asked at {self.asked_ms:,.1f} ms, {answered} ({self.delay_ms:,.1f} ms late, of which the machine "
            f"stood still for {self.stalled_ms:,.1f} ms, {self.overtaken_count:,} others delivered meanwhile)"
        )


@frozen
class RaceReport:
    """What came of a race."""

    delivered_count: int
    late: tuple[Delivery, ...]
    late_ms: float = 0.0
    """What counted as late."""
    trouble: str | None = None
    """What cut the race short: a refusal, a connection that ended, silence."""
    unheld_count: int = 0
    """Pulls that were told of no message long before their time was over: who does not hold loses no wake."""

    @property
    def unexplained(self) -> tuple[Delivery, ...]:
        """The late deliveries that are late even without the machine's stalls."""
        return tuple(one for one in self.late if one.own_ms > self.late_ms)

    def later_than(self, late_ms: float) -> int:
        """How many came later than that, stalls or not."""
        return sum(one.delay_ms > late_ms for one in self.late)
