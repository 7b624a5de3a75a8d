"""A listener's threads: one idle thread at a time is woken, and all of them come to work."""

from __future__ import annotations

import threading
from functools import partial

from longpoll_client.consume.workers import Workers
from longpoll_runtime.real import RealRuntime

PATIENCE_S = 30.0
COUNT = 6


def test_as_many_tasks_run_at_once_as_there_are_threads() -> None:
    """Each thread that takes a task wakes the next while there are more."""
    met = threading.Barrier(COUNT + 1)

    def meet() -> None:
        met.wait(PATIENCE_S)

    workers = Workers(RealRuntime(), "group", COUNT)
    workers.start()
    for _round in range(3):
        # None of them ends before all have begun, so each thread that takes one has to wake the next.
        workers.submit_all([meet] * COUNT)
        assert met.wait(PATIENCE_S) <= COUNT
    workers.stop(PATIENCE_S, lambda: None)


def test_a_task_is_begun_while_others_hang() -> None:
    """Each task that comes while others hang wakes one more thread."""
    begun, release, done = threading.Semaphore(0), threading.Event(), threading.Event()

    def hang() -> None:
        begun.release()
        release.wait(PATIENCE_S)

    workers = Workers(RealRuntime(), "group", 3)
    workers.start()
    for _number in range(2):
        workers.submit(hang)
        assert begun.acquire(timeout=PATIENCE_S)
    workers.submit(done.set)
    assert done.wait(PATIENCE_S)
    release.set()
    workers.stop(PATIENCE_S, lambda: None)


def test_every_task_is_run_once_however_quick() -> None:
    """No wake-up is lost between threads that take tasks and one that gives them."""
    ran: list[int] = []
    all_ran = threading.Event()
    workers = Workers(RealRuntime(), "group", COUNT)
    workers.start()

    def run(number: int) -> None:
        ran.append(number)
        if len(ran) == 4000:
            all_ran.set()

    for first in range(0, 4000, 100):
        workers.submit_all([partial(run, number) for number in range(first, first + 100)])
    assert all_ran.wait(PATIENCE_S)
    ended = threading.Event()
    workers.stop(PATIENCE_S, ended.set)
    assert ended.is_set()
    assert sorted(ran) == list(range(4000))
