"""When queues and checkpoint are made durable: by time, and by how much has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from longpoll_broker.service.upkeep.flush_service import QUEUES_EVERY, QUEUES_SIZE, FlushService
from longpoll_runtime.real import RealRuntime


class Rounds:
    """A store that grows by so much before each round, and says in which rounds its queues were flushed."""

    def __init__(self, growths: list[int]) -> None:
        self.growths = growths
        self.log_end = self.flushed_end = 0
        self.round = 0
        self.flushed_in: list[int] = []

    def wait(self, _timeout_s: float) -> bool:
        """Begin the next round; true when there are no more."""
        if self.round == len(self.growths):
            return True
        self.log_end += self.growths[self.round]
        self.round += 1
        return False

    def flush(self) -> None:
        """All of the log."""
        self.flushed_end = self.log_end

    def flush_queues(self) -> None:
        """Note it."""
        self.flushed_in.append(self.round)

    def index(self, _count: int) -> bool:
        """Nothing is left to do."""
        return True


@pytest.mark.parametrize(
    ("growths", "flushed_in"),
    [
        ([1] * 2 * QUEUES_EVERY, [QUEUES_EVERY, 2 * QUEUES_EVERY]),
        ([0] * 2 * QUEUES_EVERY, []),
        ([QUEUES_SIZE, QUEUES_SIZE - 1, 1, 0, QUEUES_SIZE], [1, 3, 5]),
    ],
)
def test_queues_are_flushed_now_and_then_and_when_much_has_come(growths: list[int], flushed_in: list[int]) -> None:
    """So little has to be read again after a crash, however fast messages come."""
    rounds: Any = Rounds(growths)
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), rounds, tables, 500, {})
    service._stop = rounds
    service._run()
    assert rounds.flushed_in == flushed_in
