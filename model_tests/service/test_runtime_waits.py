"""Flags and queues that threads wait for: nobody is woken for nothing, and nobody is forgotten."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from longpoll_broker.testing.brokers import wait_until
from longpoll_runtime.threads import RealEvent, RealQueue

PATIENCE_S = 10.0


def beside(work: Callable[[], object]) -> threading.Thread:
    """On a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_flag_wakes_everybody_who_waits_for_it() -> None:
    """And is up until it is lowered; who does not get it in time is told, and leaves nothing."""
    flag, woken = RealEvent(), list[bool]()
    threads = [beside(lambda: woken.append(flag.wait(PATIENCE_S))) for _number in range(5)]
    wait_until(lambda: len(flag._waiting) == 5)
    flag.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 5
    assert (flag.is_set(), flag.wait(0.0), flag.wait()) == (True, True, True)
    flag.clear()
    assert (flag.is_set(), flag.wait(0.0), flag.wait(-1.0), flag.wait(0.001)) == (False,) * 4
    assert len(flag._waiting) == 0


class Meeting(deque[Any]):
    """Those who wait for a flag that is set just before the first of them is among them."""

    flag: RealEvent

    def append(self, lock: Any) -> None:
        """Too late to be woken."""
        self.flag.set()
        super().append(lock)


def test_a_flag_that_is_set_while_one_begins_to_wait_is_seen() -> None:
    """Whoever set it has seen nobody wait."""
    flag = RealEvent()
    flag._waiting = meeting = Meeting()
    meeting.flag = flag
    assert flag.wait(PATIENCE_S)
    assert len(meeting) == 0


def test_every_item_is_taken_once_by_many() -> None:
    """However they meet: none is lost, and none waits while one is there."""
    queue, taken, count = RealQueue[int](7), list[int](), 3000

    def take() -> None:
        while (item := queue.take(PATIENCE_S)) is not None and item >= 0:
            taken.append(item)

    def offer(first: int) -> None:
        for item in range(first, count, 2):
            wait_until(lambda: queue.offer(item))  # noqa: B023 - it is called at once

    takers = [beside(take) for _number in range(4)]
    offering = [beside(lambda first=first: offer(first)) for first in (0, 1)]  # type: ignore[misc]
    for thread in offering:
        thread.join(PATIENCE_S)
    for _taker in takers:
        wait_until(lambda: queue.offer(-1))
    for thread in takers:
        thread.join(PATIENCE_S)
    assert sorted(taken) == list(range(count))
    assert len(queue) == 0


def test_who_gives_up_waiting_leaves_the_item_to_another() -> None:
    """Also one that was woken in the very moment in which its time was over, or that is interrupted."""
    queue, got = RealQueue[int](1), list[int | None]()
    other = beside(lambda: got.append(queue.take(3600.0)))
    wait_until(lambda: len(queue._waiting) == 1)
    # As `take` has it that was woken for an item, and leaves.
    mine = threading.Lock()
    mine.acquire()
    queue._waiting.appendleft(mine)
    assert queue.offer(1)
    assert mine.acquire(timeout=PATIENCE_S)
    assert got == []
    queue._leave(mine)
    wait_until(lambda: got == [1])
    other.join(PATIENCE_S)


def test_nothing_comes_in_time() -> None:
    """And nobody waits any more."""
    queue = RealQueue[int](1)
    assert queue.take(0.001) is None
    assert queue.take(-1.0) is None
    assert len(queue._waiting) == 0
