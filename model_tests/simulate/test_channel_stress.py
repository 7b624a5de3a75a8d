"""A connection that several threads write to, switched between any two bytecodes: its lock is missed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from model_tests.simulate.channel_stress import Stage
from model_tests.simulate.seeds import first_fault

from longpoll_broker.service.io.channel import Channel

SEEDS = 120
SEEDS_LONG = 6_000


def test_a_connection_stands_every_interleaving() -> None:
    """Each answer is sent once, whole, in order, and what is left is watched for."""
    assert first_fault(range(SEEDS), Stage) is None


@pytest.mark.long
def test_a_connection_stands_many_interleavings() -> None:
    """The same fifty times as long."""
    assert first_fault(range(SEEDS, SEEDS_LONG), Stage) is None


def test_planted_a_connection_without_its_lock_does_not() -> None:
    """Two threads send at once."""

    class Unlocked(Stage):
        def __attrs_post_init__(self) -> None:
            super().__attrs_post_init__()
            self.channel._lock = nullcontext()  # type: ignore[assignment]

    found = first_fault(range(SEEDS), Unlocked)
    assert found is not None
    assert found[0] < SEEDS


def test_planted_a_rest_that_is_sent_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that takes a part of a buffer."""

    def careless(self: Channel, pending: object) -> None:
        for parts in list(pending):  # type: ignore[call-overload]
            try:
                self._socket.send(parts)
            except BlockingIOError:
                return
            pending.popleft()  # type: ignore[attr-defined]

    monkeypatch.setattr(Channel, "_send", careless)
    assert first_fault(range(SEEDS), Stage) is not None
