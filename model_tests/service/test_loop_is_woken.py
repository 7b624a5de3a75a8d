"""A loop that sleeps is woken by what another thread asks of it, and so are a queue's takers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
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


class Wakes(SimpleQueue[None]):
    """Tells when a thread that has found nothing waits for one of these."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        """See `SimpleQueue`."""
        self.is_waited_for.set()
        super().get(block, timeout)


def test_who_waits_for_a_queue_without_an_end_is_woken() -> None:
    """Nobody else would wake it."""
    queue = RealQueue[int](1)
    queue._wakes = wakes = Wakes()
    taken: list[int | None] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take()), daemon=True)
    taker.start()
    assert wakes.is_waited_for.wait(PATIENCE_S)
    queue.offer(7)
    taker.join(PATIENCE_S)

    assert taken == [7]
