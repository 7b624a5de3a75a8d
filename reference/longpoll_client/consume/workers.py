"""Threads that run a listener, and what becomes of one that raises, hangs, or answers.

Leaves out which messages a listener gets and when (`concurrent`, `orderly`).

Source: `ConsumeMessageConcurrentlyService.java`, `ConsumeMessageOrderlyService.java`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeAlias

from longpoll_client.checks import delay_level
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import DEAD_LEVEL, DELIVERY_CAPACITY
from longpoll_client.timer import started
from longpoll_runtime import Runtime, Thread
from longpoll_runtime.recoverable import ANYTHING, KeepThread

log = logging.getLogger(__name__)


DISMISSED_S: Final = 1.0
"""How long each thread is waited for that is to end because others could not be started; they have nothing to do."""


class Retry(Exception):  # noqa: N818 - no error, as StopIteration is none
    """Have the messages again later; a listener raises or returns it.

    `delay_s` is rounded up to a delay that brokers have: 1, 5, 10, 30 s, 1 to 10, 20, 30 min, 1 or 2 h. None: the
    broker chooses, 10 s the first time and longer each time. An orderly listener waits where it is, exactly so long, or
    `suspend_s`. Raises ConfigError for over two hours.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        super().__init__(delay_s)
        self.delay_s = delay_s
        self.level = 0 if delay_s is None else delay_level(delay_s)


class Reject(Exception):  # noqa: N818 - likewise
    """Make the messages dead letters now; a listener raises or returns it."""

    level: Final = DEAD_LEVEL


Answer: TypeAlias = Retry | Reject | None
"""What becomes of messages; None: they are consumed."""
Listener: TypeAlias = Callable[[Sequence[ReceivedMessage]], object]
"""Runs on several threads at once, unless the consumer is orderly: then on one at a time for each queue."""


class Keeping:
    """Keeps whatever the user's listener raises: it must cost neither the thread nor the message."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            self.error = error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}")
        return error is not None


def ask_listener(listener: Listener, messages: Sequence[ReceivedMessage], group: str) -> Answer:
    """What becomes of the messages; of a listener that raises, they come again later."""
    first = messages[0]  # The listener may do with the list what it likes.
    # Without `Keeping`, which costs as much as the call of a listener, for this is done for every message.
    try:
        answer = listener(messages)
        return None if answer is None else read_answer(answer)
    except (Retry, Reject) as answer:
        return answer
    except ANYTHING as error:
        log.warning("the listener of group %s raised at %s: %r; it comes again later", group, place_of(first), error)
        return Retry()


def read_answer(answer: object) -> Answer:
    """What a listener that returned this wants; raises TypeError for a coroutine, which nobody awaits."""
    if isinstance(answer, Retry | Reject):
        return answer
    if answer is Retry or answer is Reject:
        return Retry() if answer is Retry else Reject()
    if isinstance(answer, Awaitable):
        raise TypeError(f"it returned {answer!r}, which is never awaited here")
    return None


def place_of(message: ReceivedMessage) -> str:
    """Where it is, for people."""
    return f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"


class DirectListener:
    """Gives a listener one message at an administrator's wish (309), on the threads that run it anyway."""

    def __init__(self, workers: Workers, listener: Listener, group: str) -> None:
        self._workers = workers
        self._listener = listener
        self._group = group

    def give(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Ask the listener, and tell `then` whether the message is consumed; never once the workers stop."""
        self._workers.submit(lambda: then(ask_listener(self._listener, [message], self._group) is None))


class Workers:
    """A number of threads that run tasks in turn.

    One idle thread at a time is woken, and wakes the next when it has taken its task and there are more: where tasks
    are quick few threads do them all, for waking one costs more than such a task.

    Invariant, under `_changed`: while there are tasks and idle threads, one of these is being woken (`_is_waking`).
    """

    def __init__(self, runtime: Runtime, group: str, count: int) -> None:
        self._runtime = runtime
        self._group = group
        self._count = count
        self._changed = runtime.condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle_count = 0
        self._is_waking = False
        self.is_stopping = False
        """Whether tasks that run are to end soon."""
        self._life = 0
        """Of which threads that were started together are to go on: those of another one end without a task."""
        self._threads: list[Thread] = []
        self._stopper: Thread | None = None
        """The thread whose task has called `stop`."""
        self._then: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the threads, unless the workers stop already; raises a ClientError, and then `dismiss` is to be called.

        None takes a task before all are started.
        """
        with self._changed:
            assert not self._threads, "they are started already"
            if self.is_stopping:
                return
            run = partial(self._run, self._life)
            try:
                for number in range(self._count):
                    self._threads.append(started(self._runtime, f"listener-{self._group}-{number}", run))
            except ANYTHING:
                # No thread, or Ctrl-C.
                self._life += 1
                raise

    def dismiss(self) -> None:
        """End what was started, as soon as it has no task in hand: the start has failed, and may be tried again."""
        with self._changed:
            self._life += 1
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            thread.join(DISMISSED_S)

    def submit(self, task: Callable[[], None]) -> None:
        """Have a thread run it; nothing happens once the workers stop."""
        self.submit_all((task,))

    def submit_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Have each run by a thread, in this order; nothing happens once the workers stop."""
        with self._changed:
            assert len(self._tasks) + len(tasks) <= DELIVERY_CAPACITY, "flow control let more than the capacity through"
            self._tasks += tasks
            self._wake()

    def _wake(self) -> None:
        """Wake a thread if there is something for it to do, and none is being woken already."""
        if self._tasks and self._idle_count and not self._is_waking:
            self._is_waking = True
            self._changed.notify()

    def _take(self, life: int) -> Callable[[], None]:
        """The next task, as soon as there is one; none but `_nothing` for a thread of another life."""
        with self._changed:
            while life == self._life and not self._tasks:
                self._idle_count += 1
                self._changed.wait()
                self._idle_count -= 1
                self._is_waking = False
            if life != self._life:
                return _nothing
            task = self._tasks.popleft()
            self._wake()
            return task

    def stop(self, timeout_s: float, then: Callable[[], None]) -> None:
        """Let running tasks end, for `timeout_s` at most, drop those that wait, and call `then`.

        Called by a task, this returns at once, and the rest is done on its thread when the task has ended.
        """
        with self._changed:
            self.is_stopping = True
            self._tasks += [_nothing] * len(self._threads)
            self._wake()
        self._stopper = next((thread for thread in self._threads if thread.is_current()), None)
        self._then = lambda: self._end(timeout_s, then)
        if self._stopper is None:
            self._then()

    def _end(self, timeout_s: float, then: Callable[[], None]) -> None:
        deadline_ns = self._runtime.monotonic_ns() + int(timeout_s * 1e9)
        others = [thread for thread in self._threads if thread is not self._stopper]
        for thread in others:
            thread.join(max(0.0, (deadline_ns - self._runtime.monotonic_ns()) / 1e9))
        left = sum(thread.is_alive() for thread in others)
        if left:
            log.warning(
                "%d listeners of group %s still run after %g s and are left behind; their messages come again",
                left,
                self._group,
                timeout_s,
            )
        then()

    def _run(self, life: int) -> None:
        failed = f"a listener's thread of group {self._group} failed at its task"
        while not self.is_stopping and life == self._life:
            task = self._take(life)
            if not self.is_stopping:
                with KeepThread(log, failed):
                    task()
        if self._stopper is not None and self._stopper.is_current():
            with KeepThread(log, f"closing the consumer of group {self._group} failed"):
                self._then()


def _nothing() -> None:
    """Has a thread that waits for a task look whether it is to end."""
