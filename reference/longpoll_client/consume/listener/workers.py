"""The threads that run a listener, and how its result, error or time-out is handled.

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

log: logging.Logger = logging.getLogger(__name__)


DISMISSED_S: Final = 1.0
"""How long each thread is waited for that is to end because others could not be started; they have nothing to do."""


class Retry(Exception):  # noqa: N818 - no error, as StopIteration is none
    """Deliver the messages again later; a listener raises or returns it.

    `delay_s` is rounded up to a delay that brokers have: 1, 5, 10, 30 s, 1 to 10, 20, 30 min, 1 or 2 h. None: the
    broker chooses, 10 s the first time and longer each time. An orderly queue waits exactly `delay_s`, or `suspend_s`.
    Raises ConfigError for over two hours.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        super().__init__(delay_s)
        self.delay_s = delay_s
        self.level: int = 0 if delay_s is None else delay_level(delay_s)


class Reject(Exception):  # noqa: N818 - likewise
    """Make the messages dead letters now; a listener raises or returns it."""

    level: Final = DEAD_LEVEL


ConsumeResult: TypeAlias = Retry | Reject | None
"""What becomes of messages; None: they are consumed."""
Listener: TypeAlias = Callable[[Sequence[ReceivedMessage]], object]
"""Runs on several threads at once, unless the consumer is orderly: then on one at a time for each queue."""


class CaughtError:
    """Catches every error of a user's function, which must end neither the thread nor the message."""

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


def call_listener(listener: Listener, messages: Sequence[ReceivedMessage], group: str) -> ConsumeResult:
    """Call the listener; its result. After an error the messages come again."""
    first = messages[0]  # The listener may do with the list what it likes.
    # Without `CaughtError`, which costs as much as the call of a listener, for this is done for every message.
    try:
        answer = listener(messages)
        return None if answer is None else read_result(answer)
    except (Retry, Reject) as answer:
        return answer
    except ANYTHING as error:
        log.warning("the listener of group %s raised at %s: %r; it comes again later", group, place_of(first), error)
        return Retry()


def read_result(answer: object) -> ConsumeResult:
    """A listener's return value as a result; raises TypeError for a coroutine, which is never awaited."""
    if isinstance(answer, Retry | Reject):
        return answer
    if answer is Retry or answer is Reject:
        return Retry() if answer is Retry else Reject()
    if isinstance(answer, Awaitable):
        raise TypeError(f"it returned {answer!r}, which is never awaited here")
    return None


def place_of(message: ReceivedMessage) -> str:
    """The message's place, for the log."""
    return f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"


class DirectListener:
    """Gives a listener single messages that a broker wants consumed (309), on its own threads."""

    def __init__(self, workers: Workers, listener: Listener, group: str) -> None:
        self._workers = workers
        self._listener = listener
        self._group = group

    def give(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Call the listener, and then `then` with whether the message is consumed. Never after the workers stop."""
        self._workers.submit(lambda: then(call_listener(self._listener, [message], self._group) is None))


class Workers:
    """Threads that run tasks.

    One idle thread at a time is woken. It wakes the next one if more tasks wait. If tasks are quick, few threads do
    them all, because a wake-up costs more than such a task.

    Invariant, under `_changed`: while there are tasks and idle threads, one thread is being woken (`_is_waking`).
    """

    def __init__(self, runtime: Runtime, group: str, count: int) -> None:
        self._runtime = runtime
        self._group = group
        self._count = count
        self._changed = runtime.condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle_count = 0
        self._is_waking = False
        self.is_stopping: bool = False
        """Whether tasks that run are to end soon."""
        self._life = 0
        """Of which threads that were started together are to go on: those of another one end without a task."""
        self._threads: list[Thread] = []
        self._stopper: Thread | None = None
        """The thread whose task has called `stop`."""
        self._then: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the threads, unless the workers are stopping. No thread takes a task before all are started.

        Raises a ClientError; then call `dismiss`.
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
        """End the started threads when their tasks end: the start has failed, and may be tried again."""
        with self._changed:
            self._life += 1
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            thread.join(DISMISSED_S)

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on a thread; ignored after the stop."""
        self.submit_all((task,))

    def submit_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks on threads, in this order; ignored after the stop."""
        with self._changed:
            assert len(self._tasks) + len(tasks) <= DELIVERY_CAPACITY, "flow control let more than the capacity through"
            self._tasks += tasks
            self._wake()

    def _wake(self) -> None:
        """Wake a thread if there is a task for it and none is being woken."""
        if self._tasks and self._idle_count and not self._is_waking:
            self._is_waking = True
            self._changed.notify()

    def _take(self, life: int) -> Callable[[], None]:
        """Wait for the next task; `_nothing` for a thread of an earlier start."""
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
        """Wait for running tasks, at most `timeout_s`, drop the others, and call `then`.

        In a task, this returns at once, and the rest happens on its thread when the task has ended.
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
