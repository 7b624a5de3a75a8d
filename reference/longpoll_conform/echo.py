"""The latency of the machine and the network: how long the broker takes for the smallest request, again and again.

A slow answer shows a fault only if the broker answered other requests faster at that time.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from contextlib import closing, suppress
from typing import Final

from longpoll_conform.connection import Address, Connection, Conversation, SilentError
from longpoll_runtime.threads import spawn

PERIOD_S: Final = 0.05
ANSWER_S: Final = 10.0
"""A broker that is silent for longer is not slow: other clauses find it."""
REQUEST: Final = {"code": 30, "extFields": {"topic": "echo", "queueId": "0"}, "body": b""}
"""The end of a queue; any answer counts, also that the topic does not exist."""
SLOW_MS: Final = 250.0
"""An echo that took longer explains an answer that came late, and a step that was sent late."""
COARSE_MS: Final = 1_000.0
"""Beside an echo that took longer, no answer was shown to be prompt."""
TOO_SLOW: Final = "the machine was too slow to tell"
REMEDY: Final = "run it again on an idle machine next to the broker, or this clause alone with --only"


class Echo:
    """Measures until `close`. Invariant: `_took` has each answer's arrival, and how long after its request's time."""

    def __init__(self, broker: Address) -> None:
        """Start to ask."""
        self._broker = broker
        self._took: list[tuple[float, float]] = []
        self._due_s = math.inf
        """The time of the next request, which a busy machine may send later."""
        self._ended = threading.Event()
        self._thread = spawn("conform-echo", self._run)

    def worst_ms(self, since_s: float = 0.0, until_s: float = math.inf) -> float:
        """The longest time in an interval of the monotonic clock, ms; an echo in flight counts as far as it is."""
        open_s = time.monotonic() - self._due_s if self._due_s <= until_s else 0.0
        took = tuple(self._took)
        return 1000 * max(0.0, open_s, *(each for at_s, each in took if at_s >= since_s and at_s - each <= until_s))

    def usual_ms(self) -> float:
        """The median time, ms."""
        return 1000 * statistics.median([0.0, *(took_s for _at_s, took_s in tuple(self._took))])

    def close(self) -> None:
        """End it, and wait for its thread."""
        self._ended.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        # Again after a connection has ended, because a broker may be restarted.
        while not self._ended.wait(PERIOD_S):
            with suppress(SilentError), closing(Connection("echo", self._broker, Conversation())) as line:
                self._due_s = time.monotonic()
                while not self._ended.wait(self._due_s - time.monotonic()):
                    answer = line.wait(line.ask(REQUEST), ANSWER_S)
                    if answer.command is None:
                        break
                    self._took.append((answer.at_s, answer.at_s - self._due_s))
                    self._due_s = time.monotonic() + PERIOD_S
            self._due_s = math.inf


def too_slow(worst_ms: float) -> str:
    """Why a clause was not tested, and what to do."""
    return f"{TOO_SLOW}: the smallest request took {worst_ms:,.0f} ms; {REMEDY}"
