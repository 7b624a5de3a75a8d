"""Chooses brokers that sends avoid for a while, because they were slow or did not answer.

No clock or lock: the owner passes in the time of a monotonic clock. A broker is tried again by a send, not by a probe
(`startDetectorEnable`).

Source: `MQFaultStrategy.java`, `LatencyFaultToleranceImpl.java` 5.x (4.9.7 avoids a broker up to ten minutes, and
ignores which broker the last try went to).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field

from longpoll_protocol.bodies import MessageQueue

MS: Final = 1_000_000
AWAY_MS: Final = ((15_000, 30_000), (5000, 10_000), (3000, 6000), (1800, 5000), (550, 2000))
"""What a send took at least, in milliseconds, and for how many its broker is left alone then (`latencyMax`)."""
LOST_LATENCY_MS: Final = 10_000
"""What a send that failed counts as having taken."""


def away_ms(latency_ms: float) -> int:
    """For how long a broker is stayed away from that took so long."""
    return next((away for least, away in AWAY_MS if latency_ms >= least), 0)


@define(slots=True, eq=False)
class SlowBrokers:
    """The brokers that sends avoid.

    Invariant: `_until_ns` never goes back for a broker. Each change is one step, so threads need no lock: of two
    reports about one broker at the same time, the later one may be lost until its next send.
    """

    _until_ns: dict[str, int] = field(factory=dict)
    _refusing: set[str] = field(factory=set)
    """Brokers whose last send they refused: worse than slow ones."""

    def served(self, broker_name: str, latency_ns: int, now_ns: int) -> None:
        """The broker took a message, or refused one that no broker takes."""
        self._refusing.discard(broker_name)
        self._stay_away(broker_name, away_ms(latency_ns / MS), now_ns)

    def failed(self, broker_name: str, now_ns: int, *, is_refusal: bool) -> None:
        """It did not answer, or refused what another broker might take."""
        if is_refusal:
            self._refusing.add(broker_name)
        else:
            self._refusing.discard(broker_name)
        self._stay_away(broker_name, away_ms(LOST_LATENCY_MS), now_ns)

    def is_available(self, broker_name: str, now_ns: int) -> bool:
        """Whether sends need not stay away from it now."""
        return now_ns >= self._until_ns.get(broker_name, now_ns)

    def preferred(self, queues: Sequence[MessageQueue], avoided: str | None, now_ns: int) -> Sequence[MessageQueue]:
        """The queues of the best brokers, of these in the first line in which there is one, never none of any.

        Available and not the avoided one; not refusing and not the avoided one; all.
        """
        others = [queue for queue in queues if queue.broker_name != avoided]
        available = [queue for queue in others if self.is_available(queue.broker_name, now_ns)]
        return available or [queue for queue in others if queue.broker_name not in self._refusing] or queues

    def _stay_away(self, broker_name: str, duration_ms: int, now_ns: int) -> None:
        if duration_ms:
            self._until_ns[broker_name] = max(self._until_ns.get(broker_name, 0), now_ns + duration_ms * MS)
