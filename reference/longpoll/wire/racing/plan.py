"""The parameters and results of a race. `load` runs it; `longpoll.verification.races` compares it with a policy."""

from __future__ import annotations

from typing import Final

from attrs import frozen

QUEUE_IDS: Final = (*range(56), 63, 64, 65, 126, 127, 128, 254, 255)
"""Beyond the shards of any known hold table: a misdirected wake affects only some ids."""


@frozen
class RacePlan:
    """The parameters of a race."""

    topic: str
    seconds: float
    queue_count: int = 8
    """Queue ids from 0 on; `queues` of the load takes precedence."""
    gap_ms: float = 1.5
    """How long after its message a pull is written at most, without a better estimate."""
    hold_ms: int = 15_000
    late_ms: float = 500.0
    """A delivery is late if it comes this long after both the acknowledgement and the pull's write."""
    patience_ms: float = 30_000.0
    """An answer later than this is not awaited any more."""
    connection_count: int = 4
    """A message and its pull use any of them: the same one, or two that different broker threads serve."""
    seed: int = 0


@frozen
class Delivery:
    """One late delivery; times are milliseconds since the start of the race."""

    queue: int
    offset: int
    delay_ms: float
    """From the later of acknowledgement and pull to the answer, or until now."""
    stalled_ms: float = 0.0
    """The host pauses within the delay, as measured by a control thread."""
    overtaken_count: int = 0
    """Deliveries on all queues in the meantime: few during a pause, many if this one was forgotten."""
    acknowledged_ms: float = 0.0
    asked_ms: float = 0.0
    answered_ms: float | None = None
    """None: it had no answer in time."""

    @property
    def own_ms(self) -> float:
        """The delay without host pauses."""
        return self.delay_ms - self.stalled_ms

    def __str__(self) -> str:
        answered = "never answered" if self.answered_ms is None else f"answered at {self.answered_ms:,.1f} ms"
        return (
            f"queue {self.queue}, offset {self.offset}: its send acknowledged at {self.acknowledged_ms:,.1f} ms, "
            f"pull asked at {self.asked_ms:,.1f} ms, {answered} ({self.delay_ms:,.1f} ms late, "
            f"of which the host paused for {self.stalled_ms:,.1f} ms, {self.overtaken_count:,} others delivered)"
        )


@frozen
class RaceReport:
    """The result of a race."""

    delivered_count: int
    late: tuple[Delivery, ...]
    late_ms: float = 0.0
    """The threshold for lateness."""
    trouble: str | None = None
    """What interrupted the race: a rejection, a closed connection, silence."""
    unheld_count: int = 0
    """Pulls answered "no message" long before their time: a broker that does not hold loses no wakeup."""

    @property
    def unexplained(self) -> tuple[Delivery, ...]:
        """The deliveries that are late even without host pauses."""
        return tuple(one for one in self.late if one.own_ms > self.late_ms)

    def later_than(self, late_ms: float) -> int:
        """The number of deliveries later than that, including host pauses."""
        return sum(one.delay_ms > late_ms for one in self.late)
