"""Queue locks of orderly groups: one holder, a minute, renewed by asking."""

from __future__ import annotations

import pytest

from longpoll_broker.rocketmq.tables import queue_locks
from longpoll_broker.rocketmq.tables.queue_locks import LIFE_MS, QueueLocks


def test_a_queue_has_one_holder_a_group() -> None:
    """Another client gets what is free, another group everything."""
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1"], 0) == ["q0", "q1"]
    assert locks.lock("G", "b", ["q1", "q2"], 1) == ["q2"]
    assert locks.lock("H", "b", ["q1"], 1) == ["q1"]
    assert locks.lock("G", "a", [], 1) == []


def test_a_lock_dies_when_it_is_not_renewed() -> None:
    """At a minute it still holds; asking again renews it."""
    locks = QueueLocks()
    locks.lock("G", "a", ["q"], 0)
    assert locks.lock("G", "b", ["q"], LIFE_MS) == []
    assert locks.lock("G", "a", ["q"], LIFE_MS) == ["q"]
    assert locks.lock("G", "b", ["q"], LIFE_MS + 1) == []
    assert locks.lock("G", "b", ["q"], 2 * LIFE_MS + 1) == ["q"]


def test_only_the_holder_lets_go() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", ["q"], 0)
    locks.unlock("G", "b", ["q"])
    assert locks.lock("G", "b", ["q"], 0) == []
    locks.unlock("G", "a", ["q", "never"])
    assert locks.lock("G", "b", ["q"], 0) == ["q"]


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over it nobody gets another lock; what is let go counts no more."""
    monkeypatch.setattr(queue_locks, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1", "q2"], 0) == ["q0", "q1"]
    assert locks.lock("H", "a", ["q"], 0) == []
    locks.unlock("G", "a", ["q0"])
    assert locks.lock("H", "a", ["q"], 0) == ["q"]


def test_renewing_takes_no_more_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock counts once, however often its holder asks, and also after another client has taken it over."""
    monkeypatch.setattr(queue_locks, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    for now_ms in (0, 1, 2):
        assert locks.lock("G", "a", ["q0"], now_ms) == ["q0"]
    assert locks.lock("G", "b", ["q0"], LIFE_MS + 3) == ["q0"]
    assert locks.lock("G", "b", ["q1", "q2"], LIFE_MS + 3) == ["q1"]


def test_a_group_that_holds_nothing_is_not_kept() -> None:
    """Names of groups come from clients: asking for nothing, or letting go of everything, leaves nothing behind."""
    locks = QueueLocks()
    locks.lock("G", "a", [], 0)
    assert not locks._holders
    locks.lock("G", "a", ["q0", "q1"], 0)
    locks.unlock("G", "a", ["q0"])
    assert list(locks._holders) == [("G", "q1")]
    locks.unlock("G", "a", ["q1"])
    assert not locks._holders
    assert locks.quota.used == 0


def test_locks_that_were_not_renewed_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of other groups, and of clients that have gone."""
    monkeypatch.setattr(queue_locks, "LOCK_COUNT_MAX", 2)
    locks = QueueLocks()
    assert locks.lock("G", "a", ["q0", "q1"], 0) == ["q0", "q1"]
    assert locks.lock("H", "b", ["q"], LIFE_MS) == []
    assert locks.lock("H", "b", ["q"], LIFE_MS + 1) == ["q"]
