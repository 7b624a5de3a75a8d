"""What many wait for is done once, and everybody is told, also where threads are short."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from longpoll_client.errors import ClientError, LifecycleError
from longpoll_client.link.shared_waits import SharedWaits
from longpoll_runtime import Thread
from longpoll_runtime.real import RealRuntime

PATIENCE_S = 10.0


class Told:
    """Keeps what was told, and can be waited for."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []
        self._came = threading.Semaphore(0)

    def __call__(self, outcome: object) -> None:
        """Take it down."""
        self.outcomes.append(outcome)
        self._came.release()

    def wait(self, count: int) -> list[object]:
        """The outcomes, once there are so many as `count` says."""
        for _ in range(count):
            assert self._came.acquire(timeout=PATIENCE_S)
        return self.outcomes


class FewThreads(RealRuntime):
    """Starts only as many threads as `left` says, then refuses as Python does."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread, if there is one left."""
        if not self.left:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        return super().spawn(name, target)


def test_it_is_done_once_and_each_is_told() -> None:
    """Who comes while it is done is told of that one."""
    waits, told, goes_on, done = SharedWaits(RealRuntime(), "waits"), Told(), threading.Event(), list[int]()

    def work() -> int:
        assert goes_on.wait(PATIENCE_S)
        done.append(1)
        return 7

    for _ in range(3):
        waits.wait(("route", "T"), work, told)
    goes_on.set()
    assert told.wait(3) == [7, 7, 7]
    assert done == [1]
    waits.close()


@pytest.mark.parametrize("count", [1, 3])
def test_without_a_thread_each_is_told_at_once_and_later_ones_are_waited_for(count: int) -> None:
    """Nobody waits for work that no thread does."""
    runtime, told = FewThreads(0), Told()
    waits = SharedWaits(runtime, "waits")
    for _ in range(count):
        waits.wait(("route", "T"), lambda: 7, told)
    assert [str(each) for each in told.outcomes] == [
        "nothing can wait for route T: no thread can be started (can't start new thread)"
    ] * count
    runtime.left = 1
    waits.wait(("route", "T"), lambda: 7, told)
    assert told.wait(count + 1)[count] == 7
    waits.close()


def test_one_thread_does_what_no_other_can_be_started_for() -> None:
    """It waits its turn."""
    waits, told, goes_on = SharedWaits(FewThreads(1), "waits"), Told(), threading.Event()
    waits.wait(("route", "T"), lambda: goes_on.wait(PATIENCE_S), told)
    waits.wait(("route", "U"), lambda: 8, told)
    assert told.outcomes == []
    goes_on.set()
    assert told.wait(2) == [True, 8]
    waits.close()


def test_who_waits_when_it_is_closed_is_told() -> None:
    """And who comes later; each with what to know."""
    waits, told, goes_on = SharedWaits(RealRuntime(), "waits"), Told(), threading.Event()
    waits.wait(("route", "T"), lambda: goes_on.wait(PATIENCE_S), told)
    closing = threading.Thread(target=waits.close)
    closing.start()
    assert isinstance(told.wait(1)[0], LifecycleError)
    waits.wait(("route", "T"), lambda: 7, told)
    assert isinstance(told.outcomes[1], ClientError)
    goes_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert len(told.outcomes) == 2
