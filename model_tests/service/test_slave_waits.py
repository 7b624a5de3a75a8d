"""Sends that wait for slaves: each is told once, in time, and what is over is not kept."""

from __future__ import annotations

import random

import pytest

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.replication import slave_waits
from longpoll_broker.service.replication.slave_waits import SlaveWait, SlaveWaits


def nobody(is_copied: bool, outbox: Outbox) -> None:
    """Is told nothing."""


def wait(log_end: int, deadline_ns: int) -> SlaveWait:
    return SlaveWait(log_end, deadline_ns, nobody)


@pytest.mark.parametrize("seed", range(20))
def test_each_is_over_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(slave_waits, "SPARE_COUNT", random.Random(seed).choice([0, 3, 1_000]))
    drawn = random.Random(seed)
    waits, plain = SlaveWaits(), list[SlaveWait]()
    now_ns = copied_end = log_end = 0
    for _step in range(300):
        kind = drawn.randrange(4)
        if kind < 2:
            log_end += drawn.randrange(1, 4)
            plain.append(wait(log_end, now_ns + 10))
            assert waits.add(plain[-1])
            continue
        if kind == 2:
            copied_end = drawn.randrange(copied_end, log_end + 1)
            found = waits.take_copied(copied_end)
            due = [each for each in plain if each.log_end <= copied_end]
        else:
            now_ns += drawn.randrange(8)
            found = waits.take_late(now_ns)
            due = [each for each in plain if each.deadline_ns <= now_ns]
        assert sorted(map(id, found)) == sorted(map(id, due))
        plain = [each for each in plain if each not in due]
        assert waits.count == len(plain)
    assert len(waits.take_late(None)) == len(plain)


def test_those_left_come_up_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_waits, "SPARE_COUNT", 0)
    waits, ends = SlaveWaits(), random.Random(7).sample(range(100), 100)
    for deadline_ns, end in enumerate(ends):
        waits.add(wait(end, deadline_ns))
    waits.take_late(60)
    assert len(waits._by_end) == 39
    left = sorted(ends[61:])
    assert [[each.log_end for each in waits.take_copied(end)] for end in left] == [[end] for end in left]


def test_what_is_over_is_not_kept() -> None:
    waits = SlaveWaits()
    for is_late in (False, True):
        assert waits.add(wait(10, 100))
        assert len(waits.take_late(100) if is_late else waits.take_copied(10)) == 1
        assert (len(waits._by_end), len(waits._by_deadline)) == (0, 0)


def test_what_nobody_copies_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave is mute for hours while sends go on: there is always one that waits, and never many."""
    monkeypatch.setattr(slave_waits, "SPARE_COUNT", 10)
    waits = SlaveWaits()
    for number in range(10_000):
        assert waits.add(wait(number, number + 3))
        waits.take_late(number)
        assert 0 < waits.count <= 4
        assert len(waits._by_end) <= 2 * waits.count + 10 + 1
