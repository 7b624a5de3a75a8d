"""When queues and checkpoint are made durable: by time, and by how much has come; and what goes on meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Iterator
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
        self.fails: set[int] = set()
        """The rounds in which queues cannot be flushed."""

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

    def is_set(self) -> bool:
        """Nobody stops between two turns."""
        return False

    def flush_queues_in_turns(self) -> Iterator[None]:
        """Note it."""
        self.flushed_in.append(self.round)
        if self.round in self.fails:
            raise OSError(errno.EIO, "the disk failed")
        yield

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
    rounds = Rounds(growths)
    run(rounds)
    assert rounds.flushed_in == flushed_in


def test_queues_that_could_not_be_flushed_are_tried_again_though_nothing_comes() -> None:
    """With the next turn of all queues, and not twice a second though there is much to do."""
    rounds = Rounds([QUEUES_SIZE, QUEUES_SIZE] + [0] * 3 * QUEUES_EVERY)
    rounds.fails = {1, QUEUES_EVERY}
    run(rounds)
    assert rounds.flushed_in == [1, QUEUES_EVERY, 2 * QUEUES_EVERY]


def run(rounds: Rounds) -> None:
    """All the rounds of a flush service with this store."""
    store: Any = rounds
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), store, tables, 500, {})
    service._stop = store
    service._run()
