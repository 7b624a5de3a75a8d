"""A loop that sleeps is woken by what another thread asks of it, and so are a queue's takers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import pytest
from attrs import define

from longpoll_broker.service.io.channel import Limits
from longpoll_broker.service.io.transport import IoLoop
from longpoll_broker.testing.raw_client import PATIENCE_S
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.threads import RealQueue

LIMITS: Final = Limits(1 << 20, 1 << 20, 10, 1000)
ASKED: Final[dict[str, Callable[[IoLoop], None]]] = {
    "close": lambda loop: loop.close_soon(cast("Any", object())),
    "adopt": lambda loop: loop.adopt_soon(cast("Any", object())),
}


@define
class Bell:
    """A poller that counts how often it was woken."""

    rung: int = 0

    def wake(self) -> None:
        """Once more."""
        self.rung += 1


@pytest.mark.parametrize("asked", ASKED)
def test_a_loop_is_woken_by_what_another_thread_asks(asked: str) -> None:
    """Or it would come to it when something else happens, ten seconds later at the latest."""
    loop = IoLoop(RealRuntime(), "loop", LIMITS, pass_ended=lambda _outbox: None)
    loop.poller.close()
    bell = Bell()
    loop.poller = cast("Any", bell)
    ASKED[asked](loop)

    assert bell.rung == 1


class Told:
    """A bell that tells when a thread waits for it."""

    def __init__(self, bell: threading.Lock) -> None:
        self._bell = bell
        self.locked, self.release = bell.locked, bell.release
        self.is_waited_for = threading.Event()

    def acquire(self, *, timeout: float) -> bool:
        """See `threading.Lock`."""
        self.is_waited_for.set()
        return self._bell.acquire(timeout=timeout)


def waiting(queue: RealQueue[int], timeout_s: float | None) -> tuple[threading.Thread, list[int | None]]:
    """A thread that waits for the queue, and what it will have taken."""
    bell = Told(queue._bell)
    queue._bell = cast("Any", bell)
    taken: list[int | None] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take(timeout_s)), daemon=True)
    taker.start()
    assert bell.is_waited_for.wait(PATIENCE_S)
    return taker, taken


def test_who_waits_for_a_queue_without_an_end_is_woken() -> None:
    """Nobody else would wake it."""
    queue = RealQueue[int](1)
    taker, taken = waiting(queue, None)
    queue.offer(7)
    taker.join(PATIENCE_S)

    assert taken == [7]


def test_who_finds_its_item_taken_when_its_time_is_over_waits_no_longer() -> None:
    """`SimpleQueue.get` does, for ever: it takes the time that is left, which is less than none, for no limit."""
    queue, interval_s = RealQueue[int](1), sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)  # who is woken below runs when this thread waits for it, and not before
    try:
        taker, taken = waiting(queue, 0.2)
        end_s = time.monotonic() + 0.3
        assert queue.offer(7)
        assert queue.take_if(bool) == 7
        while time.monotonic() < end_s:
            pass
        taker.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval_s)

    assert taken == [None]
